package relay

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nbd-wtf/go-nostr"

	"github.com/dreamlab-ai/agentinit/adapters/sqlite"
	"github.com/dreamlab-ai/agentinit/mesh/nip01"
)

// appID marks the relay's file: "abRL".
const appID = 0x6162524c

// The tag d of an addressable event is in its column, "" for other kinds.
// replaces is what only one event may have: kind, key and d; NULL for regular ones.
var migrations = []string{`
CREATE TABLE events (
	n INTEGER PRIMARY KEY,
	id TEXT NOT NULL UNIQUE,
	pubkey TEXT NOT NULL,
	kind INTEGER NOT NULL,
	created_at INTEGER NOT NULL,
	replaces TEXT UNIQUE,
	expires_at INTEGER,
	received_at INTEGER NOT NULL,
	raw TEXT NOT NULL
);
CREATE INDEX events_kind ON events (kind, created_at);
CREATE INDEX events_pubkey ON events (pubkey, kind, created_at);
CREATE INDEX events_created ON events (created_at);
CREATE INDEX events_received ON events (received_at);
CREATE INDEX events_expires ON events (expires_at) WHERE expires_at IS NOT NULL;
CREATE TABLE tags (
	name TEXT NOT NULL,
	value TEXT NOT NULL,
	event INTEGER NOT NULL REFERENCES events (n) ON DELETE CASCADE,
	PRIMARY KEY (name, value, event)
) WITHOUT ROWID;
CREATE INDEX tags_event ON tags (event);
`}

// Outcome is what became of an event that was to be stored.
type Outcome int

// Outcomes of an event.
const (
	Stored     Outcome = iota
	Duplicate          // it was there
	Superseded         // one that replaces it was there
)

// store keeps events. Its methods may be called from any goroutine.
type store struct {
	db     *sqlite.DB
	queue  chan *pending
	closed chan struct{}
}

type pending struct {
	event    *nostr.Event
	received time.Time
	outcome  Outcome
	done     chan error
}

// batch is how many events at most are made durable together.
const batch = 256

func openStore(ctx context.Context, path string) (*store, error) {
	db, err := sqlite.Open(ctx, sqlite.Options{Path: path, AppID: appID, Migrations: migrations})
	if err != nil {
		return nil, err
	}
	s := &store{db: db, queue: make(chan *pending, batch), closed: make(chan struct{})}
	go s.write()
	return s, nil
}

// close ends the store. No add may run.
func (s *store) close() error {
	close(s.queue)
	<-s.closed
	return s.db.Close()
}

// add stores an event: when it returns, the event is on disk. Events of several
// sessions share a commit.
func (s *store) add(ctx context.Context, e *nostr.Event, now time.Time) (Outcome, error) {
	p := &pending{event: e, received: now, done: make(chan error, 1)}
	select {
	case s.queue <- p:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	err := <-p.done // the batch is bounded by the writer's own time
	return p.outcome, err
}

func (s *store) write() {
	defer close(s.closed)
	for first := range s.queue {
		group := []*pending{first}
		for more := true; more && len(group) < batch; {
			select {
			case p, ok := <-s.queue:
				if ok {
					group = append(group, p)
				}
				more = ok
			default:
				more = false
			}
		}
		err := s.commit(group)
		if err != nil && len(group) > 1 {
			// One that cannot be stored must not take the others with it.
			for _, p := range group {
				p.done <- s.commit([]*pending{p})
			}
			continue
		}
		for _, p := range group {
			p.done <- err
		}
	}
}

const writeLimit = 10 * time.Second

func (s *store) commit(group []*pending) error {
	ctx, cancel := context.WithTimeout(context.Background(), writeLimit)
	defer cancel()
	return s.db.Write(ctx, func(tx *sql.Tx) error {
		for _, p := range group {
			var err error
			if p.outcome, err = insert(ctx, tx, p.event, p.received); err != nil {
				return err
			}
		}
		return nil
	})
}

// replaces is the name under which only the newest event is kept; nil for regular
// events.
func replaces(e *nostr.Event) any {
	switch {
	case e.IsReplaceable():
		return slotName(e, "")
	case e.IsAddressable():
		return slotName(e, nip01.TagValue(e, "d"))
	}
	return nil
}

func slotName(e *nostr.Event, d string) string {
	return fmt.Sprintf("%s:%d:%s", e.PubKey, e.Kind, d)
}

func insert(ctx context.Context, tx *sql.Tx, e *nostr.Event, now time.Time) (Outcome, error) {
	var there int
	err := tx.QueryRowContext(ctx, "SELECT 1 FROM events WHERE id = ?", e.ID).Scan(&there)
	if err == nil {
		return Duplicate, nil
	} else if !errors.Is(err, sql.ErrNoRows) {
		return 0, err
	}
	slot := replaces(e)
	if slot != nil {
		var id string
		var at int64
		err := tx.QueryRowContext(ctx, "SELECT id, created_at FROM events WHERE replaces = ?", slot).Scan(&id, &at)
		switch {
		case errors.Is(err, sql.ErrNoRows):
		case err != nil:
			return 0, err
		case !nip01.Newer(e, &nostr.Event{ID: id, CreatedAt: nostr.Timestamp(at)}):
			return Superseded, nil
		default:
			if _, err := tx.ExecContext(ctx, "DELETE FROM events WHERE replaces = ?", slot); err != nil {
				return 0, err
			}
		}
	}
	var expires any
	if at := nip01.Expires(e); !at.IsZero() {
		expires = at.Unix()
	}
	result, err := tx.ExecContext(ctx, "INSERT INTO events (id, pubkey, kind, created_at, replaces, expires_at, received_at, raw) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
		e.ID, e.PubKey, e.Kind, int64(e.CreatedAt), slot, expires, now.Unix(), e.String())
	if err != nil {
		return 0, err
	}
	n, err := result.LastInsertId()
	if err != nil {
		return 0, err
	}
	for _, t := range e.Tags {
		if len(t) < 2 || len(t[0]) != 1 {
			continue
		}
		if _, err := tx.ExecContext(ctx, "INSERT OR IGNORE INTO tags (name, value, event) VALUES (?, ?, ?)", t[0], t[1], n); err != nil {
			return 0, err
		}
	}
	return Stored, nil
}

// query yields the newest stored events that filter selects, at most limit of
// them, newest first, until yield returns false.
func (s *store) query(ctx context.Context, f nip01.Filter, limit int, now time.Time, yield func(*nostr.Event) bool) error {
	text, args := selection(f, limit, now)
	return s.db.Read(ctx, func(tx *sql.Tx) error {
		rows, err := tx.QueryContext(ctx, text, args...)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var raw string
			if err := rows.Scan(&raw); err != nil {
				return err
			}
			e, err := nip01.ParseEvent([]byte(raw))
			if err != nil {
				return err
			}
			if !yield(e) {
				break
			}
		}
		return rows.Err()
	})
}

// selection is a filter as SQL. All values are parameters.
func selection(f nip01.Filter, limit int, now time.Time) (string, []any) {
	where, args := []string{"(expires_at IS NULL OR expires_at > ?)"}, []any{now.Unix()}
	in := func(column string, n int, value func(int) any) {
		where = append(where, column+" IN ("+strings.TrimSuffix(strings.Repeat("?,", n), ",")+")")
		for i := range n {
			args = append(args, value(i))
		}
	}
	if f.IDs != nil {
		in("id", len(f.IDs), func(i int) any { return f.IDs[i] })
	}
	if f.Authors != nil {
		in("pubkey", len(f.Authors), func(i int) any { return f.Authors[i] })
	}
	if f.Kinds != nil {
		in("kind", len(f.Kinds), func(i int) any { return f.Kinds[i] })
	}
	for name, values := range f.Tags {
		args = append(args, name)
		in("n IN (SELECT event FROM tags WHERE name = ? AND value", len(values), func(i int) any { return values[i] })
		where[len(where)-1] += ")"
	}
	if f.Since != nil {
		where, args = append(where, "created_at >= ?"), append(args, *f.Since)
	}
	if f.Until != nil {
		where, args = append(where, "created_at <= ?"), append(args, *f.Until)
	}
	return "SELECT raw FROM events WHERE " + strings.Join(where, " AND ") + " ORDER BY created_at DESC, id LIMIT ?", append(args, limit)
}

// pruneStep is how many events one transaction deletes: writers wait no longer.
const pruneStep = 1000

// prune deletes what has expired, and what came before keep unless it says when it
// expires. A zero keep deletes only the expired.
func (s *store) prune(ctx context.Context, now, keep time.Time) (deleted int64, err error) {
	before := int64(-1)
	if !keep.IsZero() {
		before = keep.Unix()
	}
	for {
		var n int64
		err := s.db.Write(ctx, func(tx *sql.Tx) error {
			result, err := tx.ExecContext(ctx, `DELETE FROM events WHERE n IN (
				SELECT n FROM events WHERE expires_at <= ? UNION ALL
				SELECT n FROM events WHERE expires_at IS NULL AND received_at < ? LIMIT ?)`, now.Unix(), before, pruneStep)
			if err != nil {
				return err
			}
			n, err = result.RowsAffected()
			return err
		})
		deleted += n
		if err != nil || n == 0 {
			return deleted, err
		}
	}
}

// count is how many events are stored, and the bytes of the file.
func (s *store) count(ctx context.Context) (events, bytes int64, err error) {
	err = s.db.Read(ctx, func(tx *sql.Tx) error {
		if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM events").Scan(&events); err != nil {
			return err
		}
		return tx.QueryRowContext(ctx, "SELECT (SELECT * FROM pragma_page_count) * (SELECT * FROM pragma_page_size)").Scan(&bytes)
	})
	return events, bytes, err
}
