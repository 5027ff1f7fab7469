package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
)

// supervisorctlName is the name by which agentctl is called to be supervisorctl.
const supervisorctlName = "supervisorctl"

func asSupervisorctl(argv0 string) bool { return filepath.Base(argv0) == supervisorctlName }

// Exit statuses that supervisorctl has and agentctl has not.
const (
	exitArguments  = 2 // start without a name, or of a group that does not exist
	exitNotStarted = 7 // a start failed, a program is not running, or there is no socket
)

// supervisorctl answers the commands of supervisorctl 4.2 in its words and with its exit statuses,
// for scripts that were written for it. As there, errors go to stdout. A reason that supervisorctl
// would not print goes to stderr.
type supervisorctl struct {
	*cli
	code  int         // as in supervisorctl, the latest failure of a command decides
	lines chan string // what the user types, in the shell
	shell bool        // no command was on the command line
	verbs []oldVerb   // the commands that exist here
	box   *api.Client // the agentinit that is asked
}

// oldVerb is a command of supervisorctl.
type oldVerb struct {
	name     string
	run      func(context.Context, []string) error
	min, max int    // arguments
	needs    string // what the first arguments are
	usage    string
}

const many = 1 << 20 // no limit of arguments

func (s *supervisorctl) table() []oldVerb {
	const names = "<name>...|<gname>:*|all"
	quit := func(context.Context, []string) error { return nil } // the shell does it
	return []oldVerb{
		{"avail", s.avail, 0, 0, "", "\tthe programs of the manifest"},
		{"exit", quit, 0, many, "", "\tend the shell"},
		{"help", s.help, 0, many, "", "[<action>]"},
		{"pid", s.pid, 0, many, "", "[<name>...|all]\twithout a name that of agentinit"},
		{"quit", quit, 0, many, "", "\tend the shell"},
		{"reread", s.reread, 0, 0, "", "\tsay what update would change"},
		{"restart", s.restart, 1, many, "a process name", names + "\twith the manifest in force"},
		{"shutdown", s.shutdown, 0, 0, "", "\tstop all programs and end agentinit"},
		{"signal", s.signal, 2, many, "a signal name and a process name", "<signal name> " + names},
		{"start", s.start, 1, many, "a process name", names},
		{"status", s.status, 0, many, "", "[" + names + "]"},
		{"stop", s.stop, 1, many, "a process name", names},
		{"tail", s.tail, 1, 3, "a process name", "[-f|-<bytes>] <name> [stdout|stderr]"},
		{"update", s.update, 0, many, "", "[<gname>...|all]\tread the manifest again and carry out the difference"},
		{"version", s.version, 0, 0, "", "\tthe version of agentinit"},
	}
}

// absentVerbs are the commands of supervisorctl that have no counterpart here. foreignVerbs says
// what to use.
var absentVerbs = []string{"add", "clear", "fg", "maintail", "open", "reload", "remove"}

// runSupervisorctl is run for a call by the name of supervisorctl.
func (c *cli) runSupervisorctl(ctx context.Context, args []string, stdout io.Writer) int {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	out := &output{Writer: stdout, end: cancel}
	c.stdout = out
	s := &supervisorctl{cli: c}
	s.verbs = s.table()
	words, help, err := s.options(args)
	if err != nil {
		line(c.stderr, "Error: %v\nFor help, use %s -h", err, supervisorctlName)
		return exitArguments
	}
	s.box = c.client()
	switch {
	case help:
		line(out, "%s", supervisorctlUsage)
	case len(words) > 0:
		commandContext, stop := untilSignal(ctx)
		s.do(commandContext, strings.Fields(strings.Join(words, " "))) // also 'restart web' as one argument
		stop()
	default:
		s.interact(ctx)
	}
	if out.err != nil {
		return tell(c.stderr, &exitError{exitFailure, fmt.Errorf("cannot write the output: %w", out.err)})
	}
	return s.code
}

const supervisorctlUsage = `supervisorctl -- control the programs of agentinit with the commands of supervisorctl.

Usage: supervisorctl [options] [action [arguments]]

Options:
-s/--serverurl URL -- the control socket: unix:///path, or a path
     (default $AGENTCTL_SOCKET, else ` + api.DefaultSocket + `)
-h/--help -- print usage message and exit
-i/--interactive, -c/--configuration FILENAME, -u/--username, -p/--password,
-r/--history_file -- accepted, without effect

Without an action, a shell reads actions. Use the action "help" to find out
about available actions.`

// options reads the options before the action. Those that mean nothing here are accepted, because
// scripts pass them.
func (s *supervisorctl) options(args []string) (words []string, help bool, err error) {
	f := pflag.NewFlagSet(supervisorctlName, pflag.ContinueOnError)
	f.SetInterspersed(false)
	f.Usage = func() {}
	server := f.StringP("serverurl", "s", "", "")
	f.BoolVarP(&help, "help", "h", false, "")
	f.BoolP("interactive", "i", false, "")
	for name, short := range map[string]string{"configuration": "c", "username": "u", "password": "p", "history_file": "r"} {
		f.StringP(name, short, "", "")
	}
	if err := f.Parse(args); err != nil {
		return nil, false, err
	}
	s.socket = strings.TrimPrefix(*server, "unix://")
	if strings.Contains(s.socket, "://") {
		return nil, false, fmt.Errorf("%s: agentinit has a control socket only: write unix:///path", strconv.Quote(*server))
	}
	return f.Args(), help, nil
}

// interact is the shell. It shows the status first, and its exit status is always 0.
func (s *supervisorctl) interact(ctx context.Context) {
	s.shell, s.lines = true, make(chan string)
	go func() {
		defer close(s.lines)
		for in := bufio.NewScanner(s.stdin); in.Scan(); {
			select {
			case s.lines <- in.Text():
			case <-ctx.Done():
				return
			}
		}
	}()
	words, more := []string{"status"}, true
	for more {
		// A signal ends the command, such as tail -f, and at the prompt the shell.
		signalled, stop := untilSignal(ctx)
		s.do(signalled, words)
		ended := terminated(signalled)
		stop()
		if ended {
			break
		}
		prompted, stop := untilSignal(ctx)
		var text string
		text, more = s.ask(prompted, "supervisor> ")
		stop()
		words = strings.Fields(text)
		more = more && (len(words) == 0 || words[0] != "exit" && words[0] != "quit")
	}
	line(s.stdout, "")
	s.code = exitOK
}

// ask returns what the user answers; false at the end of the input, and after a signal.
func (s *supervisorctl) ask(ctx context.Context, prompt string) (string, bool) {
	fmt.Fprint(s.stdout, prompt)
	select {
	case text, ok := <-s.lines:
		return text, ok
	case <-ctx.Done():
		return "", false
	}
}

// do carries out one command and sets the exit status.
func (s *supervisorctl) do(ctx context.Context, words []string) {
	if len(words) == 0 {
		return
	}
	if topic, is := strings.CutPrefix(words[0], "?"); is { // cmd.Cmd of Python
		words = append(strings.Fields("help "+topic), words[1:]...)
	}
	name, args := words[0], words[1:]
	verb, known := s.verb(name)
	switch {
	case slices.Contains(absentVerbs, name):
		s.fail(exitFailure, "ERROR: agentinit has no %s; %s", name, foreignHint(name))
	case !known:
		s.fail(exitFailure, "*** Unknown syntax: %s", printable(strings.Join(words, " ")))
	case len(args) >= verb.min && len(args) <= verb.max:
		s.lost(name, verb.run(ctx, args))
	default:
		s.misused(verb, len(args))
	}
}

func (s *supervisorctl) verb(name string) (oldVerb, bool) {
	i := slices.IndexFunc(s.verbs, func(v oldVerb) bool { return v.name == name })
	if i < 0 {
		return oldVerb{}, false
	}
	return s.verbs[i], true
}

// misused says how a command is written.
func (s *supervisorctl) misused(v oldVerb, args int) {
	s.code = exitFailure
	switch {
	case args < v.min:
		line(s.stdout, "Error: %s requires %s", v.name, v.needs)
		if v.name == "start" {
			s.code = exitArguments
		}
	case v.max == 0:
		line(s.stdout, "Error: %s accepts no arguments", v.name)
	default:
		line(s.stdout, "Error: too many arguments")
	}
	s.explain(v)
}

func (s *supervisorctl) explain(v oldVerb) { line(s.stdout, "%s %s", v.name, v.usage) }

func (s *supervisorctl) fail(code int, format string, args ...any) {
	line(s.stdout, format, args...)
	s.code = code
}

func (s *supervisorctl) help(_ context.Context, args []string) error {
	if len(args) == 0 {
		line(s.stdout, "\ndefault commands (type help <topic>):\n=====================================")
		for _, v := range s.verbs {
			s.explain(v)
		}
		line(s.stdout, "")
	}
	for _, name := range args {
		if v, known := s.verb(name); known {
			s.explain(v)
		} else {
			line(s.stdout, "*** No help on %s", printable(name))
		}
	}
	return nil
}

// lost reports that a request has failed as a whole.
func (s *supervisorctl) lost(verb string, err error) {
	url := "unix://" + s.box.Socket()
	_, isUnreachable := errors.AsType[*api.UnreachableError](err)
	refused, isRefused := errors.AsType[*api.Error](err)
	switch {
	case err == nil:
		return
	case isUnreachable && errors.Is(err, fs.ErrNotExist):
		s.fail(exitNotStarted, "%s no such file", url)
	case isUnreachable && errors.Is(err, syscall.ECONNREFUSED):
		s.fail(exitUnreachable, "%s refused connection", url)
	case api.CodeOf(err) == api.CodeShuttingDown:
		s.fail(exitFailure, "ERROR: already shutting down")
	case api.CodeOf(err) == api.CodeInvalid:
		s.fail(exitFailure, "ERROR: CANT_REREAD: %s", describe(refused))
	case isRefused:
		s.fail(exitFailure, "error: %s", describe(refused))
	default:
		s.fail(exitFailure, "error: %s", printable(err.Error()))
	}
	if isUnreachable && verb == "status" {
		s.code = exitUnreachable
	}
}

func (s *supervisorctl) version(ctx context.Context, _ []string) error {
	v, err := s.box.Version(ctx)
	if err == nil {
		line(s.stdout, "%s", printable(v.Version))
	}
	return err
}

func (s *supervisorctl) shutdown(ctx context.Context, _ []string) error {
	if s.shell {
		answer, _ := s.ask(ctx, "Really shut the remote supervisord process down y/N? ")
		if !strings.HasPrefix(strings.ToLower(answer), "y") {
			return nil
		}
	}
	err := s.box.Shutdown(ctx, api.ShutdownRequest{})
	if err == nil {
		line(s.stdout, "Shut down")
	}
	return err
}
