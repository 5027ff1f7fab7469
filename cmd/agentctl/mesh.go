package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dreamlab-ai/agentinit/internal/plural"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
)

func newMesh(c *cli) *cobra.Command {
	return group("mesh", "Show the relays of the box; publish and follow events", newMeshStatus(c), newMeshPublish(c), newMeshSubscribe(c))
}

func newMeshStatus(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Show relays, latency, last event, inbox and outbox", Args: noArgs, ValidArgsFunction: noFiles,
		RunE: func(cmd *cobra.Command, _ []string) error {
			raw, err := c.ask(cmd.Context(), http.MethodGet, "/v1/mesh", nil, nil)
			return show(c, raw, err, c.meshStatus)
		},
	}
}

type meshStatus struct {
	Npub   string
	Relays []struct {
		URL, State, Name, Error string
		Own, Guest              bool
		LoggedIn                bool      `json:"logged_in"`
		LatencyMS               float64   `json:"latency_ms"`
		LastEvent               time.Time `json:"last_event"`
		Events, Published       uint64
		Publishes, Subscribes   bool
	}
	Mailbox *struct {
		Receiving                                 bool
		Inbox, Untold, Pending, Published, Failed int
	}
	EventsWait *struct {
		Event, Reason string
		Since         time.Time
		Tries         int
	} `json:"events_wait"`
}

func (c *cli) meshStatus(s meshStatus) {
	colour := map[string]string{"connected": green, "connecting": yellow, "waiting": red}
	rows := make([][]cell, len(s.Relays))
	for i, r := range s.Relays {
		latency, last := "-", "-"
		if r.LatencyMS > 0 {
			latency = strconv.FormatFloat(r.LatencyMS, 'f', 1, 64) + "ms"
		}
		if !r.LastEvent.IsZero() {
			last = r.LastEvent.UTC().Format(time.RFC3339)
		}
		use := map[[2]bool]string{{true, true}: "both", {true, false}: "publish", {false, true}: "subscribe"}[[2]bool{r.Publishes, r.Subscribes}]
		name := r.Name
		if r.Own {
			name = "(own) " + name
		}
		if r.Guest {
			name = "(guest) " + name
		}
		if r.Error != "" {
			name = r.Error
		}
		rows[i] = texts(r.URL, r.State, use, latency, last, fmt.Sprint(r.Events), fmt.Sprint(r.Published),
			map[bool]string{true: "yes", false: "no"}[r.LoggedIn], strings.TrimSpace(name))
		rows[i][1].Style = colour[r.State]
	}
	c.table(titled("RELAY", "STATE", "USE", "LATENCY", "LAST EVENT", "RECEIVED", "PUBLISHED", "LOGIN", "NAME OR ERROR"), rows)
	fmt.Fprintf(c.stdout, "\n%-8s %s\n", "npub", printable(s.Npub))
	if w := s.EventsWait; w != nil {
		what := "wait"
		if w.Event != "" {
			what += " for " + w.Event
		}
		fmt.Fprintf(c.stdout, "%-8s %s since %s (%s): %s\n", "events", printable(what), w.Since.UTC().Format(time.RFC3339), plural.Of(w.Tries, "attempt"), printable(w.Reason))
	}
	if s.Mailbox == nil {
		fmt.Fprintf(c.stdout, "%-8s %s\n", "mailbox", "not open")
		return
	}
	inbox := fmt.Sprintf("%s, %d not yet in the events slot", plural.Of(s.Mailbox.Inbox, "message"), s.Mailbox.Untold)
	if !s.Mailbox.Receiving {
		inbox += "; receiving is off"
	}
	fmt.Fprintf(c.stdout, "%-8s %s\n%-8s %d pending, %d published, %d failed\n", "inbox", inbox, "outbox", s.Mailbox.Pending, s.Mailbox.Published, s.Mailbox.Failed)
}

type meshReceipt struct {
	PendingID string `json:"pending_id"`
	Status    string
	EventID   string `json:"event_id"`
	Reason    string
}

func newMeshPublish(c *cli) *cobra.Command {
	var in struct {
		Kind    *int       `json:"kind,omitempty"` // absent: the box chooses
		Content string     `json:"content"`
		Tags    [][]string `json:"tags,omitempty"`
		To      string     `json:"to,omitempty"`
	}
	var kind int
	var tags []string
	var wait time.Duration
	var key string
	cmd := &cobra.Command{
		Use: "publish CONTENT|-", Short: "Sign an event with the box's key and publish it", Args: cobra.ExactArgs(1), ValidArgsFunction: noFiles,
		Long: `Sign an event with the box's key and publish it to the relays of the box.

The event is in the outbox when the box has answered; it is published as soon as
a relay takes it, after a restart of the box too. The event's id is printed.
With --to, the event is a private message (NIP-17): only that key can read it.`,
		Example: `  agentctl mesh publish 'the build is green'
  agentctl mesh publish --to npub1... 'for your eyes only'
  agentctl mesh publish --kind 38000 --tag p=3bf0c63f... --tag d=job-7 - < intent.json`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if wait < 0 || wait > time.Minute {
				return usageError("--wait must be between 0s and 1m")
			}
			for _, tag := range tags {
				name, value, ok := strings.Cut(tag, "=")
				if !ok || name == "" {
					return usageError("--tag %s: write NAME=VALUE", tag)
				}
				in.Tags = append(in.Tags, []string{name, value})
			}
			if cmd.Flags().Changed("kind") {
				in.Kind = &kind
			}
			var err error
			if in.Content, err = c.text(args[0]); err != nil {
				return err
			}
			return c.meshPublish(cmd.Context(), in, wait, key)
		},
	}
	f := cmd.Flags()
	f.IntVar(&kind, "kind", 1, "kind of the event; with --to the default is 14")
	f.StringArrayVar(&tags, "tag", nil, "add the tag NAME=VALUE (repeatable)")
	f.StringVar(&in.To, "to", "", "encrypt for this public key, hex or npub")
	f.DurationVar(&wait, "wait", 10*time.Second, "wait so long for a relay to take it, at most 1m")
	f.StringVar(&key, "key", "", "idempotency key: the same key is the same message")
	return cmd
}

func (c *cli) meshPublish(ctx context.Context, in any, wait time.Duration, key string) error {
	body, err := requestBody(in)
	if err != nil {
		return err
	}
	header := http.Header{"Content-Type": {"application/json"}}
	if key != "" {
		header.Set("Idempotency-Key", key)
	}
	raw, err := c.answered(ctx, api.AdapterRequest{
		Method: http.MethodPost, Path: "/v1/mesh/publish", Header: header, Body: strings.NewReader(string(body)),
		Query: url.Values{"wait_s": {strconv.Itoa(int(wait.Seconds()))}},
	})
	r, err := shown(c, raw, err, func(r meshReceipt) {
		fmt.Fprintln(c.stdout, printable(cmp.Or(r.EventID, r.PendingID)))
	})
	switch {
	case err != nil:
		return err
	case r.Status == "failed":
		return failed(fmt.Errorf("every relay that was asked refused the event: %s", printable(r.Reason)))
	case r.Status == "pending" && wait > 0:
		fmt.Fprintln(c.stderr, joinedBy("no relay has taken the event yet; it waits in the outbox (agentctl mesh status)", ": ", printable(r.Reason)))
	}
	return nil
}

func newMeshSubscribe(c *cli) *cobra.Command {
	var kinds []int
	var authors, to []string
	var limit, count int
	cmd := &cobra.Command{
		Use: "subscribe", Short: "Follow the events of the box's relays", Args: noArgs, ValidArgsFunction: noFiles,
		Long: `Follow the events of the box's relays: first what they have stored, then what
comes.

The box verifies id and signature of every event. Events of several relays are
shown once. Private messages are shown encrypted; the inbox of the pod has their
text.`,
		Example: `  agentctl mesh subscribe --kind 1 --author npub1...
  agentctl mesh subscribe --limit 0 --json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			q := url.Values{"author": authors, "to": to, "limit": {strconv.Itoa(limit)}}
			for _, k := range kinds {
				q.Add("kind", strconv.Itoa(k))
			}
			left := count
			return c.events(cmd.Context(), "/v1/mesh/events", q, func(e streamed) (bool, error) {
				left--
				return left == 0, c.printMeshEvent(e)
			})
		},
	}
	f := cmd.Flags()
	f.IntSliceVar(&kinds, "kind", nil, "only events of this kind (repeatable)")
	f.StringArrayVar(&authors, "author", nil, "only events of this public key, hex or npub (repeatable)")
	f.StringArrayVar(&to, "to", nil, "only events addressed to this public key (repeatable)")
	f.IntVar(&limit, "limit", 100, "stored events of each relay; 0 for none, -1 for as many as it gives")
	f.IntVarP(&count, "count", "n", 0, "end after so many events; 0 goes on")
	return cmd
}

func (c *cli) printMeshEvent(s streamed) error {
	if c.json {
		return c.printJSONLine(json.RawMessage(s.data))
	}
	var e struct {
		Relay string
		Event struct {
			ID, PubKey, Content string
			Kind                int
			CreatedAt           int64 `json:"created_at"`
		}
	}
	if err := json.Unmarshal(s.data, &e); err != nil {
		return failed(fmt.Errorf("cannot read an event: %w", err))
	}
	line(c.stdout, "%s  %5d  %.8s  %s", time.Unix(e.Event.CreatedAt, 0).UTC().Format(time.RFC3339), e.Event.Kind, printable(e.Event.PubKey), printable(e.Event.Content))
	return nil
}
