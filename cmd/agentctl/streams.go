package main

import (
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
)

func newLogs(c *cli) *cobra.Command {
	o := logFlags{}
	cmd := &cobra.Command{
		Use:   "logs [NAME...]",
		Short: "Show what programs print",
		Long: `Show what programs print, all of them without a NAME.

agentinit keeps the newest output of each program. It reads the log files too,
rotated and compressed ones included, with --since, --until, -n all, and a -n of
more lines than it keeps. It does so for the programs that have run since
agentinit started. Lines that are older than agentinit carry the time at which
their file was rotated.

The lines of one program are shown as they are. If there are several programs,
the lines are in the order in which agentinit read them, with the name in front.
Control characters are shown as escapes, so that a program cannot write to your
terminal; --raw prints the bytes as the program wrote them. With --json every
line has a cursor; --after shows the lines that follow it.`,
		Example: `  agentctl logs -f --program 'web*' --stream stderr
  agentctl logs db --since 1h --until 10m --grep 'ERROR|FATAL'
  agentctl logs web --previous -n 50`,
		ValidArgsFunction: c.completeNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.reopen {
				if len(args) > 0 {
					return usageError("--reopen takes no NAME: it reopens the log files of all programs")
				}
				return failed(c.client().ReopenLogs(cmd.Context()))
			}
			q, err := o.query(append(args, o.programs...), time.Now())
			if err != nil {
				return err
			}
			client := c.client()
			printed := false
			show := c.logPrinter(q.Names, o.times, o.raw)
			err = client.Logs(cmd.Context(), q, func(l api.LogLine) error {
				printed = true
				return show(l)
			})
			if err == nil && q.Previous && !printed {
				c.explainNoPrevious(cmd.Context(), client, q.Names)
			}
			return quietEnd(cmd.Context(), err)
		},
	}
	f := cmd.Flags()
	f.BoolVarP(&o.follow, "follow", "f", false, "go on with new lines")
	f.StringVar(&o.since, "since", "", "only lines from this long ago on, such as 10m, or from a time on (RFC 3339, or local: \"2026-01-02 15:04:05\" or 2026-01-02)")
	f.StringVar(&o.until, "until", "", "only lines up to this long ago, such as 10m, or up to a time")
	f.StringVar(&o.after, "after", "", "only lines after the one with this cursor")
	f.StringVar(&o.grep, "grep", "", "only lines that match this regular expression (RE2)")
	f.VarP(&o.lines, "lines", "n", "only the newest `N` lines, 0 for none of the old ones; all reads the log files too")
	f.StringVar(&o.stream, "stream", "", "only stdout or only stderr")
	f.StringArrayVar(&o.programs, "program", nil, "the same as NAME: a name, glob or prefix; may be repeated")
	f.BoolVarP(&o.previous, "previous", "p", false, "the latest run that has ended")
	f.BoolVar(&o.raw, "raw", false, "do not escape control characters")
	f.BoolVarP(&o.times, "timestamps", "t", false, "put the time before each line")
	f.BoolVar(&o.reopen, "reopen", false, "close and open every log file by its path; show no lines")
	_ = cmd.RegisterFlagCompletionFunc("stream", cobra.FixedCompletions([]string{"stdout", "stderr"}, cobra.ShellCompDirectiveNoFileComp))
	f.VisitAll(func(other *pflag.Flag) {
		if other.Name != "reopen" { // the others choose lines to show
			cmd.MarkFlagsMutuallyExclusive("reopen", other.Name)
		}
	})
	return cmd
}

// explainNoPrevious says that --previous shows nothing because no run has ended. A run that has ended
// may also have printed nothing.
func (c *cli) explainNoPrevious(ctx context.Context, client *api.Client, names []string) {
	status, err := client.Status(ctx, names...)
	if err != nil || slices.ContainsFunc(status.Programs, func(p api.Program) bool { return p.Run > 1 || p.Run == 1 && p.PID == 0 }) {
		return
	}
	of := "any program"
	if len(names) > 0 {
		of = printable(strings.Join(names, " or "))
	}
	line(c.stderr, "agentctl: no run of %s has ended", of)
}

// logFlags are the flags of logs as the user wrote them.
type logFlags struct {
	since, until, after, grep, stream    string
	lines                                lineCount
	programs                             []string
	follow, previous, times, reopen, raw bool
}

// query turns the flags into a request.
func (o *logFlags) query(names []string, now time.Time) (api.LogQuery, error) {
	q := api.LogQuery{
		Names: names, Stream: o.stream, After: o.after, Grep: o.grep, Previous: o.previous, Follow: o.follow,
		Lines: o.lines.wanted, All: o.lines.all,
	}
	var err error
	if q.Since, err = moment("--since", o.since, now); err != nil {
		return q, err
	}
	if q.Until, err = moment("--until", o.until, now); err != nil {
		return q, err
	}
	if o.follow && o.until != "" && !q.Until.After(now) {
		return q, usageError("--follow goes on with new lines, and --until %s is past: leave out one of the two", shortened(o.until))
	}
	return q, nil
}

// moment reads a duration before now, or a time, which is local if it names no zone; "" means the zero
// time.
func moment(flag, text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	// -5m would be a time to come, which no line has reached: it is not what other tools mean by it.
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		return now.Add(-d), nil
	}
	if t, err := time.Parse(time.RFC3339, text); err == nil {
		return t, nil
	}
	for _, layout := range []string{time.DateTime, time.DateOnly} { // as in journalctl(1)
		if t, err := time.ParseInLocation(layout, text, now.Location()); err == nil {
			return t, nil
		}
	}
	return time.Time{}, usageError("%s %q: must be a duration such as 10m, a time such as 2026-01-02T15:04:05Z, or a local time such as \"2026-01-02 15:04:05\" or 2026-01-02",
		flag, shortened(text))
}

// logPrinter prints lines. It leaves out the name only if all lines certainly belong to the one
// program on the command line.
func (c *cli) logPrinter(args []string, times, raw bool) func(api.LogLine) error {
	if c.json {
		return func(l api.LogLine) error { return c.printJSONLine(l) }
	}
	colours := c.colours()
	return func(l api.LogLine) error {
		prefix := ""
		if times {
			prefix = style(dim, l.Time.UTC().Format(event.TimeFormat), colours) + " "
		}
		if len(args) != 1 || args[0] != l.Program {
			prefix += style(programColour(l.Program), printable(l.Program)+" |", colours) + " "
		}
		text := string(l.Bytes())
		if !raw {
			text = printable(text)
		}
		_, err := fmt.Fprintln(c.stdout, prefix+text)
		return err
	}
}

// programColour is one of the colours other than black, white and red.
func programColour(name string) string {
	h := fnv.New32a()
	h.Write([]byte(name))
	palette := []string{"32", "33", "34", "35", "36", "92", "93", "94", "95", "96"}
	return palette[h.Sum32()%uint32(len(palette))]
}

func newEvents(c *cli) *cobra.Command {
	var since string
	var follow bool
	var newest lineCount
	cmd := &cobra.Command{
		Use:   "events",
		Short: "Show what happened in the box",
		Long: `Show the events of the whole box that agentinit still has in memory.
"agentctl why NAME" shows the newest events of one program.

Every event has a number. --since takes such a number, or a time in the forms of
agentctl logs --since. The event Lagged stands for events that agentinit no
longer has.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				instead := "agentctl why " + args[0]
				if strings.ToLower(args[0]) != args[0] {
					instead = "agentctl events | grep " + args[0] // an event, such as ProgramCrashed
				}
				return usageError("events takes no NAME, but got %q; use: %s", args[0], instead)
			}
			return nil
		},
		ValidArgsFunction: noFiles,
		RunE: func(cmd *cobra.Command, _ []string) error {
			after, from, err := eventsSince(since, time.Now())
			if err != nil {
				return err
			}
			show := func(e api.Event) error {
				if e.Time.Before(from) {
					return nil
				}
				if c.json {
					return c.printJSONLine(e)
				}
				_, err := fmt.Fprintln(c.stdout, c.eventText(e))
				return err
			}
			client := c.client()
			if newest.wanted != 0 {
				after, err = newestEvents(cmd.Context(), client, after, max(newest.wanted, 0), show)
				if err != nil || !follow {
					return quietEnd(cmd.Context(), err)
				}
			}
			return quietEnd(cmd.Context(), client.Events(cmd.Context(), after, follow, show))
		},
	}
	cmd.Flags().StringVar(&since, "since", "", "only events after this number, or from this long ago or this time on")
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on with new events")
	cmd.Flags().VarP(&newest, "lines", "n", "only the newest `N` events, 0 for none of the old ones")
	return cmd
}

// newestEvents shows the newest n events after number since, and returns the number of the last one.
func newestEvents(ctx context.Context, client *api.Client, since uint64, n int, show func(api.Event) error) (last uint64, err error) {
	var held []api.Event
	last = since
	err = client.Events(ctx, since, false, func(e api.Event) error {
		last = e.Seq
		if held = append(held, e); len(held) > n {
			held = held[1:]
		}
		return nil
	})
	for _, e := range held {
		if err == nil {
			err = show(e)
		}
	}
	return last, err
}

// eventsSince reads the number of an event, or a time in the forms of moment.
func eventsSince(text string, now time.Time) (after uint64, from time.Time, err error) {
	if after, err = strconv.ParseUint(text, 10, 63); err == nil {
		return after, from, nil
	}
	if from, err = moment("--since", text, now); err != nil {
		err = usageError("%w; or the number of an event, which begins its line", err)
	}
	return 0, from, err
}

func (c *cli) eventText(e api.Event) string {
	colour := map[string]string{"warn": yellow, "error": red, "debug": dim}[e.Level]
	parts := []string{
		fmt.Sprintf("%5d", e.Seq), e.Time.UTC().Format(event.TimeFormat), style(colour, printable(e.Name), c.colours()),
	}
	if e.Program != "" {
		parts = append(parts, style(cyan, printable(e.Program), c.colours()))
	}
	if ch := e.Change; ch != nil {
		parts = append(parts, changeText(*ch))
	}
	for _, key := range slices.Sorted(maps.Keys(e.Fields)) {
		parts = append(parts, printable(key)+"="+printable(string(e.Fields[key])))
	}
	return strings.Join(parts, " ")
}

func changeText(ch api.Change) string {
	text := ch.From + " → " + ch.To
	if ch.From == ch.To {
		text = ch.To
	}
	if ch.PID != 0 {
		text += fmt.Sprintf(" pid %d", ch.PID)
	}
	if ch.Ready {
		text += " ready"
	}
	if ch.Completed {
		text += " completed"
	}
	if ch.Reason != "" {
		text += ": " + ch.Reason
	}
	return printable(text)
}
