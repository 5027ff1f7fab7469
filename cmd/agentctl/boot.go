package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dreamlab-ai/agentinit/cmd/agentctl/picture"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
)

// bootForm is how `boot` shows the record.
type bootForm struct {
	svg, trace bool
	compare    string // a file, previousBoot, or empty
}

// previousBoot is the meaning of --compare without a FILE.
const previousBoot = "the boot before"

// maxBootRecord limits the size of a file that `boot --json` wrote. A thousand programs need about
// 300 KiB.
const maxBootRecord = 64 << 20

func newBoot(c *cli) *cobra.Command {
	var form bootForm
	cmd := &cobra.Command{
		Use:   "boot",
		Short: "Show how the box booted",
		Long: `Show how the box booted: the phases, the programs in the order in which they
were started, what took longest (blame), and the chain of programs that the
boot waited for (critical chain). A program that was started or added before the
seal, the end of the boot, is in the list; one that was started later is not.

--svg draws the boot as a waterfall. --trace writes it for chrome://tracing and
https://ui.perfetto.dev. --compare shows which phases and programs took longer
or shorter than in the boot before; --compare=FILE compares with a record that
"agentctl boot --json" wrote.`,
		Example: `  agentctl boot --svg > boot.svg
  agentctl boot --json > today.json
  agentctl boot --compare=today.json`,
		Args:              noArgs,
		ValidArgsFunction: noFiles,
		RunE: func(cmd *cobra.Command, _ []string) error {
			boot, err := c.client().Boot(cmd.Context())
			if err != nil {
				return failed(err)
			}
			return c.showBoot(cmd.Context(), boot, form)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&form.svg, "svg", false, "draw the boot as an SVG waterfall")
	f.BoolVar(&form.trace, "trace", false, "write the boot in the Trace Event Format")
	f.StringVar(&form.compare, "compare", "", "compare with the boot before, or with the record in `FILE`")
	f.Lookup("compare").NoOptDefVal = previousBoot
	cmd.MarkFlagsMutuallyExclusive("svg", "trace", "compare")
	return cmd
}

func (c *cli) showBoot(ctx context.Context, boot api.Boot, form bootForm) error {
	switch {
	case form.svg:
		return c.write([]byte(picture.Waterfall(boot)))
	case form.trace:
		out, err := picture.Trace(boot)
		return cmp.Or(failed(err), c.write(out))
	case form.compare != "":
		before, err := c.bootBefore(ctx, form.compare)
		if err != nil {
			return err
		}
		return c.printComparison(boot, before)
	case c.json:
		return c.printJSON(boot)
	}
	c.printBoot(boot)
	return nil
}

// write prints a finished text.
func (c *cli) write(text []byte) error {
	_, err := c.stdout.Write(text)
	return failed(err)
}

// bootBefore is the record to compare with: from agentinit or from a file.
func (c *cli) bootBefore(ctx context.Context, from string) (api.Boot, error) {
	if from == previousBoot {
		boot, err := c.client().PreviousBoot(ctx)
		return boot, failed(err)
	}
	var boot api.Boot
	text, err := readAtMost(from, maxBootRecord)
	if err != nil {
		return boot, failed(fmt.Errorf("cannot read %s: %w", printable(from), err))
	}
	if err := json.Unmarshal(text, &boot); err != nil || boot.StartedAt.IsZero() {
		return boot, failed(fmt.Errorf("%s is not a boot record; write one with: agentctl boot --json > FILE", from))
	}
	return boot, nil
}

func (c *cli) printComparison(now, before api.Boot) error {
	steps := picture.Compare(now, before)
	if c.json {
		return c.printJSON(steps)
	}
	line(c.stdout, "boot of %s compared with that of %s", now.StartedAt.UTC().Format(time.RFC3339), before.StartedAt.UTC().Format(time.RFC3339))
	line(c.stdout, "")
	rows := make([][]cell, len(steps))
	for i, s := range steps {
		rows[i] = append(texts(s.Kind, dash(s.Name), tookMS(s.BeforeMS), tookMS(s.NowMS)), changed(s))
	}
	c.table([]column{{Title: "KIND"}, {Title: "NAME", Max: 28}, {Title: "BEFORE", Right: true}, {Title: "NOW", Right: true}, {Title: "CHANGE", Right: true}}, rows)
	return nil
}

func tookMS(ms *float64) string {
	if ms == nil {
		return "-"
	}
	return picture.Milliseconds(*ms)
}

// changed is red if a step took at least a tenth and 10 ms longer, and green if it took that much
// less. Smaller differences are noise.
func changed(s picture.Step) cell {
	by, both := s.Change()
	switch {
	case s.BeforeMS == nil:
		return cell{Text: "new"}
	case !both:
		return cell{Text: "gone"}
	}
	size := max(by, -by)
	text, style := "+"+picture.Milliseconds(size), red
	if by < 0 {
		text, style = "-"+picture.Milliseconds(size), green
	}
	if size < 10 || size < *s.BeforeMS/10 {
		style = ""
	}
	return cell{Text: text, Style: style}
}

func (c *cli) printBoot(b api.Boot) {
	head := "boot " + b.Outcome
	if b.SealedAt != nil {
		head += " after " + api.Duration(b.SealedAt.Sub(b.StartedAt))
	}
	line(c.stdout, "%s, begun %s", printable(joinedBy(head, ": ", b.Reason)), b.StartedAt.UTC().Format(time.RFC3339))
	line(c.stdout, "")
	c.table([]column{{Title: "PHASE", Right: true}, {Title: "NAME"}, {Title: "AT", Right: true}, {Title: "TOOK", Right: true}, {Title: "OUTCOME"}}, phaseRows(b))
	if len(b.Programs) > 0 {
		line(c.stdout, "")
		c.table([]column{{Title: "PROGRAM", Max: 24}, {Title: "STARTED", Right: true}, {Title: "RUNNING", Right: true}, {Title: "READY", Right: true}, {Title: "NEEDS"}}, programRows(b))
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
		rows[i] = texts(strconv.FormatFloat(p.Number, 'f', -1, 64), p.Name, offset(b.StartedAt, &p.StartedAt), picture.Milliseconds(p.DurationMS),
			joinedBy(p.Outcome, ": ", p.Detail))
		rows[i][4].Style = colour[p.Outcome]
	}
	return rows
}

func programRows(b api.Boot) [][]cell {
	rows := make([][]cell, len(b.Programs))
	for i, p := range b.Programs {
		rows[i] = texts(p.Name, offset(b.StartedAt, p.StartedAt), offset(b.StartedAt, p.RunningAt), offset(b.StartedAt, p.ReadyAt),
			strings.Join(p.Needs, " "))
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

// offset is the time from the start of the boot to a moment, or "-" if the moment has not come.
func offset(from time.Time, at *time.Time) string {
	if at == nil {
		return "-"
	}
	return "+" + picture.Milliseconds(float64(at.Sub(from))/float64(time.Millisecond))
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
		out = append(out, s.name+" "+picture.Milliseconds(float64(s.took)/float64(time.Millisecond)))
	}
	return out
}
