package memory

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"

	driver "modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// EmbeddedConfig configures class local.
type EmbeddedConfig struct {
	Dir        string // $RUVECTOR_DATA_DIR; the file in it is memory.db
	Embedder   Embedder
	CacheBytes int64 // bound of the vectors held in memory, 0 = DefaultCacheBytes
}

// ImplEmbedded is the manifest's word for class local.
const ImplEmbedded = "embedded-ruvector"

// NewEmbedded makes the SQLite class. It performs no I/O.
func NewEmbedded(c EmbeddedConfig) (*Memory, error) {
	if c.Dir == "" {
		return nil, adapters.Missing("slots.memory.dir", "embedded-ruvector keeps its file there")
	}
	path := filepath.Join(c.Dir, "memory.db")
	return newMemory(ImplEmbedded, adapters.ClassLocal, c.Embedder, c.CacheBytes,
		func(ctx context.Context, _ *Memory) (backend, error) { return openSQLite(ctx, path) })
}

const (
	sqliteReaders = 4
	sweepBatch    = 500    // entries removed in one transaction
	keepRevisions = 10_000 // deletions a reader may be behind by
)

// sqlite keeps everything in one file: WAL, synchronous=FULL, one writer. A
// change that was acknowledged is on the disk.
type sqlite struct {
	path   string
	writer *sql.DB // one connection
	reader *sql.DB
	turn   chan struct{} // one writing transaction at a time, waited for with ctx
	key    []byte
}

var _ backend = (*sqlite)(nil)

func openSQLite(ctx context.Context, path string) (*sqlite, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return nil, adapters.Unavailable(err, "cannot make the directory of the memory file")
	}
	b := &sqlite{path: path, turn: make(chan struct{}, 1)}
	var err error
	if b.writer, err = sql.Open("sqlite", dsn(path, "immediate")); err != nil {
		return nil, adapters.Unavailable(err, "cannot open the memory file")
	}
	b.writer.SetMaxOpenConns(1)
	if b.reader, err = sql.Open("sqlite", dsn(path, "deferred")); err != nil {
		return nil, errors.Join(adapters.Unavailable(err, "cannot open the memory file"), b.writer.Close())
	}
	b.reader.SetMaxOpenConns(sqliteReaders)
	b.reader.SetMaxIdleConns(sqliteReaders)
	for _, step := range []func(context.Context) error{b.migrate, b.whole, b.loadSecret} {
		if err := step(ctx); err != nil {
			return nil, errors.Join(asSQLite(err), b.close(ctx))
		}
	}
	return b, nil
}

func dsn(path, lock string) string {
	q := url.Values{"_txlock": {lock}, "_pragma": {
		"busy_timeout(5000)", "journal_mode(WAL)", "synchronous(FULL)", "foreign_keys(1)",
		"cache_size(-4096)", "journal_size_limit(16777216)",
	}}
	return (&url.URL{Scheme: "file", Opaque: (&url.URL{Path: path}).EscapedPath(), RawQuery: q.Encode()}).String()
}

// asSQLite gives a failure of the file a code. None of them is the caller's
// fault.
func asSQLite(err error) error {
	if err == nil || coded(err) {
		return err
	}
	var e *driver.Error
	if !errors.As(err, &e) {
		return adapters.Unavailable(err, "the memory file cannot be used")
	}
	out := adapters.Unavailable(err, "the memory file cannot be used")
	switch e.Code() & 0xff {
	case sqlite3.SQLITE_INTERRUPT:
		return fmt.Errorf("%w: %w", context.Canceled, err)
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
		out.Message = "another process holds the memory file"
	case sqlite3.SQLITE_FULL:
		out.Message = "the disk of the memory file is full"
	case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB:
		out.Message, out.Retryable = "the memory file is damaged; it was left as it is", false
	case sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN:
		out.Message, out.Retryable = "the memory file cannot be written: "+e.Error(), false
	}
	return out
}

func (b *sqlite) secret() []byte { return b.key }

func (b *sqlite) close(context.Context) error {
	return asSQLite(errors.Join(b.reader.Close(), b.writer.Close()))
}

func (b *sqlite) ping(ctx context.Context) error {
	var n int
	err := b.reader.QueryRowContext(ctx, "SELECT count(*) FROM meta").Scan(&n)
	return asSQLite(err)
}

// write runs f in the one writing transaction.
func (b *sqlite) write(ctx context.Context, f func(*sql.Tx) error) error {
	select {
	case b.turn <- struct{}{}:
		defer func() { <-b.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	tx, err := b.writer.BeginTx(ctx, nil)
	if err != nil {
		return asSQLite(err)
	}
	if err := f(tx); err != nil {
		// The error that matters is f's; a rollback that fails ends with the
		// connection.
		_ = tx.Rollback()
		return asSQLite(err)
	}
	return asSQLite(tx.Commit())
}

// snapshot runs f in a reading transaction.
func (b *sqlite) snapshot(ctx context.Context, f func(*sql.Tx) error) error {
	tx, err := b.reader.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return asSQLite(err)
	}
	err = f(tx)
	// Nothing was written: there is nothing a rollback could lose.
	_ = tx.Rollback()
	return asSQLite(err)
}

type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// each runs a query and f for every row.
func each(ctx context.Context, q querier, f func(*sql.Rows) error, query string, args ...any) error {
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return asSQLite(err)
	}
	defer rows.Close()
	for rows.Next() {
		if err := f(rows); err != nil {
			return asSQLite(err)
		}
	}
	return asSQLite(rows.Err())
}

func sqliteSpace(ctx context.Context, q querier, name string) (space, bool, error) {
	sp := space{name: name}
	err := q.QueryRowContext(ctx, "SELECT id, embedder, dim, rev, floor, entries FROM namespaces WHERE name = ?", name).
		Scan(&sp.id, &sp.pin.embedder, &sp.pin.dim, &sp.rev, &sp.floor, &sp.rows)
	if errors.Is(err, sql.ErrNoRows) {
		return sp, false, nil
	}
	return sp, err == nil, asSQLite(err)
}

func (b *sqlite) space(ctx context.Context, name string) (space, bool, error) {
	return sqliteSpace(ctx, b.reader, name)
}

func (b *sqlite) put(ctx context.Context, e entry, now int64) (created bool, under pin, err error) {
	err = b.write(ctx, func(tx *sql.Tx) error {
		created, under, err = putSQLite(ctx, tx, e, now)
		return err
	})
	return created, under, err
}

func putSQLite(ctx context.Context, tx *sql.Tx, e entry, now int64) (created bool, under pin, err error) {
	if _, err := tx.ExecContext(ctx, "INSERT INTO namespaces (name) VALUES (?) ON CONFLICT DO NOTHING", e.namespace); err != nil {
		return false, under, err
	}
	sp, _, err := sqliteSpace(ctx, tx, e.namespace)
	if err != nil {
		return false, under, err
	}
	var live bool
	err = tx.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM entries WHERE ns = ?1 AND (expires_at = 0 OR expires_at > ?2))", sp.id, now).Scan(&live)
	if err != nil {
		return false, under, err
	}
	if under, err = settle(sp, !live, e); err != nil {
		return false, under, err
	}
	if under != sp.pin {
		if sp, err = repinSQLite(ctx, tx, sp, under); err != nil {
			return false, under, err
		}
	}
	sp.rev++
	var id, expired int64
	err = tx.QueryRowContext(ctx, "SELECT id, expires_at FROM entries WHERE ns = ? AND key = ?", sp.id, e.key).Scan(&id, &expired)
	fresh := errors.Is(err, sql.ErrNoRows)
	if err != nil && !fresh {
		return false, under, err
	}
	// An entry that has expired but was not swept yet is not there.
	created = fresh || expired != 0 && expired <= now
	err = tx.QueryRowContext(ctx, `INSERT INTO entries (ns, rev, expires_at, words, key, embedding, stored_at, size, metadata, value)
		VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)
		ON CONFLICT (ns, key) DO UPDATE SET rev = ?2, expires_at = ?3, words = ?4, embedding = ?6, stored_at = ?7, size = ?8, metadata = ?9, value = ?10
		RETURNING id`,
		sp.id, sp.rev, e.expires, e.words, e.key, pack(e.vec), e.stored, len(e.value), e.metadata, e.value).Scan(&id)
	if err != nil {
		return false, under, err
	}
	if fresh {
		sp.rows++
	}
	if err := postSQLite(ctx, tx, sp, id, e, fresh); err != nil {
		return false, under, err
	}
	_, err = tx.ExecContext(ctx, "UPDATE namespaces SET rev = ?, entries = ? WHERE id = ?", sp.rev, sp.rows, sp.id)
	return created, under, err
}

// repinSQLite empties a namespace of what has expired and gives it another
// pin.
func repinSQLite(ctx context.Context, tx *sql.Tx, sp space, to pin) (space, error) {
	if _, err := tx.ExecContext(ctx, "DELETE FROM postings WHERE ns = ?", sp.id); err != nil {
		return sp, err
	}
	if _, err := tx.ExecContext(ctx, "DELETE FROM entries WHERE ns = ?", sp.id); err != nil {
		return sp, err
	}
	sp.rev++
	sp.pin, sp.floor, sp.rows = to, sp.rev, 0
	_, err := tx.ExecContext(ctx, "UPDATE namespaces SET embedder = ?, dim = ?, floor = ?, rev = ?, entries = 0 WHERE id = ?",
		to.embedder, to.dim, sp.floor, sp.rev, sp.id)
	return sp, err
}

// postSQLite writes the posting lists of an entry. The terms go in as one JSON
// text: one statement instead of thousands.
func postSQLite(ctx context.Context, tx *sql.Tx, sp space, id int64, e entry, fresh bool) error {
	if !fresh {
		if _, err := tx.ExecContext(ctx, "DELETE FROM postings WHERE entry = ?", id); err != nil {
			return err
		}
	}
	if len(e.terms) == 0 {
		return nil
	}
	list := make([][2]int64, len(e.terms))
	for i, w := range e.terms {
		list[i] = [2]int64{w.term, int64(w.tf)}
	}
	text, err := json.Marshal(list)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO postings (ns, term, entry, tf, words, expires_at)
		SELECT ?1, value ->> 0, ?2, value ->> 1, ?3, ?4 FROM json_each(?5) ORDER BY 2`,
		sp.id, id, e.words, e.expires, string(text))
	return err
}

const sqliteLive = "(expires_at = 0 OR expires_at > ?)"

func (b *sqlite) get(ctx context.Context, namespace, key string, now int64) (r row, ok bool, err error) {
	r.key = key
	err = b.reader.QueryRowContext(ctx, `SELECT e.id, e.rev, e.value, e.metadata, e.stored_at, e.expires_at, e.size, n.embedder, n.dim
		FROM entries e JOIN namespaces n ON n.id = e.ns WHERE n.name = ? AND e.key = ? AND `+sqliteLive, namespace, key, now).
		Scan(&r.id, &r.rev, &r.value, &r.metadata, &r.stored, &r.expires, &r.size, &r.pin.embedder, &r.pin.dim)
	if errors.Is(err, sql.ErrNoRows) {
		return row{}, false, nil
	}
	return r, err == nil, asSQLite(err)
}

func (b *sqlite) del(ctx context.Context, namespace, key string, now int64) (found bool, err error) {
	err = b.write(ctx, func(tx *sql.Tx) error {
		sp, ok, err := sqliteSpace(ctx, tx, namespace)
		if err != nil || !ok {
			return err
		}
		var id, expires int64
		err = tx.QueryRowContext(ctx, "SELECT id, expires_at FROM entries WHERE ns = ? AND key = ?", sp.id, key).Scan(&id, &expires)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		found = expires == 0 || expires > now
		return buryAll(ctx, tx, sp, []int64{id})
	})
	return found && err == nil, err
}

// buryAll removes entries of one namespace and leaves word of it for slabs.
func buryAll(ctx context.Context, tx *sql.Tx, sp space, ids []int64) error {
	text, err := json.Marshal(ids)
	if err != nil {
		return err
	}
	sp.rev++
	for _, s := range []struct {
		query string
		args  []any
	}{
		{"DELETE FROM postings WHERE entry IN (SELECT value FROM json_each(?))", []any{string(text)}},
		{"DELETE FROM entries WHERE id IN (SELECT value FROM json_each(?))", []any{string(text)}},
		{"INSERT INTO tombstones (ns, rev, entry) SELECT ?, ?, value FROM json_each(?)", []any{sp.id, sp.rev, string(text)}},
		{"UPDATE namespaces SET rev = ?, entries = entries - ? WHERE id = ?", []any{sp.rev, len(ids), sp.id}},
	} {
		if _, err := tx.ExecContext(ctx, s.query, s.args...); err != nil {
			return err
		}
	}
	return nil
}

func (b *sqlite) list(ctx context.Context, namespace string, after int64, n int, now int64) (list []row, err error) {
	err = each(ctx, b.reader, func(rows *sql.Rows) error {
		var r row
		err := rows.Scan(&r.id, &r.key, &r.stored, &r.expires, &r.size)
		list = append(list, r)
		return err
	}, `SELECT id, key, stored_at, expires_at, size FROM entries
		WHERE ns = (SELECT id FROM namespaces WHERE name = ?) AND id > ? AND `+sqliteLive+` ORDER BY id LIMIT ?`,
		namespace, after, now, n)
	return list, err
}

func (b *sqlite) namespaces(ctx context.Context, now int64) (list []adapters.Namespace, err error) {
	err = each(ctx, b.reader, func(rows *sql.Rows) error {
		var n adapters.Namespace
		err := rows.Scan(&n.Name, &n.Embedder, &n.Dim, &n.Entries)
		list = append(list, n)
		return err
	}, `SELECT n.name, n.embedder, n.dim, c.entries FROM namespaces n
		JOIN (SELECT ns, count(*) AS entries FROM entries WHERE `+sqliteLive+` GROUP BY ns) c ON c.ns = n.id ORDER BY n.name`, now)
	return list, err
}

func (b *sqlite) changes(ctx context.Context, namespace string, since revision, to sink) error {
	return b.snapshot(ctx, func(tx *sql.Tx) error {
		sp, _, err := sqliteSpace(ctx, tx, namespace)
		if err != nil {
			return err
		}
		all := !sp.continues(since)
		if all {
			since.rev = -1
		}
		to.begin(sp, all)
		var vec []float32
		err = each(ctx, tx, func(rows *sql.Rows) error {
			var v vectorRow
			var raw sql.RawBytes
			if err := rows.Scan(&v.id, &v.rev, &v.expires, &v.key, &raw); err != nil {
				return err
			}
			var err error
			if vec, err = unpack(vec, raw); err != nil {
				return err
			}
			v.vec = vec
			to.upsert(v)
			return nil
		}, "SELECT id, rev, expires_at, key, embedding FROM entries WHERE ns = ? AND rev > ?", sp.id, since.rev)
		if err != nil || all {
			return err
		}
		return each(ctx, tx, func(rows *sql.Rows) error {
			var id int64
			err := rows.Scan(&id)
			to.drop(id)
			return err
		}, "SELECT entry FROM tombstones WHERE ns = ? AND rev > ?", sp.id, since.rev)
	})
}

func (b *sqlite) postings(ctx context.Context, sp space, t term, limit int, now int64, yield func(posting)) error {
	return each(ctx, b.reader, func(rows *sql.Rows) error {
		var p posting
		err := rows.Scan(&p.id, &p.tf, &p.words)
		yield(p)
		return err
	}, "SELECT entry, tf, words FROM postings WHERE ns = ? AND term = ? AND "+sqliteLive+" ORDER BY entry LIMIT ?", sp.id, t, now, limit)
}

func (b *sqlite) stats(ctx context.Context, sp space, now int64) (entries, words int64, err error) {
	err = b.reader.QueryRowContext(ctx, "SELECT count(*), coalesce(sum(words), 0) FROM entries WHERE ns = ? AND "+sqliteLive, sp.id, now).
		Scan(&entries, &words)
	return entries, words, asSQLite(err)
}

func (b *sqlite) fetch(ctx context.Context, sp space, ids []int64, now int64) (list []row, err error) {
	text, err := json.Marshal(ids)
	if err != nil {
		return nil, err
	}
	err = each(ctx, b.reader, func(rows *sql.Rows) error {
		var r row
		var raw sql.RawBytes
		if err := rows.Scan(&r.id, &r.rev, &r.key, &raw, &r.metadata, &r.value); err != nil {
			return err
		}
		var err error
		r.vec, err = unpack(nil, raw)
		list = append(list, r)
		return err
	}, "SELECT id, rev, key, embedding, metadata, value FROM entries WHERE id IN (SELECT value FROM json_each(?)) AND ns = ? AND "+sqliteLive,
		string(text), sp.id, now)
	return list, err
}

func (b *sqlite) keys(ctx context.Context, sp space, ids []int64) (map[int64]string, error) {
	text, err := json.Marshal(ids)
	if err != nil {
		return nil, err
	}
	out := make(map[int64]string, len(ids))
	err = each(ctx, b.reader, func(rows *sql.Rows) error {
		var id int64
		var key string
		err := rows.Scan(&id, &key)
		out[id] = key
		return err
	}, "SELECT id, key FROM entries WHERE id IN (SELECT value FROM json_each(?)) AND ns = ?", string(text), sp.id)
	return out, err
}

// maintain removes expired entries, a batch at a time so that no caller waits
// long for the writer, and tombstones that nobody needs.
func (b *sqlite) maintain(ctx context.Context, now int64) error {
	for more := true; more; {
		err := b.write(ctx, func(tx *sql.Tx) (err error) {
			more, err = sweepSQLite(ctx, tx, now)
			return err
		})
		if err != nil {
			return err
		}
	}
	return b.write(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, "UPDATE namespaces SET floor = rev - ?1 WHERE floor < rev - ?1", keepRevisions); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, "DELETE FROM tombstones WHERE rev <= (SELECT floor FROM namespaces n WHERE n.id = tombstones.ns)")
		return err
	})
}

func sweepSQLite(ctx context.Context, tx *sql.Tx, now int64) (more bool, err error) {
	expired := make(map[string][]int64)
	n := 0
	err = each(ctx, tx, func(rows *sql.Rows) error {
		var id int64
		var name string
		if err := rows.Scan(&id, &name); err != nil {
			return err
		}
		expired[name] = append(expired[name], id)
		n++
		return nil
	}, "SELECT e.id, n.name FROM entries e JOIN namespaces n ON n.id = e.ns WHERE e.expires_at > 0 AND e.expires_at <= ? LIMIT ?", now, sweepBatch)
	if err != nil {
		return false, err
	}
	for name, ids := range expired {
		sp, _, err := sqliteSpace(ctx, tx, name)
		if err != nil {
			return false, err
		}
		if err := buryAll(ctx, tx, sp, ids); err != nil {
			return false, err
		}
	}
	return n == sweepBatch, nil
}
