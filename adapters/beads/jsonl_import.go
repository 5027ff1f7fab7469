package beads

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/sqlite"
)

// Import upserts the beads of an export of agentinit or bd. It is one transaction: an error names
// its line, and then nothing is changed.
func (l *Local) Import(ctx context.Context, r io.Reader, opt adapters.ImportOpt) (res adapters.ImportResult, err error) {
	records, err := parseImport(r)
	if err != nil {
		return res, err
	}
	rollback := errors.New("dry run")
	err = l.write(ctx, func(tx *sql.Tx) error {
		if res, err = importAll(ctx, tx, records); err != nil {
			return err
		}
		if opt.DryRun {
			return rollback
		}
		return nil
	})
	if errors.Is(err, rollback) {
		err = nil
	}
	if err != nil {
		return adapters.ImportResult{}, err
	}
	res.DryRun = opt.DryRun
	return res, nil
}

// imported is one checked line.
type imported struct {
	record
	line   int
	parent string
	depth  int
	moved  bool // the stored bead had another parent, or none
	extra  string
	// parentExtra is what the edge to the parent contains in addition to its ends and type.
	parentExtra string
	origin      string // the line itself
}

func parseImport(r io.Reader) ([]imported, error) {
	lines := bufio.NewScanner(io.LimitReader(r, maxImportBytes+1))
	lines.Buffer(make([]byte, 64<<10), maxImportLine)
	var out []imported
	seen := make(map[string]bool)
	total := 0
	for n := 1; lines.Scan(); n++ {
		raw := bytes.TrimSpace(lines.Bytes())
		if total += len(lines.Bytes()) + 1; total > maxImportBytes {
			return nil, adapters.TooLarge("import", maxImportBytes, -1)
		}
		if len(raw) == 0 {
			continue
		}
		rec, err := parseLine(raw)
		if err != nil {
			return nil, atLine(n, err)
		}
		if seen[rec.ID] {
			return nil, atLine(n, adapters.Invalid("id", "%s appears twice", rec.ID))
		}
		seen[rec.ID] = true
		rec.line = n
		out = append(out, rec)
	}
	if errors.Is(lines.Err(), bufio.ErrTooLong) {
		return nil, adapters.TooLarge("import line", maxImportLine, -1)
	}
	if err := lines.Err(); err != nil {
		return nil, adapters.Unavailable(err, "cannot read the import")
	}
	return out, nil
}

func atLine(n int, err error) error {
	e := adapters.AsError(err)
	at := adapters.Errorf(e.Code, "line %d: %s", n, e.Message).With("line", n).Wrap(err)
	for name, value := range e.Fields {
		at = at.With(name, value)
	}
	return at
}

func parseLine(raw []byte) (rec imported, err error) {
	if err := adapters.CheckObject("line", raw, maxImportLine); err != nil {
		return rec, err
	}
	if err := json.Unmarshal(raw, &rec.record); err != nil {
		return rec, adapters.Undecodable("line", err)
	}
	if rec.extra, err = membersBeside(raw, recordMembers...); err != nil {
		return rec, adapters.Undecodable("line", err)
	}
	rec.origin, rec.parentExtra = string(raw), "{}"
	return rec, rec.check()
}

// check applies the limits of the contract and translates bd's words.
func (r *imported) check() error {
	if err := adapters.CheckID("id", r.ID); err != nil {
		return err
	}
	if r.Title == "" { // blanks alone are a title: the box itself makes such beads
		return adapters.Invalid("title", "is required")
	}
	if r.Priority < 0 || r.Priority > 4 {
		return adapters.Invalid("priority", "must be 0-4")
	}
	if r.CreatedAt.IsZero() || r.UpdatedAt.IsZero() {
		return adapters.Invalid("updated_at", "created_at and updated_at are required")
	}
	for _, f := range []struct {
		name, value string
		limit       int
	}{
		{"title", r.Title, 4 * adapters.MaxBeadTitle}, {"description", r.Description, adapters.MaxBeadDescription},
		{"close_reason", r.CloseReason, adapters.MaxBeadOutcome}, {"assignee", r.Assignee, adapters.MaxBeadActor},
		{"created_by", r.CreatedBy, adapters.MaxBeadActor}, {"issue_type", r.IssueType, adapters.MaxDepType},
	} {
		if err := adapters.CheckText(f.name, f.value, f.limit); err != nil {
			return err
		}
	}
	if len(r.Labels) > adapters.MaxBeadTags {
		return adapters.OverLimit("labels", adapters.MaxBeadTags)
	}
	r.IssueType = cmp.Or(r.IssueType, "task")
	r.Version = max(r.Version, 1)
	return r.checkStatus()
}

func (r *imported) checkStatus() error {
	switch r.Status {
	case "in_progress", adapters.BeadClaimed:
		r.Status = adapters.BeadClaimed
		if r.Assignee == "" { // no actor could release it
			r.Status = adapters.BeadOpen
		}
	case "blocked", "": // computed here
		r.Status = adapters.BeadOpen
	case adapters.BeadOpen, adapters.BeadClosed, adapters.BeadDeferred:
	default:
		return adapters.Invalid("status", "%q is unknown", r.Status)
	}
	switch r.Status {
	case adapters.BeadOpen, adapters.BeadDeferred:
		// In bd an open issue may have an assignee; here a holder is a claim.
		r.Assignee, r.ClaimedAt, r.LeaseUntil = "", adapters.Time{}, adapters.Time{}
	case adapters.BeadClosed:
		r.CloseReason = cmp.Or(r.CloseReason, adapters.DefaultOutcome)
		if r.ClosedAt.IsZero() {
			r.ClosedAt = r.UpdatedAt
		}
	}
	if r.Status != adapters.BeadClosed {
		r.CloseReason, r.ClosedAt = "", adapters.Time{}
	}
	return nil
}

func importAll(ctx context.Context, tx *sql.Tx, records []imported) (adapters.ImportResult, error) {
	var res adapters.ImportResult
	byID := make(map[string]*imported, len(records))
	for i := range records {
		byID[records[i].ID] = &records[i]
	}
	for i := range records {
		if err := place(ctx, tx, &records[i], byID, 0); err != nil {
			return res, atLine(records[i].line, err)
		}
	}
	// Parents first: a child's row points at its parent's.
	order := slices.Clone(records)
	slices.SortStableFunc(order, func(a, b imported) int { return a.depth - b.depth })
	var written []imported
	for _, r := range order {
		changed, err := upsert(ctx, tx, &r, &res)
		if err != nil {
			return res, atLine(r.line, err)
		}
		if changed {
			written = append(written, r)
		}
	}
	// Each step is done for all beads before the next one begins: an edge can be refused because of
	// other edges and parents, and must not be because of those that this file replaces.
	for _, step := range []func(context.Context, *sql.Tx, imported) error{settle, dropEdges, importEdges, checkMove} {
		for _, r := range written {
			if err := step(ctx, tx, r); err != nil {
				return res, atLine(r.line, err)
			}
		}
	}
	return res, checkDepth(ctx, tx, written)
}

// settle stores how deep a bead with another parent now stands, and those below it. It refuses a bead
// that stands below itself or takes others too deep.
func settle(ctx context.Context, tx *sql.Tx, r imported) error {
	if !r.moved {
		return nil
	}
	var depth, deepest int
	err := tx.QueryRowContext(ctx, `WITH RECURSIVE up(id, n) AS (VALUES(?1, 0)
			UNION ALL SELECT b.parent_id, n + 1 FROM up JOIN beads b ON b.id = up.id WHERE b.parent_id IS NOT NULL AND n <= ?2)
		SELECT max(n) FROM up`, r.ID, adapters.MaxBeadDepth).Scan(&depth)
	if err != nil {
		return err
	}
	const below = `WITH RECURSIVE below(id, depth) AS (VALUES(?1, ?2)
		UNION ALL SELECT b.id, below.depth + 1 FROM below JOIN beads b ON b.parent_id = below.id WHERE below.depth <= ?3) `
	if err := tx.QueryRowContext(ctx, below+`SELECT max(depth) FROM below`, r.ID, depth, adapters.MaxBeadDepth).Scan(&deepest); err != nil {
		return err
	}
	if deepest > adapters.MaxBeadDepth {
		return adapters.OverLimit("depth", adapters.MaxBeadDepth)
	}
	_, err = tx.ExecContext(ctx, below+`UPDATE beads SET depth = below.depth FROM below WHERE beads.id = below.id`, r.ID, depth, adapters.MaxBeadDepth)
	return err
}

// checkDepth refuses beads of the file that stand too deep. It is one statement, because an import has
// many beads and hardly ever such a one.
func checkDepth(ctx context.Context, tx *sql.Tx, written []imported) error {
	deep, err := sqlite.All(ctx, tx, func(r *sql.Rows) (id string, err error) { return id, r.Scan(&id) },
		`SELECT id FROM beads WHERE depth > ?`, adapters.MaxBeadDepth)
	if err != nil {
		return err
	}
	for _, r := range written {
		if slices.Contains(deep, r.ID) {
			return atLine(r.line, adapters.OverLimit("depth", adapters.MaxBeadDepth))
		}
	}
	return nil
}

// checkMove refuses a new parent with which a bead would wait for itself. importEdges has checked the
// edges of the file itself.
func checkMove(ctx context.Context, tx *sql.Tx, r imported) error {
	if !r.moved || r.parent == "" {
		return nil
	}
	for _, wait := range [][2]moment{
		{{r.ID, 'g'}, {r.parent, 'g'}},
		{{r.parent, 'e'}, {r.ID, 'e'}},
		{{r.parent, 'k'}, {r.ID, 'e'}},
	} {
		if err := checkWait(ctx, tx, wait[0], wait[1]); err != nil {
			return err
		}
	}
	return nil
}

// place finds a record's parent, by its parent-child edge or its id, and how deep it stands if all
// lines of the file are written. That gives the order; what is stored is derived from the stored parent.
func place(ctx context.Context, tx *sql.Tx, r *imported, byID map[string]*imported, guard int) error {
	if guard > adapters.MaxBeadDepth {
		return adapters.OverLimit("depth", adapters.MaxBeadDepth)
	}
	r.parent = ""
	for _, d := range r.Dependencies {
		if d.Type == adapters.DepParentChild && (d.IssueID == "" || d.IssueID == r.ID) {
			r.parent, r.parentExtra = d.DependsOnID, d.extra
		}
	}
	r.parent = cmp.Or(r.parent, parentByID(r.ID))
	if r.parent == "" {
		return nil
	}
	if p, ok := byID[r.parent]; ok {
		if err := place(ctx, tx, p, byID, guard+1); err != nil {
			return err
		}
		r.depth = p.depth + 1
		return nil
	}
	err := tx.QueryRowContext(ctx, `SELECT depth + 1 FROM beads WHERE id = ?`, r.parent).Scan(&r.depth)
	if errors.Is(err, sql.ErrNoRows) {
		return adapters.NotFound("epic", r.parent)
	}
	return err
}

// parentByID is the part of an id before a final ".N".
func parentByID(id string) string {
	i := strings.LastIndexByte(id, '.')
	if i <= 0 {
		return ""
	}
	if _, err := strconv.ParseUint(id[i+1:], 10, 31); err != nil {
		return ""
	}
	return id[:i]
}

// upsert writes a record if it is new, or newer than the stored one.
func upsert(ctx context.Context, tx *sql.Tx, r *imported, res *adapters.ImportResult) (bool, error) {
	var updated, version int64
	var parent string
	err := tx.QueryRowContext(ctx, `SELECT updated_at, version, coalesce(parent_id, '') FROM beads WHERE id = ?`, r.ID).Scan(&updated, &version, &parent)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		res.Created++
	case err != nil:
		return false, err
	case updated >= toMS(r.UpdatedAt):
		res.Unchanged++
		return false, nil
	default:
		res.Updated++
		r.moved = parent != r.parent
		r.Version = max(r.Version, version+1)
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO beads(id, title, description, kind, parent_id, depth, status, priority, actor, created_by, tags, outcome,
			version, created_at, updated_at, claimed_at, closed_at, defer_until, lease_until, extra,
			parent_extra, origin, origin_version)
		VALUES(?1, ?2, ?3, ?4, nullif(?5, ''), coalesce((SELECT depth + 1 FROM beads WHERE id = ?5), 0), ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22)
		ON CONFLICT(id) DO UPDATE SET title = excluded.title, description = excluded.description, kind = excluded.kind, parent_id = excluded.parent_id,
			depth = excluded.depth, status = excluded.status, priority = excluded.priority, actor = excluded.actor, created_by = excluded.created_by,
			tags = excluded.tags, outcome = excluded.outcome, version = excluded.version, created_at = excluded.created_at, updated_at = excluded.updated_at,
			claimed_at = excluded.claimed_at, closed_at = excluded.closed_at, defer_until = excluded.defer_until, lease_until = excluded.lease_until, extra = excluded.extra,
			parent_extra = excluded.parent_extra, origin = excluded.origin, origin_version = excluded.origin_version`,
		r.ID, r.Title, r.Description, r.IssueType, r.parent, r.Status, r.Priority, r.Assignee, r.CreatedBy, tagList(r.Labels), r.CloseReason,
		r.Version, toMS(r.CreatedAt), toMS(r.UpdatedAt), toMS(r.ClaimedAt), toMS(r.ClosedAt), toMS(r.DeferUntil), toMS(r.LeaseUntil), r.extra,
		r.parentExtra, r.origin, r.Version)
	if err != nil || r.parent == "" {
		return true, err
	}
	// The number of a child is never used twice, not even that of an imported one.
	if n, perr := strconv.ParseUint(strings.TrimPrefix(r.ID, r.parent+"."), 10, 31); perr == nil {
		_, err = tx.ExecContext(ctx, `UPDATE beads SET next_child = max(next_child, ?) WHERE id = ?`, int64(n)+1, r.parent)
	}
	return true, err
}

func dropEdges(ctx context.Context, tx *sql.Tx, r imported) error {
	_, err := tx.ExecContext(ctx, `DELETE FROM deps WHERE from_id = ?`, r.ID)
	return err
}

func importEdges(ctx context.Context, tx *sql.Tx, r imported) error {
	if _, err := tx.ExecContext(ctx, `DELETE FROM comments WHERE bead_id = ?`, r.ID); err != nil {
		return err
	}
	for _, d := range r.Dependencies {
		if d.Type == adapters.DepParentChild {
			continue
		}
		if err := importDep(ctx, tx, r.ID, d); err != nil {
			return err
		}
	}
	for _, c := range r.Comments {
		if c.ID == "" {
			return adapters.Invalid("comments", "a comment has no id")
		}
		if err := adapters.CheckText("comments", c.Text, adapters.MaxBeadComment); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `INSERT INTO comments(id, bead_id, author, text, created_at) VALUES(?, ?, ?, ?, ?) ON CONFLICT DO NOTHING`,
			string(c.ID), r.ID, c.Author, c.Text, toMS(c.CreatedAt)); err != nil {
			return err
		}
	}
	return nil
}

func importDep(ctx context.Context, tx *sql.Tx, id string, d recordDep) error {
	dep := adapters.Dep{From: id, To: d.DependsOnID, Type: cmp.Or(d.Type, adapters.DepBlocks)}
	if err := adapters.CheckName("dependencies", dep.Type, adapters.MaxDepType); err != nil {
		return err
	}
	if _, err := load(ctx, tx, dep.To); err != nil {
		return err
	}
	if dep.Blocking() {
		if err := checkCycle(ctx, tx, dep); err != nil {
			return err
		}
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO deps(from_id, to_id, type, extra) VALUES(?, ?, ?, ?) ON CONFLICT DO NOTHING`, dep.From, dep.To, dep.Type, d.extra)
	return err
}
