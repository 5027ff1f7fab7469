package plan

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// defaultPath is the PATH of a program if PATH is not set: that of execvp(3) in common C libraries,
// with the sbin directories.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// ofOne are variables that are meant only for agentinit itself: the socket, watchdog and passed
// descriptors of its own supervisor (sd_notify(3), sd_listen_fds(3)). A program that inherited them
// could act in agentinit's name.
var ofOne = []string{"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "LISTEN_PIDFDID"}

// inheritance is the result of one pass_environment. All programs with the same pass_environment
// share it, and programs without own variables share its lists. So a box of a thousand programs has
// only one copy of its environment.
type inheritance struct {
	vars     map[string]string
	names    []string
	list     []string
	withheld []string
}

func (r *resolver) inherit(pass schema.PassEnvironment) inheritance {
	key := pass.Mode + "\x00" + strings.Join(pass.Names, "\x00")
	if in, ok := r.inherited[key]; ok {
		return in
	}
	in := inheritance{vars: map[string]string{}}
	for name, value := range r.facts.Env {
		switch {
		case slices.Contains(ofOne, name):
		case r.passes(pass, name):
			in.vars[name] = value
		case r.m.IsSecret(name):
			in.withheld = append(in.withheld, name)
		}
	}
	slices.Sort(in.withheld)
	in.names, in.list = written(in.vars)
	r.inherited[key] = in
	return in
}

// passes reports whether a variable of agentinit's environment is inherited. A secret is never
// inherited because of a pattern, only if the list contains its name or the mode is "all".
func (r *resolver) passes(pass schema.PassEnvironment, name string) bool {
	switch pass.Mode {
	case "all":
		return true
	case "none":
		return false
	case "list":
		if slices.Contains(pass.Names, name) {
			return true
		}
		return !r.m.IsSecret(name) && slices.ContainsFunc(pass.Names, func(pattern string) bool {
			ok, err := path.Match(pattern, name)
			return err == nil && ok
		})
	}
	return !r.m.IsSecret(name)
}

// environment is the environment of one instance while it is built.
type environment struct {
	vars     map[string]string
	box      map[string]string // agentinit's own environment, the fallback for ${X}
	extra    map[string]string // visible to ${X}, but not passed to the program
	withheld []string
	names    []string
	list     []string // NAME=value
	unread   bool     // an env_file could not be read, so variables may be missing
	// hidden are variables with a secret value whose name does not show that: variables of
	// env_files, and variables whose value contains a secret.
	hidden map[string]bool
}

// lookup returns the value of ${X} in a program's table: first from the program's environment, then
// from agentinit's own. Secrets are included, because the program names them explicitly.
func (e *environment) lookup(name string) (string, bool) {
	for _, layer := range []map[string]string{e.extra, e.vars, e.box} {
		if v, ok := layer[name]; ok {
			return v, true
		}
	}
	return "", false
}

func (e *environment) hide(name string) {
	if e.hidden == nil {
		e.hidden = map[string]bool{}
	}
	e.hidden[name] = true
}

// secret reports whether the value of a variable must not be shown. That is the case if its name or
// the manifest marks it as a secret, if it comes from an env_file or contains a secret, or if it
// looks like one, such as an address with a password.
func (r *resolver) secret(e *environment, name, value string) bool {
	return value != "" && (r.m.IsSecret(name) || e.hidden[name] || schema.HoldsSecret(value))
}

// secretsOf are the secrets among the variables in asked.
func (r *resolver) secretsOf(e *environment, asked []string) []program.Secret {
	var out []program.Secret
	for _, name := range asked {
		value, _ := e.lookup(name)
		secret := program.Secret{Name: name, Value: value}
		if r.secret(e, name, value) && !slices.Contains(out, secret) {
			out = append(out, secret)
		}
	}
	return out
}

// shownLookup is the lookup for a result that is shown: a secret stays as ${NAME}.
func (r *resolver) shownLookup(e *environment) lookup {
	return func(name string) (string, bool) {
		value, ok := e.lookup(name)
		if r.secret(e, name, value) {
			return "${" + name + "}", true
		}
		return value, ok
	}
}

// written returns the names of the variables, and the variables as NAME=value. If PATH is not set,
// it is added, but only here: ${PATH} still reads agentinit's own PATH.
func written(vars map[string]string) (names, list []string) {
	if _, ok := vars["PATH"]; !ok {
		vars = maps.Clone(vars)
		vars["PATH"] = defaultPath
	}
	names = slices.Sorted(maps.Keys(vars))
	list = make([]string, len(names))
	for i, name := range names {
		list[i] = name + "=" + vars[name]
	}
	return names, list
}

// environment builds the environment of one instance: inherited variables, then those of the
// account, of env_file and of environment. A value of `environment` is expanded with the variables
// of the layers before it, so that PATH = "/opt/bin:${PATH}" works.
func (r *resolver) environment(s *source, p *schema.Program, number int, x *expander, first bool) *environment {
	in := r.inherit(p.PassEnvironment)
	e := &environment{
		vars: in.vars, box: r.facts.Env, names: in.names, list: in.list,
		extra: map[string]string{"INSTANCE": strconv.Itoa(number)}, withheld: in.withheld,
	}
	x.get = e.lookup
	if p.User == "" && len(p.EnvFile) == 0 && len(p.Environment) == 0 {
		return e
	}
	e.vars = maps.Clone(in.vars)
	r.home(p, e, x)
	for _, file := range p.EnvFile {
		x.at("env_file")
		entries, err := r.readEnvFile(x.expand(file), (&expander{get: x.get}).expand(p.User))
		if err != nil {
			e.unread = true
			r.badEnvFile(s, err, first)
		}
		for _, v := range entries {
			e.vars[v.Name] = v.Value
			e.hide(v.Name)
		}
	}
	var derived []string
	own := make(map[string]string, len(p.Environment))
	for _, name := range slices.Sorted(maps.Keys(p.Environment)) {
		x.at("environment", name)
		asked := len(x.asked)
		own[name] = x.expand(p.Environment[name])
		if len(r.secretsOf(e, x.asked[asked:])) > 0 {
			derived = append(derived, name)
		}
	}
	// Hide these only now, because entries of `environment` do not refer to each other.
	for _, name := range derived {
		e.hide(name)
	}
	maps.Copy(e.vars, own)
	e.withheld = slices.DeleteFunc(slices.Clone(e.withheld), func(name string) bool {
		_, passed := e.vars[name]
		return passed
	})
	e.names, e.list = written(e.vars)
	return e
}

// home sets HOME, USER and LOGNAME for the program's user.
func (r *resolver) home(p *schema.Program, e *environment, x *expander) {
	if p.User == "" || r.facts.Account == nil {
		return
	}
	// If the user cannot be expanded, the expansion of the whole table reports it.
	quiet := &expander{get: x.get}
	home, login, ok := r.facts.Account(quiet.expand(p.User))
	if !ok {
		return
	}
	e.vars["HOME"], e.vars["USER"], e.vars["LOGNAME"] = home, login, login
}

// errNotRead means that env_files are not read in this run. It is not a finding.
var errNotRead = errors.New("env_files are not read here")

// unreadable is the error for an env_file that is missing or cannot be opened.
type unreadable struct{ error }

func (r *resolver) badEnvFile(s *source, err error, first bool) {
	closed, isClosed := errors.AsType[unreadable](err)
	switch {
	case !first || errors.Is(err, errNotRead):
	case isClosed && !r.facts.InBox:
		r.report("W127", schema.Finding{
			Message: "program " + s.name + ": " + err.Error(), Hint: "no change is needed if the box has the file",
		}, "programs", s.name, "env_file")
	default:
		hint := ""
		switch {
		case errors.Is(closed.error, fs.ErrNotExist):
			hint = `mount or create the file, or write "-" before its path if it may be missing`
		case errors.Is(err, errNoName):
			hint = "write NAME= before each value; for a file that holds a value alone see agentctl config explain E127"
		}
		r.report("E127", schema.Finding{Message: "program " + s.name + ": " + err.Error(), Hint: hint}, "programs", s.name, "env_file")
	}
}

// readEnvFile returns the entries of one env_file.
func (r *resolver) readEnvFile(path, user string) ([]variable, error) {
	name, optional := strings.CutPrefix(path, "-")
	read := r.facts.ReadFileFor
	switch {
	case read != nil:
	case r.facts.ReadFile != nil:
		read = func(path, _ string) ([]byte, error) { return r.facts.ReadFile(path) }
	default:
		return nil, errNotRead
	}
	text, err := read(name, user)
	if optional && errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		if file, ok := err.(*fs.PathError); ok { // its path would come twice
			err = file.Err
		}
		return nil, unreadable{fmt.Errorf("cannot read %s: %w", name, err)}
	}
	entries, err := parseEnvFile(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return entries, nil
}
