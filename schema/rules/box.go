package rules

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	_ "time/tzdata" // schedules name time zones, and a small image has no time zone files

	"github.com/dreamlab-ai/agentinit/internal/rotated"
	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// boxRules are the rules about sections that the older manifest does not have. Their numbers start
// at 100.
func boxRules() []Rule {
	return []Rule{
		{Code: "E101", Severity: schema.Error, Check: perProgram(fileLogWithoutPath),
			Doc:    `The logs of a program have to = "file", and no path is given.`,
			Remedy: "Write logs.path."},
		{Code: "E102", Severity: schema.Error, Check: perProgram(unknownSignals),
			Doc:    "stop, stop_signal or health.stack_signal names a signal that Linux does not have.",
			Remedy: "Use a name of signal(7), with or without SIG, RTMIN+n, or a number from 1 to 64."},
		{Code: "E103", Severity: schema.Error, Check: perProgram(badLogPattern),
			Doc:    "ready.log is not a regular expression in RE2 syntax.",
			Remedy: "Correct it; literal strings in single quotes need no doubled backslashes."},
		{Code: "E104", Severity: schema.Error, Check: perProgram(badTimes),
			Doc:    `A schedule is not five cron fields, a word such as @hourly, or @every with a duration; or only one of type = "schedule" and schedule is written; or timezone is not the name of a time zone.`,
			Remedy: `Write both, for example type = "schedule" and schedule = "0 3 * * *"; the zone goes into timezone, as in timezone = "Europe/Berlin".`},
		{Code: "W110", Severity: schema.Warning, Check: perProgram(neverDue),
			Doc:    "The five fields of a schedule name a day that does not exist, such as 30 February: no run ever comes.",
			Remedy: "Correct the day or the month. A job that only agentctl run starts is a oneshot with autostart = false."},
		{Code: "E105", Severity: schema.Error, Check: perProgram(twoStopForms),
			Doc:    "A program has both stop and its short form stop_signal, stop_timeout.",
			Remedy: "Keep one of the two."},
		{Code: "E106", Severity: schema.Error, Check: emptyArtifacts,
			Doc:    "An artifact has none of entry, assets and command: agentinit cannot check it.",
			Remedy: "Give one of the three."},
		{Code: "E107", Severity: schema.Error, Check: sameArtifactTwice,
			Doc:    "Two artifacts have the same id.",
			Remedy: "Give each its own."},
		{Code: "E108", Severity: schema.Error, Check: perProgram(emptyProbes),
			Doc:    "A table of ready or health states no condition: ready takes " + strings.Join(readyConditions, ", ") + "; health takes " + strings.Join(healthConditions, ", ") + ".",
			Remedy: "State one, or remove the table."},
		{Code: "E114", Severity: schema.Error, Check: perProgram(twoReadyDescriptors),
			Doc:    "ready of a program has fd more than once. agentinit reads one such descriptor, so that the program would never be ready.",
			Remedy: "Keep one fd."},
		{Code: "E109", Severity: schema.Error, Check: sharedLogFiles,
			Doc:    "Two programs, or the instances of one, write the same log file: rotation would tear it.",
			Remedy: "Give each its own path; ${INSTANCE} expands."},
		{Code: "E160", Severity: schema.Error, Check: forwardURLs,
			Doc:    "The url of a table of supervisor.log.forward does not go with its type.",
			Remedy: "syslog is sent to unix://, udp://, tcp:// or tls://, the others to http:// or https://."},
		{Code: "E161", Severity: schema.Error, Check: forwardGlobs,
			Doc:    "A pattern in programs of a table of supervisor.log.forward has a bracket that is not closed, or ends in a backslash.",
			Remedy: "Write names of programs, or patterns with *, ? and [a-z]."},
		{Code: "W160", Severity: schema.Warning, Check: forwardIgnored,
			Doc:    `A table of supervisor.log.forward with type = "syslog" has token_env or headers: syslog has neither.`,
			Remedy: "Drop the key. A receiver of syslog cannot ask for a token."},
		{Code: "W161", Severity: schema.Warning, Check: variablesUnset,
			Doc:    "A variable that agentinit itself needs is not set, or is empty: token_env of a table of supervisor.log.forward, whose requests then have no token, or env of a key of [api.keys], without which the boot ends with status 73.",
			Remedy: "Set the variable in the environment of the container."},
		{Code: "E110", Severity: schema.Error, Check: drainEatsBudget,
			Doc:    "supervisor.drain takes all the time that supervisor.stop_grace leaves for a stop. Two seconds of stop_grace, or a fifth of it if it is shorter than ten seconds, are reserved for KILL.",
			Remedy: "Make drain shorter or stop_grace longer."},
		{Code: "E111", Severity: schema.Error, Check: embedderWithoutURL,
			Doc:    `slots.memory.embedder has kind = "http" without a url.`,
			Remedy: "Write the base address of the embedder."},
		{Code: "W102", Severity: schema.Warning, Check: perProgram(endlessOneshot),
			Doc:    `A oneshot has restart = "always": it would run for ever.`,
			Remedy: `Use restart = "on-failure" or type = "service".`},
		{Code: "W103", Severity: schema.Warning, Check: perProgram(secretInText),
			Doc:    "A variable whose name says that it is a secret has its value in the manifest.",
			Remedy: "Take it from the environment: NAME = \"${NAME}\", or from an env_file."},
		{Code: "W105", Severity: schema.Warning, Check: perProgram(pathWithoutFile),
			Doc:    "logs has a path, and its to is not \"file\", or a stderr_path with to = \"none\": nothing is written there.",
			Remedy: "Drop to, because a path alone means to = \"file\", or drop the path."},
		{Code: "W106", Severity: schema.Warning, Check: perProgram(oneWordCommands),
			Doc:    "A command is an array of one word with a blank in it. The whole word is the name of the program, and no such program exists as a rule.",
			Remedy: "Write each argument as a string of its own, or the whole command as one string without the brackets."},
		{Code: "W109", Severity: schema.Warning, Check: perProgram(stopWithoutWait),
			Doc:    "A step of stop is followed by KILL, which ends every ladder, without a wait: the program has no time to obey its signal. Or KILL is not the last step.",
			Remedy: `Write a wait behind the signal, as in stop = ["TERM 10s", "KILL"], and KILL last.`},
		{Code: "W100", Severity: schema.Warning, Check: listenersCollide,
			Doc:    "Two listeners that are on have the same port, defaults included. What E013, E025 and E028 report is not repeated.",
			Remedy: "Give one of them another port."},
		{Code: "W108", Severity: schema.Warning, Check: placesCollide,
			Doc:    "Two entries of ports publish at the same port and address of the host, or one of them takes the port of a listener of agentinit that is published. Container engines refuse the second.",
			Remedy: "Give one of them another port of the host, or another address."},
		{Code: "W111", Severity: schema.Warning, Check: mountsCollide,
			Doc:    "Two entries of volumes name different volumes or paths of the host for one place in the box. Descriptions mount only one of them.",
			Remedy: "Mount one of them at another place, or write the same volume in both."},
		{Code: "E113", Severity: schema.Error, Check: artifactGlobs,
			Doc:    "entry or assets of an artifact has a bracket that is not closed, or ends in a backslash: nothing could match it.",
			Remedy: "Close the bracket, or write a backslash before it if it is part of the name."},
		{Code: "E100", Severity: schema.Error, Check: ownListenersCollide,
			Doc:    "supervisor.listen and supervisor.metrics_listen have the same port.",
			Remedy: "Give one of them another port; the management listener serves /metrics too."},
	}
}

// programTable is one table with program keys: a program, or the defaults.
type programTable struct {
	d      *schema.Document
	keys   []string
	table  map[string]any // as written
	merged map[string]any // the table merged over [supervisor.defaults]
}

func (p programTable) path(keys ...string) []string { return append(slices.Clone(p.keys), keys...) }

// finding makes a finding about a key below the table.
func (p programTable) finding(message, hint string, keys ...string) schema.Finding {
	path := p.path(keys...)
	return atKeys(p.d, path, schema.Path(path...)+" "+message, hint)
}

func programs(d *schema.Document) (out []programTable) {
	defaults, _ := d.Table("supervisor.defaults")
	if defaults != nil {
		out = append(out, programTable{d, []string{"supervisor", "defaults"}, defaults, schema.MergeProgram(defaults)})
	}
	for _, name := range d.Keys("programs") {
		v, _ := d.At("programs", name)
		if t, ok := v.(map[string]any); ok {
			out = append(out, programTable{d, []string{"programs", name}, t, schema.MergeProgram(defaults, t)})
		}
	}
	return out
}

func perProgram(check func(programTable) []schema.Finding) func(*schema.Document, Facts) []schema.Finding {
	return func(d *schema.Document, _ Facts) (out []schema.Finding) {
		for _, p := range programs(d) {
			out = append(out, check(p)...)
		}
		return out
	}
}

// isDefaults reports whether the table is [supervisor.defaults]. Some checks only make sense for a
// complete program.
func (p programTable) isDefaults() bool { return p.keys[0] == "supervisor" }

func subtable(t map[string]any, key string) map[string]any {
	s, _ := t[key].(map[string]any)
	return s
}

func fileLogWithoutPath(p programTable) []schema.Finding {
	logs := subtable(p.merged, "logs")
	path, _ := logs["path"].(string)
	if p.isDefaults() || logs["to"] != "file" || path != "" {
		return nil
	}
	return one(p.finding(`has to = "file" without a path`, `write path = "/var/log/NAME.log"`, "logs"))
}

func pathWithoutFile(p programTable) (out []schema.Finding) {
	logs := subtable(p.table, "logs")
	to, _ := logs["to"].(string)
	if path, _ := logs["path"].(string); path != "" && to != "" && to != "file" {
		out = append(out, p.finding("has no effect with to = "+schema.Quote(to), `drop to: a path means to = "file"`, "logs", "path"))
	}
	if path, _ := logs["stderr_path"].(string); path != "" && to == "none" {
		out = append(out, p.finding("has no effect with to = "+schema.Quote(to), "drop to", "logs", "stderr_path"))
	}
	return out
}

// commandKeys are the keys of a program table that hold a command.
var commandKeys = [][]string{
	{"command"}, {"stop_command"}, {"hooks", "pre_start"}, {"hooks", "post_ready"}, {"hooks", "pre_stop"}, {"hooks", "post_exit"},
}

func oneWordCommands(p programTable) (out []schema.Finding) {
	check := func(keys ...string) {
		v, _ := p.d.At(p.path(keys...)...)
		if t, ok := v.(map[string]any); ok { // a hook in the form of a table
			v, keys = t["command"], append(slices.Clone(keys), "command")
		}
		words, _ := v.([]any)
		if len(words) != 1 {
			return
		}
		word, _ := words[0].(string)
		parts, err := schema.SplitCommand(word)
		if err != nil || len(parts) < 2 {
			return
		}
		// The command line may hold a password and is not repeated.
		out = append(out, p.finding("is one word with a blank, and all of it is taken for the name of the program",
			`write each word in quotes of its own, such as ["sleep", "10"], or drop the brackets`, keys...))
	}
	for _, keys := range commandKeys {
		check(keys...)
	}
	for _, key := range []string{"ready", "health"} {
		probeTables(p, key, func(_ map[string]any, keys ...string) { check(append(keys, "exec")...) })
	}
	return out
}

var signalNames = strings.Fields(`HUP INT QUIT ILL TRAP ABRT IOT BUS FPE KILL USR1 SEGV USR2 PIPE ALRM TERM STKFLT CHLD
	CLD CONT STOP TSTP TTIN TTOU URG XCPU XFSZ VTALRM PROF WINCH IO POLL PWR SYS RTMIN RTMAX`)

// realTimeSignal matches RTMIN+n and RTMAX-n. Linux has 31 of them (signal(7)), and the C library
// reserves some.
var realTimeSignal = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^RT(MIN\+|MAX-)([0-9]|[12][0-9]|30)$`)
})

// KnownSignal reports whether Linux has the signal, given without SIG or by number.
func KnownSignal(name string) bool {
	if n, err := strconv.Atoi(name); err == nil {
		return n >= 1 && n <= 64
	}
	return slices.Contains(signalNames, name) || realTimeSignal().MatchString(name)
}

func unknownSignals(p programTable) (out []schema.Finding) {
	check := func(text string, keys ...string) {
		step, err := schema.ParseStopStep(text)
		if err != nil || KnownSignal(step.Signal) {
			return
		}
		hint := "write a name such as TERM, HUP or USR1, see signal(7)"
		if near, ok := schema.Nearest(step.Signal, signalNames); ok {
			hint = "did you mean " + schema.Quote(near) + "?"
		}
		written := strings.Fields(text)[0]
		out = append(out, valued(p.finding("names an unknown signal "+schema.Quote(written), hint, keys...), written))
	}
	switch stop := p.table["stop"].(type) {
	case string:
		check(stop, "stop")
	case []any:
		for i, e := range stop {
			if text, ok := e.(string); ok {
				check(text, "stop", "["+strconv.Itoa(i)+"]")
			}
		}
	}
	if text, ok := p.table["stop_signal"].(string); ok {
		check(text, "stop_signal")
	}
	probeTables(p, "health", func(t map[string]any, keys ...string) {
		if text, ok := t["stack_signal"].(string); ok {
			check(text, append(keys, "stack_signal")...)
		}
	})
	return out
}

// stopWithoutWait warns of ladders in which KILL comes before a program can obey another signal.
func stopWithoutWait(p programTable) (out []schema.Finding) {
	list, _ := p.table["stop"].([]any)
	if text, ok := p.table["stop"].(string); ok {
		list = []any{text}
	}
	ladder := make(schema.StopLadder, len(list))
	for i, e := range list {
		text, _ := e.(string)
		step, err := schema.ParseStopStep(text)
		if err != nil {
			return nil // E016
		}
		if !KnownSignal(step.Signal) {
			return nil // E102
		}
		ladder[i] = step
	}
	for i, step := range ladder {
		keys := []string{"stop"}
		if _, ok := p.table["stop"].([]any); ok {
			keys = append(keys, "["+strconv.Itoa(i)+"]")
		}
		last := i == len(ladder)-1
		switch {
		case isKill(step) && !last:
			return append(out, p.finding("is "+schema.Quote(step.String())+", which ends the program: the steps after it have no effect", "write KILL last", keys...))
		case !isKill(step) && step.Wait == 0 && (last || isKill(ladder[i+1])):
			out = append(out, p.finding("is "+schema.Quote(step.String())+" without a wait: KILL follows at once", "write how long to wait, such as "+schema.Quote(step.Signal+" 10s"), keys...))
		}
	}
	return out
}

func isKill(s schema.StopStep) bool { return s.Signal == "KILL" || s.Signal == "9" }

// probeTables calls visit for each table of ready or health, with its keys.
func probeTables(p programTable, key string, visit func(t map[string]any, keys ...string)) {
	switch v := p.table[key].(type) {
	case map[string]any:
		visit(v, key)
	case []any:
		for i, e := range v {
			if t, ok := e.(map[string]any); ok {
				visit(t, key, "["+strconv.Itoa(i)+"]")
			}
		}
	}
}

func badLogPattern(p programTable) (out []schema.Finding) {
	probeTables(p, "ready", func(t map[string]any, keys ...string) {
		pattern, ok := t["log"].(string)
		if !ok || strings.Contains(pattern, "${") {
			return
		}
		if _, err := regexp.Compile(pattern); err != nil {
			out = append(out, p.finding("is not a regular expression: "+schema.Quote(err.Error()), "see RE2 syntax", append(keys, "log")...))
		}
	})
	return out
}

func badTimes(p programTable) []schema.Finding { return append(badSchedule(p), badTimezone(p)...) }

// badSchedule refuses time zones inside the expression, because the cron library panics on some of
// them. The key timezone exists for that purpose.
func badSchedule(p programTable) []schema.Finding {
	text, written := p.merged["schedule"].(string)
	isSchedule := p.merged["type"] == "schedule"
	switch {
	case p.isDefaults() && !written:
		return nil
	case isSchedule && !written && !p.isDefaults():
		return one(p.finding(`is "schedule" without a schedule`, `write schedule = "0 3 * * *"`, "type"))
	case written && !isSchedule && !p.isDefaults():
		return one(p.finding(`has no effect without type = "schedule"`, `write type = "schedule"`, "schedule"))
	case !written:
		return nil
	}
	if _, err := program.ParseSchedule(text, ""); err != nil {
		f := p.finding("is not a schedule: "+schema.Quote(err.Error()), `five cron fields, "@hourly" or "@every 10m"`, "schedule")
		return one(valued(f, text))
	}
	return nil
}

// neverDue reports a schedule without any time. The cron library looks five years ahead, and these
// five have two leap years.
func neverDue(p programTable) []schema.Finding {
	text, _ := p.merged["schedule"].(string)
	if p.isDefaults() || p.merged["type"] != "schedule" {
		return nil
	}
	table, err := program.ParseSchedule(text, "")
	if err != nil || !table.Next(time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)).IsZero() {
		return nil // E104, or right
	}
	return one(valued(p.finding("never comes: "+schema.Quote(text)+" names a day that does not exist", "correct the day or the month", "schedule"), text))
}

// badTimezone refuses names that no database of time zones has: a box could not plan the runs.
func badTimezone(p programTable) []schema.Finding {
	name, _ := p.table["timezone"].(string)
	if strings.Contains(name, "${") {
		return nil
	}
	if _, err := time.LoadLocation(name); err != nil {
		return one(valued(p.finding("is not a time zone: "+schema.Quote(name), `an IANA name such as "Europe/Berlin"; empty is the zone of the box`, "timezone"), name))
	}
	return nil
}

func twoStopForms(p programTable) []schema.Finding {
	_, long := p.table["stop"]
	for _, short := range []string{"stop_signal", "stop_timeout"} {
		if _, ok := p.table[short]; ok && long {
			return one(p.finding("does not go with stop", "keep one of the two", short))
		}
	}
	return nil
}

func artifacts(d *schema.Document, visit func(i string, t map[string]any)) {
	list, _ := d.List("artifacts")
	for i, e := range list {
		if t, ok := e.(map[string]any); ok {
			visit("["+strconv.Itoa(i)+"]", t)
		}
	}
}

func emptyArtifacts(d *schema.Document, _ Facts) (out []schema.Finding) {
	artifacts(d, func(i string, t map[string]any) {
		entry, _ := t["entry"].(string)
		assets, _ := t["assets"].([]any)
		command, _ := t["command"].([]any)
		if entry == "" && len(assets) == 0 && len(command) == 0 {
			name := "artifacts" + i // the id may be missing or have a wrong type
			if id, ok := t["id"].(string); ok {
				name = "artifact " + schema.Quote(id)
			}
			out = append(out, atKeys(d, []string{"artifacts", i}, name+" has neither entry, assets nor command", "give one of the three"))
		}
	})
	return out
}

func artifactGlobs(d *schema.Document, _ Facts) (out []schema.Finding) {
	artifacts(d, func(i string, t map[string]any) {
		check := func(v any, keys ...string) {
			pattern, _ := v.(string)
			if _, err := path.Match(pattern, ""); err != nil {
				at := append([]string{"artifacts", i}, keys...)
				out = append(out, valued(atKeys(d, at, schema.Path(at...)+" = "+schema.Quote(pattern)+" is no pattern of paths", "close its bracket with ]"), pattern))
			}
		}
		check(t["entry"], "entry")
		assets, _ := t["assets"].([]any)
		for n, asset := range assets {
			check(asset, "assets", "["+strconv.Itoa(n)+"]")
		}
	})
	return out
}

func sameArtifactTwice(d *schema.Document, _ Facts) (out []schema.Finding) {
	seen := map[string]bool{}
	artifacts(d, func(i string, t map[string]any) {
		id, ok := t["id"].(string)
		if ok && seen[id] {
			out = append(out, atKeys(d, []string{"artifacts", i, "id"}, "a second artifact has the id "+schema.Quote(id), "give each its own"))
		}
		seen[id] = true
	})
	return out
}

var (
	readyConditions  = program.DialectNames(false)
	healthConditions = append(program.DialectNames(true), "watchdog", "no_output", "spinning", "blocked")
)

func emptyProbes(p programTable) (out []schema.Finding) {
	for key, conditions := range map[string][]string{"ready": readyConditions, "health": healthConditions} {
		probeTables(p, key, func(t map[string]any, keys ...string) {
			stated := slices.ContainsFunc(conditions, func(c string) bool { v, ok := t[c]; return ok && v != false })
			if !stated {
				out = append(out, p.finding("states no condition", "state one of "+schema.QuoteList(conditions)+", or remove it", keys...))
			}
		})
	}
	slices.SortFunc(out, schema.Compare)
	return out
}

func twoReadyDescriptors(p programTable) (out []schema.Finding) {
	first := true
	probeTables(p, "ready", func(t map[string]any, keys ...string) {
		if _, written := t["fd"]; !written {
			return
		}
		if !first {
			out = append(out, p.finding("is a second descriptor, and a program has only one for its readiness", "keep one fd", append(keys, "fd")...))
		}
		first = false
	})
	return out
}

func sharedLogFiles(d *schema.Document, _ Facts) (out []schema.Finding) {
	writer := map[string]string{}
	for _, p := range programs(d) {
		logs := subtable(p.merged, "logs")
		if p.isDefaults() {
			continue
		}
		n, _ := p.merged["instances"].(int64)
		for _, key := range []string{"path", "stderr_path"} {
			name, _ := logs[key].(string)
			if name == "" || logs["to"] == "none" || key == "path" && logs["to"] != "file" {
				continue
			}
			if n > 1 && !strings.Contains(name, "${INSTANCE") {
				out = append(out, p.finding("is one file for "+strconv.FormatInt(n, 10)+" instances", "put ${INSTANCE} into the path", "logs", key))
			}
			// The rotation of a log would remove another log that has the name of a rotated file.
			file, _ := rotated.Log(path.Clean(name))
			if other, taken := writer[file]; taken && other != p.keys[1] {
				out = append(out, p.finding("is the log file of "+schema.Quote(other)+" too", "give each its own", "logs", key))
			}
			writer[file] = p.keys[1]
		}
	}
	return out
}

// What a collector of logs can be, apart from syslog, and the schemes of URLs.
var (
	webCollectors = []string{"loki", "otlp", "http"}
	webSchemes    = []string{"http", "https"}
	syslogSchemes = []string{"unix", "udp", "tcp", "tls"}
)

func forwardURLs(d *schema.Document, _ Facts) (out []schema.Finding) {
	forwards := d.Manifest().Supervisor.Log.Forward
	for _, name := range slices.Sorted(maps.Keys(forwards)) {
		f := forwards[name]
		path := []string{"supervisor", "log", "forward", name, "url"}
		scheme, _, _ := strings.Cut(f.URL, "://")
		web := slices.Contains(webSchemes, scheme)
		hint := ""
		switch {
		case f.Type == "syslog" && web:
			hint = "write unix://, udp://, tcp:// or tls://"
		case slices.Contains(webCollectors, f.Type) && slices.Contains(syslogSchemes, scheme):
			hint = "write http:// or https://"
		default: // right, or a type or a URL that is E016 already
			continue
		}
		out = append(out, atKeys(d, path, schema.Path(path...)+" = "+schema.Address(f.URL)+" does not go with type = "+schema.Quote(f.Type), hint))
	}
	return out
}

func forwardGlobs(d *schema.Document, _ Facts) (out []schema.Finding) {
	forwards := d.Manifest().Supervisor.Log.Forward
	for _, name := range slices.Sorted(maps.Keys(forwards)) {
		for _, glob := range forwards[name].Programs {
			if _, err := path.Match(glob, ""); err != nil {
				out = append(out, atKeys(d, []string{"supervisor", "log", "forward", name, "programs"}, schema.Quote(glob)+" is no pattern of names",
					"close its bracket with ], or write the name of a program"))
			}
		}
	}
	return out
}

func forwardIgnored(d *schema.Document, _ Facts) (out []schema.Finding) {
	for _, name := range d.Keys("supervisor", "log", "forward") {
		if d.Manifest().Supervisor.Log.Forward[name].Type != "syslog" {
			continue
		}
		for _, key := range []string{"token_env", "headers"} {
			path := []string{"supervisor", "log", "forward", name, key}
			if _, written := d.At(path...); written {
				out = append(out, atKeys(d, path, schema.Path(path...)+` has no effect with type = "syslog"`, "drop "+key))
			}
		}
	}
	return out
}

// variablesUnset reports the variables from which agentinit itself takes a token or a key.
func variablesUnset(d *schema.Document, f Facts) (out []schema.Finding) {
	check := func(variable string, path ...string) {
		if variable == "" || f.set(variable) {
			return
		}
		if schema.ShownVariable(variable) { // any other text may be the token itself
			variable = "the variable " + variable
		} else {
			variable = "the variable it names"
		}
		out = append(out, atKeys(d, path, schema.Path(path...)+": "+variable+" is not set", "set it in the environment of the container"))
	}
	m := d.Manifest()
	for _, name := range d.Keys("supervisor", "log", "forward") {
		if t := m.Supervisor.Log.Forward[name]; t.Type != "syslog" { // W160
			check(t.TokenEnv, "supervisor", "log", "forward", name, "token_env")
		}
	}
	for _, name := range d.Keys("api", "keys") {
		if k := m.API.Keys[name]; k.File == "" {
			check(k.Env, "api", "keys", name, "env")
		}
	}
	return out
}

func drainEatsBudget(d *schema.Document, _ Facts) []schema.Finding {
	s := d.Manifest().Supervisor
	if s.Drain == 0 || program.StopBudget(s.StopGrace.Std(), s.Drain.Std()) > 0 {
		return nil
	}
	return one(shown(d, "supervisor.drain", fmt.Sprintf("supervisor.drain = %s leaves no time to stop anything within supervisor.stop_grace = %s", s.Drain, s.StopGrace), "make drain shorter or stop_grace longer"))
}

func embedderWithoutURL(d *schema.Document, _ Facts) []schema.Finding {
	const e = "slots.memory.embedder"
	if !d.Is(e+".kind", "http") || d.NonEmpty(e+".url") {
		return nil
	}
	return one(shown(d, e+".kind", e+`.kind = "http" needs `+e+".url", "write the base address of the embedder"))
}

// matches lists the paths of a document that match a pattern with *.
func matches(d *schema.Document, pattern []string) [][]string {
	paths := [][]string{{}}
	for _, part := range pattern {
		var next [][]string
		for _, p := range paths {
			names := []string{part}
			if part == "*" {
				names = d.Keys(p...)
			}
			for _, n := range names {
				path := append(slices.Clone(p), n)
				if _, ok := d.At(path...); ok {
					next = append(next, path)
				}
			}
		}
		paths = next
	}
	return paths
}

func endlessOneshot(p programTable) []schema.Finding {
	if p.isDefaults() || p.merged["type"] != "oneshot" || p.merged["restart"] != "always" {
		return nil
	}
	return one(p.finding(`is a oneshot with restart = "always" and would run for ever`, `use restart = "on-failure"`))
}

func secretInText(p programTable) (out []schema.Finding) {
	env := subtable(p.table, "environment")
	for _, name := range p.d.Keys(p.path("environment")...) {
		v, _ := env[name].(string)
		if v != "" && !strings.Contains(v, "${") && v[0] != '/' && schema.SecretName(name) {
			out = append(out, p.finding("has its value in the manifest", "take it from the environment: "+name+` = "${`+name+`}"`, "environment", name))
		}
	}
	return out
}
