package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
)

// bead holds what agentctl shows of a bead.
type bead struct {
	ID          string   `json:"id"`
	Title       string   `json:"title"`
	Description string   `json:"description"`
	Kind        string   `json:"kind"`
	Status      string   `json:"status"`
	ParentID    string   `json:"parent_id"`
	Priority    int      `json:"priority"`
	Actor       string   `json:"actor"`
	Outcome     string   `json:"outcome"`
	Tags        []string `json:"tags"`
	BlockedBy   []string `json:"blocked_by"`
}

func newBead(c *cli) *cobra.Command {
	return group("bead", "Create, claim and close beads",
		newBeadCreate(c), newBeadReady(c), newBeadClaim(c), newBeadClose(c),
		newBeadShow(c), newBeadTree(c), newBeadExport(c), newBeadImport(c))
}

func newBeadCreate(c *cli) *cobra.Command {
	var in struct {
		Title       string   `json:"title"`
		Description string   `json:"description,omitempty"`
		Kind        string   `json:"kind,omitempty"`
		ParentID    string   `json:"parent_id,omitempty"`
		Priority    *int     `json:"priority,omitempty"`
		Tags        []string `json:"tags,omitempty"`
	}
	priority := 2
	cmd := &cobra.Command{
		Use: "create TITLE", Short: "Create a bead, below --parent or as an epic", Args: cobra.ExactArgs(1), ValidArgsFunction: noFiles,
		RunE: func(cmd *cobra.Command, args []string) error {
			in.Title = args[0]
			if cmd.Flags().Changed("priority") {
				in.Priority = &priority
			}
			path := "/v1/beads/epics"
			if in.ParentID != "" {
				path = "/v1/beads/children"
			}
			raw, err := c.ask(cmd.Context(), http.MethodPost, path, nil, in)
			return show(c, raw, err, func(b bead) { line(c.stdout, "%s", printable(b.ID)) })
		},
	}
	f := cmd.Flags()
	f.StringVar(&in.ParentID, "parent", "", "bead this one is a part of")
	f.StringVar(&in.Description, "description", "", "what there is to do")
	f.StringVar(&in.Kind, "kind", "", "task, bug, feature, chore, decision or epic")
	f.IntVar(&priority, "priority", 2, "0 (first) to 4")
	f.StringSliceVar(&in.Tags, "tag", nil, "tag; may be repeated")
	return cmd
}

func newBeadReady(c *cli) *cobra.Command {
	var parent, tag, kind string
	cmd := &cobra.Command{
		Use: "ready", Short: "List the beads that can be claimed now", Args: noArgs, ValidArgsFunction: noFiles,
		RunE: func(cmd *cobra.Command, _ []string) error {
			list, err := collect[listedBead](cmd.Context(), c, "/v1/beads/ready", params("parent_id", parent, "tag", tag, "kind", kind))
			if err != nil {
				return err
			}
			if c.json {
				return c.printJSON(list)
			}
			c.printBeads(list)
			return nil
		},
	}
	cmd.Flags().StringVar(&parent, "parent", "", "only direct children of this bead")
	cmd.Flags().StringVar(&tag, "tag", "", "only with this tag")
	cmd.Flags().StringVar(&kind, "kind", "", "only of this kind")
	return cmd
}

// listedBead is a bead of a list. Its JSON is what the box answered.
type listedBead struct {
	bead
	raw json.RawMessage
}

func (l *listedBead) UnmarshalJSON(b []byte) error {
	l.raw = bytes.Clone(b)
	return json.Unmarshal(b, &l.bead)
}

func (l listedBead) MarshalJSON() ([]byte, error) { return l.raw.MarshalJSON() }

func (c *cli) printBeads(list []listedBead) {
	rows := make([][]cell, len(list))
	for i, b := range list {
		rows[i] = texts(b.ID, fmt.Sprint(b.Priority), b.Kind, joinedBy(b.Status, " ", b.Actor), b.Title)
	}
	c.table(titled("ID", "PRIO", "KIND", "STATUS", "TITLE"), rows)
}

func beadPath(id, action string) string {
	return "/v1/beads/" + segment(id) + action
}

func newBeadClaim(c *cli) *cobra.Command {
	var in struct {
		Actor  string `json:"actor,omitempty"`
		LeaseS int    `json:"lease_s,omitempty"`
	}
	cmd := &cobra.Command{
		Use: "claim ID", Short: "Claim a bead: no one else can claim it until the lease ends", Args: cobra.ExactArgs(1), ValidArgsFunction: noFiles,
		RunE: func(cmd *cobra.Command, args []string) error {
			raw, err := c.ask(cmd.Context(), http.MethodPost, beadPath(args[0], "/claim"), nil, in)
			return show(c, raw, err, func(b bead) { line(c.stdout, "%s is held by %s", printable(b.ID), printable(b.Actor)) })
		},
	}
	cmd.Flags().StringVar(&in.Actor, "actor", "", "who holds it (default: you)")
	cmd.Flags().Var((*wholeSeconds)(&in.LeaseS), "lease", "open it again after this long, 30s to 24h")
	return cmd
}

func newBeadClose(c *cli) *cobra.Command {
	var in struct {
		Outcome string `json:"outcome,omitempty"`
		Force   bool   `json:"force,omitempty"`
	}
	cmd := &cobra.Command{
		Use: "close ID [OUTCOME]", Short: "Close a bead", Args: cobra.RangeArgs(1, 2), ValidArgsFunction: noFiles,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 2 {
				in.Outcome = args[1]
			}
			raw, err := c.ask(cmd.Context(), http.MethodPost, beadPath(args[0], "/close"), nil, in)
			return show(c, raw, err, func(b bead) { line(c.stdout, "%s is closed: %s", printable(b.ID), printable(b.Outcome)) })
		},
	}
	cmd.Flags().BoolVar(&in.Force, "force", false, "even with open children, or held by another")
	return cmd
}

func newBeadShow(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "show ID", Short: "Show one bead", Args: cobra.ExactArgs(1), ValidArgsFunction: noFiles,
		RunE: func(cmd *cobra.Command, args []string) error {
			raw, err := c.ask(cmd.Context(), http.MethodGet, beadPath(args[0], ""), nil, nil)
			return show(c, raw, err, c.printBead)
		},
	}
}

func (c *cli) printBead(b bead) {
	for _, row := range [][2]string{
		{"id", b.ID}, {"title", b.Title}, {"kind", b.Kind}, {"status", b.Status}, {"priority", fmt.Sprint(b.Priority)}, {"parent", b.ParentID},
		{"actor", b.Actor}, {"outcome", b.Outcome}, {"tags", strings.Join(b.Tags, ", ")}, {"blocked by", strings.Join(b.BlockedBy, ", ")},
		{"description", b.Description},
	} {
		if row[1] != "" {
			line(c.stdout, "%-12s %s", row[0]+":", printable(row[1]))
		}
	}
}

func newBeadTree(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "tree [ID]", Short: "Show beads and what is below them", Args: cobra.MaximumNArgs(1), ValidArgsFunction: noFiles,
		RunE: func(cmd *cobra.Command, args []string) error {
			all, err := collect[listedBead](cmd.Context(), c, "/v1/beads", url.Values{})
			if err != nil {
				return err
			}
			tree := make([]branch, 0, len(all))
			children := make(map[string][]listedBead)
			for _, b := range all {
				children[b.ParentID] = append(children[b.ParentID], b)
				if len(args) == 1 && b.ID == args[0] {
					tree = append(tree, branch{b, 0})
				}
			}
			switch {
			case len(args) == 0:
				tree = below(tree, children, "", 0)
			case len(tree) == 0:
				return &exitError{exitFailure, fmt.Errorf("there is no bead %q", args[0])}
			default:
				tree = below(tree, children, args[0], 1)
			}
			if c.json {
				return c.printJSON(tree)
			}
			for _, b := range tree {
				line(c.stdout, "%s%s", strings.Repeat("  ", b.depth), printable(fmt.Sprintf("%s [%s] %s", b.ID, joinedBy(b.Status, " ", b.Actor), b.Title)))
			}
			return nil
		},
	}
}

// maxTree is deeper than any tree of beads. It ends a cycle in the data of a peer.
const maxTree = 16

// branch is a bead and how far below the root it is.
type branch struct {
	listedBead
	depth int
}

// below appends everything below a parent to the tree, each bead before its children.
func below(tree []branch, children map[string][]listedBead, parent string, depth int) []branch {
	if depth > maxTree {
		return tree
	}
	for _, b := range children[parent] {
		tree = below(append(tree, branch{b, depth}), children, b.ID, depth+1)
	}
	return tree
}

func newBeadExport(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "export", Short: "Write all beads as JSON lines, as bd does", Args: noArgs, ValidArgsFunction: noFiles,
		RunE: func(cmd *cobra.Command, _ []string) error {
			resp, err := c.adapters(cmd.Context(), api.AdapterRequest{Method: http.MethodGet, Path: "/v1/beads/export"})
			if err != nil {
				return failed(err)
			}
			defer resp.Body.Close()
			return failed(c.copyJSONLines(resp.Body))
		},
	}
}

func newBeadImport(c *cli) *cobra.Command {
	var dry bool
	cmd := &cobra.Command{
		Use: "import FILE|-", Short: "Read beads from JSON lines that export or bd wrote", Args: cobra.ExactArgs(1),
		Long: "Import beads that export or bd wrote. If a bead exists already, the newer one\nis kept. If the file has an error, no bead is imported.",
		RunE: func(cmd *cobra.Command, args []string) error {
			raw, err := c.input(args[0])
			if err != nil {
				return err
			}
			req := api.AdapterRequest{
				Method: http.MethodPost, Path: "/v1/beads/import", Body: bytes.NewReader(raw),
				Header: http.Header{"Content-Type": {"application/x-ndjson"}},
			}
			if dry {
				req.Query = url.Values{"dry_run": {"true"}}
			}
			out, err := c.answered(cmd.Context(), req)
			return show(c, out, err, func(r struct{ Created, Updated, Unchanged int }) {
				line(c.stdout, "%d created, %d updated, %d unchanged", r.Created, r.Updated, r.Unchanged)
				if dry {
					line(c.stdout, "dry run: no bead was imported")
				}
			})
		},
	}
	cmd.Flags().BoolVar(&dry, "dry-run", false, "only say what would happen")
	return cmd
}
