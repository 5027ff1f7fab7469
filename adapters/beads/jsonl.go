package beads

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"io"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// Limits of an import.
const (
	maxImportLine  = 4 << 20  // bytes
	maxImportBytes = 64 << 20 // bytes in all
)

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

type recordDep struct {
	IssueID     string `json:"issue_id"`
	DependsOnID string `json:"depends_on_id"`
	Type        string `json:"type"`
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

// Export writes all beads ordered by id. The order of members is fixed, so
// that the output is the same byte for byte while nothing changes.
func (l *Local) Export(ctx context.Context, w io.Writer) error {
	return l.read(ctx, func(_ *opened, tx *sql.Tx) error {
		after := ""
		for {
			records, extras, err := exportBatch(ctx, tx, after)
			if err != nil || len(records) == 0 {
				return err
			}
			for i, r := range records {
				line, err := joinExtra(r, extras[i])
				if err != nil {
					return err
				}
				if _, err := w.Write(append(line, '\n')); err != nil {
					return adapters.Unavailable(err, "cannot write the export")
				}
			}
			after = records[len(records)-1].ID
		}
	})
}

const exportBatchSize = 500

func exportBatch(ctx context.Context, tx *sql.Tx, after string) ([]record, []string, error) {
	type row struct {
		bead  adapters.Bead
		extra string
	}
	rows, err := tx.QueryContext(ctx, `SELECT `+columns+`, b.extra FROM beads b WHERE b.id > ? ORDER BY b.id LIMIT ?`, after, exportBatchSize)
	if err != nil {
		return nil, nil, err
	}
	got, err := collect(rows, func(r *sql.Rows) (x row, err error) {
		x.bead, err = scanBead(scanFunc(func(dst ...any) error { return r.Scan(append(dst, &x.extra)...) }))
		return x, err
	})
	if err != nil {
		return nil, nil, err
	}
	beads, extras := make([]adapters.Bead, len(got)), make([]string, len(got))
	for i, x := range got {
		beads[i], extras[i] = x.bead, x.extra
	}
	if err := edges(ctx, tx, beads); err != nil {
		return nil, nil, err
	}
	records := make([]record, len(beads))
	for i, b := range beads {
		records[i] = toRecord(b)
		if records[i].Comments, err = exportComments(ctx, tx, b.ID); err != nil {
			return nil, nil, err
		}
	}
	return records, extras, nil
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
	if b.ParentID != "" {
		r.Dependencies = append(r.Dependencies, recordDep{b.ID, string(b.ParentID), adapters.DepParentChild})
	}
	for _, d := range b.Deps {
		r.Dependencies = append(r.Dependencies, recordDep{d.From, d.To, d.Type})
	}
	return r
}

func exportComments(ctx context.Context, tx *sql.Tx, id string) ([]recordComment, error) {
	rows, err := tx.QueryContext(ctx, `SELECT id, author, text, created_at FROM comments WHERE bead_id = ? ORDER BY created_at, id`, id)
	if err != nil {
		return nil, err
	}
	return collect(rows, func(r *sql.Rows) (recordComment, error) {
		c := recordComment{IssueID: id}
		var at int64
		err := r.Scan((*string)(&c.ID), &c.Author, &c.Text, &at)
		c.CreatedAt = fromMS(at)
		return c, err
	})
}

// joinExtra appends the unknown members, sorted, to a record's object.
func joinExtra(r record, extra string) ([]byte, error) {
	line, err := json.Marshal(r)
	if err != nil || extra == "{}" {
		return line, err
	}
	more := bytes.TrimPrefix([]byte(extra), []byte("{"))
	return append(append(line[:len(line)-1], ','), more...), nil
}
