package beads

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"io"
	"maps"
	"slices"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/sqlite"
)

// Limits of an import.
const (
	maxImportLine  = 4 << 20  // bytes
	maxImportBytes = 64 << 20 // bytes in all
)

// maxGrownLine is how long comments and dependencies may make the line of a bead in an export, in
// bytes. It is so far below maxImportLine that the line can be imported also with the longest
// description, tags and outcome that the bead may get later.
const maxGrownLine = 3 << 20

// checkLine refuses a bead whose line in an export has become too long. A long line takes time to
// make, so it is made only if the bead has much text: a byte of text is at most 6 in JSON, and 2000
// are enough for everything else of a comment or dependency.
func checkLine(ctx context.Context, tx *sql.Tx, id string) error {
	var most int
	err := tx.QueryRowContext(ctx, `SELECT (SELECT coalesce(sum(6 * octet_length(text) + 2000), 0) FROM comments WHERE bead_id = ?1)
		+ (SELECT coalesce(sum(6 * octet_length(extra) + 2000), 0) FROM deps WHERE from_id = ?1)`, id).Scan(&most)
	if err != nil || most < maxGrownLine {
		return err
	}
	got, err := exportBatch(ctx, tx, `b.id = ?`, id)
	if err != nil {
		return err
	}
	for _, x := range got {
		line, err := x.line()
		if err != nil {
			return err
		}
		if len(line) > maxGrownLine {
			return adapters.TooLarge("the bead with its comments and dependencies", maxGrownLine, int64(len(line)))
		}
	}
	return nil
}

// record is one line of the exchange format, in the field names of bd.
type record struct {
	ID           string          `json:"id"`
	Title        string          `json:"title"`
	Description  string          `json:"description,omitempty"`
	Status       string          `json:"status"`
	Priority     int             `json:"priority"`
	IssueType    string          `json:"issue_type"`
	Assignee     string          `json:"assignee,omitempty"`
	CreatedBy    string          `json:"created_by,omitempty"`
	CreatedAt    adapters.Time   `json:"created_at"`
	UpdatedAt    adapters.Time   `json:"updated_at"`
	ClaimedAt    adapters.Time   `json:"claimed_at,omitzero"`
	ClosedAt     adapters.Time   `json:"closed_at,omitzero"`
	DeferUntil   adapters.Time   `json:"defer_until,omitzero"`
	LeaseUntil   adapters.Time   `json:"lease_until,omitzero"`
	CloseReason  string          `json:"close_reason,omitempty"`
	Labels       []string        `json:"labels,omitempty"`
	Dependencies []recordDep     `json:"dependencies,omitempty"`
	Comments     []recordComment `json:"comments,omitempty"`
	Version      int64           `json:"version,omitempty"`
}

// recordDep is an edge. bd stores more about an edge than its ends and type, such as created_at,
// created_by and metadata; extra keeps that unchanged.
type recordDep struct {
	IssueID     string
	DependsOnID string
	Type        string
	extra       string // an object, "" = {}
}

// depMembers are the names recordDep knows; the others are extra.
type depMembers struct {
	IssueID     string `json:"issue_id"`
	DependsOnID string `json:"depends_on_id"`
	Type        string `json:"type"`
}

func (d *recordDep) UnmarshalJSON(raw []byte) error {
	var known depMembers
	if err := json.Unmarshal(raw, &known); err != nil {
		return err
	}
	extra, err := membersBeside(raw, "issue_id", "depends_on_id", "type")
	*d = recordDep{known.IssueID, known.DependsOnID, known.Type, extra}
	return err
}

func (d recordDep) MarshalJSON() ([]byte, error) {
	line, _ := json.Marshal(depMembers{d.IssueID, d.DependsOnID, d.Type}) // strings always marshal
	return appendMembers(line, d.extra), nil
}

// membersBeside is an object without some of its members; the others are sorted.
func membersBeside(raw []byte, known ...string) (string, error) {
	var all map[string]json.RawMessage
	if err := json.Unmarshal(raw, &all); err != nil {
		return "", err
	}
	maps.DeleteFunc(all, func(k string, _ json.RawMessage) bool { return slices.Contains(known, k) })
	if len(all) == 0 {
		return "{}", nil
	}
	extra, err := json.Marshal(all)
	return string(extra), err
}

// appendMembers adds the members of one object to another that has some.
func appendMembers(line []byte, extra string) []byte {
	if extra == "" || extra == "{}" {
		return line
	}
	more := bytes.TrimPrefix([]byte(extra), []byte("{"))
	return append(append(line[:len(line)-1], ','), more...)
}

type recordComment struct {
	ID        anyID         `json:"id"`
	IssueID   string        `json:"issue_id"`
	Author    string        `json:"author,omitempty"`
	Text      string        `json:"text"`
	CreatedAt adapters.Time `json:"created_at"`
}

// anyID reads a string or, as bd writes it, a number.
type anyID string

func (a *anyID) UnmarshalJSON(b []byte) error {
	var n json.Number
	if len(b) > 0 && b[0] != '"' {
		err := json.Unmarshal(b, &n)
		*a = anyID(n)
		return err
	}
	return json.Unmarshal(b, (*string)(a))
}

// recordMembers are the names record knows; the others are kept as they are.
var recordMembers = []string{
	"id", "title", "description", "status", "priority", "issue_type", "assignee", "created_by", "created_at", "updated_at",
	"claimed_at", "closed_at", "defer_until", "lease_until", "close_reason", "labels", "dependencies", "comments", "version",
}

// Export writes all beads ordered by id. The order of members is fixed, so the output is
// byte-identical while nothing changes. A bead that was not changed since its import is written as
// it was imported, because bd has words of its own, such as a status "blocked", and finer times.
func (l *Local) Export(ctx context.Context, w io.Writer) error {
	return l.read(ctx, func(_ *opened, tx *sql.Tx) error {
		after := ""
		for {
			batch, err := exportBatch(ctx, tx, `b.id > ? ORDER BY b.id LIMIT ?`, after, exportBatchSize)
			if err != nil || len(batch) == 0 {
				return err
			}
			for _, x := range batch {
				line, err := x.line()
				if err != nil {
					return err
				}
				if _, err := w.Write(append(line, '\n')); err != nil {
					return adapters.Unavailable(err, "cannot write the export")
				}
			}
			after = batch[len(batch)-1].ID
		}
	})
}

const exportBatchSize = 500

// exported is one bead on its way out.
type exported struct {
	record
	extra  string
	origin string // the imported line, "" if the bead was changed since
}

func (x exported) line() ([]byte, error) {
	if x.origin != "" {
		return []byte(x.origin), nil
	}
	return joinExtra(x.record, x.extra)
}

// exportBatch gives the beads for which a condition in SQL holds.
func exportBatch(ctx context.Context, tx *sql.Tx, where string, args ...any) ([]exported, error) {
	type row struct {
		bead                       adapters.Bead
		extra, parentExtra, origin string
	}
	got, err := sqlite.All(ctx, tx, func(r *sql.Rows) (x row, err error) {
		x.bead, err = scanBead(scanFunc(func(dst ...any) error { return r.Scan(append(dst, &x.extra, &x.parentExtra, &x.origin)...) }))
		return x, err
	}, `SELECT `+columns+`, b.extra, b.parent_extra, iif(b.origin_version = b.version, b.origin, '')
		FROM beads b WHERE `+where, args...)
	if err != nil {
		return nil, err
	}
	out := make([]exported, len(got))
	for i, x := range got {
		out[i] = exported{toRecord(x.bead), x.extra, x.origin}
		if x.origin != "" {
			continue
		}
		if out[i].Dependencies, err = exportDeps(ctx, tx, x.bead, x.parentExtra); err != nil {
			return nil, err
		}
		if out[i].Comments, err = exportComments(ctx, tx, x.bead.ID); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// exportDeps are the edges of a bead, that to its parent first.
func exportDeps(ctx context.Context, tx *sql.Tx, b adapters.Bead, parentExtra string) ([]recordDep, error) {
	deps, err := sqlite.All(ctx, tx, func(r *sql.Rows) (d recordDep, err error) {
		return d, r.Scan(&d.IssueID, &d.DependsOnID, &d.Type, &d.extra)
	}, `SELECT from_id, to_id, type, extra FROM deps WHERE from_id = ? ORDER BY to_id, type`, b.ID)
	if err != nil || b.ParentID == "" {
		return deps, err
	}
	return append([]recordDep{{b.ID, string(b.ParentID), adapters.DepParentChild, parentExtra}}, deps...), nil
}

type scanFunc func(...any) error

func (f scanFunc) Scan(dst ...any) error { return f(dst...) }

func toRecord(b adapters.Bead) record {
	r := record{
		ID: b.ID, Title: b.Title, Description: b.Description, Status: b.Status, Priority: b.Priority, IssueType: b.Kind,
		Assignee: string(b.Actor), CreatedBy: string(b.CreatedBy), CreatedAt: b.CreatedAt, UpdatedAt: b.UpdatedAt,
		ClaimedAt: b.ClaimedAt, ClosedAt: b.ClosedAt, DeferUntil: b.DeferUntil, LeaseUntil: b.LeaseUntil,
		CloseReason: string(b.Outcome), Labels: b.Tags, Version: b.Version,
	}
	if b.Status == adapters.BeadClaimed {
		r.Status = "in_progress"
	}
	return r
}

func exportComments(ctx context.Context, tx *sql.Tx, id string) ([]recordComment, error) {
	return sqlite.All(ctx, tx, func(r *sql.Rows) (recordComment, error) {
		c := recordComment{IssueID: id}
		var at int64
		err := r.Scan((*string)(&c.ID), &c.Author, &c.Text, &at)
		c.CreatedAt = adapters.AtMillis(at)
		return c, err
	}, `SELECT id, author, text, created_at FROM comments WHERE bead_id = ? ORDER BY created_at, id`, id)
}

// joinExtra appends the unknown members, sorted, to a record's object.
func joinExtra(r record, extra string) ([]byte, error) {
	line, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	return appendMembers(line, extra), nil
}
