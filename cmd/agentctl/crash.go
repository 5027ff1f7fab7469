package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/dreamlab-ai/agentinit/internal/escape"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
)

func newCrash(c *cli) *cobra.Command {
	return &cobra.Command{
		Use:   "crash [NAME]",
		Short: "Show how programs ended that did not end as expected",
		Long: `Show the latest crash of a program, or of every program that had one:

- its exit status or signal,
- why agentinit stopped it, or whether memory ran out and the kernel killed it,
- where the core file is,
- how much processor time and memory it used,
- the last lines of its output; "!" marks standard error.`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: c.completeNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			var name string
			if len(args) > 0 {
				name = args[0]
			}
			out, err := c.client().Crash(cmd.Context(), name)
			if err != nil {
				return failed(err)
			}
			if c.json {
				return c.printJSON(out)
			}
			for _, one := range out.Crashes {
				c.printCrash(one)
			}
			switch {
			case len(out.Crashes) > 0:
			case name != "": // a start can fail without a crash: a file is missing, or the exit status is 0
				line(c.stdout, "no crash; see: agentctl status %s", escape.Shell(name))
			default:
				line(c.stdout, "no crash")
			}
			return nil
		},
	}
}

func (c *cli) printCrash(x api.Crash) {
	how := x.Exit.String()
	if x.Killed {
		how += " by agentinit"
	}
	form := "%s: %s after %s, at %s"
	if x.Exit.Cause != "" { // long, and may end with what "after" would seem to belong to
		form = "%s: %s; it ran for %s, until %s"
	}
	line(c.stdout, form, printable(x.Program), printable(how),
		api.Duration(time.Duration(x.UptimeMS)*time.Millisecond), x.Time.UTC().Format(event.TimeFormat))
	line(c.stdout, "  run:    %d, pid %d", x.Run, x.PID)
	if x.CoreAt != "" {
		line(c.stdout, "  core:   %s", printable(x.CoreAt))
	}
	memory := "memory not known" // see api.Crash
	if x.MaxRSSBytes > 0 {
		memory = fmt.Sprintf("%d MiB at most", x.MaxRSSBytes>>20)
	}
	line(c.stdout, "  used:   %d ms user, %d ms system, %s", x.UserMS, x.SystemMS, memory)
	if len(x.Output) > 0 {
		line(c.stdout, "  output:")
	}
	for _, l := range x.Output {
		line(c.stdout, "  %s", outputText(l))
	}
}
