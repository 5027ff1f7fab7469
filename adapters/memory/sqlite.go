package memory

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"path/filepath"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/sqlite"
)

// EmbeddedConfig configures class local.
type EmbeddedConfig struct {
	Dir        string // $RUVECTOR_DATA_DIR; the file in it is memory.db
	Embedder   Embedder
	CacheBytes int64 // bound of the vectors held in memory, 0 = DefaultCacheBytes
}

// ImplEmbedded is the name of class local in the manifest.
const ImplEmbedded = "embedded-ruvector"

// NewEmbedded makes the SQLite class. It performs no I/O.
func NewEmbedded(c EmbeddedConfig) (*Memory, error) {
	if c.Dir == "" {
		return nil, adapters.Missing("slots.memory.dir", "embedded-ruvector keeps its file there")
	}
	path := filepath.Join(c.Dir, "memory.db")
	return newMemory(ImplEmbedded, adapters.ClassLocal, c.Embedder, c.CacheBytes,
		func(ctx context.Context, _ *Memory) (backend, error) { return openFile(ctx, path) })
}

const (
	sweepBatch    = 500    // entries removed in one transaction
	keepRevisions = 10_000 // deletions a reader may be behind by
)

// file is the backend with one SQLite file.
type file struct {
	db  *sqlite.DB
	key []byte
}

var _ backend = (*file)(nil)

func openFile(ctx context.Context, path string) (*file, error) {
	db, err := sqlite.Open(ctx, sqlite.Options{Path: path, AppID: fileID, Migrations: fileMigrations, MaxValue: 2 * adapters.MaxMemoryValue})
	if err != nil {
		return nil, err
	}
	b := &file{db: db}
	if err := b.loadSecret(ctx); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return b, nil
}

func (b *file) secret() []byte                 { return b.key }
func (b *file) now() time.Time                 { return time.Now() }
func (b *file) close(context.Context) error    { return b.db.Close() }
func (b *file) ping(ctx context.Context) error { return b.db.Ping(ctx) }

// each runs the query in a transaction.
func (b *file) each(ctx context.Context, f func(*sql.Rows) error, query string, args ...any) error {
	return b.db.Read(ctx, func(tx *sql.Tx) error { return sqlite.Each(ctx, tx, f, query, args...) })
}

// row reads the one row of a query.
func (b *file) row(ctx context.Context, query string, args []any, to ...any) error {
	return b.db.Read(ctx, func(tx *sql.Tx) error { return tx.QueryRowContext(ctx, query, args...).Scan(to...) })
}

func fileSpace(ctx context.Context, tx *sql.Tx, name string) (space, bool, error) {
	sp := space{name: name}
	err := tx.QueryRowContext(ctx, "SELECT id, embedder, dim, rev, floor, entries FROM namespaces WHERE name = ?", name).
		Scan(&sp.id, &sp.pin.embedder, &sp.pin.dim, &sp.rev, &sp.floor, &sp.rows)
	if errors.Is(err, sql.ErrNoRows) {
		return sp, false, nil
	}
	return sp, err == nil, err
}

func (b *file) space(ctx context.Context, name string) (sp space, ok bool, err error) {
	err = b.db.Read(ctx, func(tx *sql.Tx) error {
		sp, ok, err = fileSpace(ctx, tx, name)
		return err
	})
	return sp, ok, err
}

func (b *file) put(ctx context.Context, e entry, now int64) (created bool, under pin, err error) {
	err = b.db.Write(ctx, func(tx *sql.Tx) error {
		created, under, err = putFile(ctx, tx, e, now)
		return err
	})
	return created, under, err
}

func putFile(ctx context.Context, tx *sql.Tx, e entry, now int64) (created bool, under pin, err error) {
	if _, err := tx.ExecContext(ctx, "INSERT INTO namespaces (name) VALUES (?) ON CONFLICT DO NOTHING", e.namespace); err != nil {
		return false, under, err
	}
	sp, _, err := fileSpace(ctx, tx, e.namespace)
	if err != nil {
		return false, under, err
	}
	var bound bool
	err = tx.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM entries WHERE ns = ?1 AND (expires_at = 0 OR expires_at > ?2))", sp.id, now).Scan(&bound)
	if err != nil {
		return false, under, err
	}
	if under, err = settle(sp, !bound, e); err != nil {
		return false, under, err
	}
	if under != sp.pin {
		if sp, err = repinFile(ctx, tx, sp, under); err != nil {
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
	// An entry that has expired counts as missing, even if it was not removed yet.
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
	if err := postFile(ctx, tx, sp, id, e, fresh); err != nil {
		return false, under, err
	}
	_, err = tx.ExecContext(ctx, "UPDATE namespaces SET rev = ?, entries = ? WHERE id = ?", sp.rev, sp.rows, sp.id)
	return created, under, err
}

// repinFile removes the expired entries of a namespace and changes its pin.
func repinFile(ctx context.Context, tx *sql.Tx, sp space, to pin) (space, error) {
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

// postFile writes the posting lists of an entry. The terms are one JSON text: one statement instead
// of thousands.
func postFile(ctx context.Context, tx *sql.Tx, sp space, id int64, e entry, fresh bool) error {
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
	text, _ := json.Marshal(list) // numbers always marshal
	_, err := tx.ExecContext(ctx, `INSERT INTO postings (ns, term, entry, tf, words, expires_at)
		SELECT ?1, value ->> 0, ?2, value ->> 1, ?3, ?4 FROM json_each(?5) ORDER BY 2`,
		sp.id, id, e.words, e.expires, string(text))
	return err
}

const live = "(expires_at = 0 OR expires_at > ?)"

func (b *file) get(ctx context.Context, namespace, key string, now int64) (r row, ok bool, err error) {
	r.key = key
	err = b.row(ctx, `SELECT e.id, e.rev, e.value, e.metadata, e.stored_at, e.expires_at, e.size, n.embedder, n.dim
		FROM entries e JOIN namespaces n ON n.id = e.ns WHERE n.name = ? AND e.key = ? AND `+live, []any{namespace, key, now},
		&r.id, &r.rev, &r.value, &r.metadata, &r.stored, &r.expires, &r.size, &r.pin.embedder, &r.pin.dim)
	if errors.Is(err, sql.ErrNoRows) {
		return row{}, false, nil
	}
	return r, err == nil, err
}

func (b *file) del(ctx context.Context, namespace, key string, now int64) (found bool, err error) {
	err = b.db.Write(ctx, func(tx *sql.Tx) error {
		sp, ok, err := fileSpace(ctx, tx, namespace)
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

// idList is the ids as json_each reads them.
func idList(ids []int64) string {
	text, _ := json.Marshal(ids) // numbers always marshal
	return string(text)
}

// buryAll removes entries of one namespace and records that for slabs.
func buryAll(ctx context.Context, tx *sql.Tx, sp space, ids []int64) error {
	result, err := tx.ExecContext(ctx, "DELETE FROM entries WHERE id IN (SELECT value FROM json_each(?))", idList(ids))
	if err != nil {
		return err
	}
	if gone, err := result.RowsAffected(); err != nil || gone != int64(len(ids)) {
		// Otherwise sweepFile would find the same entries for ever.
		return adapters.Unavailable(err, "the file has entries of another program that cannot be removed")
	}
	sp.rev++
	for _, s := range []struct {
		query string
		args  []any
	}{
		{"DELETE FROM postings WHERE entry IN (SELECT value FROM json_each(?))", []any{idList(ids)}},
		{"INSERT INTO tombstones (ns, rev, entry) SELECT ?, ?, value FROM json_each(?)", []any{sp.id, sp.rev, idList(ids)}},
		{"UPDATE namespaces SET rev = ?, entries = entries - ? WHERE id = ?", []any{sp.rev, len(ids), sp.id}},
	} {
		if _, err := tx.ExecContext(ctx, s.query, s.args...); err != nil {
			return err
		}
	}
	return nil
}

// list leaves out keys above MaxMemoryKey. Only another program can have written them, and together
// they could take all memory.
func (b *file) list(ctx context.Context, namespace string, after int64, n int, now int64) (list []row, err error) {
	err = b.each(ctx, func(rows *sql.Rows) error {
		var r row
		err := rows.Scan(&r.id, &r.key, &r.stored, &r.expires, &r.size)
		list = append(list, r)
		return err
	}, `SELECT id, key, stored_at, expires_at, size FROM entries
		WHERE ns = (SELECT id FROM namespaces WHERE name = ?) AND id > ? AND octet_length(key) <= ? AND `+live+` ORDER BY id LIMIT ?`,
		namespace, after, adapters.MaxMemoryKey, now, n)
	return list, err
}

func (b *file) namespaces(ctx context.Context, now int64) (list []adapters.Namespace, err error) {
	err = b.each(ctx, func(rows *sql.Rows) error {
		var n adapters.Namespace
		err := rows.Scan(&n.Name, &n.Embedder, &n.Dim, &n.Entries)
		list = append(list, n)
		return err
	}, `SELECT n.name, n.embedder, n.dim, c.entries FROM namespaces n
		JOIN (SELECT ns, count(*) AS entries FROM entries WHERE `+live+` GROUP BY ns) c ON c.ns = n.id
		WHERE octet_length(n.name) <= ? ORDER BY n.name LIMIT ?`, now, adapters.MaxMemoryNamespace, adapters.MaxNamespaces)
	return list, err
}

func (b *file) changes(ctx context.Context, namespace string, since revision, to sink) error {
	return b.db.Read(ctx, func(tx *sql.Tx) error {
		sp, _, err := fileSpace(ctx, tx, namespace)
		if err != nil {
			return err
		}
		all := !sp.continues(since)
		if all {
			since.rev = -1
		}
		to.begin(sp, all)
		var vec []float32
		err = sqlite.Each(ctx, tx, func(rows *sql.Rows) error {
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
		return sqlite.Each(ctx, tx, func(rows *sql.Rows) error {
			var id int64
			err := rows.Scan(&id)
			to.drop(id)
			return err
		}, "SELECT entry FROM tombstones WHERE ns = ? AND rev > ?", sp.id, since.rev)
	})
}

func (b *file) postings(ctx context.Context, sp space, t term, limit int, now int64, yield func(posting)) error {
	return b.each(ctx, func(rows *sql.Rows) error {
		var p posting
		err := rows.Scan(&p.id, &p.tf, &p.words)
		yield(p)
		return err
	}, "SELECT entry, tf, words FROM postings WHERE ns = ? AND term = ? AND "+live+" ORDER BY entry LIMIT ?", sp.id, t, now, limit)
}

func (b *file) stats(ctx context.Context, sp space, now int64) (s stats, err error) {
	err = b.row(ctx, `SELECT count(*), coalesce(sum(words), 0), coalesce(min(nullif(expires_at, 0)), 0)
		FROM entries WHERE ns = ? AND `+live, []any{sp.id, now}, &s.entries, &s.words, &s.until)
	return s, err
}

// fetch and keys write +ns. Without the plus, SQLite would walk along an index of the whole
// namespace instead of looking up the ids.
func (b *file) fetch(ctx context.Context, sp space, ids []int64, now int64) (list []row, err error) {
	err = b.each(ctx, func(rows *sql.Rows) error {
		var r row
		var raw sql.RawBytes
		if err := rows.Scan(&r.id, &r.rev, &r.key, &raw, &r.metadata, &r.value); err != nil {
			return err
		}
		var err error
		r.vec, err = unpack(nil, raw)
		list = append(list, r)
		return err
	}, "SELECT id, rev, key, embedding, metadata, value FROM entries WHERE id IN (SELECT value FROM json_each(?)) AND +ns = ? AND "+live,
		idList(ids), sp.id, now)
	return list, err
}

func (b *file) keys(ctx context.Context, sp space, ids []int64) (map[int64]string, error) {
	out := make(map[int64]string, len(ids))
	err := b.each(ctx, func(rows *sql.Rows) error {
		var id int64
		var key string
		err := rows.Scan(&id, &key)
		out[id] = key
		return err
	}, "SELECT id, key FROM entries WHERE id IN (SELECT value FROM json_each(?)) AND +ns = ?", idList(ids), sp.id)
	return out, err
}

// maintain removes expired entries and tombstones that are no longer needed. It works in batches,
// so that no caller waits long for the writer.
func (b *file) maintain(ctx context.Context, now int64) error {
	for more := true; more; {
		err := b.db.Write(ctx, func(tx *sql.Tx) (err error) {
			more, err = sweepFile(ctx, tx, now)
			return err
		})
		if err != nil {
			return err
		}
	}
	return b.db.Write(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, "UPDATE namespaces SET floor = rev - ?1 WHERE floor < rev - ?1", keepRevisions); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, "DELETE FROM tombstones WHERE rev <= (SELECT floor FROM namespaces n WHERE n.id = tombstones.ns)")
		return err
	})
}

func sweepFile(ctx context.Context, tx *sql.Tx, now int64) (more bool, err error) {
	expired := make(map[string][]int64)
	n := 0
	err = sqlite.Each(ctx, tx, func(rows *sql.Rows) error {
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
		sp, _, err := fileSpace(ctx, tx, name)
		if err != nil {
			return false, err
		}
		if err := buryAll(ctx, tx, sp, ids); err != nil {
			return false, err
		}
	}
	return n == sweepBatch, nil
}
