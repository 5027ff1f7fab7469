package main

import (
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
)

func newLogs(c *cli) *cobra.Command {
	q := api.LogQuery{}
	var since string
	var lines lineCount
	var times bool
	cmd := &cobra.Command{
		Use:   "logs [NAME...]",
		Short: "Show what programs print",
		Long: `Show what programs print, all of them without a NAME, as far as agentinit
still has it in memory.

One program's lines come as they are, those of several with its name in front.
On a terminal control characters are shown as escapes.`,
		ValidArgsFunction: c.completeNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			q.Names = args
			if err := parseLogFlags(&q, since, int(lines)); err != nil {
				return err
			}
			client := c.client()
			return quietEnd(cmd.Context(), client.Logs(cmd.Context(), q, c.logPrinter(args, times)))
		},
	}
	f := cmd.Flags()
	f.BoolVarP(&q.Follow, "follow", "f", false, "go on with new lines")
	f.StringVar(&since, "since", "", "only lines of the last 10m, or since an RFC 3339 time")
	f.StringVar(&q.Grep, "grep", "", "only lines that match this regular expression (RE2)")
	f.VarP(&lines, "lines", "n", "begin with the newest `N` lines; all begins with the oldest")
	f.StringVar(&q.Stream, "stream", "", "only stdout or only stderr")
	f.BoolVarP(&times, "timestamps", "t", false, "put the time before each line")
	return cmd
}

func parseLogFlags(q *api.LogQuery, since string, lines int) error {
	q.Lines = lines
	if since == "" {
		return nil
	}
	if d, err := time.ParseDuration(since); err == nil {
		q.Since = time.Now().Add(-d)
		return nil
	}
	t, err := time.Parse(time.RFC3339, since)
	if err != nil {
		return usageError("--since is a duration such as 10m, or a time such as 2026-01-02T15:04:05Z")
	}
	q.Since = t
	return nil
}

// logPrinter prints lines. Only where it is sure that all lines are of the one
// program asked for does it leave out the name.
func (c *cli) logPrinter(args []string, times bool) func(api.LogLine) error {
	if c.json {
		return func(l api.LogLine) error { return c.printJSONLine(l) }
	}
	_, tty := terminal(c.stdout)
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
		if tty {
			text = printable(text)
		}
		_, err := fmt.Fprintln(c.stdout, prefix+text)
		return err
	}
}

// programColour is one of the colours that are neither black, white nor red.
func programColour(name string) string {
	h := fnv.New32a()
	h.Write([]byte(name))
	palette := []string{"32", "33", "34", "35", "36", "92", "93", "94", "95", "96"}
	return palette[h.Sum32()%uint32(len(palette))]
}

func newEvents(c *cli) *cobra.Command {
	var since uint64
	var follow bool
	cmd := &cobra.Command{
		Use:   "events",
		Short: "Show what happened in the box",
		Long: `Show the events that agentinit still has in memory.

Every event has a number; --since goes on after one. A Lagged event stands for
events that are gone.`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: noFiles,
		RunE: func(cmd *cobra.Command, _ []string) error {
			client := c.client()
			return quietEnd(cmd.Context(), client.Events(cmd.Context(), since, follow, func(e api.Event) error {
				if c.json {
					return c.printJSONLine(e)
				}
				_, err := fmt.Fprintln(c.stdout, c.eventText(e))
				return err
			}))
		},
	}
	cmd.Flags().Uint64Var(&since, "since", 0, "only events after this number")
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on with new events")
	return cmd
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
