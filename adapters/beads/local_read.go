package beads

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/sqlite"
)

// columns of beads in the order scanBead reads them.
const columns = `b.id, b.title, b.description, b.kind, coalesce(b.parent_id, ''), b.status, b.priority, b.actor, b.created_by,
	b.tags, b.outcome, b.version, b.created_at, b.updated_at, b.claimed_at, b.closed_at, b.defer_until, b.lease_until`

type scanner interface{ Scan(...any) error }

func scanBead(r scanner) (adapters.Bead, error) {
	var b adapters.Bead
	var parent, actor, by, tags, outcome string
	var created, updated, claimed, closed, deferred, lease int64
	err := r.Scan(&b.ID, &b.Title, &b.Description, &b.Kind, &parent, &b.Status, &b.Priority, &actor, &by,
		&tags, &outcome, &b.Version, &created, &updated, &claimed, &closed, &deferred, &lease)
	if err != nil {
		return b, err
	}
	b.ParentID, b.Actor, b.CreatedBy, b.Outcome = adapters.NullString(parent), adapters.NullString(actor), adapters.NullString(by), adapters.NullString(outcome)
	b.Type = adapters.BeadChild
	if parent == "" {
		b.Type = adapters.BeadEpic
	}
	if err := json.Unmarshal([]byte(tags), &b.Tags); err != nil {
		return b, fmt.Errorf("tags of %s: %w", b.ID, err)
	}
	b.CreatedAt, b.UpdatedAt, b.ClaimedAt = adapters.AtMillis(created), adapters.AtMillis(updated), adapters.AtMillis(claimed)
	b.ClosedAt, b.DeferUntil, b.LeaseUntil = adapters.AtMillis(closed), adapters.AtMillis(deferred), adapters.AtMillis(lease)
	b.Deps, b.BlockedBy = []adapters.Dep{}, []string{}
	return b, nil
}

func toMS(t adapters.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

// load reads one bead with its edges.
func load(ctx context.Context, tx *sql.Tx, id string) (adapters.Bead, error) {
	b, err := scanBead(tx.QueryRowContext(ctx, `SELECT `+columns+` FROM beads b WHERE b.id = ?`, id))
	if errors.Is(err, sql.ErrNoRows) {
		return b, adapters.NotFound("bead", id)
	}
	if err != nil {
		return b, err
	}
	one := []adapters.Bead{b}
	err = edges(ctx, tx, one)
	return one[0], err
}

// edges fills in Deps and BlockedBy.
func edges(ctx context.Context, tx *sql.Tx, beads []adapters.Bead) error {
	if len(beads) == 0 {
		return nil
	}
	index := make(map[string]int, len(beads))
	ids := make([]string, len(beads))
	for i, b := range beads {
		index[b.ID], ids[i] = i, b.ID
	}
	list, _ := json.Marshal(ids) // strings always marshal
	deps, err := sqlite.All(ctx, tx, func(r *sql.Rows) (d adapters.Dep, err error) { return d, r.Scan(&d.From, &d.To, &d.Type) },
		`SELECT from_id, to_id, type FROM deps
		WHERE from_id IN (SELECT value FROM json_each(?)) ORDER BY from_id, to_id, type`, string(list))
	if err != nil {
		return err
	}
	for _, d := range deps {
		b := &beads[index[d.From]]
		b.Deps = append(b.Deps, d)
	}
	// A bead waits for its own blockers and for those of all its ancestors.
	blockers, err := sqlite.All(ctx, tx, func(r *sql.Rows) (p [2]string, err error) { return p, r.Scan(&p[0], &p[1]) }, `WITH RECURSIVE line(bead, node) AS (
			SELECT value, value FROM json_each(?)
			UNION SELECT line.bead, b.parent_id FROM line JOIN beads b ON b.id = line.node WHERE b.parent_id IS NOT NULL)
		SELECT DISTINCT line.bead, t.id FROM line
		JOIN beads self ON self.id = line.bead AND self.status <> 'closed'
		JOIN deps d ON d.from_id = line.node JOIN beads t ON t.id = d.to_id
		WHERE `+blocking+` ORDER BY line.bead, t.id`, string(list))
	for _, p := range blockers {
		b := &beads[index[p[0]]]
		b.BlockedBy = append(b.BlockedBy, p[1])
	}
	return err
}

// Show reads one bead.
func (l *Local) Show(ctx context.Context, id string) (b adapters.Bead, err error) {
	err = l.read(ctx, func(_ *opened, tx *sql.Tx) error {
		b, err = load(ctx, tx, id)
		return err
	})
	return b, err
}

// where collects conditions and their arguments.
type where struct {
	conds []string
	args  []any
}

func (w *where) and(cond string, args ...any) {
	w.conds = append(w.conds, cond)
	w.args = append(w.args, args...)
}

func (w *where) common(parent, tag, kind string) {
	if parent != "" {
		w.and(`b.parent_id = ?`, parent)
	}
	if tag != "" {
		w.and(`EXISTS (SELECT 1 FROM json_each(b.tags) WHERE value = ?)`, tag)
	}
	if kind != "" {
		w.and(`b.kind = ?`, kind)
	}
}

// GetReady lists beads that can be claimed now.
func (l *Local) GetReady(ctx context.Context, f adapters.ReadyFilter) (adapters.Page[adapters.Bead], error) {
	var w where
	w.and(`b.status = 'open'`)
	w.and(`b.id NOT IN (SELECT id FROM blocked)`)
	w.and(`NOT EXISTS (SELECT 1 FROM beads c WHERE c.parent_id = b.id AND c.status <> 'closed')`)
	w.common(f.ParentID, f.Tag, f.Kind)
	limit := "-"
	if f.PriorityMax != nil {
		w.and(`b.priority <= ?`, *f.PriorityMax)
		limit = strconv.Itoa(*f.PriorityMax)
	}
	return l.page(ctx, f.PageOpt, w, listQuery{
		with: `WITH RECURSIVE blocked(id) AS (
			SELECT d.from_id FROM deps d JOIN beads t ON t.id = d.to_id JOIN beads f ON f.id = d.from_id
				WHERE f.status <> 'closed' AND ` + blocking + `
			UNION SELECT b.id FROM beads b JOIN blocked ON b.parent_id = blocked.id) `,
		scope: scope("ready", f.ParentID, f.Tag, f.Kind, limit),
		order: `b.priority, b.created_at, b.id`,
		after: `(b.priority, b.created_at, b.id) > (CAST(? AS INTEGER), CAST(? AS INTEGER), ?)`,
		key: func(b adapters.Bead) []string {
			return []string{strconv.Itoa(b.Priority), strconv.FormatInt(toMS(b.CreatedAt), 10), b.ID}
		},
	})
}

// List lists all beads in the order they were made.
func (l *Local) List(ctx context.Context, f adapters.BeadFilter) (adapters.Page[adapters.Bead], error) {
	var w where
	w.common(f.ParentID, f.Tag, f.Kind)
	if f.Status != "" {
		w.and(`b.status = ?`, f.Status)
	}
	if f.Actor != "" {
		w.and(`b.actor = ?`, f.Actor)
	}
	return l.page(ctx, f.PageOpt, w, listQuery{
		scope: scope("list", f.ParentID, f.Tag, f.Kind, f.Status, f.Actor),
		order: `b.created_at, b.id`,
		after: `(b.created_at, b.id) > (CAST(? AS INTEGER), ?)`,
		key:   func(b adapters.Bead) []string { return []string{strconv.FormatInt(toMS(b.CreatedAt), 10), b.ID} },
	})
}

// scope names a list and its filter unambiguously for the cursor.
func scope(parts ...string) string {
	raw, _ := json.Marshal(parts) // strings always marshal
	return string(raw)
}

// listQuery is a list in keyset order.
type listQuery struct {
	with, scope, order, after string
	key                       func(adapters.Bead) []string
}

// maxPageBytes ends a page early: imported beads have up to 4 MiB each, and other programs of our
// user can write the file.
const maxPageBytes = 1 << 20

func (l *Local) page(ctx context.Context, opt adapters.PageOpt, w where, q listQuery) (page adapters.Page[adapters.Bead], err error) {
	err = l.read(ctx, func(o *opened, tx *sql.Tx) error {
		position, err := o.cursors.Open(q.scope, opt.Cursor, strings.Count(q.after, "?"))
		if err != nil {
			return err
		}
		if position != nil {
			args := make([]any, len(position))
			for i, p := range position {
				args[i] = p
			}
			w.and(q.after, args...)
		}
		stmt := q.with + `SELECT ` + columns + ` FROM beads b`
		if len(w.conds) > 0 {
			stmt += ` WHERE ` + strings.Join(w.conds, ` AND `)
		}
		stmt += ` ORDER BY ` + q.order + ` LIMIT ` + strconv.Itoa(opt.Rows()+1)
		rows, err := tx.QueryContext(ctx, stmt, w.args...)
		if err != nil {
			return err
		}
		defer rows.Close()
		for size := 0; rows.Next(); {
			if n := len(page.Items); n == opt.Rows() || size >= maxPageBytes {
				page.NextCursor = o.cursors.Seal(q.scope, q.key(page.Items[n-1])...)
				break
			}
			b, err := scanBead(rows)
			if err != nil {
				return err
			}
			page.Items = append(page.Items, b)
			size += len(b.Title) + len(b.Description) + len(b.Outcome)
			for _, tag := range b.Tags {
				size += len(tag) + 16 // of the string's header
			}
		}
		if err := errors.Join(rows.Err(), rows.Close()); err != nil {
			return err
		}
		return edges(ctx, tx, page.Items)
	})
	return page, err
}
