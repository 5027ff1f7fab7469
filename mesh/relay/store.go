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

// appID is the SQLite application id of the relay's file: "abRL".
const appID = 0x6162524c

// Only one event may have the same value of replaces (key, kind and tag d). It is NULL for regular
// events.
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
`,
	// rank is the rank of the sender of the event. Older files do not name the sender: their events
	// count as those of strangers.
	`
ALTER TABLE events ADD COLUMN rank INTEGER NOT NULL DEFAULT 0;
CREATE INDEX events_rank ON events (rank, received_at);
`}

// Outcome is the result of storing an event.
type Outcome int

// Outcomes of an event.
const (
	Stored     Outcome = iota
	Duplicate          // the event is already stored
	Superseded         // a newer event that replaces it is already stored
	Full               // the database has no room for it
)

// store keeps events. Its methods may be called from any goroutine.
type store struct {
	db     *sqlite.DB
	max    int64 // bytes
	queue  chan *pending
	closed chan struct{}
}

type pending struct {
	event    *nostr.Event
	rank     rank
	received time.Time
	outcome  Outcome
	evicted  int64 // events deleted to make room for this one
	done     chan error
}

// batch is the largest number of events in one commit.
const batch = 256

func openStore(ctx context.Context, path string, max int64, largest int) (*store, error) {
	// A row holds an event and, in its other columns, at most all of it again.
	db, err := sqlite.Open(ctx, sqlite.Options{Path: path, AppID: appID, Migrations: migrations, MaxValue: 2*largest + 1<<20})
	if err != nil {
		return nil, err
	}
	s := &store{db: db, max: max, queue: make(chan *pending, batch), closed: make(chan struct{})}
	go s.write()
	return s, nil
}

// close closes the store. The caller must make sure that no add is running.
func (s *store) close() error {
	close(s.queue)
	<-s.closed
	return s.db.Close()
}

// add stores an event from a sender of rank r. When it returns, the event is on disk. evicted is how
// many events were deleted to make room for it. Events of several sessions share one commit.
func (s *store) add(ctx context.Context, e *nostr.Event, r rank, now time.Time) (outcome Outcome, evicted int64, err error) {
	p := &pending{event: e, rank: r, received: now, done: make(chan error, 1)}
	select {
	case s.queue <- p:
	case <-ctx.Done():
		return 0, 0, ctx.Err()
	}
	err = <-p.done // without ctx: writeLimit limits the time of each commit
	return p.outcome, p.evicted, err
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
			// An event that cannot be stored must not fail the others.
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
		left := int64(pruneStep)
		for _, p := range group {
			var err error
			p.evicted = 0 // an earlier attempt may have been rolled back
			if p.outcome, err = s.insert(ctx, tx, p, left); err != nil {
				return err
			}
			left -= p.evicted
		}
		return nil
	})
}

// replaces returns the name under which the store keeps only the newest event, nil for a regular
// event.
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

// insert stores p's event, and deletes at most mayEvict others to make room for it.
func (s *store) insert(ctx context.Context, tx *sql.Tx, p *pending, mayEvict int64) (Outcome, error) {
	e := p.event
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
		}
	}
	raw := string(nip01.EventText(e))
	fits, err := s.makeRoom(ctx, tx, p, room(raw), mayEvict)
	if err != nil {
		return 0, err
	}
	if !fits {
		return Full, nil
	}
	if slot != nil {
		if _, err := tx.ExecContext(ctx, "DELETE FROM events WHERE replaces = ?", slot); err != nil {
			return 0, err
		}
	}
	var expires any
	if at := nip01.Expires(e); !at.IsZero() {
		expires = at.Unix()
	}
	result, err := tx.ExecContext(ctx, "INSERT INTO events (id, pubkey, kind, created_at, replaces, expires_at, received_at, rank, raw) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
		e.ID, e.PubKey, e.Kind, int64(e.CreatedAt), slot, expires, p.received.Unix(), p.rank, raw)
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

// room estimates how many bytes an event needs at most: its text, its tags with their index, and new
// pages of the tables and indexes.
func room(raw string) int64 { return 3*int64(len(raw)) + 64<<10 }

// makeRoom tells whether need bytes are free below the limit. To free them, it deletes at most
// mayEvict of the oldest events, those of the lowest rank first. It deletes no event of a higher rank
// than p's, so that a stranger cannot push out the events of the box or its peers.
func (s *store) makeRoom(ctx context.Context, tx *sql.Tx, p *pending, need, mayEvict int64) (bool, error) {
	if need > s.max {
		return false, nil // even without all other events, there is no room
	}
	for {
		used, err := usedBytes(ctx, tx)
		if err != nil {
			return false, err
		}
		if used+need <= s.max {
			return true, nil
		}
		n, err := evict(ctx, tx, p.rank, min(1, mayEvict-p.evicted))
		if err != nil || n == 0 {
			return false, err
		}
		p.evicted += n
	}
}

// evict deletes at most limit events of ranks up to highest: the lowest rank first, then the oldest.
func evict(ctx context.Context, tx *sql.Tx, highest rank, limit int64) (int64, error) {
	result, err := tx.ExecContext(ctx, `DELETE FROM events WHERE n IN (
		SELECT n FROM events WHERE rank <= ? ORDER BY rank, received_at, n LIMIT ?)`, highest, limit)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

// usedBytes returns the size of the file without its free pages: SQLite reuses those.
func usedBytes(ctx context.Context, tx *sql.Tx) (used int64, err error) {
	err = tx.QueryRowContext(ctx, `SELECT ((SELECT * FROM pragma_page_count) - (SELECT * FROM pragma_freelist_count)) *
		(SELECT * FROM pragma_page_size)`).Scan(&used)
	return used, err
}

// find returns the ids of at most limit stored events that the filter selects, the newest first.
func (s *store) find(ctx context.Context, f nip01.Filter, limit int, now time.Time) (ids []string, err error) {
	text, args := selection(f, limit, now)
	err = s.db.Read(ctx, func(tx *sql.Tx) error {
		ids, err = sqlite.All(ctx, tx, func(r *sql.Rows) (id string, err error) { return id, r.Scan(&id) }, text, args...)
		return err
	})
	return ids, err
}

// read yields stored events in the order of ids, until they have at least size bytes, and returns the
// ids that are left. It skips events that were deleted meanwhile.
func (s *store) read(ctx context.Context, ids []string, size int, yield func(e *nostr.Event, raw []byte)) (left []string, err error) {
	err = s.db.Read(ctx, func(tx *sql.Tx) error {
		for size > 0 && len(ids) > 0 {
			var raw []byte
			err := tx.QueryRowContext(ctx, "SELECT raw FROM events WHERE id = ?", ids[0]).Scan(&raw)
			ids = ids[1:]
			if errors.Is(err, sql.ErrNoRows) {
				continue
			}
			if err != nil {
				return err
			}
			e, err := nip01.ParseEvent(raw)
			if err != nil {
				return err
			}
			yield(e, raw)
			size -= len(raw)
		}
		return nil
	})
	return ids, err
}

// selection turns a filter into SQL. All values are parameters.
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
	return "SELECT id FROM events WHERE " + strings.Join(where, " AND ") + " ORDER BY created_at DESC, id LIMIT ?", append(args, limit)
}

// shrinkStep is how many events shrink deletes between two checks of the size.
const shrinkStep = 16

// pruneStep is how many events one transaction deletes at most, so that writers do not wait long.
const pruneStep = 1000

// prune deletes expired events, and events without an expiration that were received before keep. If
// keep is zero, it deletes only expired events.
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

// shrink deletes the oldest events of a file that is larger than the limit. The limit may be smaller
// than at the last start.
func (s *store) shrink(ctx context.Context) (evicted int64, err error) {
	for {
		var n int64
		err := s.db.Write(ctx, func(tx *sql.Tx) error {
			n = 0
			for n < pruneStep {
				used, err := usedBytes(ctx, tx)
				if err != nil || used <= s.max {
					return err
				}
				step, err := evict(ctx, tx, ownKey, shrinkStep)
				if err != nil || step == 0 {
					return err
				}
				n += step
			}
			return nil
		})
		if err != nil {
			return evicted, err
		}
		evicted += n
		if n < pruneStep {
			return evicted, nil
		}
	}
}

// count returns what is stored: all of Status but the connections.
func (s *store) count(ctx context.Context) (Status, error) {
	var out Status
	err := s.db.Read(ctx, func(tx *sql.Tx) error {
		var last sql.NullInt64
		if err := tx.QueryRowContext(ctx, "SELECT count(*), max(received_at) FROM events").Scan(&out.Events, &last); err != nil {
			return err
		}
		if last.Valid {
			at := time.Unix(last.Int64, 0).UTC()
			out.LastEvent = &at
		}
		return tx.QueryRowContext(ctx, "SELECT (SELECT * FROM pragma_page_count) * (SELECT * FROM pragma_page_size)").Scan(&out.Bytes)
	})
	return out, err
}
