package main

import (
	"context"
	"errors"
	"io/fs"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/dreamlab-ai/agentinit/internal/signame"
	"github.com/dreamlab-ai/agentinit/internal/sleep"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// verb is one of the commands that change programs.
type verb struct {
	use, short, long string
	done, already    string // "started", "already running"
	named            bool   // it has no --all
	resumes          bool   // it acts on a schedule, not on its runs
	ask              func(*api.Client, context.Context, api.ActionRequest) (api.ActionResult, error)
}

func newStart(c *cli) *cobra.Command {
	cmd, _ := c.newAction(verb{
		use: "start NAME...|--all", short: "Start programs, resume schedules", done: "started", already: "already running", resumes: true,
		long: `Start programs and wait until each is RUNNING, has completed, or has failed
once. A run that ends before it is RUNNING has failed, also if agentinit starts
the program again after a while (BACKOFF); "agentctl wait" waits for that, too.
A schedule that is paused is resumed: its next run comes at its time.
The command first starts the programs that a named one needs, also those that a
request has stopped.

With --all the programs start in the order of the boot. Oneshots that have
completed and programs with autostart = false start only when they are named.`,
		ask: (*api.Client).Start,
	})
	return cmd
}

func newRun(c *cli) *cobra.Command {
	cmd, _ := c.newAction(verb{
		use: "run NAME...", short: "Run schedules and oneshots now", done: "ran", already: "already running", named: true,
		long: `Start a run of each program now, also of a schedule, and wait until each program
has completed, is RUNNING, or has failed once. A schedule keeps its times, and a
paused schedule stays paused. If a run is under way, the command starts no
second one: it waits for that run and says "already running".`,
		ask: (*api.Client).Run,
	})
	return cmd
}

func newStop(c *cli) *cobra.Command {
	cmd, _ := c.newAction(verb{
		use: "stop NAME...|--all", short: "Stop programs, pause schedules", done: "stopped", already: "not running",
		long: `Stop programs and wait until their processes are gone. Several programs stop in
the reverse order of their start: those that depend on others first. Programs
that need a stopped one, and are not named, keep running. A stopped program
stays stopped until a request starts it or the box starts again. A schedule is
paused: it has no run until you start it.

Before the seal a stop can end the box: if a required program needs a program
that was stopped, the boot fails with exit status 67.`,
		ask: (*api.Client).Stop,
	})
	return cmd
}

func newRestart(c *cli) *cobra.Command {
	cmd, req := c.newAction(verb{
		use: "restart NAME...|--all", short: "Restart programs", done: "restarted", already: "not restarted",
		long: `Restart programs and wait until each is RUNNING, has completed, or has failed
once. With --all, every program stops first, in the reverse order of the boot;
then they start in the order of the boot. The command first starts the programs
that a named one needs; programs that need the named one keep running.

With --rolling, programs restart one after the other, each when the one before
is ready again. If one does not become ready, the rest are not restarted.`,
		ask: (*api.Client).Restart,
	})
	cmd.Flags().BoolVar(&req.Rolling, "rolling", false, "one after the other, each when the one before is ready")
	cmd.MarkFlagsMutuallyExclusive("rolling", "no-wait")
	return cmd
}

func newSignal(c *cli) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:               "signal SIGNAL NAME...|--all",
		Short:             "Send a signal to programs",
		Long:              "Send a signal to programs. SIGNAL is a name, with or without SIG, or a number.\nWith --all, it goes to every program that runs.",
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: c.completeSignal,
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, err := signame.Parse(args[0]); err != nil {
				return usageError("%s is not a signal (a name such as HUP, or a number from 1 to 64); the signal comes first, as in: agentctl signal HUP web", strconv.Quote(args[0]))
			}
			req := api.ActionRequest{Signal: args[0], Names: args[1:], All: all}
			return c.runAction(cmd.Context(), verb{done: "signalled", already: "signalled", ask: (*api.Client).Signal}, req)
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "every program")
	return cmd
}

func (c *cli) newAction(v verb) (*cobra.Command, *api.ActionRequest) {
	req := &api.ActionRequest{}
	var timeout time.Duration
	cmd := &cobra.Command{
		Use: v.use, Short: v.short, Long: v.long,
		ValidArgsFunction: c.completeNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Names, req.TimeoutMS = args, timeout.Milliseconds()
			return c.runAction(cmd.Context(), v, *req)
		},
	}
	if !v.named {
		cmd.Flags().BoolVar(&req.All, "all", false, "every program")
	}
	cmd.Flags().BoolVar(&req.NoWait, "no-wait", false, "do not wait for the outcome")
	cmd.Flags().Var((*seconds)(&timeout), "timeout", "give up waiting after this long (at most 10m, which is the default)")
	return cmd, req
}

func (c *cli) runAction(ctx context.Context, v verb, req api.ActionRequest) error {
	if req.All == (len(req.Names) > 0) {
		if v.named {
			return usageError("give the names of programs")
		}
		return usageError("give either names or --all")
	}
	client := c.client()
	result, err := v.ask(client, ctx, req)
	if err != nil {
		return failed(err)
	}
	if c.json {
		if err := c.printJSON(result); err != nil {
			return err
		}
	} else {
		c.printResults(v, req.NoWait, result)
	}
	if result.Note != "" {
		line(c.stderr, "agentctl: %s", printable(result.Note))
	}
	if result.Failed() {
		return &exitError{code: exitFailure}
	}
	return nil
}

func (c *cli) printResults(v verb, noWait bool, result api.ActionResult) {
	for _, p := range result.Results {
		name := printable(p.Name)
		state := p.Display()
		if v.resumes && p.Scheduled { // it may show how its latest run ended
			state = program.ShownScheduled
		}
		waits := state == program.ShownPaused || state == program.ShownScheduled // a schedule between its runs
		switch {
		case p.Error != nil:
			line(c.stderr, "%s: %s", name, strings.TrimPrefix(describe(p.Error), name+": "))
		case !p.Changed && waits:
			line(c.stdout, "%s: already %s", name, strings.ToLower(state))
		case !p.Changed:
			line(c.stdout, "%s: %s", name, v.already)
		case noWait:
			line(c.stdout, "%s: asked, now %s", name, state)
		case waits:
			line(c.stdout, "%s: %s, now %s", name, v.done, state)
		case p.PID != 0 && v.done != "signalled":
			line(c.stdout, "%s: %s, pid %d", name, v.done, p.PID)
		default:
			line(c.stdout, "%s: %s", name, v.done)
		}
	}
}

func newWait(c *cli) *cobra.Command {
	q := api.WaitQuery{}
	cmd := &cobra.Command{
		Use:   "wait [NAME...]",
		Short: "Wait until programs, or the box, are in a state",
		Long: `Wait until every program named is in a state. Without a NAME, --for ready
waits for the readiness of the box, and any other state for every program. If
agentinit does not answer yet, the command waits for agentinit too, and says so
after two seconds.

ready: the program is RUNNING, and the condition "ready" of the manifest holds
if there is one. A oneshot or a run of a schedule is ready when it has
completed.

running: the program is RUNNING, or has completed.

completed: a oneshot or a run of a schedule has ended as expected. A service
never completes, and the command refuses to wait for that.

stopped: a state that lasts without a process: STOPPED, EXITED or FATAL.

The command may miss a state that is over within milliseconds.

Exit status 1: the state did not come in time, or cannot come any more.`,
		ValidArgsFunction: c.completeNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			q.Names = args
			client := c.client()
			result, err := c.waitOn(cmd.Context(), client, q)
			if err != nil {
				return failed(err)
			}
			if c.json {
				return c.printJSON(result)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&q.For, "for", api.ForReady, api.ForAny+", in letters of either case")
	// It fails only for a flag that does not exist.
	_ = cmd.RegisterFlagCompletionFunc("for", cobra.FixedCompletions(api.Conditions(), cobra.ShellCompDirectiveNoFileComp))
	cmd.Flags().Var((*seconds)(&q.Timeout), "timeout", "give up after this long (default: never)")
	return cmd
}

// If agentinit does not answer yet, wait tries again after knockPause. After quietKnocks, wait
// prints what it waits for; an agentinit that was just started answers before that.
const (
	knockPause  = 50 * time.Millisecond
	quietKnocks = 2 * time.Second
)

// slow is ask. If ask takes longer than quietKnocks, slow prints meanwhile what it waits for.
func (c *cli) slow(until string, ask func() error) error {
	answered, silent := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(silent)
		select {
		case <-time.After(quietKnocks):
			line(c.stderr, "agentctl: waiting until %s", until)
		case <-answered:
		}
	}()
	defer func() {
		close(answered)
		<-silent
	}()
	return ask()
}

// waitOn repeats the request if the server's own limit ended a wait without a time limit. It also
// repeats until agentinit answers, because scripts start agentinit and wait at once. A wrong
// --socket would look the same, so waitOn prints what it waits for.
func (c *cli) waitOn(ctx context.Context, client *api.Client, q api.WaitQuery) (api.WaitResult, error) {
	until := ctx
	if q.Timeout > 0 {
		// A little later than the server, whose answer says what is missing.
		var cancel context.CancelFunc
		until, cancel = context.WithTimeoutCause(ctx, q.Timeout+5*time.Second, errors.New("agentinit gave no answer in time"))
		defer cancel()
	}
	asked := time.Now()
	for said := false; ; {
		begun := time.Now()
		result, err := client.Wait(until, q)
		notYet := errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED)
		if notYet && (q.Timeout == 0 || q.Timeout > knockPause) {
			if !said && time.Since(asked) >= quietKnocks {
				line(c.stderr, "agentctl: %s; waiting for agentinit", printable(err.Error()))
				said = true
			}
			if !sleep.For(ctx, knockPause) {
				return result, err
			}
			if q.Timeout > 0 {
				q.Timeout = max(q.Timeout-time.Since(begun), 1)
			}
			continue
		}
		if q.Timeout > 0 || api.CodeOf(err) != api.CodeTimeout {
			return result, err
		}
	}
}
