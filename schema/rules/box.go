package rules

import (
	"fmt"
	"slices"
	"strings"

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
			Doc:    "A variable that agentinit itself needs is not set, or is empty. If token_env of a table of supervisor.log.forward names the variable, the requests to the collector have no token. If env of a key of [api.keys] names it, the boot ends with status 73.",
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
			Doc:    "logs has a path, and its to is not \"file\", or a stderr_path with to = \"none\" or tty = true: agentinit does not write this file.",
			Remedy: "Drop to, because a path alone means to = \"file\", or drop the path. A terminal has only stdout: write path."},
		{Code: "W106", Severity: schema.Warning, Check: perProgram(oneWordCommands),
			Doc:    "A command is an array of one word with a blank in it. The whole word is the name of the program, and no such program exists as a rule.",
			Remedy: "Write each argument as a string of its own, or the whole command as one string without the brackets."},
		{Code: "W109", Severity: schema.Warning, Check: perProgram(stopWithoutWait),
			Doc:    "A step of stop has no wait, and the next step is KILL, which agentinit adds if it is missing: the program has no time to obey its signal. Or KILL is not the last step.",
			Remedy: `Write a wait behind the signal, as in stop = ["TERM 10s", "KILL"], and KILL last.`},
		{Code: "W100", Severity: schema.Warning, Check: listenersCollide,
			Doc:    "Two listeners that are on have the same port, defaults included. What E013, E025 and E028 report is not repeated.",
			Remedy: "Give one of them another port."},
		{Code: "W108", Severity: schema.Warning, Check: placesCollide,
			Doc:    "Two entries of ports publish at the same port and address of the host, or one of them takes the port of a listener of agentinit that is published. Container engines refuse the second.",
			Remedy: "Give one of them another port of the host, or another address."},
		{Code: "W111", Severity: schema.Warning, Check: mountsCollide,
			Doc:    "Two entries of volumes name different volumes or paths of the host for one place in the box. The files that agentctl generate writes mount only one of them.",
			Remedy: "Mount one of them at another place, or write the same volume in both."},
		{Code: "E113", Severity: schema.Error, Check: artifactGlobs,
			Doc:    "entry or assets of an artifact has a bracket that is not closed, or ends in a backslash: it matches no file.",
			Remedy: "Close the bracket, or write a backslash before it if it is part of the name."},
		{Code: "W115", Severity: schema.Warning, Check: refusedAtBoot,
			Doc:    "An address, key or limit of [federation], of the slots events and memory, or of observability.otlp_endpoint has a form with which the boot ends with status 64. Values that the box does not use are not checked.",
			Remedy: "Write the form that the message names."},
		{Code: "E100", Severity: schema.Error, Check: ownListenersCollide,
			Doc:    "supervisor.listen and supervisor.metrics_listen have the same port.",
			Remedy: "Give one of them another port; the management listener serves /metrics too."},
	}
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
func matches(d *schema.Document, pattern []string) (out [][]string) {
	path := make([]string, 0, len(pattern))
	var descend func()
	descend = func() {
		if _, ok := d.At(path...); !ok {
			return
		}
		if len(path) == len(pattern) {
			out = append(out, slices.Clone(path))
			return
		}
		names := pattern[len(path):][:1]
		if names[0] == "*" {
			names = d.Keys(path...)
		}
		for _, name := range names {
			path = append(path, name)
			descend()
			path = path[:len(path)-1]
		}
	}
	descend()
	return out
}
