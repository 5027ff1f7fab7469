package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

func newFederation(c *cli) *cobra.Command {
	return group("federation", "Show the session with a host, or, on a host, its boxes", newFederationStatus(c), newFederationBoxes(c), newFederationEvict(c), newFederationAdmit(c))
}

func newFederationBoxes(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "boxes", Short: "List the boxes that are registered at this host", Args: noArgs, ValidArgsFunction: noFiles,
		RunE: func(cmd *cobra.Command, _ []string) error {
			boxes, err := collect[json.RawMessage](cmd.Context(), c, "/v1/federation/boxes", url.Values{})
			var raw json.RawMessage
			if err == nil {
				raw, err = json.Marshal(map[string]any{"items": boxes, "next_cursor": nil})
			}
			type row struct {
				Box      string `json:"box_id"`
				Session  string `json:"session_id"`
				State    string
				LastSeen string `json:"last_seen"`
				Reason   string
				Beat     struct{ Status string }
			}
			return show(c, raw, err, func(l items[row]) {
				colour := map[string]string{"active": green, "silent": yellow, "evicted": red}
				rows := make([][]cell, len(l.Items))
				for i, b := range l.Items {
					rows[i] = texts(b.Box, b.State, b.Beat.Status, b.LastSeen, b.Session, b.Reason)
					rows[i][1].Style = colour[b.State]
				}
				c.table(titled("BOX", "STATE", "STATUS", "LAST SEEN", "SESSION", "REASON"), rows)
			})
		},
	}
}

func newFederationEvict(c *cli) *cobra.Command {
	var reason string
	var permanent bool
	var retry int
	cmd := &cobra.Command{
		Use: "evict BOX", Short: "End the session of a box", Args: cobra.ExactArgs(1), ValidArgsFunction: noFiles,
		RunE: func(cmd *cobra.Command, args []string) error {
			_, err := c.ask(cmd.Context(), http.MethodPost, "/v1/federation/evict", nil, map[string]any{
				"box_id": args[0], "reason": reason, "permanent": permanent, "retry_after_s": retry,
			})
			return err
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "what the box is told")
	cmd.Flags().BoolVar(&permanent, "permanent", false, "it may not register again until federation admit")
	cmd.Flags().Var((*wholeSeconds)(&retry), "retry-after", "let it register again after this long, at most 1h")
	return cmd
}

func newFederationAdmit(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "admit BOX", Short: "Let a box register again that was evicted permanently", Args: cobra.ExactArgs(1), ValidArgsFunction: noFiles,
		RunE: func(cmd *cobra.Command, args []string) error {
			_, err := c.ask(cmd.Context(), http.MethodPost, "/v1/federation/admit", nil, map[string]any{"box_id": args[0]})
			return err
		},
	}
}

func newFederationStatus(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Show host, session, heartbeats and endpoints", Args: noArgs, ValidArgsFunction: noFiles,
		RunE: func(cmd *cobra.Command, _ []string) error {
			raw, err := c.ask(cmd.Context(), http.MethodGet, "/v1/federation", nil, nil)
			type status struct {
				Mode, State, Detail, Host string
				SessionID                 string `json:"session_id"`
				Since                     string
				NextTry                   string `json:"next_try"`
				LastHeartbeat             string `json:"last_heartbeat"`
				Heartbeats, Missed        int
				Evictions                 int
				Endpoints                 map[string]string
				Boxes                     map[string]int
			}
			return show(c, raw, err, func(s status) {
				row := func(name, value string) {
					if value != "" {
						fmt.Fprintf(c.stdout, "%-11s %s\n", name, printable(value))
					}
				}
				row("mode", s.Mode)
				if s.Mode == "host" {
					row("detail", s.Detail)
					row("boxes", fmt.Sprintf("%d active, %d silent, %d evicted", s.Boxes["active"], s.Boxes["silent"], s.Boxes["evicted"]))
					return
				}
				row("state", strings.TrimSpace(s.State+" since "+s.Since))
				row("detail", s.Detail)
				row("again", s.NextTry)
				row("host", s.Host)
				row("session", s.SessionID)
				row("heartbeats", fmt.Sprintf("%d, %d missed in a row", s.Heartbeats, s.Missed))
				row("answered", s.LastHeartbeat)
				row("evictions", fmt.Sprint(s.Evictions))
				for _, slot := range slices.Sorted(maps.Keys(s.Endpoints)) {
					row(slot, s.Endpoints[slot])
				}
			})
		},
	}
}
