package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/dreamlab-ai/agentinit/internal/plural"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

func newWhy(c *cli) *cobra.Command {
	return &cobra.Command{
		Use:   "why NAME",
		Short: "Explain why a program is in its state",
		Long: `Explain why a program is in its state: since when, what happens next, how the
latest run ended, what the program needs and what needs it, the newest events,
and which command to type. NAME is one program, or one instance ("worker:0").`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: c.completeOne,
		RunE: func(cmd *cobra.Command, args []string) error {
			why, err := c.client().Why(cmd.Context(), args[0])
			if err != nil {
				return failed(err)
			}
			if c.json {
				return c.printJSON(why)
			}
			c.printWhy(why)
			return nil
		},
	}
}

func (c *cli) printWhy(why api.Why) {
	line(c.stdout, "%s", printable(why.Summary))
	if why.Next != "" {
		line(c.stdout, "next:    %s", printable(why.Next))
	}
	switch e := why.Program.LastExit; {
	case why.Ending != "":
		line(c.stdout, "last:    %s; restarted %s", printable(why.Ending), times(why.Program.Restarts))
	case e != nil:
		line(c.stdout, "last:    %s; restarted %s", printable(e.String()), times(why.Program.Restarts))
	}
	if why.Program.State == program.Starting.String() && why.Ready != "" {
		line(c.stdout, "ready:   by %s", printable(why.Ready))
	}
	if s := why.Program.Schedule; s != nil && s.LastRun != nil {
		// LastResult may be of the run before; the line "last:" shows it.
		line(c.stdout, "run:     the latest began at %s", s.LastRun.Format(time.RFC3339))
	}
	if why.Program.Text != "" {
		line(c.stdout, "says:    %s", printable(why.Program.Text))
	}
	if why.LogTrouble != "" {
		line(c.stdout, "logs:    %s", printable(why.LogTrouble))
	}
	for _, text := range needTexts(why.Needs) {
		line(c.stdout, "needs:   %s", printable(text))
	}
	for _, d := range why.Dependents {
		line(c.stdout, "needed:  by %s", printable(d))
	}
	for _, r := range why.Refused {
		line(c.stdout, "refused: %s", printable(r.String()))
	}
	for _, e := range why.Recent {
		line(c.stdout, "event: %s", c.eventText(e))
	}
	if len(why.Output) > 0 {
		line(c.stdout, "output of run %d:", why.Program.Run)
		c.printOutput(why.Output)
	}
	c.printAdvice(why.Do, "")
}

func times(n uint64) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

func newReady(c *cli) *cobra.Command {
	return &cobra.Command{
		Use:   "ready",
		Short: "Say whether the box is ready",
		Long: `Say whether the box is ready, and what is missing if not.

Made for HEALTHCHECK: the exit status is 0 if the box is ready, and 1 otherwise,
also if agentinit cannot be reached.`,
		Args:              noArgs,
		ValidArgsFunction: noFiles,
		RunE: func(cmd *cobra.Command, _ []string) error {
			r, err := c.client().Ready(cmd.Context())
			if err != nil {
				return &exitError{exitFailure, fmt.Errorf("not ready: %w", err)}
			}
			if err := c.printReady(r); err != nil {
				return err
			}
			if !r.Ready {
				return &exitError{code: exitFailure}
			}
			return nil
		},
	}
}

func (c *cli) printReady(r api.Readiness) error {
	if c.json {
		return c.printJSON(r)
	}
	if r.Ready {
		line(c.stdout, "ready")
		return nil
	}
	head := "not ready"
	switch {
	case len(r.Missing) > 0: // the lines below say what the reason says
		head += ": " + plural.Of(len(r.Missing), "requirement") + " not met"
	case r.Reason != "":
		head += ": " + printable(r.Reason)
	}
	line(c.stdout, "%s", head)
	for _, m := range r.Missing {
		line(c.stdout, "  %s", printable(joinedBy(m.ID, ": ", m.Reason)))
	}
	return nil
}

func joinedBy(a, sep, b string) string {
	if b == "" {
		return a
	}
	return a + sep + b
}

func newApply(c *cli) *cobra.Command {
	req := api.ApplyRequest{}
	var all bool
	cmd := &cobra.Command{
		Use:   "apply",
		Short: "Read the manifest again and carry out the difference",
		Long: `Read the manifest again, the file that agentinit was started with, and carry out
the difference. Programs that are unchanged keep running; an invalid manifest
changes nothing.

The command lists each program that changes, and how: live (it takes the new
values as it runs), restart, add or remove. With --all it lists the unchanged
programs too. With --dry-run it only says what would happen.

The command waits until each required program that restarts is ready again, and
says so after two seconds. If one becomes FATAL, is not ready in time or is
stopped, agentinit goes on with the manifest that it had: "rolled back", exit
status 1. The file stays as you wrote it. One apply is carried out at a time;
agentctl stop of the program ends the wait of one that cannot succeed.

With --json the command prints a refusal too, as a problem document (RFC 9457)
that holds the findings of an invalid manifest.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError("apply takes no FILE, but got %q: it reads the file that agentinit was started with; change that file, then run agentctl apply", args[0])
			}
			return nil
		},
		ValidArgsFunction: noFiles,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var result api.ApplyResult
			err := c.slow("required programs are ready again, or an earlier apply has ended; agentctl status shows the programs", func() (err error) {
				result, err = c.client().Apply(cmd.Context(), req)
				return err
			})
			if err != nil {
				return c.applyRefused(err)
			}
			if c.json {
				err = c.printJSON(result)
			} else {
				c.printApply(result, all)
			}
			if err == nil && applyFailed(result) {
				return &exitError{code: exitFailure}
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&req.DryRun, "dry-run", false, "only say what would happen")
	cmd.Flags().BoolVar(&all, "all", false, "list unchanged programs too")
	return cmd
}

// applyRefused prints a refusal about programs, whose findings take several lines. It leaves one
// sentence about it for stderr.
func (c *cli) applyRefused(err error) error {
	refused, ok := errors.AsType[*api.Error](err)
	if !c.json || !ok {
		return failed(err)
	}
	if err := c.printJSON(refused); err != nil {
		return err
	}
	return &exitError{exitOf(refused.Code), errors.New(printable(refused.Error()))}
}

func applyFailed(r api.ApplyResult) bool {
	for _, ch := range r.Changes {
		if ch.Error != "" {
			return true
		}
	}
	return r.RolledBack
}

func (c *cli) printApply(r api.ApplyResult, all bool) {
	colour := map[string]string{
		api.ApplyLive: cyan, api.ApplyRestart: yellow, api.ApplyAdd: green, api.ApplyRemove: red, api.ApplyUnchanged: dim,
	}
	var rows [][]cell
	unchanged := 0
	for _, ch := range r.Changes {
		if ch.Action == api.ApplyUnchanged && ch.Error == "" {
			unchanged++
			if !all {
				continue
			}
		}
		row := texts(ch.Action, ch.Program, joinedBy(strings.Join(ch.Keys, ", "), ": ", ch.Error))
		row[0].Style = colour[ch.Action]
		rows = append(rows, row)
	}
	if len(rows) > 0 {
		c.table([]column{{Title: "ACTION"}, {Title: "NAME", Max: 24}, {Title: "KEYS"}}, rows)
	}
	if unchanged > 0 && !all {
		line(c.stdout, "unchanged: %d", unchanged)
	}
	c.remark(r)
	if r.RolledBack {
		line(c.stderr, "rolled back: %s", printable(r.Reason))
	}
	if r.DryRun {
		line(c.stdout, "dry run: the box is unchanged")
	}
}

// remark prints the warnings of an apply, and what it leaves for the next boot.
func (c *cli) remark(r api.ApplyResult) {
	for _, w := range r.Warnings {
		line(c.stderr, "%s", printable(w.String()))
	}
	if len(r.NextBoot) > 0 {
		line(c.stderr, "not before the next boot: %s", printable(strings.Join(r.NextBoot, ", ")))
	}
}

func newLogLevel(c *cli) *cobra.Command {
	return &cobra.Command{
		Use:       "log-level [LEVEL]",
		Short:     "Show or change the level of agentinit's own log",
		Long:      "Show the level of agentinit's own log, or change it: trace, debug, info, warn or\nerror.",
		Args:      cobra.MaximumNArgs(1),
		ValidArgs: []string{"trace", "debug", "info", "warn", "error"},
		RunE: func(cmd *cobra.Command, args []string) error {
			client := c.client()
			var level api.LogLevel
			var err error
			if len(args) == 1 {
				level, err = client.SetLogLevel(cmd.Context(), args[0])
			} else {
				level, err = client.LogLevel(cmd.Context())
			}
			if err != nil {
				return failed(err)
			}
			if c.json {
				return c.printJSON(level)
			}
			line(c.stdout, "%s", printable(level.Level))
			return nil
		},
	}
}

func newShutdown(c *cli) *cobra.Command {
	req := api.ShutdownRequest{}
	var wait bool
	cmd := &cobra.Command{
		Use:               "shutdown",
		Short:             "Stop every program and end agentinit",
		Long:              "Ask agentinit to stop every program and exit, as SIGTERM does. The command does\nnot wait for the end; with --wait it does.",
		Args:              noArgs,
		ValidArgsFunction: noFiles,
		RunE: func(cmd *cobra.Command, _ []string) error {
			client := c.client()
			inside := wait && client.Inside(cmd.Context())
			asked, done := outliving(cmd.Context(), answerWait)
			defer done()
			if err := client.Shutdown(asked, req); err != nil {
				return failed(err)
			}
			if wait {
				// The stream of events ends with agentinit; its error does not matter.
				err := client.Events(cmd.Context(), 0, true, func(api.Event) error { return nil })
				switch {
				case cmd.Context().Err() == nil:
				case inside && terminated(cmd.Context()):
					line(c.stderr, "agentctl: agentinit has accepted the shutdown and ends all processes of the box, this command too")
				default:
					return failed(err)
				}
			}
			if c.json {
				return c.printJSON(api.Accepted{Accepted: true})
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&req.Reason, "reason", "", "what to write into the log")
	cmd.Flags().BoolVar(&wait, "wait", false, "return when agentinit has gone")
	return cmd
}

// answerWait is how long the answer to a shutdown may take after a signal. A box with few programs ends
// within a millisecond, so TERM for all its processes can come before this command has read that
// agentinit accepts. agentinit then waits a little longer than this for the command's end.
const answerWait = 200 * time.Millisecond

// outliving returns a context that ends d after ctx, with the same cause.
func outliving(ctx context.Context, d time.Duration) (context.Context, func()) {
	longer, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		time.AfterFunc(d, func() { cancel(context.Cause(ctx)) })
	})
	return longer, func() {
		stop()
		cancel(nil)
	}
}

// terminated tells whether SIGTERM has ended ctx, and not Ctrl-C.
func terminated(ctx context.Context) bool {
	by, ok := errors.AsType[*signalled](context.Cause(ctx))
	return ok && by.signal == syscall.SIGTERM
}

func newMetrics(c *cli) *cobra.Command {
	return &cobra.Command{
		Use:               "metrics",
		Short:             "Print the Prometheus metrics, in a box without curl",
		Long:              "Print the Prometheus metrics, in a box without curl. They are in Prometheus'\ntext format, with --json too.",
		Args:              noArgs,
		ValidArgsFunction: noFiles,
		RunE: func(cmd *cobra.Command, _ []string) error {
			text, err := c.client().Metrics(cmd.Context())
			if err != nil {
				return failed(err)
			}
			return c.write([]byte(text))
		},
	}
}
