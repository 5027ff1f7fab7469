package supervisord

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/dreamlab-ai/agentinit/internal/escape"
	"github.com/dreamlab-ai/agentinit/schema"
)

// mark begins each comment about something that has no equal in a manifest.
const mark = "# CHECK: "

// Convert returns the manifest of a supervisord.conf, and how many of its comments begin with mark.
// dir is the directory of the file.
func Convert(file, dir string, data []byte, files Files) (manifest []byte, marks int, err error) {
	c := &converter{ini: &ini{byName: map[string]*section{}}, groups: map[string]*group{}, programs: map[string]*section{}, logFiles: map[string]string{}, waits: map[int64]int64{}}
	if err := c.ini.parse(file, dir, data); err != nil {
		return nil, 0, err
	}
	unmatched, err := c.include(files)
	if err != nil {
		return nil, 0, err
	}
	if !slices.ContainsFunc(c.ini.sections, func(s *section) bool { return s.name == "supervisord" || strings.Contains(s.name, "program:") }) {
		return nil, 0, &Error{File: file, Line: 1, Message: "the file has neither [supervisord] nor a [program:NAME]", Hint: "name a supervisord.conf"}
	}
	if err := c.readGroups(); err != nil {
		return nil, 0, err
	}
	s := c.ini.byName["supervisord"]
	if s == nil {
		s = &section{name: "supervisord"}
	}
	box := c.table(s)
	c.environment = box.readEnvironment()
	c.out.WriteByte('\n')
	for _, pattern := range unmatched {
		c.check("no file matches %s of [include] on this machine; if the image has such files, run the import there", pattern)
	}
	for _, s := range c.ini.sections {
		if err := c.convert(s); err != nil {
			return nil, 0, err
		}
	}
	body := c.out.String()
	c.out.Reset()
	if err := c.box(box); err != nil {
		return nil, 0, err
	}
	manifest, bad := schema.Format(file, []byte(c.out.String()+body))
	if bad != nil { // a defect: all values are quoted
		return nil, 0, bad
	}
	return manifest, c.marks, nil
}

type converter struct {
	ini         *ini
	out         strings.Builder
	marks       int
	groups      map[string]*group   // by program
	programs    map[string]*section // by their names in the manifest
	logFiles    map[string]string   // the program that writes each file
	syslog      []any               // programs whose output goes to syslog
	environment map[string]string   // of [supervisord], marked
	waits       map[int64]int64     // how long the programs of each priority may take to stop
}

type group struct {
	name     string
	priority int64
}

// check writes a comment about something that has no equal.
func (c *converter) check(format string, args ...any) {
	c.marks++
	c.out.WriteString(mark + escape.Line(fmt.Sprintf(format, args...), 400) + "\n")
}

func (c *converter) remark(text string) { c.out.WriteString("# " + text + "\n") }

func (c *converter) header(keys ...string) { c.out.WriteString("\n[" + schema.Path(keys...) + "]\n") }

func (c *converter) key(name string, v any) { c.out.WriteString(name + " = " + schema.TOML(v) + "\n") }

func (c *converter) refusal(s *section, e *entry, message, hint string) error {
	err := &Error{File: s.file, Line: s.line, Section: s.name, Message: message, Hint: hint}
	if e != nil {
		err.File, err.Line, err.Key = e.file, e.line, e.key
		if !secret(e.key) {
			err.Value = e.value
		}
	}
	return err
}

// secret tells whether the value of a key can hold secrets.
func secret(key string) bool { return key == "environment" || key == "command" || key == "password" }

// convert writes what a section becomes. That of [supervisord] is written by box.
func (c *converter) convert(s *section) error {
	kind, name, _ := strings.Cut(s.name, ":")
	switch kind {
	case "program":
		return c.program(s, strings.TrimSpace(name))
	case "eventlistener":
		return c.eventListener(s, strings.TrimSpace(name))
	case "supervisord", "include", "supervisorctl":
		return nil
	case "unix_http_server":
		return c.socket(s)
	case "rpcinterface":
		if name == "supervisor" {
			return nil
		}
	}
	c.out.WriteByte('\n')
	switch kind {
	case "group":
		t := c.table(s)
		programs, _ := t.plain("programs")
		c.check("[%s] of %s: there are no groups; give the names of its programs the same beginning, then agentctl restart 'NAME-*' restarts them", s.name, programs)
		return t.err
	case "inet_http_server":
		c.check("[%s] is not converted: [supervisor] console = true is the web console at supervisor.listen", s.name)
		return nil
	case "fcgi-program":
		c.check("[%s] is not converted: agentinit passes no socket to a program; the program must open its socket itself", s.name)
	default:
		c.check("[%s] is not converted: it has no equal", s.name)
	}
	c.quote(s)
	return nil
}

// quote writes the keys of a section that is not converted.
func (c *converter) quote(s *section) {
	for _, e := range s.entries {
		c.remark(escape.Line(e.key+" = "+e.value, 400))
	}
}

// socket names each key that lets users other than root control supervisord.
func (c *converter) socket(s *section) error {
	t := c.table(s)
	for _, x := range []struct {
		key string
		own []string
	}{{"chmod", []string{"0700", "700", "0600", "600"}}, {"chown", []string{"root", "root:root"}}} {
		if value, written := t.plain(x.key); written && !slices.Contains(x.own, value) {
			c.check("%s = %s of [%s]: only root and the user of agentinit may change the box; members of [supervisor] socket_group may read", x.key, value, s.name)
		}
	}
	return t.err
}

// readGroups reads the groups, whose priority takes the place of that of their programs.
func (c *converter) readGroups() error {
	for _, s := range c.ini.sections {
		name, ok := strings.CutPrefix(s.name, "group:")
		if !ok {
			continue
		}
		t := c.table(s)
		list, written := t.plain("programs")
		priority, ok := t.number("priority")
		if !ok {
			priority = 999
		}
		if t.err == nil && !written {
			t.err = c.refusal(s, nil, "programs is missing", "write programs=NAME,NAME")
		}
		for program := range strings.SplitSeq(list, ",") {
			if program = strings.TrimSpace(program); program == "" || t.err != nil {
				continue
			}
			if c.ini.byName["program:"+program] == nil && c.ini.byName["fcgi-program:"+program] == nil {
				t.err = c.refusal(s, s.byKey["programs"], "there is no [program:"+program+"]", "add the program, or take it out of the group")
			}
			c.groups[program] = &group{name, priority}
		}
		if t.err != nil {
			return t.err
		}
	}
	return nil
}

// table reads the keys of a section. The first error stays in err.
type table struct {
	c *converter
	*section
	scope
	read     map[string]bool
	listener bool     // the section is an event listener
	syslog   []string // the keys that send output to syslog
	err      error
}

func (c *converter) table(s *section) *table {
	return &table{c: c, section: s, scope: scope{used: map[string]bool{}}, read: map[string]bool{}}
}

func (t *table) fail(key, message, hint string) {
	if t.err == nil {
		t.err = t.c.refusal(t.section, t.byKey[key], message, hint)
	}
}

// raw is the unexpanded value of a key. It is marked.
func (t *table) raw(key string) (string, bool) {
	t.read[key] = true
	e := t.byKey[key]
	if e == nil {
		return "", false
	}
	t.here = e.dir
	return marked(e.value), true
}

// text is the expanded value of a key, still marked.
func (t *table) text(key string) (string, bool) {
	value, ok := t.raw(key)
	return t.expanded(key, value), ok && t.err == nil
}

func (t *table) expanded(key, value string) string {
	value, err := t.expand(value)
	if err != nil {
		t.fail(key, err.Error(), "write %% for a percent sign")
	}
	return value
}

// plain is the value of a key that must not depend on the environment, because the key of the
// manifest has no variables. If it depends, a comment says so.
func (t *table) plain(key string) (string, bool) {
	t.variables = false
	text, ok := t.text(key)
	if ok && t.variables {
		t.c.check("%s = %s: a variable cannot stand here; write the value itself", key, t.byKey[key].value)
		return "", false
	}
	return written(text), ok
}

// integer is a whole number. supervisord refuses other words, but it takes every number: of one that
// has no equal, the nearest is written and a comment says so.
func (t *table) integer(key string, least, most int64) (int64, bool) {
	n, ok := t.number(key)
	near := max(least, min(n, most))
	if ok && near != n {
		t.lenient(key, fmt.Sprintf("it must be from %d to %d here, so %d is used", least, most, near))
	}
	return near, ok
}

// number is a whole number; one of more than 64 bits is the nearest of 64 bits.
func (t *table) number(key string) (int64, bool) {
	text, ok := t.plain(key)
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		t.fail(key, "it is no whole number", "write digits alone, such as 10")
		return 0, false
	}
	return n, true
}

// lenient writes a comment about a value that supervisord takes, although it does not mean what it says.
func (t *table) lenient(key, text string) {
	e := t.byKey[key]
	at := fmt.Sprintf("%s:%d: %s", e.file, e.line, e.key)
	if !secret(key) {
		at += " = " + e.value
	}
	t.c.check("%s: %s", at, text)
}

// boolean is false if the key is not written.
func (t *table) boolean(key string) (value, ok bool) {
	text, ok := t.plain(key)
	switch strings.ToLower(text) {
	case "true", "yes", "on", "1":
		return true, ok
	case "false", "no", "off", "0":
		return false, ok
	}
	if ok {
		t.fail(key, "it is neither true nor false", "write true or false")
	}
	return false, false
}

// rest writes comments about the keys that were not read.
func (t *table) rest(ignored ...string) {
	for _, e := range t.entries {
		switch {
		case t.read[e.key] || slices.Contains(ignored, e.key):
		case strings.HasPrefix(e.key, "["):
			t.c.check("line %d begins a section without ], so supervisord reads it as a key, and the keys below it belong to [%s]; add the ]", e.line, t.name)
		default:
			t.c.check("%s = %s: supervisord has no such key", e.key, e.value)
		}
	}
	if t.used["here"] {
		t.c.check("%%(here)s was replaced by the directory of the file on this machine; write that of the image if it differs")
	}
	if t.used["host_node_name"] {
		t.c.check("%%(host_node_name)s is now ${HOSTNAME}, which the container engine must set")
	}
	if t.used["process_num"] {
		t.c.check("${INSTANCE} counts from 0 and has no leading zeros; the number of supervisord had them, or began with numprocs_start. A shell can compute it: sh -c 'exec web --port $((8000 + ${INSTANCE}))'")
	}
}

// account writes whom a program runs as, and where.
func (t *table) account() {
	// As root, supervisord does not change its user.
	if user, ok := t.text("user"); ok && user != "" && (t.program != "" || user != "root" && user != "0") {
		if uid, err := strconv.ParseInt(user, 10, 64); err == nil {
			t.c.key("user", uid)
		} else {
			t.c.key("user", written(user))
		}
	}
	if umask, ok := t.plain("umask"); ok {
		if _, err := strconv.ParseUint(umask, 8, 12); err != nil {
			t.fail("umask", "it is no octal number", "write a umask such as 022")
		}
		if t.program == "" { // options.py, daemonize
			t.c.check("supervisord uses its umask only if it runs in the background, with nodaemon=false; if it did not, drop this line")
		}
		t.c.key("umask", umask)
	}
	if dir, ok := t.text("directory"); ok && dir != "" {
		t.c.key("directory", written(dir))
	}
}

// readEnvironment returns the environment of a section, marked.
func (t *table) readEnvironment() map[string]string {
	text, ok := t.raw("environment")
	if !ok {
		return nil
	}
	t.environment = t.c.environment // entries of an environment do not refer to each other in a manifest
	pairs, err := splitEnvironment(t.expanded("environment", text))
	t.environment = nil
	const form = `write NAME="value",NAME="value"`
	if words, several := errors.AsType[*wordsError](err); several {
		t.lenient("environment", words.Error()+", and supervisord drops or mixes up the rest; no variable of this line was converted; "+form)
	} else if err != nil {
		t.fail("environment", err.Error(), form)
	}
	environment := map[string]string{}
	for _, p := range pairs {
		environment[p.name] = p.value
	}
	return environment
}

func (c *converter) writeEnvironment(environment map[string]string, keys ...string) {
	if len(environment) == 0 {
		return
	}
	c.header(append(keys, "environment")...)
	for _, name := range slices.Sorted(maps.Keys(environment)) {
		c.key(schema.Path(name), written(environment[name]))
	}
}

var programName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9][a-z0-9_.-]{0,62}$`) })

// reserved are names that no program of a manifest can have (E129).
var reserved = []string{"bootstrap", "management-api", "bootstrap-seal"}

func (c *converter) program(s *section, name string) error {
	lower := strings.ToLower(name)
	other, taken := c.programs[lower]
	switch {
	case taken:
		return c.refusal(s, nil, fmt.Sprintf("the program has the same name as [%s] at %s:%d, because names are in lower case", other.name, other.file, other.line), "rename one of the two")
	case !programName().MatchString(lower):
		return c.refusal(s, nil, "a program cannot have this name", "rename it: 1 to 63 letters, digits, _, . and -, a letter or digit first")
	case slices.Contains(reserved, lower):
		return c.refusal(s, nil, "agentinit reserves this name", "rename the program")
	}
	c.programs[lower] = s
	t := c.table(s)
	command, _ := t.raw("command")
	if _, err := splitWords(command); err != nil { // supervisord splits a command when it starts the program
		c.out.WriteByte('\n')
		t.lenient("command", fmt.Sprintf("[%s] is not converted, and supervisord cannot start it: %v; %s", s.name, err, closeIt))
		c.quote(s)
		return nil
	}
	c.header("programs", lower)
	t.program, t.group, t.numprocs = marked(name), marked(name), 1
	t.listener = strings.HasPrefix(s.name, "eventlistener:")
	own := c.groups[name]
	if own != nil {
		t.group = marked(own.name)
	}
	if n, ok := t.number("numprocs"); ok && n < 1 {
		t.lenient("numprocs", "supervisord makes no process of the program; enabled = false does the same")
		t.c.key("enabled", false)
	} else if ok {
		t.numprocs, _ = t.integer("numprocs", 1, 10000)
	}
	t.first, _ = t.integer("numprocs_start", math.MinInt32, math.MaxInt32)
	var before []any
	if t.listener {
		before = t.listens()
	}
	t.command(before)
	t.restarts()
	t.stop(t.order(own))
	t.account()
	t.logs(lower)
	t.names(name, lower)
	for _, key := range []string{"stdout_capture_maxbytes", "stderr_capture_maxbytes", "stdout_events_enabled", "stderr_events_enabled"} {
		if value, ok := t.plain(key); ok && !slices.Contains([]string{"0", "0MB", "false", "no", "off"}, value) {
			c.check("%s = %s: agentinit makes no events of output; agentctl logs -f prints it", key, value)
		}
	}
	if url, ok := t.plain("serverurl"); ok && !strings.EqualFold(url, "AUTO") {
		c.check("serverurl = %s: agentctl finds supervisor.socket; a program needs control = true to change the box", url)
	}
	environment := t.readEnvironment()
	t.rest()
	c.writeEnvironment(environment, "programs", lower)
	return t.err
}

const closeIt = "close the quote, or double the backslash; \" ;\" and \" #\" begin a comment in this file"

// command writes the command, behind other words.
func (t *table) command(argv []any) {
	t.variables = false
	text, ok := t.text("command")
	words, err := splitWords(text)
	switch {
	case t.err != nil:
		return
	case err != nil: // with a quote in what was expanded
		t.fail("command", err.Error(), closeIt)
	case !ok || len(words) == 0 || words[0] == "":
		t.fail("command", "the program has no command", "write command=/path/of/program")
	}
	if t.variables && strings.Contains(t.byKey["command"].value, "ENV_") {
		t.c.check("supervisord split the values of variables in the command into words; each is part of one word now. If a value has several words, write each as an argument of its own")
	}
	for _, w := range words {
		argv = append(argv, written(w))
	}
	t.c.key("command", argv)
	if t.numprocs > 1 {
		t.c.key("instances", t.numprocs)
	}
}

// forever is the largest number of retries of a manifest, and 11 days in seconds. Some files have
// numbers such as 4294967295, which mean without a limit.
const forever = 1e6

// restarts are the keys about the start and the end of a program.
func (t *table) restarts() {
	if autostart, ok := t.boolean("autostart"); ok {
		t.c.key("autostart", autostart)
	}
	switch restart, ok := t.plain("autorestart"); strings.ToLower(restart) {
	case "unexpected":
		t.c.key("restart", "on-failure")
	case "true", "yes", "on", "1":
		t.c.key("restart", "always")
	case "false", "no", "off", "0":
		if seconds := t.byKey["startsecs"]; seconds != nil && seconds.value == "0" {
			t.c.remark(`If others wait for its end, write type = "oneshot" and, in their tables, needs.`)
		}
		t.c.key("restart", "never")
	default:
		if ok {
			t.fail("autorestart", "it is not known", "write true, false or unexpected")
		}
	}
	if n, ok := t.integer("startsecs", 0, math.MaxUint32); ok {
		t.c.key("start_seconds", min(n, forever))
	}
	if n, ok := t.integer("startretries", 0, math.MaxUint32); ok {
		t.c.key("start_retries", min(n, forever))
	}
	codes, ok := t.plain("exitcodes")
	if !ok {
		return
	}
	written := strings.Split(codes, ",")
	if codes == "" { // no code is expected
		written = nil
	}
	list := make([]any, 0, len(written))
	for _, code := range written {
		n, err := strconv.ParseUint(strings.TrimSpace(code), 10, 8)
		if err != nil {
			t.fail("exitcodes", "it is no list of exit codes", "write numbers from 0 to 255 with commas between them")
		}
		list = append(list, int64(n))
	}
	t.c.key("exit_codes", list)
}

// order writes the priority. That of a group takes the place of those of its programs.
func (t *table) order(own *group) int64 {
	priority, ok := t.number("priority")
	if own != nil {
		priority, ok = own.priority, true
	}
	switch {
	case !ok && t.listener: // -1 in supervisord: it starts before the others and stops after them
		priority = 0
		t.c.key("priority", priority)
	case !ok:
		priority = 999
	case priority < 0 || priority > 1e6:
		t.c.check("priority = %d: it must be from 0 to 1000000", priority)
		priority = max(0, min(priority, 1e6))
		fallthrough
	case priority != 999:
		t.c.key("priority", priority)
	}
	return priority
}
