package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/control/listing"
)

// statusView is api.Status with usage.
type statusView struct {
	Seq      uint64            `json:"seq"`
	Time     time.Time         `json:"time"`
	Phase    string            `json:"phase"`
	Programs []listing.Program `json:"programs"`
}

// statusFlags are the flags of status.
type statusFlags struct {
	watch        bool
	kind, format string // of -o
	order        string // of --sort
	asked        int    // the number of names on the command line
}

func newStatus(c *cli) *cobra.Command {
	var f statusFlags
	var output string
	cmd := &cobra.Command{
		Use:   "status [NAME...]",
		Short: "Show the state of programs",
		Long: `Show the state of programs, of all without a NAME. The table has the CPU time
that all runs of a program have used, and the memory that its processes have
now. If you name one program, the command shows a page about it, with its
processes, limits, last changes and last output.

-o wide adds columns to the table, and shows a table for one program too.
-o jsonpath takes a template as that of kubectl:
-o 'jsonpath={range .programs[*]}{.name}{"\n"}{end}'.

Exit status 3: a program that you asked about is not running. A oneshot that has
completed and a schedule before, in and after a run count as running; other
programs that are STARTING, and all in BACKOFF, do not. It is 3, too, in the
phases of the boot before the programs are started.`,
		ValidArgsFunction: c.completeNames,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if f.kind, f.format, err = parseFormat(output); err != nil {
				return err
			}
			if _, known := statusOrders[f.order]; !known {
				return usageError("--sort %q is not a column: write %s", f.order, strings.Join(statusOrderNames(), ", "))
			}
			switch {
			case c.json && f.kind == "":
				f.kind = "json"
			case c.json && f.kind != "json":
				return usageError("--json and -o %s exclude each other", f.kind)
			}
			f.asked = len(args)
			client := c.client()
			if f.watch {
				return quietEnd(cmd.Context(), c.watchStatus(cmd.Context(), client, f, args))
			}
			return c.status(cmd.Context(), client, f, args)
		},
	}
	cmd.Flags().BoolVarP(&f.watch, "watch", "w", false, "show it again whenever something changes")
	cmd.Flags().StringVarP(&output, "output", "o", "", formatHelp)
	cmd.Flags().StringVar(&f.order, "sort", "", "sort by `COLUMN`: "+strings.Join(statusOrderNames(), ", ")+" (default: order of start)")
	// It fails only for a flag that does not exist.
	_ = cmd.RegisterFlagCompletionFunc("sort", cobra.FixedCompletions(statusOrderNames(), cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"wide", "json", "yaml", "name", "jsonpath=", "go-template="}, cobra.ShellCompDirectiveNoFileComp|cobra.ShellCompDirectiveNoSpace))
	return cmd
}

func (c *cli) status(ctx context.Context, client *api.Client, f statusFlags, names []string) error {
	s, view, err := readStatus(ctx, client, f, names)
	if api.CodeOf(err) == api.CodeConflict { // of a box that is booting
		return c.notStarted(err)
	}
	if err != nil {
		return failed(err)
	}
	if f.kind == "" && f.asked == 1 && len(s.Programs) == 1 {
		err = failed(c.statusPage(ctx, client, view.Programs[0]))
	} else {
		err = c.printStatus(view, f)
	}
	if err != nil {
		return err
	}
	if s.Phase == phaseIdle && len(s.Programs) == 0 {
		boot, err := client.Boot(ctx)
		return c.notStarted(cmp.Or[error](err, api.NotStarted(boot)))
	}
	if !listing.AllRunning(view.Programs) {
		return &exitError{code: exitNotRunning}
	}
	return nil
}

// phaseIdle is the phase of a box whose boot has not come to the programs.
const phaseIdle = "idle"

// notStarted says why there are no programs yet.
func (c *cli) notStarted(err error) error {
	fmt.Fprintf(c.stderr, "agentctl: %s\n", printable(err.Error()))
	return &exitError{code: exitNotRunning}
}

// readStatus requests only the data that is shown. An older agentinit without tables gets the full
// request.
func readStatus(ctx context.Context, client *api.Client, f statusFlags, names []string) (api.Status, statusView, error) {
	if f.kind == "" && f.asked != 1 {
		s, err := client.Table(ctx, names...)
		if api.CodeOf(err) != api.CodeBadRequest {
			return s, viewOf(s, api.Usage{}, api.Usage{}, f.order), err
		}
	}
	s, err := client.Status(ctx, names...)
	if err != nil {
		return s, statusView{}, err
	}
	view, err := readView(ctx, client, s, f)
	return s, view, err
}

// readView adds the use of resources to the programs. Without that data the status is still shown.
func readView(ctx context.Context, client *api.Client, s api.Status, f statusFlags) (statusView, error) {
	var usage api.Usage
	if f.kind != "name" {
		var err error
		if usage, err = client.Usage(ctx); err != nil && !unaccounted(err) {
			return statusView{}, err
		}
	}
	return viewOf(s, usage, api.Usage{}, f.order), nil
}

func unaccounted(err error) bool {
	code := api.CodeOf(err)
	return code == api.CodeUnsupported || code == api.CodeNotFound
}

// viewOf joins a status and a reading of the use; before is the reading before it.
func viewOf(s api.Status, now, before api.Usage, order string) statusView {
	used := make(map[string]*api.ProgramUsage, len(now.Programs))
	for i := range now.Programs {
		used[now.Programs[i].Name] = &now.Programs[i]
	}
	then := make(map[string]float64, len(before.Programs))
	for _, p := range before.Programs {
		then[p.Name] = p.CPUSeconds
	}
	out := statusView{Seq: s.Seq, Time: s.Time, Phase: s.Phase, Programs: make([]listing.Program, len(s.Programs))}
	span := now.Time.Sub(before.Time).Seconds()
	for i, p := range s.Programs {
		view := listing.Program{Program: p, Share: -1}
		if now := used[p.Name]; now != nil {
			view.Usage = now
		}
		if seconds, known := then[p.Name]; known && span > 0 && view.Usage != nil {
			view.Share = max(0, view.Usage.CPUSeconds-seconds) / span
		}
		out.Programs[i] = view
	}
	if less := statusOrders[order]; less != nil {
		slices.SortStableFunc(out.Programs, less)
	}
	return out
}

// statusOrders compares two programs by a column. Numbers are sorted with the highest first.
var statusOrders = map[string]func(a, b listing.Program) int{
	"":      nil,
	"name":  func(a, b listing.Program) int { return cmp.Compare(a.Name, b.Name) },
	"state": func(a, b listing.Program) int { return cmp.Compare(a.Display(), b.Display()) },
	"cpu": func(a, b listing.Program) int {
		return cmp.Or(cmp.Compare(b.Share, a.Share), cmp.Compare(b.CPU(), a.CPU()))
	},
	"memory":   func(a, b listing.Program) int { return cmp.Compare(b.Memory(), a.Memory()) },
	"restarts": func(a, b listing.Program) int { return cmp.Compare(b.Restarts, a.Restarts) },
	"for":      func(a, b listing.Program) int { return b.Since.Compare(a.Since) },
	"pid":      func(a, b listing.Program) int { return cmp.Compare(a.PID, b.PID) },
}

func statusOrderNames() []string {
	return []string{"name", "state", "pid", "for", "cpu", "memory", "restarts"}
}

func (c *cli) printStatus(s statusView, f statusFlags) error {
	switch f.kind {
	case "", "wide":
		fmt.Fprint(c.stdout, listing.Table(s.Programs, s.Time, f.kind == "wide", c.layout()))
		return nil
	case "name":
		for _, p := range s.Programs {
			line(c.stdout, "%s", printable(p.Name))
		}
		return nil
	}
	return c.printFormat(f.kind, f.format, s)
}

// watchStatus shows the state, and shows it again after each event that changes it. On a terminal
// it redraws in the same place. It reads CPU and memory as often as agentinit does.
func (c *cli) watchStatus(ctx context.Context, client *api.Client, f statusFlags, names []string) error {
	_, tty := terminal(c.stdout)
	w := &statusWatch{cli: c, client: client, flags: f, names: names, redraw: tty && (f.kind == "" || f.kind == "wide")}
	if err := w.show(ctx); err != nil {
		return err
	}
	if !w.redraw {
		return client.Events(ctx, w.seq, true, func(e api.Event) error {
			if e.Seq <= w.seq || !ofPrograms(e) {
				return nil
			}
			return w.show(ctx)
		})
	}
	return w.follow(ctx)
}

// statusWatch is a status that is redrawn.
type statusWatch struct {
	*cli
	client       *api.Client
	flags        statusFlags
	names        []string
	redraw       bool
	seq          uint64
	shown        bool
	usage, older api.Usage
	nextUsage    time.Time
}

// ofPrograms tells whether an event may change what is shown about programs.
func ofPrograms(e api.Event) bool { return e.Program != "" || e.Name == api.EventLagged }

// follow redraws after events, at most four times a second, and when a reading of the use is due.
func (w *statusWatch) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	changed, ended := make(chan struct{}, 1), make(chan error, 1)
	since := w.seq
	go func() {
		ended <- w.client.Events(ctx, since, true, func(e api.Event) error {
			if ofPrograms(e) {
				select {
				case changed <- struct{}{}:
				default: // a redraw is already due
				}
			}
			return nil
		})
	}()
	pause := time.NewTicker(250 * time.Millisecond)
	defer pause.Stop()
	for {
		select {
		case err := <-ended:
			return err
		case <-changed:
		case <-time.After(max(0, time.Until(w.nextUsage))):
		}
		if err := w.show(ctx); err != nil {
			return err
		}
		select {
		case err := <-ended:
			return err
		case <-pause.C:
		}
	}
}

// show reads the present status and prints it.
func (w *statusWatch) show(ctx context.Context) error {
	s, err := w.client.Status(ctx, w.names...)
	if err != nil {
		return err
	}
	w.seq = s.Seq
	if w.flags.kind != "name" && !time.Now().Before(w.nextUsage) {
		if err := w.readUsage(ctx); err != nil {
			return err
		}
	}
	view := viewOf(s, w.usage, w.older, w.flags.order)
	if w.redraw {
		line(w.stdout, "\x1b[H\x1b[2J%s", style(dim, "agentctl status, "+s.Time.UTC().Format(time.TimeOnly)+" UTC, "+s.Phase, w.colours()))
	} else if w.shown && (w.flags.kind == "" || w.flags.kind == "wide") {
		line(w.stdout, "")
	}
	w.shown = true
	if w.flags.kind == "json" {
		return w.printJSONLine(view)
	}
	return w.printStatus(view, w.flags)
}

func (w *statusWatch) readUsage(ctx context.Context) error {
	usage, err := w.client.Usage(ctx)
	switch {
	case unaccounted(err):
		w.nextUsage = time.Now().Add(time.Hour)
		return nil
	case err != nil:
		return err
	}
	w.nextUsage = time.Now().Add(max(time.Second, time.Duration(usage.NextMS)*time.Millisecond))
	if usage.Time.After(w.usage.Time) {
		w.older, w.usage = w.usage, usage
	}
	return nil
}
