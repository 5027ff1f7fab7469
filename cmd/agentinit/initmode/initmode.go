// Package initmode is agentinit as a plain init for one command: "agentinit -- CMD",
// without manifest, socket or server.
//
// It acts when it is initialised, and the process ends with the command: what a
// box is made of is initialised after it and so costs it nothing. It must never
// import more of ours than it does, or anything that would be initialised before it. A
// binary that imports it has init mode; the import has no other use.
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

// grace is what leftovers of the child get between TERM and KILL when the
// container ends. The kernel would give them none.
const grace = 500 * time.Millisecond

// textNeeded is how long the pages of the start are kept: a command that ends
// sooner is not slowed down.
const textNeeded = 500 * time.Millisecond

// An init function, for the reason above; ARCHITECTURE.md, decision 6. It returns
// where the command line asks for something else.
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

// parse accepts single letters, together or apart, before "--". A flag that
// init mode does not know is a mistake only after the word init.
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

// run returns the exit status: the child's, 128 + n when signal n ended it,
// 127 when it was not found, 126 when it could not be run.
func run(opts options, env []string, stderr io.Writer) int {
	owner, err := proc.New(proc.Options{Untagged: true})
	if err != nil {
		fmt.Fprintln(stderr, "agentinit:", err)
		return 126
	}
	signals := early.CaughtAll() // before the child exists, so that none is lost
	child, err := owner.Start(command(opts, env))
	if err != nil {
		fmt.Fprintln(stderr, "agentinit:", err)
		var se *proc.StartError
		if errors.As(err, &se) {
			return se.ShellStatus()
		}
		return 126
	}
	proc.IgnoreTerminalStops()
	// A command that runs on does not need the pages of its init's start. What
	// fails here costs memory alone.
	time.AfterFunc(textNeeded, func() { _ = proc.ReleaseText() })
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
				// The kernel kills whatever is left when PID 1 exits; this way
				// it may say goodbye. Elsewhere it outlives us, as it does any
				// parent.
				owner.KillAll(grace)
			}
			return e.ShellStatus()
		}
	}
}

// command is the child: in our session, so that a terminal stays usable, in
// a group of its own, and in the foreground where we are.
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

// ownSignals are about this process, not about the child: a terminal that we
// ourselves use.
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
		// The shell that stopped us waits to see us stopped. SIGCONT wakes us
		// and is forwarded like any other.
		if err := proc.StopSelf(); err != nil {
			fmt.Fprintln(stderr, "agentinit:", err)
		}
	}
}
