// Package initmode makes agentinit a plain init for one command: "agentinit -- CMD", without
// manifest, socket or server.
//
// It runs when it is initialised, and the process ends with the command. So the packages of a box,
// which are initialised later, cost no time. It must not import more packages of this module, or
// anything that would be initialised before it. A binary gets init mode by importing it; the import
// has no other use.
package initmode

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

// options are what the command line says.
type options struct {
	group   bool     // -g: signals go to the child's process group
	command []string // what to run
}

const usage = "usage: agentinit [-g] [-s] -- CMD [ARGS…]\n" +
	"       agentinit init [-g] [-s] [--] CMD [ARGS…]\n" +
	"  -g  forward signals to the process group of CMD, not to CMD alone\n" +
	"  -s  accepted for compatibility: agentinit always reaps, as a subreaper when not PID 1\n"

// grace is how long leftover processes of the child have between TERM and KILL when the container
// ends. The kernel itself would kill them at once.
const grace = 500 * time.Millisecond

// textNeeded is how long the pages of the start are kept, so that a command that ends sooner is not
// slowed down.
const textNeeded = 100 * time.Millisecond

// An init function, for the reason in the package comment; see ARCHITECTURE.md, decision 6. It
// returns if the command line does not ask for init mode.
func init() {
	opts, err := parse(os.Args[1:])
	switch {
	case errors.Is(err, errNotInit):
		return
	case err != nil:
		fmt.Fprintf(os.Stderr, "agentinit: %v\n%s", err, usage)
		os.Exit(2)
	}
	os.Exit(run(opts, os.Environ(), os.Stderr))
}

var errNotInit = errors.New("not init mode")

// parse accepts single letters, together or apart, before "--". An unknown flag is an error only
// after the word init.
func parse(args []string) (options, error) {
	var o options
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

func (o *options) check() error {
	if len(o.command) == 0 || o.command[0] == "" {
		return errors.New("no command to run")
	}
	return nil
}

// run returns the exit status: the child's, 128 + n if signal n ended it, 127 if it was not found,
// 126 if it could not be run.
func run(opts options, env []string, stderr io.Writer) int {
	owner, err := proc.New(proc.Options{Lone: true})
	if err != nil {
		fmt.Fprintln(stderr, "agentinit:", err)
		return 126
	}
	signals := early.CaughtAll() // before the child is started, so that no signal is lost
	child, err := owner.Start(command(opts, env))
	if err != nil {
		fmt.Fprintln(stderr, "agentinit:", err)
		if se, ok := errors.AsType[*proc.StartError](err); ok {
			return se.ShellStatus()
		}
		return 126
	}
	proc.IgnoreTerminalStops()
	// A command that keeps running does not need the pages of agentinit's start. If releasing them
	// fails, that only costs memory.
	time.AfterFunc(textNeeded, func() { _ = proc.ReleaseText(nil) })
	scope := proc.ScopeProcess
	if opts.group {
		scope = proc.ScopeGroup
	}
	for {
		select {
		case sig := <-signals:
			if sig != early.Relay {
				forward(owner, child.ID, sig, scope, stderr)
				continue
			}
			for _, came := range early.Relayed() {
				forward(owner, child.ID, came, scope, stderr)
			}
		case e := <-owner.Exits():
			if e.Kind != proc.Exited || e.ID != child.ID {
				continue
			}
			if owner.IsInit() {
				// The kernel kills what is left when PID 1 exits; KillAll gives these processes
				// time to end. If agentinit is not PID 1, they keep running, as after the end of
				// any parent.
				owner.KillAll(grace)
			}
			return e.ShellStatus()
		}
	}
}

// command is the child. It runs in agentinit's session, so that a terminal stays usable, in its own
// process group, and in the foreground if agentinit is.
func command(opts options, env []string) proc.Command {
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

// ownSignals are about agentinit's own use of the terminal, so they are not forwarded to the child.
var ownSignals = []os.Signal{syscall.SIGTTIN, syscall.SIGTTOU}

func forward(owner *proc.Owner, id uint64, sig os.Signal, scope proc.Scope, stderr io.Writer) {
	n, ok := sig.(syscall.Signal)
	if !ok || slices.Contains(ownSignals, sig) {
		return
	}
	if err := owner.Signal(id, n, scope); err != nil && !errors.Is(err, proc.ErrNoProcess) {
		fmt.Fprintln(stderr, "agentinit:", err)
	}
	if n == syscall.SIGTSTP && !owner.IsInit() {
		// The shell that sent the stop signal waits until agentinit is stopped. SIGCONT wakes
		// agentinit and is forwarded like any other signal.
		if err := proc.StopSelf(); err != nil {
			fmt.Fprintln(stderr, "agentinit:", err)
		}
	}
}
