package main

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

func newFederation(c *cli) *cobra.Command {
	return group("federation", "Show the session with the host of the mesh", newFederationStatus(c))
}

func newFederationStatus(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Show host, session, heartbeats and endpoints", Args: cobra.NoArgs, ValidArgsFunction: noFiles,
		RunE: func(cmd *cobra.Command, _ []string) error {
			raw, err := c.ask(cmd.Context(), http.MethodGet, "/v1/federation", nil, nil)
			type status struct {
				Mode, State, Detail, Host string
				SessionID                 string `json:"session_id"`
				Since                     string
				LastHeartbeat             string `json:"last_heartbeat"`
				Heartbeats, Missed        int
				Evictions                 int
				Endpoints                 map[string]string
			}
			return show(c, raw, err, func(s status) {
				row := func(name, value string) {
					if value != "" {
						fmt.Fprintf(c.stdout, "%-11s %s\n", name, printable(value))
					}
				}
				row("mode", s.Mode)
				row("state", strings.TrimSpace(s.State+" since "+s.Since))
				row("detail", s.Detail)
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
