package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dreamlab-ai/agentinit/cmd/agentctl/picture"
	"github.com/dreamlab-ai/agentinit/internal/escape"
	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/schema/plan"
	"github.com/dreamlab-ai/agentinit/schema/rules"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

func newPlan(c *cli) *cobra.Command {
	var mainArgs []string
	var graph string
	cmd := &cobra.Command{
		Use:   "plan [FILE] [-- COMMAND ARG...]",
		Short: "Show what a manifest would start, and in which order",
		Long: `Show what agentinit would run for FILE in this environment: the waves, the
programs, where each comes from, what each needs, and the chain of stops that
takes longest. Programs of equal priority are one wave. The first line has the
bootstrap.profile of the manifest, and the supervisor.barrier, which says what
each wave waits for. A COMMAND after -- is the program "main", as in
agentinit --manifest FILE -- COMMAND.
` + fileHelp + `

--graph draws the dependency graph instead: an arrow leads from a program to the
one that waits for it. dot is for Graphviz, mermaid for Markdown, svg is a
picture.

Exit status: 0 done, 1 the manifest is invalid, 2 wrong command line.`,
		Args: func(cmd *cobra.Command, args []string) error {
			mainArgs = nil
			if at := cmd.ArgsLenAtDash(); at >= 0 {
				args, mainArgs = args[:at], args[at:]
			}
			return cobra.MaximumNArgs(1)(cmd, args)
		},
		RunE: func(_ *cobra.Command, args []string) error {
			draw, ok := graphs[graph]
			if graph != "" && !ok {
				return fmt.Errorf("unknown form %q of a graph: write dot, mermaid or svg", graph)
			}
			return c.plan(c.manifestArg(args[:len(args)-len(mainArgs)]), mainArgs, draw)
		},
	}
	cmd.Flags().StringVar(&graph, "graph", "", "draw the dependency graph as `FORM`: dot, mermaid or svg")
	_ = cmd.RegisterFlagCompletionFunc("graph", cobra.FixedCompletions(slices.Sorted(maps.Keys(graphs)), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// graphs are the forms of plan --graph.
var graphs = map[string]func(picture.Graph) string{"dot": picture.Graph.DOT, "mermaid": picture.Graph.Mermaid, "svg": picture.Graph.SVG}

// plan prints the plan, or the graph that draw makes from it.
func (c *cli) plan(name string, mainArgs []string, draw func(picture.Graph) string) error {
	text, err := c.readManifest(name)
	if err != nil {
		return c.refuse(c.unreadable(name, err))
	}
	facts := c.planFacts()
	facts.Main = mainArgs
	r := rules.Validate(name, text, c.ruleFacts(), facts)
	printFindings(c.stderr, r.Findings)
	if r.Plan == nil { // the shape of the manifest is wrong
		return &exitError{code: exitFailure}
	}
	// The plan of a manifest with mistakes is still useful.
	switch {
	case draw != nil:
		err = c.write([]byte(draw(picture.NewGraph(r.Plan))))
	case c.json:
		err = c.printJSON(r.Plan)
	default:
		c.printPlan(r.Plan)
	}
	if err == nil && rules.Errors(r.Findings) {
		err = &exitError{code: exitFailure}
	}
	return err
}

// printPlan writes a plan for people.
func (c *cli) printPlan(p *plan.Plan) {
	fmt.Fprintf(c.stdout, "profile %s, barrier %s, programs %d, waves %d\n\n", p.Profile, p.Barrier, len(p.Programs), len(p.Waves))
	wave := waveOf(p.Waves)
	rows := make([][]cell, len(p.Programs))
	for i, prog := range p.Programs {
		s := prog.Shown().Spec
		rows[i] = texts(wave[s.Name], name(s), fmt.Sprint(s.Priority), string(s.Type), readiness(s.Readiness),
			needs(s.Needs), origin(prog), escape.Shell(s.Argv...))
	}
	c.table(titled("WAVE", "PROGRAM", "PRIORITY", "TYPE", "READY", "NEEDS", "ORIGIN", "COMMAND"), rows)
	planNotes(c.stdout, p)
}

func waveOf(waves [][]string) map[string]string {
	of := map[string]string{}
	for n, names := range waves {
		for _, name := range names {
			of[name] = fmt.Sprint(n + 1)
		}
	}
	return of
}

// name marks programs that the seal waits for and programs that only a request starts.
func name(s *program.Spec) string {
	text := s.Name
	if s.Required {
		text += " *"
	}
	if !s.Autostart {
		text += " (manual)"
	}
	return text
}

func readiness(r program.Readiness) string {
	var kinds []string
	for _, p := range r.Probes {
		kinds = append(kinds, p.Dialect)
	}
	return dash(strings.Join(kinds, "+"))
}

func needs(list []program.Need) string {
	var texts []string
	for _, n := range list {
		text := n.Program
		if n.Condition != program.NeedReady {
			text += ":" + string(n.Condition)
		}
		texts = append(texts, text)
	}
	return dash(strings.Join(texts, ","))
}

func origin(p plan.Program) string {
	if p.Feature == "" {
		return p.Origin
	}
	return p.Origin + " (" + p.Feature + ")"
}

func dash(s string) string { return cmp.Or(s, "-") }

func planNotes(w io.Writer, p *plan.Plan) {
	fmt.Fprintln(w)
	if len(p.Required()) > 0 {
		fmt.Fprintln(w, "* the boot seal waits for it")
	}
	if len(p.StopPath) > 0 {
		fmt.Fprintf(w, "stop: at most %s (%s); stop_grace leaves %s\n", span(p.StopTime), strings.Join(p.StopPath, " → "), span(p.StopBudget))
	}
	for _, prog := range p.Programs {
		if len(prog.Withheld) > 0 {
			fmt.Fprintf(w, "%s does not inherit %s\n", prog.Spec.Name, strings.Join(prog.Withheld, ", "))
		}
	}
	for _, d := range p.Disabled {
		fmt.Fprintf(w, "off: %s (%s)\n", d.Name, d.Reason)
	}
	for _, a := range p.Artifacts {
		want := "optional"
		if a.Required {
			want = "required"
		}
		what := a.Entry
		if what == "" { // it is proved by its command or its assets
			what = escape.Shell(append(slices.Clone(a.Command), a.Assets...)...)
		}
		fmt.Fprintf(w, "artifact %s: class %s, %s, %s\n", a.ID, a.Class, want, printable(what))
	}
}

func span(d time.Duration) string { return schema.Duration(d).String() }
