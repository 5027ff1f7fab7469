package main

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
)

func newBoot(c *cli) *cobra.Command {
	return &cobra.Command{
		Use:   "boot",
		Short: "Show how the box booted",
		Long: `Show how the box booted: the phases, the programs in the order in which they
were started, what took longest (blame), and the chain of programs that the
boot waited for (critical chain).`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: noFiles,
		RunE: func(cmd *cobra.Command, _ []string) error {
			client := c.client()
			boot, err := client.Boot(cmd.Context())
			if err != nil {
				return failed(err)
			}
			if c.json {
				return c.printJSON(boot)
			}
			c.printBoot(boot)
			return nil
		},
	}
}

func (c *cli) printBoot(b api.Boot) {
	head := "boot " + b.Outcome
	if b.SealedAt != nil {
		head += " after " + api.Duration(b.SealedAt.Sub(b.StartedAt))
	}
	line(c.stdout, "%s, begun %s", printable(joinedBy(head, ": ", b.Reason)), b.StartedAt.UTC().Format(time.RFC3339))
	line(c.stdout, "")
	c.table([]column{{title: "PHASE", right: true}, {title: "NAME"}, {title: "AT", right: true}, {title: "TOOK", right: true}, {title: "OUTCOME"}}, phaseRows(b))
	if len(b.Programs) > 0 {
		line(c.stdout, "")
		c.table([]column{{title: "PROGRAM", max: 24}, {title: "STARTED", right: true}, {title: "RUNNING", right: true}, {title: "READY", right: true}, {title: "NEEDS"}}, programRows(b))
	}
	c.printArtifacts(b.Artifacts)
	if blame := blame(b); len(blame) > 0 {
		line(c.stdout, "\nblame:          %s", printable(strings.Join(blame, ", ")))
	}
	if len(b.CriticalChain) > 0 {
		line(c.stdout, "critical chain: %s", printable(strings.Join(b.CriticalChain, " → ")))
	}
}

func phaseRows(b api.Boot) [][]cell {
	colour := map[string]string{"ok": green, "warning": yellow, "failed": red}
	rows := make([][]cell, len(b.Phases))
	for i, p := range b.Phases {
		rows[i] = []cell{
			{strconv.FormatFloat(p.Number, 'f', -1, 64), noStyle}, {printable(p.Name), noStyle},
			{offset(b.StartedAt, &p.StartedAt), noStyle}, {milliseconds(p.DurationMS), noStyle},
			{printable(joinedBy(p.Outcome, ": ", p.Detail)), colour[p.Outcome]},
		}
	}
	return rows
}

func programRows(b api.Boot) [][]cell {
	rows := make([][]cell, len(b.Programs))
	for i, p := range b.Programs {
		rows[i] = []cell{
			{printable(p.Name), noStyle}, {offset(b.StartedAt, p.StartedAt), noStyle}, {offset(b.StartedAt, p.RunningAt), noStyle},
			{offset(b.StartedAt, p.ReadyAt), noStyle}, {printable(strings.Join(p.Needs, " ")), noStyle},
		}
	}
	return rows
}

func (c *cli) printArtifacts(artifacts []api.BootArtifact) {
	for _, a := range artifacts {
		if a.OK {
			continue
		}
		kind := "optional"
		if a.Required {
			kind = "required"
		}
		line(c.stdout, "artifact %s (%s) missing: %s", printable(a.ID), kind, printable(a.Reason))
	}
}

// offset is a moment as time since the boot began, "-" when it has not come.
func offset(from time.Time, at *time.Time) string {
	if at == nil {
		return "-"
	}
	return "+" + milliseconds(float64(at.Sub(from))/float64(time.Millisecond))
}

// milliseconds is finer than api.Duration below ten milliseconds: a boot is
// made of such.
func milliseconds(ms float64) string {
	if ms < 10 {
		return fmt.Sprintf("%.1fms", max(0, ms))
	}
	return api.Duration(time.Duration(ms * float64(time.Millisecond)))
}

// blame names the five programs that took longest from start to ready.
func blame(b api.Boot) []string {
	type share struct {
		name string
		took time.Duration
	}
	var all []share
	for _, p := range b.Programs {
		if p.StartedAt != nil && p.ReadyAt != nil {
			all = append(all, share{p.Name, p.ReadyAt.Sub(*p.StartedAt)})
		}
	}
	slices.SortStableFunc(all, func(x, y share) int { return cmp.Compare(y.took, x.took) })
	var out []string
	for _, s := range all[:min(len(all), 5)] {
		out = append(out, s.name+" "+milliseconds(float64(s.took)/float64(time.Millisecond)))
	}
	return out
}
