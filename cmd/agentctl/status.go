package main

import (
	"context"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
)

func newStatus(c *cli) *cobra.Command {
	var watch bool
	cmd := &cobra.Command{
		Use:   "status [NAME...]",
		Short: "Show the state of programs",
		Long: `Show the state of programs, all of them without a NAME.

Exit status 3: something asked about is not running. A oneshot that has
completed and a schedule between two runs count as running; a program that is
STARTING or in BACKOFF does not.`,
		ValidArgsFunction: c.completeNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			client := c.client()
			if watch {
				return quietEnd(cmd.Context(), c.watchStatus(cmd.Context(), client, args))
			}
			s, err := client.Status(cmd.Context(), args...)
			if err != nil {
				return failed(err)
			}
			if err := c.printStatus(s); err != nil {
				return err
			}
			if !allRunning(s.Programs) {
				return &exitError{code: exitNotRunning}
			}
			return nil
		},
	}
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "show it again whenever something changes")
	return cmd
}

func allRunning(programs []api.Program) bool {
	for _, p := range programs {
		if !running(p) {
			return false
		}
	}
	return true
}

func running(p api.Program) bool {
	switch p.Display() {
	case "RUNNING", "COMPLETED", "SCHEDULED":
		return true
	case "EXITED": // the latest run of a schedule has failed; the next comes
		return p.Schedule != nil && p.PID == 0
	}
	return false
}

func (c *cli) printStatus(s api.Status) error {
	if c.json {
		return c.printJSON(s)
	}
	columns := []column{
		{title: "NAME", max: 24}, {title: "STATE"}, {title: "PID", right: true},
		{title: "FOR", right: true}, {title: "RESTARTS", right: true}, {title: "INFO"},
	}
	rows := make([][]cell, len(s.Programs))
	for i, p := range s.Programs {
		pid := "-"
		if p.PID != 0 {
			pid = strconv.Itoa(p.PID)
		}
		state, colour := display(p)
		rows[i] = []cell{
			{printable(p.Name), noStyle}, {state, colour}, {pid, noStyle}, {api.Duration(s.Time.Sub(p.Since)), noStyle},
			{strconv.FormatUint(p.Restarts, 10), noStyle}, {printable(info(p, s.Time)), noStyle},
		}
	}
	c.table(columns, rows)
	return nil
}

// display is the state as people read it, with its colour.
func display(p api.Program) (state, colour string) {
	switch p.Display() {
	case "RUNNING":
		if !p.Ready || !p.Healthy {
			return p.Display(), yellow
		}
		return p.Display(), green
	case "STARTING", "STOPPING", "BACKOFF", "PAUSED":
		return p.Display(), yellow
	case "FATAL", "EXITED":
		return p.Display(), red
	case "COMPLETED":
		return p.Display(), green
	}
	return p.Display(), dim
}

func info(p api.Program, now time.Time) string {
	var text string
	switch {
	case p.State == "RUNNING" && !p.Ready:
		text = joined("not ready", p.Reason)
	case p.State == "RUNNING" && !p.Healthy:
		text = joined("not healthy", p.Reason)
	case p.State != "RUNNING":
		text = p.Reason
		if text == "" && p.LastExit != nil {
			text = p.LastExit.String()
		}
	}
	if p.State == "BACKOFF" && p.Deadline != nil {
		text = joined(text, "again in "+api.Duration(p.Deadline.Sub(now)))
	}
	// A schedule that rests says it in its reason.
	if s := p.Schedule; s != nil && s.NextRun != nil && p.PID != 0 {
		text = joined(text, "next run at "+s.NextRun.Format(time.RFC3339))
	}
	if p.Text != "" {
		text = joined(text, p.Text)
	}
	return text
}

func joined(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + "; " + b
}

// watchStatus shows the state, then again after events that change it. On a
// terminal it takes the same place each time.
func (c *cli) watchStatus(ctx context.Context, client *api.Client, names []string) error {
	s, err := client.Status(ctx, names...)
	if err != nil {
		return err
	}
	_, tty := terminal(c.stdout)
	show := func() error {
		switch {
		case c.json:
			return c.printJSONLine(s)
		case tty:
			line(c.stdout, "\x1b[H\x1b[2J%s", style(dim, "agentctl status, "+s.Time.UTC().Format(time.TimeOnly)+" UTC, "+s.Phase, c.colours()))
		}
		return c.printStatus(s)
	}
	if err := show(); err != nil {
		return err
	}
	return client.Events(ctx, s.Seq, true, func(e api.Event) error {
		if e.Seq <= s.Seq || e.Program == "" && e.Name != api.EventLagged {
			return nil // contained already, or not about a program
		}
		if s, err = client.Status(ctx, names...); err != nil {
			return err
		}
		if !tty && !c.json {
			line(c.stdout, "")
		}
		return show()
	})
}
