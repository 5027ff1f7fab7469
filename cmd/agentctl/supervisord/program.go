package supervisord

import (
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/dreamlab-ai/agentinit/internal/signame"
	"github.com/dreamlab-ai/agentinit/schema"
)

// stop writes how a program is stopped.
func (t *table) stop(priority int64) {
	signal, named := t.plain("stopsignal")
	if signal = strings.TrimPrefix(strings.ToUpper(signal), "SIG"); !named {
		signal = "TERM"
	}
	if _, err := signame.Parse(signal); err != nil {
		t.fail("stopsignal", "Linux has no such signal", "write a name such as TERM or QUIT, see signal(7)")
	}
	seconds, timed := t.integer("stopwaitsecs", 0, math.MaxUint32)
	seconds = min(seconds, forever)
	switch {
	case !timed:
		seconds = 10
	case seconds == 0: // supervisord looks at its clock once a second
		seconds = 1
	}
	step := schema.StopStep{Signal: signal, Wait: schema.Duration(seconds * 1e9)}
	switch {
	case signal == "KILL":
		t.c.key("stop", []any{"KILL"})
		seconds = 0
	case named || timed:
		t.c.key("stop", []any{step.String(), "KILL"})
	}
	t.c.waits[priority] = max(t.c.waits[priority], seconds)
	stop, _ := t.boolean("stopasgroup")
	kill, written := t.boolean("killasgroup")
	switch {
	case stop && written && !kill:
		t.fail("killasgroup", "supervisord refuses it together with stopasgroup = true", "drop one of the two")
	case written && !kill:
		t.c.key("kill", "process")
	case t.ends():
		t.c.remark("supervisord does not touch the processes that a program leaves behind, such as a server that goes into")
		t.c.remark("the background. Without this line agentinit kills them when the program ends.")
		if stop || kill {
			t.c.key("kill", "group")
		} else {
			t.c.key("kill", "process")
		}
	case kill && !stop:
		t.c.check("killasgroup without stopasgroup: the stop signal, too, reaches all processes of the program")
	}
}

// ends says whether the program may end at once, as a job or a command that starts a server does.
func (t *table) ends() bool {
	seconds, restart := t.byKey["startsecs"], t.byKey["autorestart"]
	return seconds != nil && seconds.value == "0" && (restart == nil || !slices.Contains([]string{"true", "yes", "on", "1"}, strings.ToLower(restart.value)))
}

// Where the output goes.
const (
	console = "console"
	none    = "none"
	file    = "file"
)

// logFile reads where an output goes. supervisord expands these values twice.
func (t *table) logFile(key string) (to, path string) {
	text, ok := t.text(key)
	if ok {
		text = t.expanded(key, text)
	}
	switch strings.ToLower(text) {
	case "", "auto", "/dev/stdout", "/dev/stderr",
		"/dev/fd/1", "/dev/fd/2", "/proc/self/fd/1", "/proc/self/fd/2", "/proc/1/fd/1", "/proc/1/fd/2":
		return console, ""
	case "none", "off", "/dev/null":
		return none, ""
	case "syslog":
		t.syslog = append(t.syslog, key)
		return none, ""
	}
	if rest, is := strings.CutPrefix(text, "~/"); is { // supervisord asks os.path.expanduser
		return file, "${HOME}/" + rest
	}
	if strings.HasPrefix(text, "~") {
		t.c.check("%s = %s: supervisord replaced the word that begins with ~ by the home directory of that user; write that directory", key, t.byKey[key].value)
	}
	return file, text
}

// toSyslog adds the program to those whose output goes to syslog. A collector gets both streams.
func (t *table) toSyslog(merged bool) {
	of := func(stream string) bool {
		return slices.ContainsFunc(t.syslog, func(key string) bool { return strings.HasPrefix(key, stream) })
	}
	out, errs := of("stdout"), of("stderr") && !merged
	if !out && !errs {
		return
	}
	t.c.syslog = append(t.c.syslog, strings.ToLower(t.program))
	if out != errs && !merged && !t.listener { // an event listener has one stream
		other := map[bool]string{true: "stderr", false: "stdout"}[out]
		t.c.check("%s = %s: %s goes to syslog too, because a collector gets both streams of a program", t.syslog[0], t.byKey[t.syslog[0]].value, other)
	}
}

// rotation reads the limits of a log file.
func (t *table) rotation(stream string) map[string]any {
	limits := map[string]any{}
	key := stream + "_logfile_maxbytes"
	if size, ok := t.plain(key); ok {
		for _, unit := range []string{"K", "M", "G"} { // supervisord means KiB
			if number, is := strings.CutSuffix(strings.ToUpper(size), unit+"B"); is {
				size = strings.TrimSpace(number) + unit + "iB"
			}
		}
		if _, err := schema.ParseSize(size); err != nil {
			t.fail(key, "it is no size", "write a number of bytes, or a number with KB, MB or GB")
		}
		limits["max_bytes"] = size
	}
	if n, ok := t.integer(stream+"_logfile_backups", 0, math.MaxInt32); ok {
		limits["backups"] = min(n, 10000)
	}
	return limits
}

// logs writes where the output goes.
func (t *table) logs(name string) {
	merged, _ := t.boolean("redirect_stderr")
	to, path := t.logFile("stdout_logfile")
	limits := t.rotation("stdout")
	errTo, errPath := t.logFile("stderr_logfile")
	errLimits := t.rotation("stderr")
	if t.listener { // standard output is a connection
		to, path, limits = errTo, errPath, errLimits
	}
	for _, key := range []string{"stdout_syslog", "stderr_syslog"} {
		if on, _ := t.boolean(key); on {
			t.syslog = append(t.syslog, key)
		}
	}
	t.toSyslog(merged)
	logs := map[string]any{}
	if to == file {
		logs["path"] = written(t.own(path, name))
	}
	unset := t.byKey["stderr_logfile"] == nil
	switch {
	case merged || errPath != "" && errPath == path || unset && to != none: // stderr goes where stdout goes
	case errTo == file && to == none:
		t.c.check("stdout goes to the console: it cannot be dropped while stderr goes to a file")
		to = console
		fallthrough
	case errTo == file:
		logs["stderr_path"] = written(t.own(errPath, name))
		if to == console {
			limits = errLimits
		} else if !maps.Equal(limits, errLimits) && len(errLimits) > 0 {
			t.c.check("stderr_logfile_maxbytes and _backups: the limits of stdout hold for both files")
		}
	case errTo != to && !unset:
		t.c.check("stderr_logfile = %s: stderr goes where stdout goes", t.byKey["stderr_logfile"].value)
	}
	if to == none {
		logs["to"] = "none"
	}
	if len(logs) == 0 {
		return
	}
	if to == file || logs["stderr_path"] != nil {
		maps.Copy(logs, limits)
	}
	t.c.key("logs", logs)
}

// own is the path of a log file that no other program writes, and no other instance: agentinit
// refuses to rotate a file of two writers (E109).
func (t *table) own(path, name string) string {
	if t.numprocs > 1 && !strings.Contains(path, "${INSTANCE}") {
		t.c.check("each instance has a log file of its own, because two cannot write one: %s-${INSTANCE}", written(path))
		path += "-${INSTANCE}"
	}
	if other, taken := t.c.logFiles[path]; taken {
		t.c.check("the program %s writes %s, and two programs cannot write one file: the name is added", other, written(path))
		path += "-" + name
	}
	t.c.logFiles[path] = name
	return path
}

// names writes how the names of processes differ.
func (t *table) names(name, lower string) {
	if _, ok := t.raw("process_name"); t.numprocs > 1 {
		t.c.check("the processes are %s:0 to %s:%d, whatever process_name says", lower, lower, t.numprocs-1)
	} else if process, _ := t.text("process_name"); ok && process != name {
		t.c.check("process_name = %s: the program is %s", t.byKey["process_name"].value, lower)
	}
}

// levels are the log levels of supervisord that have another name here.
var levels = map[string]string{"critical": "error", "blather": "trace"}

// box writes what holds for all programs.
func (c *converter) box(t *table) error {
	c.remark("Made by agentctl import supervisord. Comments that begin with CHECK are about things that have no equal.")
	c.header("supervisor")
	if len(c.waits) > 1 {
		c.remark("supervisord starts all programs at once, in the order of their priorities. Without this line,")
		c.remark("the programs of each priority wait until those of the priority before have started, and are ready if they have the key ready.")
		c.key("barrier", "none")
	}
	var span int64
	for _, seconds := range c.waits {
		span += seconds
	}
	const usual, reserve = 25, 2 // stop_grace, and what of it is kept for KILL
	if span = min(span+reserve, 1e9); span > usual {
		c.remark("The programs may take so long to stop; the container engine must wait longer than that.")
		c.key("stop_grace", schema.Duration(span*1e9).String())
	}
	if level, ok := t.plain("loglevel"); ok {
		level = strings.ToLower(level)
		if other := levels[level]; other != "" {
			level = other
		}
		if !slices.Contains([]string{"trace", "debug", "info", "warn", "error"}, level) {
			t.fail("loglevel", "it is not known", "write critical, error, warn, info, debug, trace or blather")
		}
		c.header("supervisor", "log")
		c.key("level", level)
	}
	if len(c.syslog) > 0 {
		c.header("supervisor", "log", "forward", "syslog")
		c.key("type", "syslog")
		c.key("url", "unix:///dev/log")
		c.key("programs", c.syslog)
	}
	c.header("supervisor", "defaults")
	c.remark("Programs of supervisord inherit the whole environment. Without this line they inherit no secrets.")
	c.key("pass_environment", "all")
	c.remark("supervisord gives up after a first failed start and three more, and restarts what ran without a limit.")
	c.key("start_retries", int64(3))
	c.key("restart_limit", map[string]any{"count": int64(0)})
	c.remark("In supervisord, standard input is a pipe that stays open. Without this line it is empty, and some programs end.")
	c.key("stdin", "pipe")
	t.account()
	if on, _ := t.boolean("strip_ansi"); on {
		c.check("strip_ansi: log files hold what the program wrote")
	}
	if n, ok := t.integer("minprocs", 0, math.MaxInt32); ok && n > 200 {
		c.check("minprocs = %d: the inherited limit holds; if it is lower, write limits.nproc", n)
	}
	files, limited := t.integer("minfds", 0, math.MaxInt32)
	t.rest("logfile", "logfile_maxbytes", "logfile_backups", "pidfile", "nodaemon", "silent", "nocleanup", "childlogdir", "identifier")
	if limited && files > 1024 {
		c.header("supervisor", "defaults", "limits")
		c.check("minfds = %d is the least that supervisord asks for; here it is the limit", files)
		c.key("nofile", files)
	}
	c.writeEnvironment(c.environment, "supervisor", "defaults")
	return t.err
}
