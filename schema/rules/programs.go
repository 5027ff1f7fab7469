package rules

import (
	"errors"
	"io/fs"
	"iter"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	_ "time/tzdata" // schedules name time zones, and a small image has no time zone files

	"github.com/dreamlab-ai/agentinit/internal/rotated"
	"github.com/dreamlab-ai/agentinit/internal/signame"
	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// programTable is one table with program keys: a program, or the defaults.
type programTable struct {
	d          *schema.Document
	isDefaults bool // the table is [supervisor.defaults], and not a complete program
	name       string
	table      map[string]any // as written
	merged     map[string]any // the table merged over [supervisor.defaults]
}

func (p programTable) path(keys ...string) []string {
	if p.isDefaults {
		return append([]string{"supervisor", "defaults"}, keys...)
	}
	return append([]string{"programs", p.name}, keys...)
}

// finding makes a finding about a key below the table.
func (p programTable) finding(message, hint string, keys ...string) schema.Finding {
	path := p.path(keys...)
	return atKeys(p.d, path, schema.Path(path...)+" "+message, hint)
}

func programs(d *schema.Document) iter.Seq[programTable] {
	return func(yield func(programTable) bool) {
		defaults, _ := d.Table("supervisor.defaults")
		if defaults != nil && !yield(programTable{d, true, "", defaults, schema.MergeProgram(defaults)}) {
			return
		}
		for _, p := range d.Programs() {
			if !yield(programTable{d, false, p.Name, p.Own, p.Merged}) {
				return
			}
		}
	}
}

func perProgram(check func(programTable) []schema.Finding) func(*schema.Document, Facts) []schema.Finding {
	return func(d *schema.Document, _ Facts) (out []schema.Finding) {
		for p := range programs(d) {
			out = append(out, check(p)...)
		}
		return out
	}
}

func subtable(t map[string]any, key string) map[string]any {
	s, _ := t[key].(map[string]any)
	return s
}

func fileLogWithoutPath(p programTable) []schema.Finding {
	logs := subtable(p.merged, "logs")
	path, _ := logs["path"].(string)
	if p.isDefaults || logs["to"] != "file" || path != "" {
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
	switch path, _ := logs["stderr_path"].(string); {
	case path == "":
	case to == "none":
		out = append(out, p.finding("has no effect with to = "+schema.Quote(to), "drop to", "logs", "stderr_path"))
	case p.merged["tty"] == true && !p.isDefaults:
		out = append(out, p.finding("has no effect with tty = true", "drop it: what comes through a terminal is all stdout", "logs", "stderr_path"))
	}
	return out
}

// commandKeys are the keys of a program table that hold a command.
var commandKeys = [][]string{
	{"command"}, {"stop_command"}, {"hooks", "pre_start"}, {"hooks", "post_ready"}, {"hooks", "pre_stop"}, {"hooks", "post_exit"},
}

func oneWordCommands(p programTable) (out []schema.Finding) {
	check := func(v any, keys ...string) {
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
		table := p.table
		for _, key := range keys[:len(keys)-1] {
			table = subtable(table, key)
		}
		check(table[keys[len(keys)-1]], keys...)
	}
	for _, key := range []string{"ready", "health"} {
		probeTables(p, key, func(t map[string]any, keys ...string) { check(t["exec"], append(keys, "exec")...) })
	}
	return out
}

func unknownSignals(p programTable) (out []schema.Finding) {
	check := func(text string, keys ...string) {
		step, err := schema.ParseStopStep(text)
		if err != nil {
			return
		}
		if _, err := signame.Parse(step.Signal); err == nil {
			return
		}
		hint := "write a name such as TERM, HUP or USR1, see signal(7)"
		if near, ok := schema.Nearest(step.Signal, signame.All()); ok {
			hint = "did you mean " + schema.Quote(near) + "?"
		}
		written := strings.Fields(text)[0]
		message := "names an unknown signal " + schema.Quote(written)
		if _, err := schema.ParseDuration(written); err == nil {
			message = schema.Quote(written) + " is a wait without a signal"
			hint = "write the wait behind its signal, as in " + schema.Quote("TERM "+written)
		}
		out = append(out, valued(p.finding(message, hint, keys...), written))
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
		if _, err := signame.Parse(step.Signal); err != nil {
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
	case p.isDefaults && !written:
		return nil
	case isSchedule && !written && !p.isDefaults:
		return one(p.finding(`is "schedule" without a schedule`, `write schedule = "0 3 * * *"`, "type"))
	case written && !isSchedule && !p.isDefaults:
		return one(p.finding(`has no effect without type = "schedule"`, `write type = "schedule"`, "schedule"))
	case !written:
		return nil
	}
	if _, err := program.ParseSchedule(text, ""); err != nil {
		f := p.finding("is not a schedule: "+schema.Quote(text)+": "+err.Error(), `five cron fields, "@hourly" or "@every 10m"`, "schedule")
		return one(valued(f, text))
	}
	return nil
}

// neverDue reports a schedule without any time. The cron library looks five years ahead, and these
// five have two leap years.
func neverDue(p programTable) []schema.Finding {
	text, _ := p.merged["schedule"].(string)
	if p.isDefaults || p.merged["type"] != "schedule" {
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
	_, err := program.LoadZone(name)
	if file, ok := errors.AsType[*fs.PathError](err); ok {
		return one(valued(p.finding("cannot be read as a time zone: "+file.Error(), "put the file of the zone back, or stop the process that holds the lease", "timezone"), name))
	}
	if err != nil {
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
	for p := range programs(d) {
		logs := subtable(p.merged, "logs")
		if p.isDefaults {
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
			if other, taken := writer[file]; taken && other != p.name {
				out = append(out, p.finding("is the log file of "+schema.Quote(other)+" too", "give each its own", "logs", key))
			}
			writer[file] = p.name
		}
	}
	return out
}

func endlessOneshot(p programTable) []schema.Finding {
	if p.isDefaults || p.merged["type"] != "oneshot" || p.merged["restart"] != "always" {
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
