package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
)

func newAudit(c *cli) *cobra.Command {
	var since uint64
	var verify bool
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Show who asked agentinit for what",
		Long: `Show every request that changed something or was refused: over the control
socket, over HTTP, by a signal. Each entry has the hash of the entry before it.
audit shows the newest entries, from agentinit's memory. The file audit.jsonl in
the runtime directory (/run/agentbox) has all of them.

--verify has agentinit check the file against itself and against what it
remembers.

Exit status: 0 done, 1 --verify found that the file is not the record as it was
written.`,
		Args:              noArgs,
		ValidArgsFunction: noFiles,
		RunE: func(cmd *cobra.Command, _ []string) error {
			client := c.client()
			if verify {
				return c.verifyAudit(client.AuditCheck(cmd.Context()))
			}
			return failed(client.Audit(cmd.Context(), since, func(e api.AuditEntry) error {
				if c.json {
					return c.printJSONLine(e)
				}
				_, err := fmt.Fprintln(c.stdout, auditText(e))
				return err
			}))
		},
	}
	cmd.Flags().Uint64Var(&since, "since", 0, "only entries after this number")
	cmd.Flags().BoolVar(&verify, "verify", false, "check that the file is as it was written")
	return cmd
}

func (c *cli) verifyAudit(r api.AuditReport, err error) error {
	if err != nil {
		return failed(err)
	}
	if c.json {
		if err := c.printJSON(r); err != nil {
			return err
		}
	} else if r.Problem == "" && r.Last == 0 {
		line(c.stdout, "the audit record has no entries")
	} else if r.Problem == "" {
		line(c.stdout, "entries %d to %d are as they were written", r.First, r.Last)
	}
	if r.Problem != "" {
		return &exitError{exitFailure, errors.New("the audit record is not as it was written: " + printable(r.Problem))}
	}
	return nil
}

func auditText(e api.AuditEntry) string {
	parts := []string{fmt.Sprintf("%5d", e.Seq), e.Time.UTC().Format(event.TimeFormat), e.Via, printable(e.Action)}
	add := func(name, value string) {
		if value != "" {
			parts = append(parts, name+"="+printable(value))
		}
	}
	add("outcome", e.Outcome)
	add("principal", e.Principal)
	add("from", e.Remote)
	if p := e.Peer; p != nil {
		parts = append(parts, fmt.Sprintf("uid=%d pid=%d", p.UID, p.PID))
		add("exe", p.Exe)
		add("program", p.Program)
	}
	for _, key := range slices.Sorted(maps.Keys(e.Details)) {
		add(printable(key), string(e.Details[key]))
	}
	return strings.Join(parts, " ")
}
