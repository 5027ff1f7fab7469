package beads

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/base32"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/sqlite"
)

// idEncoding is base32 in lower case (RFC 4648): no letter looks like a digit.
var idEncoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// tagList is the tags as the table has them.
func tagList(tags []string) string {
	text, _ := json.Marshal(adapters.TagSet(tags)) // strings always marshal
	return string(text)
}

func newID() string {
	var b [4]byte
	// crypto/rand.Read never fails: it ends the process instead.
	_, _ = rand.Read(b[:])
	return "ab-" + idEncoding.EncodeToString(b[:])[:6]
}

// once runs f, which makes something and returns its id. If the same call has made it before, once
// returns that id instead. The name of the call is stored in the same transaction, so a crash of
// the box cannot separate the two.
func once(ctx context.Context, tx *sql.Tx, f func() (id string, err error)) (id string, err error) {
	name := adapters.MetaFrom(ctx).Once
	if name == "" {
		return f()
	}
	t := now()
	err = tx.QueryRowContext(ctx, `SELECT id FROM made WHERE once = ? AND at > ?`, name, t-adapters.IdempotencyLife.Milliseconds()).Scan(&id)
	if !errors.Is(err, sql.ErrNoRows) {
		return id, err
	}
	if id, err = f(); err != nil {
		return "", err
	}
	if _, err := tx.ExecContext(ctx, `DELETE FROM made WHERE at <= ?`, t-adapters.IdempotencyLife.Milliseconds()); err != nil {
		return "", err
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO made(once, id, at) VALUES(?, ?, ?)`, name, id, t)
	return id, err
}

// create makes a bead by f, once.
func (l *Local) create(ctx context.Context, f func(*sql.Tx) (id string, err error)) (b adapters.Bead, err error) {
	err = l.write(ctx, func(tx *sql.Tx) error {
		id, err := once(ctx, tx, func() (string, error) { return f(tx) })
		if err != nil {
			return err
		}
		b, err = load(ctx, tx, id)
		return err
	})
	return b, err
}

// CreateEpic makes a bead without a parent.
func (l *Local) CreateEpic(ctx context.Context, in adapters.NewBead) (adapters.Bead, error) {
	return l.create(ctx, func(tx *sql.Tx) (string, error) {
		for {
			id := newID()
			err := insert(ctx, tx, id, in, 0, "epic")
			if sqlite.IsConstraint(err) {
				continue // one of 2^30 ids was drawn again
			}
			return id, err
		}
	})
}

// CreateChild makes a bead below its parent and numbers it after its siblings.
func (l *Local) CreateChild(ctx context.Context, in adapters.NewBead) (adapters.Bead, error) {
	return l.create(ctx, func(tx *sql.Tx) (string, error) {
		for {
			var status string
			var depth, number int
			err := tx.QueryRowContext(ctx, `UPDATE beads SET next_child = next_child + 1 WHERE id = ?
				RETURNING status, depth, next_child - 1`, in.ParentID).Scan(&status, &depth, &number)
			switch {
			case errors.Is(err, sql.ErrNoRows):
				return "", adapters.NotFound("epic", in.ParentID)
			case err != nil:
				return "", err
			case status == adapters.BeadClosed:
				return "", adapters.Errorf(adapters.CodeConflict, "the parent is closed").With("id", in.ParentID, "status", status)
			case depth >= adapters.MaxBeadDepth:
				return "", adapters.OverLimit("parent_id (depth)", adapters.MaxBeadDepth).With("field", "parent_id")
			}
			id := in.ParentID + "." + strconv.Itoa(number)
			if adapters.CheckID("id", id) != nil {
				return "", adapters.Invalid("parent_id", "is too long for the id of a child")
			}
			err = insert(ctx, tx, id, in, depth+1, "task")
			if sqlite.IsConstraint(err) {
				continue // an imported bead that has another parent now has this id
			}
			return id, err
		}
	})
}

func insert(ctx context.Context, tx *sql.Tx, id string, in adapters.NewBead, depth int, kind string) error {
	if in.Kind != "" {
		kind = in.Kind
	}
	priority := adapters.DefaultPriority
	if in.Priority != nil {
		priority = *in.Priority
	}
	t := now()
	status, until := adapters.BeadOpen, int64(0)
	if d := toMS(in.DeferUntil); d > t {
		status, until = adapters.BeadDeferred, d
	}
	parentExtra := "{}"
	if in.ParentID != "" {
		var err error
		if parentExtra, err = madeNow(ctx); err != nil {
			return err
		}
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO beads(id, title, description, kind, parent_id, depth, status, priority, created_by, tags, created_at, updated_at, defer_until, parent_extra)
		VALUES(?, ?, ?, ?, nullif(?, ''), ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		id, in.Title, in.Description, kind, in.ParentID, depth, status, priority, in.CreatedBy, tagList(in.Tags), t, t, until, parentExtra)
	return err
}

// Claim makes actor the holder in one statement. Only if that changes nothing, it finds out why.
func (l *Local) Claim(ctx context.Context, id, actor string, opt ...adapters.ClaimOpt) (b adapters.Bead, err error) {
	var lease int64
	for _, o := range opt {
		lease = o.Lease.Milliseconds()
	}
	err = l.write(ctx, func(tx *sql.Tx) error {
		t := now()
		until := int64(0)
		if lease > 0 {
			until = t + lease
		}
		res, err := tx.ExecContext(ctx, `UPDATE beads SET status = 'claimed', actor = ?1, claimed_at = ?2, lease_until = ?3, defer_until = 0,
			updated_at = max(?2, updated_at + 1), version = version + 1
			WHERE id = ?4 AND (status = 'open' OR (status = 'deferred' AND defer_until BETWEEN 1 AND ?2)
				OR (status = 'claimed' AND lease_until BETWEEN 1 AND ?2 AND actor <> ?1))`, actor, t, until, id)
		if err != nil {
			return err
		}
		n, err := res.RowsAffected()
		if err != nil {
			return err
		}
		if n == 0 {
			if err := reclaim(ctx, tx, id, actor, until); err != nil {
				return err
			}
		}
		b, err = load(ctx, tx, id)
		return err
	})
	return b, err
}

// reclaim explains a claim that found no free bead. If the holder claims again, a lease is renewed
// and nothing else changes.
func reclaim(ctx context.Context, tx *sql.Tx, id, actor string, until int64) error {
	var status, holder string
	err := tx.QueryRowContext(ctx, `SELECT status, actor FROM beads WHERE id = ?`, id).Scan(&status, &holder)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return adapters.NotFound("bead", id)
	case err != nil:
		return err
	case status != adapters.BeadClaimed:
		return adapters.Errorf(adapters.CodeNotClaimable, "the bead is %s", status).With("id", id, "status", status)
	case holder != actor:
		return adapters.Errorf(adapters.CodeAlreadyClaimed, "the bead is held by %s", holder).With("id", id, "actor", holder)
	case until > 0:
		_, err = tx.ExecContext(ctx, `UPDATE beads SET lease_until = ?, origin_version = 0 WHERE id = ?`, until, id)
		return err
	}
	return nil
}

// change runs f on a bead that exists and answers it as it is afterwards.
func (l *Local) change(ctx context.Context, id string, f func(*sql.Tx, adapters.Bead) error) (b adapters.Bead, err error) {
	err = l.write(ctx, func(tx *sql.Tx) error {
		old, err := load(ctx, tx, id)
		if err != nil {
			return err
		}
		if err := f(tx, old); err != nil {
			return err
		}
		b, err = load(ctx, tx, id)
		return err
	})
	return b, err
}

// set updates columns of one bead and counts the version. updated_at always
// grows, so that an import can tell which of two is newer.
func set(ctx context.Context, tx *sql.Tx, id, assignments string, args ...any) error {
	args = append(args, now(), id)
	_, err := tx.ExecContext(ctx, `UPDATE beads SET `+assignments+`, updated_at = max(?, updated_at + 1), version = version + 1 WHERE id = ?`, args...)
	return err
}

// Close ends a bead. The first outcome stays.
func (l *Local) Close(ctx context.Context, id, outcome string, opt ...adapters.CloseOpt) (adapters.Bead, error) {
	force := false
	for _, o := range opt {
		force = force || o.Force
	}
	return l.change(ctx, id, func(tx *sql.Tx, b adapters.Bead) error {
		if b.Status == adapters.BeadClosed {
			return nil
		}
		if b.Status == adapters.BeadClaimed && !force && !adapters.MetaFrom(ctx).MayActFor(string(b.Actor)) {
			return adapters.Errorf(adapters.CodePermissionDenied, "the bead is held by %s", b.Actor).With("id", id, "actor", b.Actor)
		}
		if !force {
			var open int
			if err := tx.QueryRowContext(ctx, `SELECT count(*) FROM beads WHERE parent_id = ? AND status <> 'closed'`, id).Scan(&open); err != nil {
				return err
			}
			if open > 0 {
				return adapters.Errorf(adapters.CodeConflict, "the bead has children that are not closed: %d", open).With("id", id, "open_children", open).
					Final() // closing the children, not waiting, helps
			}
		}
		return set(ctx, tx, id, `status = 'closed', outcome = ?, closed_at = ?, lease_until = 0, defer_until = 0`, outcome, now())
	})
}

// Release gives up a claim.
func (l *Local) Release(ctx context.Context, id, actor string) (adapters.Bead, error) {
	return l.change(ctx, id, func(tx *sql.Tx, b adapters.Bead) error {
		if b.Status != adapters.BeadClaimed {
			return nil
		}
		if string(b.Actor) != actor && !adapters.MetaFrom(ctx).Admin {
			return adapters.Errorf(adapters.CodePermissionDenied, "the bead is held by %s", b.Actor).With("id", id, "actor", b.Actor)
		}
		return set(ctx, tx, id, `status = 'open', actor = '', claimed_at = 0, lease_until = 0`)
	})
}

// Reopen clears outcome and holder of a closed bead.
func (l *Local) Reopen(ctx context.Context, id string) (adapters.Bead, error) {
	return l.change(ctx, id, func(tx *sql.Tx, b adapters.Bead) error {
		if b.Status != adapters.BeadClosed {
			return nil
		}
		return set(ctx, tx, id, `status = 'open', actor = '', outcome = '', claimed_at = 0, closed_at = 0, lease_until = 0`)
	})
}

// Update changes what a caller may edit. A claimed bead is edited by its
// holder, its author or an admin.
func (l *Local) Update(ctx context.Context, id string, c adapters.BeadChange) (adapters.Bead, error) {
	return l.change(ctx, id, func(tx *sql.Tx, b adapters.Bead) error {
		if len(c.IfVersions) > 0 && !slices.Contains(c.IfVersions, b.Version) {
			return adapters.Errorf(adapters.CodePreconditionFailed, "the bead has version %d", b.Version).With("current", b.Version)
		}
		m := adapters.MetaFrom(ctx)
		if b.Status == adapters.BeadClaimed && !m.MayActFor(string(b.Actor)) && !m.MayActFor(string(b.CreatedBy)) {
			return adapters.Errorf(adapters.CodePermissionDenied, "the bead is held by %s", b.Actor).With("id", id, "actor", b.Actor)
		}
		assignments, args, err := assign(b, c)
		if err != nil || assignments == nil {
			return err
		}
		return set(ctx, tx, id, strings.Join(assignments, ", "), args...)
	})
}

// assign turns a change into the assignments that really change something.
func assign(b adapters.Bead, c adapters.BeadChange) (assignments []string, args []any, err error) {
	add := func(assignment string, v ...any) {
		assignments, args = append(assignments, assignment), append(args, v...)
	}
	if c.Title != nil && *c.Title != b.Title {
		add(`title = ?`, *c.Title)
	}
	if c.Description != nil && *c.Description != b.Description {
		add(`description = ?`, *c.Description)
	}
	if c.Kind != nil && *c.Kind != "" && *c.Kind != b.Kind {
		add(`kind = ?`, *c.Kind)
	}
	if c.Priority != nil && *c.Priority != b.Priority {
		add(`priority = ?`, *c.Priority)
	}
	if c.Tags != nil {
		if set := adapters.TagSet(*c.Tags); !slices.Equal(set, b.Tags) {
			add(`tags = ?`, tagList(set))
		}
	}
	if c.DeferUntil == nil || c.DeferUntil.Equal(b.DeferUntil.Time) {
		return assignments, args, nil
	}
	if b.Status != adapters.BeadOpen && b.Status != adapters.BeadDeferred {
		return nil, nil, adapters.Errorf(adapters.CodeConflict, "a %s bead cannot be deferred", b.Status).With("id", b.ID, "status", b.Status).Final()
	}
	if until := toMS(*c.DeferUntil); until > now() {
		add(`status = 'deferred'`)
		add(`defer_until = ?`, until)
	} else if b.Status == adapters.BeadDeferred {
		add(`status = 'open'`)
		add(`defer_until = 0`)
	}
	return assignments, args, nil
}

// Comment adds a remark, once. It counts as a change of the bead.
func (l *Local) Comment(ctx context.Context, id, text string) (c adapters.BeadComment, err error) {
	_, err = l.change(ctx, id, func(tx *sql.Tx, _ adapters.Bead) error {
		number, err := once(ctx, tx, func() (string, error) {
			fresh := adapters.NewID()
			if _, err := tx.ExecContext(ctx, `INSERT INTO comments(id, bead_id, author, text, created_at) VALUES(?, ?, ?, ?, ?)`,
				fresh, id, adapters.MetaFrom(ctx).Actor, text, now()); err != nil {
				return "", err
			}
			if err := set(ctx, tx, id, `status = status`); err != nil {
				return "", err
			}
			return fresh, checkLine(ctx, tx, id)
		})
		if err != nil {
			return err
		}
		c, err = loadComment(ctx, tx, id, number)
		return err
	})
	return c, err
}

func loadComment(ctx context.Context, tx *sql.Tx, bead, id string) (adapters.BeadComment, error) {
	c := adapters.BeadComment{ID: id, BeadID: bead}
	var at int64
	err := tx.QueryRowContext(ctx, `SELECT author, text, created_at FROM comments WHERE bead_id = ? AND id = ?`, bead, id).
		Scan((*string)(&c.Author), &c.Text, &at)
	if errors.Is(err, sql.ErrNoRows) {
		return c, adapters.NotFound("comment", id) // an import has replaced it
	}
	c.CreatedAt = adapters.AtMillis(at)
	return c, err
}
