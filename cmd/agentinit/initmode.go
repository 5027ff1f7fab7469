package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/dreamlab-ai/agentinit/cmd/agentinit/early"
	"github.com/dreamlab-ai/agentinit/supervisor/proc"
)

// Init mode is agentinit as a plain init for one command: no manifest, no socket,
// no server. It is reached before any of those is set up, so it costs little.

// initOptions are what the command line of init mode says.
type initOptions struct {
	group   bool     // -g: signals go to the child's process group
	command []string // what to run
}

const initUsage = "usage: agentinit [-g] [-s] -- CMD [ARGS…]\n" +
	"       agentinit init [-g] [-s] [--] CMD [ARGS…]\n" +
	"  -g  forward signals to the process group of CMD, not to CMD alone\n" +
	"  -s  accepted for compatibility: agentinit always reaps, as a subreaper when not PID 1\n"

// initGrace is what leftovers of the child get between TERM and KILL when the
// container ends. The kernel would give them none.
const initGrace = 500 * time.Millisecond

// initMode runs a command as its init when the arguments, those after the
// program's name, ask for that: flags of init mode and "--", or the word init.
// handled false means that they ask for something else. signals brings those of
// early, and all others are asked for before the child exists, so that none is lost.
func initMode(args []string, signals <-chan os.Signal) (code int, handled bool) {
	opts, err := parseInit(args)
	switch {
	case errors.Is(err, errNotInit):
		return 0, false
	case err != nil:
		fmt.Fprintf(os.Stderr, "agentinit: %v\n%s", err, initUsage)
		return 2, true
	}
	early.Also(forwardable()...)
	return runInit(opts, os.Environ(), os.Stderr, signals), true
}

// forwardable is every signal that can be caught. Left out, so that a storm of
// them cannot push a TERM out of the channel: SIGCHLD, which belongs to proc, and
// SIGURG, which Go's scheduler sends itself. Also left out are the runtime's own:
// SIGPROF, and 32 to 34 of the C libraries, which programs know as SIGRTMIN.
func forwardable() []os.Signal {
	var all []os.Signal
	for n := syscall.Signal(1); n <= 64; n++ {
		switch n {
		case syscall.SIGKILL, syscall.SIGSTOP, syscall.SIGCHLD, syscall.SIGURG, syscall.SIGPROF, 32, 33, 34:
		default:
			all = append(all, n)
		}
	}
	return all
}

var errNotInit = errors.New("not init mode")

// parseInit accepts single letters, together or apart, before "--". A flag that
// init mode does not know is a mistake only after the word init.
func parseInit(args []string) (initOptions, error) {
	var o initOptions
	word := len(args) > 0 && args[0] == "init"
	if word {
		args = args[1:]
	}
	for i, a := range args {
		switch {
		case a == "--":
			o.command = args[i+1:]
			return o, o.check()
		case word && !strings.HasPrefix(a, "-"):
			o.command = args[i:]
			return o, o.check()
		case len(a) > 1 && a[0] == '-' && strings.Trim(a[1:], "gs") == "":
			o.group = o.group || strings.Contains(a, "g")
		case word:
			return o, fmt.Errorf("unknown flag %s", a)
		default:
			return o, errNotInit
		}
	}
	if !word {
		return o, errNotInit
	}
	return o, o.check()
}

func (o *initOptions) check() error {
	if len(o.command) == 0 || o.command[0] == "" {
		return errors.New("no command to run")
	}
	return nil
}

// runInit returns the exit status: the child's, 128 + n when signal n ended it,
// 127 when it was not found, 126 when it could not be run.
func runInit(opts initOptions, env []string, stderr io.Writer, signals <-chan os.Signal) int {
	owner, err := proc.New(proc.Options{})
	if err != nil {
		fmt.Fprintln(stderr, "agentinit:", err)
		return 126
	}
	child, err := owner.Start(initCommand(opts, env))
	if err != nil {
		fmt.Fprintln(stderr, "agentinit:", err)
		var se *proc.StartError
		if errors.As(err, &se) {
			return se.ShellStatus()
		}
		return 126
	}
	proc.IgnoreTerminalStops()
	scope := proc.ScopeProcess
	if opts.group {
		scope = proc.ScopeGroup
	}
	for {
		select {
		case sig := <-signals:
			forward(owner, child.ID, sig, scope, stderr)
		case e := <-owner.Exits():
			if e.Kind != proc.Exited || e.ID != child.ID {
				continue
			}
			if owner.IsInit() {
				// The kernel kills whatever is left when PID 1 exits; this way
				// it may say goodbye. Elsewhere it outlives us, as it does any
				// parent.
				owner.KillAll(initGrace)
			}
			return e.ShellStatus()
		}
	}
}

// initCommand is the child: in our session, so that a terminal stays usable, in
// a group of its own, and in the foreground where we are.
func initCommand(opts initOptions, env []string) proc.Command {
	c := proc.Command{
		Path: opts.command[0], Args: opts.command, Env: env,
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
		Scope: proc.ScopeProcess,
	}
	if proc.ForegroundTerminal(0) {
		c.Foreground, c.TTYFD = true, 0
	} else {
		c.SameSession = true
	}
	return c
}

// ownSignals are about this process, not about the child: pipes and terminals
// that we ourselves use.
var ownSignals = []os.Signal{syscall.SIGPIPE, syscall.SIGTTIN, syscall.SIGTTOU}

func forward(owner *proc.Owner, id uint64, sig os.Signal, scope proc.Scope, stderr io.Writer) {
	n, ok := sig.(syscall.Signal)
	if !ok || slices.Contains(ownSignals, sig) {
		return
	}
	if err := owner.Signal(id, n, scope); err != nil && !errors.Is(err, proc.ErrNoProcess) {
		fmt.Fprintln(stderr, "agentinit:", err)
	}
	if n == syscall.SIGTSTP && !owner.IsInit() {
		// The shell that stopped us waits to see us stopped. SIGCONT wakes us
		// and is forwarded like any other.
		if err := proc.StopSelf(); err != nil {
			fmt.Fprintln(stderr, "agentinit:", err)
		}
	}
}
