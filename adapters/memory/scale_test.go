package memory

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// randomVectors returns the same vectors in every run.
func randomVectors(n, dim int) [][]float32 {
	r := rand.New(rand.NewPCG(1, 2))
	out := make([][]float32, n)
	for i := range out {
		v := make([]float32, dim)
		for j := range v {
			v[j] = float32(r.NormFloat64())
		}
		out[i] = v
	}
	return out
}

// The HNSW index is built and used, and misses few entries. Its results have the order of the exact
// scan.
func TestPGliteRecall(t *testing.T) {
	if testing.Short() {
		t.Skip("long: fills an index of PGlite")
	}
	ctx := t.Context()
	m := newPostgres(t, PostgresConfig{Conninfo: pglite(t), ExactRows: 1})
	if err := m.Connect(ctx); err != nil {
		t.Fatal(err)
	}
	defer m.Disconnect(ctx)
	if !slices.Contains(m.Capabilities(), CapANN) {
		t.Fatalf("capabilities %v", m.Capabilities())
	}
	const n, dim, k = 600, 16, 10
	vectors := randomVectors(n, dim)
	if _, err := m.Store(ctx, "0000", "x", "n", adapters.StoreOpt{Embedding: vectors[0]}); err != nil {
		t.Fatal(err)
	}
	p := m.current.Load().backend.(*postgres)
	// The others are copies of that entry with their own vectors: a Store of PostgreSQL in WebAssembly takes ten milliseconds.
	var keys, embeddings []string
	for i, v := range vectors[1:] {
		u, _ := unit(v)
		text, err := json.Marshal(u) // as pgvector writes it
		if err != nil {
			t.Fatal(err)
		}
		keys, embeddings = append(keys, fmt.Sprintf("%04d", i+1)), append(embeddings, string(text))
	}
	err := p.write(ctx, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO memory_entries (namespace, key, value, stored_at, indexed_at, metadata, expires_at, rev, words, embedding)
			SELECT namespace, k, value, stored_at, indexed_at, metadata, expires_at, rev, words, e::vector
			FROM memory_entries, unnest($1::text[], $2::text[]) AS more (k, e) WHERE key = '0000'`, keys, embeddings)
		if err == nil {
			_, err = tx.Exec(ctx, "UPDATE memory_spaces SET entries = $1 WHERE name = 'n'", n)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.buildIndexes(ctx); err != nil {
		t.Fatal(err)
	}
	var valid bool
	if err := p.row(ctx, "SELECT indisvalid FROM pg_index WHERE indexrelid = 'memory_entries_hnsw_16'::regclass", nil, &valid); err != nil || !valid {
		t.Fatalf("the index is valid: %v, %v", valid, err)
	}
	found, wanted := 0, 0
	for _, q := range randomVectors(n+20, dim)[n:] {
		unitQ, _ := unit(q)
		exact := newBest(k)
		for i, v := range vectors {
			u, _ := unit(v)
			exact.offer(candidate{key: fmt.Sprintf("%04d", i), score: cosine(unitQ, u)})
		}
		hits, err := m.Search(ctx, "", adapters.SearchOpt{Namespace: "n", Embedding: q, Limit: k})
		if err != nil || len(hits) != k {
			t.Fatalf("%d hits, %v", len(hits), err)
		}
		for i, h := range hits {
			if i > 0 && better(candidate{key: hits[i-1].Key, score: hits[i-1].Score}, candidate{key: h.Key, score: h.Score}) > 0 {
				t.Fatalf("order %v", hits)
			}
			if slices.ContainsFunc(exact.list, func(c candidate) bool { return c.key == h.Key && c.score == h.Score }) {
				found++
			}
		}
		wanted += k
	}
	t.Logf("recall@%d of HNSW with exact ranking: %d of %d", k, found, wanted)
	if found*100 < wanted*95 {
		t.Errorf("recall %d of %d", found, wanted)
	}
}

// Another program that knows only the four original columns writes, overwrites and deletes entries.
// The adapter returns them, searches find them, and deleted entries are no longer found.
func TestPostgresForeignWriter(t *testing.T) {
	ctx := t.Context()
	conninfo := realPostgres(t)
	statements(t, conninfo, `CREATE TABLE memory_entries (key text, namespace text, value text, stored_at timestamptz DEFAULT now(), PRIMARY KEY (key, namespace))`,
		`INSERT INTO memory_entries VALUES ('old', 'n', 'written before the migration'), ('other', 'n', 'something else')`)
	m := newPostgres(t, PostgresConfig{Conninfo: conninfo})
	if err := m.Connect(ctx); err != nil {
		t.Fatal(err)
	}
	defer m.Disconnect(ctx)
	if slices.Contains(m.Capabilities(), CapANN) {
		t.Errorf("capabilities %v without pgvector", m.Capabilities())
	}
	p := m.current.Load().backend.(*postgres)
	search := func() []string {
		t.Helper()
		if err := p.maintain(ctx, time.Now().UnixMilli()); err != nil {
			t.Fatal(err)
		}
		hits, err := m.Search(ctx, "written before the migration", adapters.SearchOpt{Namespace: "n"})
		if err != nil {
			t.Fatal(err)
		}
		keys := []string{}
		for _, h := range hits {
			keys = append(keys, h.Key)
		}
		return keys
	}
	if e, ok, err := m.Retrieve(ctx, "old", "n"); !ok || err != nil || e.Value != "written before the migration" {
		t.Errorf("retrieve: %v, %v", ok, err)
	}
	if got := search(); !slices.Equal(got, []string{"old", "other"}) {
		t.Errorf("after adoption: %v", got)
	}
	statements(t, conninfo, `UPDATE memory_entries SET value = 'quite different', stored_at = clock_timestamp() WHERE key = 'old'`)
	if got := search(); len(got) != 2 {
		t.Errorf("after an overwrite: %v", got)
	}
	hits, err := m.Search(ctx, "migration", adapters.SearchOpt{Namespace: "n", Mode: adapters.ModeText})
	if err != nil || len(hits) != 0 {
		t.Errorf("the overwritten words are still found: %v, %v", hits, err)
	}
	statements(t, conninfo, `DELETE FROM memory_entries WHERE key = 'old'`)
	hits, err = m.Search(ctx, "quite different", adapters.SearchOpt{Namespace: "n"})
	if err != nil || len(hits) != 1 || hits[0].Key != "other" {
		t.Errorf("after a foreign delete: %v, %v", hits, err)
	}
}

// Two boxes on one database see each other's changes at once.
func TestPostgresTwoBoxes(t *testing.T) {
	ctx := t.Context()
	conninfo := realPostgres(t)
	var boxes []*Memory
	for range 2 {
		m := newPostgres(t, PostgresConfig{Conninfo: conninfo})
		boxes = append(boxes, m)
	}
	errs := make(chan error, 2)
	for _, m := range boxes { // at once: the migration must allow that
		go func() { errs <- m.Connect(ctx) }()
	}
	for range boxes {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range boxes {
		defer m.Disconnect(ctx)
	}
	for i := range 20 {
		key := fmt.Sprintf("%02d", i)
		if _, err := boxes[i%2].Store(ctx, key, "number "+key, "n", adapters.StoreOpt{}); err != nil {
			t.Fatal(err)
		}
		hits, err := boxes[1-i%2].Search(ctx, "number "+key, adapters.SearchOpt{Namespace: "n", Limit: 1})
		if err != nil || len(hits) != 1 || hits[0].Key != key {
			t.Fatalf("the other box found %v, %v", hits, err)
		}
		if i%3 == 2 {
			if _, err := boxes[1-i%2].Del(ctx, key, "n"); err != nil {
				t.Fatal(err)
			}
			hits, err := boxes[i%2].Search(ctx, "number "+key, adapters.SearchOpt{Namespace: "n", Limit: 1})
			if err != nil || len(hits) > 0 && hits[0].Key == key {
				t.Fatalf("a deleted entry is found elsewhere: %v, %v", hits, err)
			}
		}
	}
}

func TestPostgresRefuses(t *testing.T) {
	for name, sql := range map[string]string{
		"another table": `CREATE TABLE memory_entries (id text PRIMARY KEY, key text, namespace text, value jsonb, stored_at timestamptz)`,
		"newer schema":  `CREATE TABLE memory_meta (name text PRIMARY KEY, value bytea); INSERT INTO memory_meta VALUES ('schema_version', '99')`,
	} {
		t.Run(name, func(t *testing.T) {
			conninfo := realPostgres(t)
			statements(t, conninfo, sql)
			m := newPostgres(t, PostgresConfig{Conninfo: conninfo})
			if err := m.Connect(t.Context()); !errors.Is(err, adapters.ErrContractMismatch) {
				t.Errorf("Connect: %v, want CONTRACT_MISMATCH", err)
			}
		})
	}
}

// The adapter can take over variants of the original table. They keep their rows and also work for
// a program that knows only the four original columns.
func TestPostgresTakesOver(t *testing.T) {
	ctx := t.Context()
	const rows = `INSERT INTO memory_entries (key, namespace, value) VALUES ('old', 'n', 'written before'), ('old', 'm', NULL), ('', 'n', 'no name')`
	for name, table := range map[string]string{
		"the original's":   `(key text NOT NULL, namespace text NOT NULL DEFAULT 'default', value text, stored_at timestamptz DEFAULT now(), PRIMARY KEY (key, namespace))`,
		"varchar":          `(key varchar(8), namespace varchar(8), value varchar(20), stored_at timestamptz DEFAULT now(), PRIMARY KEY (namespace, key))`,
		"no primary key":   `(key text, namespace text, value text, stored_at timestamptz)`,
		"a further column": `(id serial PRIMARY KEY, key text, namespace text, value text, stored_at timestamptz DEFAULT now(), UNIQUE (key, namespace))`,
		"a partial index":  `(key text, namespace text, value text, stored_at timestamptz); CREATE UNIQUE INDEX ON memory_entries (key, namespace) WHERE value <> ''`,
	} {
		t.Run(name, func(t *testing.T) {
			conninfo := realPostgres(t)
			statements(t, conninfo, "CREATE TABLE memory_entries "+table, rows)
			for range 2 { // the second start finds the migrated table
				m := newPostgres(t, PostgresConfig{Conninfo: conninfo})
				if err := m.Connect(ctx); err != nil {
					t.Fatal(err)
				}
				for namespace, want := range map[string]string{"n": "written before", "m": ""} {
					if e, ok, err := m.Retrieve(ctx, "old", namespace); err != nil || !ok || e.Value != want || e.StoredAt.IsZero() {
						t.Errorf("%s: %+v %v %v", namespace, e, ok, err)
					}
				}
				if err := m.current.Load().backend.(*postgres).maintain(ctx, time.Now().UnixMilli()); err != nil {
					t.Fatal(err)
				}
				if hits, err := m.Search(ctx, "written before", adapters.SearchOpt{Namespace: "n"}); err != nil || len(hits) == 0 || hits[0].Key != "old" {
					t.Errorf("search: %v %v", hits, err)
				}
				long := strings.Repeat("k", 100)
				for range 2 {
					if _, err := m.Store(ctx, long, strings.Repeat("v", 100), "a-longer-namespace", adapters.StoreOpt{}); err != nil {
						t.Fatal(err)
					}
				}
				statements(t, conninfo, `INSERT INTO memory_entries (key, namespace, value) VALUES ('new', 'n', 'x')
					ON CONFLICT (key, namespace) DO UPDATE SET value = excluded.value, stored_at = now()`)
				if err := m.Disconnect(ctx); err != nil {
					t.Fatal(err)
				}
			}
			if n := count(t, conninfo); n != 5 {
				t.Errorf("%d rows", n)
			}
		})
	}
}

// A table that cannot be taken over is refused with a clear error and stays unchanged.
func TestPostgresLeavesOtherTablesAlone(t *testing.T) {
	const row = `; INSERT INTO memory_entries (key, namespace, value) VALUES ('a', 'n', 'x')`
	for name, c := range map[string]struct{ sql, says string }{
		"a key twice":         {`CREATE TABLE memory_entries (key text, namespace text, value text, stored_at timestamptz)` + row + row, "more than once"},
		"a key that is NULL":  {`CREATE TABLE memory_entries (key text, namespace text, value text, stored_at timestamptz)` + row + `; UPDATE memory_entries SET namespace = NULL`, "empty"},
		"a column of ours":    {`CREATE TABLE memory_entries (key text, namespace text, value text, stored_at timestamptz, metadata jsonb)` + row, "metadata of its own"},
		"another embedding":   {`CREATE TABLE memory_entries (key text, namespace text, value text, stored_at timestamptz, embedding bytea)` + row, "embedding of its own"},
		"a column to be fill": {`CREATE TABLE memory_entries (key text, namespace text, value text, stored_at timestamptz, owner text NOT NULL); INSERT INTO memory_entries VALUES ('a', 'n', 'x', now(), 'me')`, "owner that must be filled"},
		"another type":        {`CREATE TABLE memory_entries (key text, namespace text, value bytea, stored_at timestamptz); INSERT INTO memory_entries VALUES ('a', 'n', 'x')`, "no column value of type text"},
		"no zone":             {`CREATE TABLE memory_entries (key text, namespace text, value text, stored_at timestamp)` + row, "no column stored_at"},
		"a deferrable key":    {`CREATE TABLE memory_entries (key text, namespace text, value text, stored_at timestamptz, UNIQUE (key, namespace) DEFERRABLE)` + row, "deferrable"},
		"a view":              {`CREATE VIEW memory_entries AS SELECT 'a'::text AS key, 'n'::text AS namespace, 'x'::text AS value, now() AS stored_at`, "not an ordinary table"},
	} {
		t.Run(name, func(t *testing.T) {
			conninfo := realPostgres(t)
			statements(t, conninfo, c.sql)
			rows, columns := count(t, conninfo), shape(t, conninfo)
			m := newPostgres(t, PostgresConfig{Conninfo: conninfo})
			if err := m.Connect(t.Context()); !errors.Is(err, adapters.ErrContractMismatch) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("Connect: %v", err)
			}
			if n := count(t, conninfo); n != rows || rows == 0 {
				t.Errorf("%d rows, before %d", n, rows)
			}
			if now := shape(t, conninfo); now != columns {
				t.Errorf("the schema was\n%s and is\n%s", columns, now)
			}
		})
	}
}

// asked returns one value that another program reads from the server.
func asked[T any](t *testing.T, conninfo, query string) (v T) {
	t.Helper()
	directly(t, conninfo, func(ctx context.Context, c *pgx.Conn) error { return c.QueryRow(ctx, query).Scan(&v) })
	return v
}

func count(t *testing.T, conninfo string) int {
	t.Helper()
	return asked[int](t, conninfo, "SELECT count(*) FROM memory_entries")
}

// shape returns every column and table of the test's schema. In an aggregate, ORDER BY 1 would be a
// constant and order nothing.
func shape(t *testing.T, conninfo string) string {
	t.Helper()
	return asked[string](t, conninfo, `SELECT string_agg(table_name || '.' || column_name || ' ' || data_type || ' ' || is_nullable, ', ' ORDER BY table_name, ordinal_position)
		FROM information_schema.columns WHERE table_schema = current_schema()`)
}

// No error contains the password, for any fault in the connection string.
func TestPostgresPassword(t *testing.T) {
	const secret = "s3cr3t-w0rd"
	for _, conninfo := range []string{
		"", "  ", "postgres://u:" + secret + "@127.0.0.1:1/db", "host=127.0.0.1 port=1 user=u password=" + secret,
		"postgres://u:" + secret + "@127.0.0.1:1/db?sslmode=nonsense", "host=127.0.0.1 port=none password=" + secret,
		"postgres://u:" + secret + "@[::1/db",
	} {
		m, err := NewPostgres(PostgresConfig{Conninfo: conninfo, Embedder: hashV1{}})
		if err == nil {
			if err = m.Connect(t.Context()); !errors.Is(err, adapters.ErrUnavailable) {
				t.Errorf("Connect: %v, want UNAVAILABLE", err)
			}
		} else if _, ok := errors.AsType[*adapters.ConfigError](err); !ok {
			t.Errorf("NewPostgres: %v", err)
		}
		for ; err != nil; err = errors.Unwrap(err) {
			if strings.Contains(err.Error(), secret) {
				t.Errorf("the password is in %q", err)
			}
		}
	}
}

// All expired entries are removed from the file after about a minute, and from the slab that holds
// them.
func TestSweep(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		m := embedded(t, dir, hashV1{}, 0)
		if err := m.Connect(ctx); err != nil {
			t.Fatal(err)
		}
		defer m.Disconnect(ctx)
		for i := range 30 {
			ttl := time.Duration(i%2) * 90 * time.Second
			if _, err := m.Store(ctx, fmt.Sprint(i), "same", "n", adapters.StoreOpt{TTL: ttl}); err != nil {
				t.Fatal(err)
			}
		}
		count := func() (rows, hits int) {
			t.Helper()
			if err := m.current.Load().backend.(*file).row(ctx, "SELECT count(*) FROM entries", nil, &rows); err != nil {
				t.Fatal(err)
			}
			list, err := m.Search(ctx, "same", adapters.SearchOpt{Namespace: "n", Limit: 100})
			if err != nil {
				t.Fatal(err)
			}
			return rows, len(list)
		}
		for _, c := range []struct {
			wait       time.Duration
			rows, hits int
		}{{0, 30, 30}, {90*time.Second - time.Millisecond, 30, 30}, {time.Millisecond, 30, 15}, {time.Minute, 15, 15}} {
			time.Sleep(c.wait) // in the bubble's time: exact and without delay
			synctest.Wait()
			if rows, hits := count(); rows != c.rows || hits != c.hits {
				t.Errorf("after %v: %d rows, %d hits; want %d, %d", c.wait, rows, hits, c.rows, c.hits)
			}
		}
	})
}

// A slab that is older than the oldest tombstone is loaded again.
func TestPrunedTombstones(t *testing.T) {
	ctx := context.Background()
	m := embedded(t, t.TempDir(), hashV1{}, 0)
	if err := m.Connect(ctx); err != nil {
		t.Fatal(err)
	}
	defer m.Disconnect(ctx)
	for i := range 5 {
		if _, err := m.Store(ctx, fmt.Sprint(i), "same", "n", adapters.StoreOpt{}); err != nil {
			t.Fatal(err)
		}
	}
	search := func() int {
		t.Helper()
		hits, err := m.Search(ctx, "same", adapters.SearchOpt{Namespace: "n"})
		if err != nil {
			t.Fatal(err)
		}
		return len(hits)
	}
	if n := search(); n != 5 {
		t.Fatal(n)
	}
	if _, err := m.Del(ctx, "3", "n"); err != nil {
		t.Fatal(err)
	}
	b := m.current.Load().backend.(*file)
	err := b.db.Write(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "UPDATE namespaces SET floor = rev; DELETE FROM tombstones")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if n := search(); n != 4 {
		t.Errorf("%d hits after the tombstone was lost", n)
	}
}

// The cache stays within its limit and gives correct answers, however often it evicts.
func TestCacheBound(t *testing.T) {
	ctx := context.Background()
	m := embedded(t, t.TempDir(), hashV1{}, 200<<10)
	if err := m.Connect(ctx); err != nil {
		t.Fatal(err)
	}
	defer m.Disconnect(ctx)
	const spaces, each = 8, 40
	for i := range spaces * each {
		if _, err := m.Store(ctx, fmt.Sprint(i), fmt.Sprintf("entry %d", i), fmt.Sprint(i%spaces), adapters.StoreOpt{}); err != nil {
			t.Fatal(err)
		}
	}
	c := m.current.Load().cache
	for i := range spaces * 3 {
		ns := i % spaces
		hits, err := m.Search(ctx, "entry", adapters.SearchOpt{Namespace: fmt.Sprint(ns), Limit: 100})
		if err != nil || len(hits) != each {
			t.Fatalf("%d hits, %v", len(hits), err)
		}
		c.mu.Lock()
		total, held := c.total(), len(c.held)
		c.mu.Unlock()
		if total > c.limit || held == 0 || held == spaces {
			t.Fatalf("%d bytes in %d slabs of %d allowed", total, held, c.limit)
		}
	}
}
