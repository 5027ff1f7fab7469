package memory

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/internal/conninfo"
)

func (p *postgres) put(ctx context.Context, e entry, now int64) (created bool, under pin, err error) {
	err = p.write(ctx, func(tx pgx.Tx) error {
		created, under, err = p.store(ctx, tx, e, now, nil)
		return err
	})
	return created, under, err
}

// lock locks the row of the namespace for the transaction. If there is none, it makes one.
func lockSpace(ctx context.Context, tx pgx.Tx, name string) (space, error) {
	if _, err := tx.Exec(ctx, "INSERT INTO memory_spaces (name) VALUES ($1) ON CONFLICT DO NOTHING", name); err != nil {
		return space{}, err
	}
	sp, _, err := scanSpace(tx.QueryRow(ctx, pgSpace+" FOR UPDATE", name), name)
	return sp, err
}

// store upserts an entry. With foreign, it only indexes the row that another program wrote at that
// instant. If that row no longer exists, it does nothing.
func (p *postgres) store(ctx context.Context, tx pgx.Tx, e entry, now int64, foreign *time.Time) (created bool, under pin, err error) {
	sp, err := lockSpace(ctx, tx, e.namespace)
	if err != nil {
		return false, under, err
	}
	var bound bool
	err = tx.QueryRow(ctx, "SELECT EXISTS (SELECT 1 FROM memory_entries WHERE namespace = $2 AND "+pgLive+" AND "+pgIndexed+")",
		time.UnixMilli(now), e.namespace).Scan(&bound)
	if err != nil {
		return false, under, err
	}
	if under, err = settle(sp, !bound, e); err != nil {
		return false, under, err
	}
	if under != sp.pin {
		if sp, err = repinPostgres(ctx, tx, sp, under); err != nil {
			return false, under, err
		}
	}
	fresh, created, gone, err := pgBefore(ctx, tx, e, now, foreign)
	if err != nil || gone {
		return false, under, err
	}
	sp.rev++
	id, err := p.upsert(ctx, tx, sp, e, foreign)
	if err != nil {
		return false, under, err
	}
	if err := pgPost(ctx, tx, sp, id, e); err != nil {
		return false, under, err
	}
	if fresh || foreign != nil {
		sp.rows++
	}
	_, err = tx.Exec(ctx, "UPDATE memory_spaces SET rev = $1, entries = $2 WHERE id = $3", sp.rev, sp.rows, sp.id)
	return created, under, err
}

// pgBefore reads the row under the key and reports one of three cases: there is none (fresh), none
// is live (created), or it is not the row to be indexed (gone).
func pgBefore(ctx context.Context, tx pgx.Tx, e entry, now int64, foreign *time.Time) (fresh, created, gone bool, err error) {
	var expires *time.Time
	var stored time.Time
	err = tx.QueryRow(ctx, "SELECT expires_at, stored_at FROM memory_entries WHERE namespace = $1 AND key = $2 FOR UPDATE", e.namespace, e.key).
		Scan(&expires, &stored)
	if errors.Is(err, pgx.ErrNoRows) {
		return true, true, foreign != nil, nil
	}
	gone = foreign != nil && !foreign.Equal(stored)
	return false, expires != nil && expires.UnixMilli() <= now, gone, err
}

func (p *postgres) embedding() string {
	if p.vector {
		return "$%d::real[]::vector"
	}
	return "$%d::real[]"
}

func (p *postgres) upsert(ctx context.Context, tx pgx.Tx, sp space, e entry, foreign *time.Time) (id int64, err error) {
	if foreign != nil {
		err = tx.QueryRow(ctx, "UPDATE memory_entries SET rev = $3, words = $4, indexed_at = stored_at, embedding = "+
			fmt.Sprintf(p.embedding(), 5)+" WHERE namespace = $1 AND key = $2 RETURNING entry_no",
			e.namespace, e.key, sp.rev, e.words, e.vec).Scan(&id)
		return id, err
	}
	err = tx.QueryRow(ctx, `INSERT INTO memory_entries AS old (namespace, key, value, stored_at, indexed_at, metadata, expires_at, rev, words, embedding)
		VALUES ($1, $2, $3, $4::timestamptz, $4::timestamptz, $5, $6::timestamptz, $7, $8, `+fmt.Sprintf(p.embedding(), 9)+`)
		ON CONFLICT (key, namespace) DO UPDATE SET value = excluded.value, stored_at = excluded.stored_at, indexed_at = excluded.indexed_at,
			metadata = excluded.metadata, expires_at = excluded.expires_at, rev = excluded.rev, words = excluded.words, embedding = excluded.embedding
		RETURNING old.entry_no`,
		e.namespace, e.key, e.value, time.UnixMilli(e.stored), e.metadata, stamp(e.expires), sp.rev, e.words, e.vec).Scan(&id)
	return id, err
}

// repinPostgres removes the expired entries of a namespace and changes its pin. Entries that are
// not indexed yet stay.
func repinPostgres(ctx context.Context, tx pgx.Tx, sp space, to pin) (space, error) {
	if _, err := tx.Exec(ctx, "DELETE FROM memory_entries WHERE namespace = $1 AND "+pgIndexed, sp.name); err != nil {
		return sp, err
	}
	sp.rev++
	sp.pin, sp.floor, sp.rows = to, sp.rev, 0
	_, err := tx.Exec(ctx, "UPDATE memory_spaces SET embedder = $1, dim = $2, floor = $3, rev = $3, entries = 0 WHERE id = $4",
		to.embedder, to.dim, sp.rev, sp.id)
	return sp, err
}

func pgPost(ctx context.Context, tx pgx.Tx, sp space, id int64, e entry) error {
	if _, err := tx.Exec(ctx, "DELETE FROM memory_postings WHERE entry = $1", id); err != nil {
		return err
	}
	terms, tfs := make([]int64, len(e.terms)), make([]int64, len(e.terms))
	for i, w := range e.terms {
		terms[i], tfs[i] = w.term, int64(w.tf)
	}
	_, err := tx.Exec(ctx, `INSERT INTO memory_postings (space, term, entry, tf, words, expires)
		SELECT $1::bigint, t, $2::bigint, n, $3::bigint, $4::bigint FROM unnest($5::bigint[], $6::bigint[]) AS x (t, n)`,
		sp.id, id, e.words, e.expires, terms, tfs)
	return err
}

func (p *postgres) del(ctx context.Context, namespace, key string, now int64) (found bool, err error) {
	err = p.write(ctx, func(tx pgx.Tx) error {
		sp, err := lockSpace(ctx, tx, namespace)
		if err != nil {
			return err
		}
		var id int64
		var expires *time.Time
		err = tx.QueryRow(ctx, "SELECT entry_no, expires_at FROM memory_entries WHERE namespace = $1 AND key = $2 FOR UPDATE", namespace, key).
			Scan(&id, &expires)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		found = expires == nil || expires.UnixMilli() > now
		return pgBury(ctx, tx, sp, []int64{id})
	})
	return found && err == nil, err
}

// pgBury removes entries of one namespace and records that for slabs.
func pgBury(ctx context.Context, tx pgx.Tx, sp space, ids []int64) error {
	gone, err := tx.Exec(ctx, "DELETE FROM memory_entries WHERE entry_no = ANY($1)", ids)
	if err != nil {
		return err
	}
	sp.rev++
	_, err = tx.Exec(ctx, "INSERT INTO memory_tombstones (space, rev, entry) SELECT $1::bigint, $2::bigint, unnest($3::bigint[])", sp.id, sp.rev, ids)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, "UPDATE memory_spaces SET rev = $1, entries = greatest(entries - $2, 0) WHERE id = $3", sp.rev, gone.RowsAffected(), sp.id)
	return err
}

// maintain removes expired entries, forgets deletions that all boxes have seen, indexes rows of
// other programs, and builds the indexes for large namespaces.
func (p *postgres) maintain(ctx context.Context, now int64) error {
	return errors.Join(p.sweep(ctx, now), p.prune(ctx), p.adopt(ctx, now), p.buildIndexes(ctx))
}

func (p *postgres) sweep(ctx context.Context, now int64) error {
	for n := sweepBatch; n == sweepBatch; {
		n = 0
		expired := make(map[string][]int64)
		var id int64
		var name string
		err := pgEach(ctx, p.pool, "SELECT entry_no, namespace FROM memory_entries WHERE expires_at <= $1 LIMIT $2",
			[]any{time.UnixMilli(now), sweepBatch}, []any{&id, &name}, func() {
				n++
				expired[name] = append(expired[name], id)
			})
		if err != nil {
			return err
		}
		for name, ids := range expired {
			if err := p.sweepSpace(ctx, name, ids, now); err != nil {
				return err
			}
		}
	}
	return nil
}

// sweepSpace removes those of the entries that are still expired after the namespace was locked.
func (p *postgres) sweepSpace(ctx context.Context, name string, ids []int64, now int64) error {
	return p.write(ctx, func(tx pgx.Tx) error {
		sp, err := lockSpace(ctx, tx, name)
		if err != nil {
			return err
		}
		var still []int64
		var id int64
		err = pgEach(ctx, tx, "SELECT entry_no FROM memory_entries WHERE entry_no = ANY($1) AND expires_at <= $2 FOR UPDATE",
			[]any{ids, time.UnixMilli(now)}, []any{&id}, func() { still = append(still, id) })
		if err != nil || len(still) == 0 {
			return err
		}
		return pgBury(ctx, tx, sp, still)
	})
}

func (p *postgres) prune(ctx context.Context) error {
	return p.write(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "UPDATE memory_spaces SET floor = rev - $1 WHERE floor < rev - $1", int64(keepRevisions)); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "DELETE FROM memory_tombstones t USING memory_spaces s WHERE s.id = t.space AND t.rev <= s.floor")
		return err
	})
}

// pending is an entry that another program wrote.
type pending struct {
	id                              int64
	namespace, key, value, metadata string
	stored                          time.Time
	expires                         *time.Time // left from an entry of agentbox that was overwritten
}

// adopt indexes entries that other programs wrote. A search cannot find an entry that does not fit
// the pin of its namespace.
func (p *postgres) adopt(ctx context.Context, now int64) error {
	after := int64(0)
	for {
		var list []pending
		var one pending
		err := pgEach(ctx, p.pool, `SELECT entry_no, namespace, key, coalesce(value, ''), metadata, stored_at, expires_at FROM memory_entries
			WHERE indexed_at IS DISTINCT FROM stored_at AND entry_no > $1 ORDER BY entry_no LIMIT $2`,
			[]any{after, maxBatch}, []any{&one.id, &one.namespace, &one.key, &one.value, &one.metadata, &one.stored, &one.expires},
			func() { list = append(list, one) })
		if err != nil || len(list) == 0 {
			return err
		}
		after = list[len(list)-1].id
		texts := make([]string, len(list))
		for i, f := range list {
			texts[i] = f.value
		}
		vectors, err := p.memory.embedder.Embed(ctx, texts)
		if err != nil {
			return err
		}
		for i, f := range list {
			if err := p.adoptOne(ctx, f, vectors[i], now); err != nil && !errors.Is(err, adapters.ErrConflict) {
				return err
			}
		}
	}
}

func (p *postgres) adoptOne(ctx context.Context, f pending, vec []float32, now int64) error {
	v, ok := unit(vec)
	if !ok {
		return adapters.Errorf(adapters.CodeEmbedding, "the embedder gave a vector of zeros")
	}
	pairs, err := pairTerms(json.RawMessage(f.metadata))
	if err != nil {
		pairs = nil // metadata that is not an object cannot be filtered
	}
	e := entry{namespace: f.namespace, key: f.key, value: f.value, vec: v, pin: pin{p.memory.embedder.ID(), len(v)}, expires: unstamp(f.expires)}
	e.terms, e.words = entryTerms(f.value, pairs)
	return p.write(ctx, func(tx pgx.Tx) error {
		_, _, err := p.store(ctx, tx, e, now, &f.stored)
		return err
	})
}

// buildIndexes makes one HNSW index for each dimension that a large namespace has. Writers do not
// wait for it. An interrupted build leaves an invalid index, which is dropped and built again.
func (p *postgres) buildIndexes(ctx context.Context) error {
	if !p.vector {
		return nil
	}
	var dims []int
	var dim int
	err := pgEach(ctx, p.pool, "SELECT DISTINCT dim FROM memory_spaces WHERE entries > $1 AND dim > 0", []any{p.exact}, []any{&dim},
		func() { dims = append(dims, dim) })
	if err != nil {
		return err
	}
	for _, d := range dims {
		if err := p.buildIndex(ctx, d); err != nil {
			return err
		}
	}
	return nil
}

func (p *postgres) buildIndex(ctx context.Context, dim int) error {
	name := fmt.Sprintf("memory_entries_hnsw_%d", dim)
	var valid bool
	err := p.row(ctx, `SELECT i.indisvalid FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
		WHERE c.relname = $1 AND pg_table_is_visible(c.oid)`, []any{name}, &valid)
	if err == nil && valid {
		return nil
	}
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return err
	}
	conn, err := p.pool.Acquire(ctx)
	if err != nil {
		return asPostgres(err)
	}
	defer conn.Release()
	for _, q := range []string{
		"SET statement_timeout = 0",
		"DROP INDEX CONCURRENTLY IF EXISTS " + name,
		fmt.Sprintf(`CREATE INDEX CONCURRENTLY %s ON memory_entries
			USING hnsw ((embedding::vector(%d)) vector_cosine_ops) WHERE vector_dims(embedding) = %[2]d`, name, dim),
		"SET statement_timeout = " + conninfo.StatementTimeout,
	} {
		if _, err := conn.Exec(ctx, q); err != nil {
			// The state of the connection is unknown: it must not be used again.
			return asPostgres(errors.Join(err, conn.Conn().Close(context.WithoutCancel(ctx))))
		}
	}
	return nil
}
