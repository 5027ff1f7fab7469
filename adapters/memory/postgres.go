package memory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/internal/conninfo"
	"github.com/dreamlab-ai/agentinit/internal/escape"
	"github.com/dreamlab-ai/agentinit/internal/slowcall"
)

// PostgresConfig configures class external.
type PostgresConfig struct {
	// Conninfo is integrations.ruvector_external.conninfo: a URL or a key=value string of libpq. It
	// may have pgx's pool_max_conns (at most 8 here) and default_query_exec_mode. Its password is
	// never in an error.
	Conninfo string
	Embedder Embedder
	// ExactRows is the largest number of entries of a namespace that is searched exactly although
	// the server has pgvector; 0 means DefaultExactRows.
	ExactRows int64
}

// ImplPostgres is the manifest's word for class external.
const ImplPostgres = "external-pg"

// DefaultExactRows is chosen so that a scan takes a few milliseconds.
const DefaultExactRows = 50_000

const (
	poolLimit   = 8
	dialTimeout = 3 * time.Second
	changePage  = 5000 // rows of one statement of a long read
)

// fileTime is how long the boot waits for the files that a connection string names.
const fileTime = 3 * time.Second

// NewPostgres makes the PostgreSQL class. It reads no more than the files that the connection string
// names, such as sslrootcert.
func NewPostgres(c PostgresConfig) (*Memory, error) {
	ctx, cancel := context.WithTimeout(context.Background(), fileTime)
	defer cancel()
	return makePostgres(ctx, c)
}

// makePostgres is NewPostgres, which gives up waiting for the files when ctx ends. The slot goes on to wait
// for them: one may be a FIFO, or its file system dead, and that must not hold up the boot.
func makePostgres(ctx context.Context, c PostgresConfig) (*Memory, error) {
	const key = "integrations.ruvector_external.conninfo"
	if strings.TrimSpace(c.Conninfo) == "" {
		return nil, adapters.Missing(key, "external-pg connects there")
	}
	parsing := slowcall.New(func() (*pgxpool.Config, error) { return parseConninfo(c.Conninfo) })
	// The error quotes the text that it cannot parse, perhaps with the password.
	const wrong = "is not a PostgreSQL connection string"
	pool, err := parsing.Wait(ctx)
	if err != nil && !errors.Is(err, ctx.Err()) {
		return nil, &adapters.ConfigError{Key: key, Message: wrong}
	}
	exact := c.ExactRows
	if exact <= 0 {
		exact = DefaultExactRows
	}
	return newMemory(ImplPostgres, adapters.ClassExternal, c.Embedder, 0,
		func(ctx context.Context, m *Memory) (backend, error) {
			if pool == nil {
				var err error
				pool, err = parsing.Wait(ctx)
				switch {
				case err != nil && errors.Is(err, ctx.Err()):
					return nil, adapters.Unavailable(nil, "a file that the connection string names, such as sslrootcert, cannot be read: it does not answer")
				case err != nil:
					return nil, adapters.Unavailable(nil, "%s %s", key, wrong)
				}
			}
			if err := conninfo.Guard(ctx, &pool.ConnConfig.Config); err != nil {
				return nil, adapters.Unavailable(err, "cannot connect to the PostgreSQL server")
			}
			return openPostgres(ctx, pool.Copy(), exact, m)
		})
}

// parseConninfo reads a connection string, and the files that it names.
func parseConninfo(text string) (*pgxpool.Config, error) {
	pool, err := pgxpool.ParseConfig(conninfo.WithoutHome(text))
	if err != nil {
		return nil, err
	}
	pool.MaxConns = min(pool.MaxConns, poolLimit)
	pool.MinConns = min(pool.MinConns, pool.MaxConns)
	conninfo.Bound(&pool.ConnConfig.Config)
	if pool.ConnConfig.RuntimeParams["application_name"] == "" {
		pool.ConnConfig.RuntimeParams["application_name"] = "agentinit"
	}
	if t := pool.ConnConfig.ConnectTimeout; t == 0 || t > dialTimeout {
		pool.ConnConfig.ConnectTimeout = dialTimeout
	}
	pool.ConnConfig.BuildFrontend = boundedFrontend(maxPgMessage, maxPgAnswer)
	return pool, nil
}

// postgres is the backend for a server that other programs may use too, also programs that know
// only the four original columns of memory_entries.
//
// A change of a namespace first takes its row in memory_spaces FOR UPDATE. So revisions become
// visible in the order of their numbers, and a slab at a revision has all earlier ones.
type postgres struct {
	pool   *pgxpool.Pool
	memory *Memory // for the embedder, to index what others wrote
	exact  int64
	vector bool // pgvector is available
	key    []byte
	ahead  atomic.Int64 // of the server's clock, as a time.Duration
}

var (
	_ backend  = (*postgres)(nil)
	_ proposer = (*postgres)(nil)
)

func openPostgres(ctx context.Context, cfg *pgxpool.Config, exact int64, m *Memory) (*postgres, error) {
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, asPostgres(err)
	}
	p := &postgres{pool: pool, memory: m, exact: exact}
	if err = p.migrate(ctx); err == nil {
		err = p.ping(ctx)
	}
	if err != nil {
		pool.Close()
		return nil, asPostgres(err)
	}
	return p, nil
}

// asPostgres gives a code to an error of the server or of the connection.
func asPostgres(err error) error {
	_, isCoded := errors.AsType[*adapters.Error](err)
	server, isServer := errors.AsType[*pgconn.PgError](err)
	switch {
	case err == nil, isCoded, errors.Is(err, pgx.ErrNoRows):
		return err
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return adapters.AsError(err)
	case !isServer:
		e := adapters.Errorf(adapters.CodeUnavailable, "cannot reach PostgreSQL").Wrap(err)
		// The text of a ConnectError also names user and database. That of its cause has only address and
		// reason, one line for each address, and one with and one without TLS.
		if connect, ok := errors.AsType[*pgconn.ConnectError](err); ok {
			lines := slices.Compact(strings.Split(connect.Unwrap().Error(), "\n"))
			e.Message += ": " + escape.Line(strings.Join(lines, "; "), maxReason)
		}
		return e
	}
	switch {
	case server.Code == "57014": // query_canceled: statement_timeout
		return adapters.Errorf(adapters.CodeTimeout, "PostgreSQL took longer than %s ms", conninfo.StatementTimeout).Wrap(err)
	case server.Code == "40001", server.Code == "40P01": // serialization_failure, deadlock_detected
		return adapters.Errorf(adapters.CodeConflict, "another writer was faster").Wrap(err)
	}
	// The SQLSTATE names the problem; the text may quote stored data.
	state := escape.Line(server.Code, maxState)
	e := adapters.Errorf(adapters.CodeUnavailable, "PostgreSQL answered SQLSTATE %s", state).With("sqlstate", state).Wrap(err)
	if meaning := meanings[server.Code]; meaning != "" {
		e.Message += ": " + meaning
	}
	return e
}

// Limits in bytes of what a server says in a message.
const (
	maxReason = 500
	maxState  = 5 // a SQLSTATE has five characters
)

// meanings are the reasons of a refusal that an operator can mend, by SQLSTATE.
var meanings = map[string]string{
	"25006": "the server or the database is read-only, such as a standby",
	"25P03": "the server has ended a transaction that stood still",
	"28000": "the login is refused; see the server's pg_hba.conf and the user in conninfo",
	"28P01": "the password or the user in conninfo is wrong",
	"3D000": "the database in conninfo does not exist",
	"3F000": "the schema in conninfo (search_path) does not exist",
	"42501": "the user in conninfo lacks a privilege",
	"53100": "the disk of the server is full",
	"53200": "the server has no memory left",
	"53300": "the server has no connection left",
	"55P03": "another session holds a lock",
	"57P01": "the server shuts down, or an administrator has ended the connection",
	"57P03": "the server starts up or shuts down",
}

func (p *postgres) secret() []byte    { return p.key }
func (p *postgres) approximate() bool { return p.vector }

// ping checks what may change at run time: an operator may drop a table, or a newer program may
// change the schema.
func (p *postgres) ping(ctx context.Context) error {
	var raw []byte
	var some bool
	var server time.Time
	asked := time.Now()
	err := p.row(ctx, "SELECT value, EXISTS (SELECT 1 FROM memory_entries), clock_timestamp() FROM memory_meta WHERE name = 'schema_version'", nil, &raw, &some, &server)
	if errors.Is(err, pgx.ErrNoRows) {
		return noVersion()
	}
	if err != nil {
		return err
	}
	p.setClock(asked, time.Now(), server)
	_, err = pgVersion(raw)
	return err
}

// clockTolerance is the difference between two clocks that does not matter.
const clockTolerance = 2 * time.Second

// setClock takes note of the server's time, which was read between two times of this box.
func (p *postgres) setClock(asked, answered, server time.Time) {
	if answered.Sub(asked) > clockTolerance {
		return // too slow to tell
	}
	ahead := server.Sub(asked)
	if ahead.Abs() <= clockTolerance {
		ahead = 0
	}
	p.ahead.Store(int64(ahead))
}

// now implements backend. Several boxes use one server. If each went by its own clock, one whose clock is
// ahead would remove the entries of the others before they expire.
func (p *postgres) now() time.Time { return time.Now().Add(time.Duration(p.ahead.Load())) }

// close waits for connections in use; their calls have been cancelled.
func (p *postgres) close(ctx context.Context) error {
	closed := make(chan struct{})
	go func() {
		p.pool.Close()
		close(closed)
	}()
	select {
	case <-closed:
		return nil
	case <-ctx.Done():
		return adapters.AsError(context.Cause(ctx))
	}
}

func (p *postgres) write(ctx context.Context, f func(pgx.Tx) error) error {
	return owed(asPostgres(pgx.BeginFunc(ctx, p.pool, f)))
}

// snapshot runs f in a transaction that sees one state throughout.
func (p *postgres) snapshot(ctx context.Context, f func(pgx.Tx) error) error {
	return owed(asPostgres(pgx.BeginTxFunc(ctx, p.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, f)))
}

// owed gives a code to a missing row of a statement that must return one.
func owed(err error) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return adapters.Unavailable(err, "PostgreSQL left out a row")
	}
	return err
}

func (p *postgres) row(ctx context.Context, query string, args []any, to ...any) error {
	return asPostgres(p.pool.QueryRow(ctx, query, args...).Scan(to...))
}

// pgEach runs a query and f for every row, scanned into to.
func pgEach(ctx context.Context, q interface {
	Query(context.Context, string, ...any) (pgx.Rows, error)
}, query string, args, to []any, f func()) error {
	rows, err := q.Query(ctx, query, args...)
	if err != nil {
		return asPostgres(err)
	}
	_, err = pgx.ForEachRow(rows, to, func() error {
		f()
		return nil
	})
	return asPostgres(err)
}

const (
	pgSpace = "SELECT id, embedder, dim, rev, floor, entries FROM memory_spaces WHERE name = $1"
	pgLive  = "(expires_at IS NULL OR expires_at > $1::timestamptz)"
	// pgIndexed leaves out rows of other programs that are not indexed yet.
	pgIndexed = "indexed_at = stored_at"
)

// stamp is a time as a parameter; NULL means never.
func stamp(ms int64) any {
	if ms == 0 {
		return nil
	}
	return time.UnixMilli(ms)
}

func unstamp(t *time.Time) int64 {
	if t == nil {
		return 0
	}
	return t.UnixMilli()
}

func scanSpace(r pgx.Row, name string) (space, bool, error) {
	sp := space{name: name}
	err := r.Scan(&sp.id, &sp.pin.embedder, &sp.pin.dim, &sp.rev, &sp.floor, &sp.rows)
	if errors.Is(err, pgx.ErrNoRows) {
		return sp, false, nil
	}
	return sp, err == nil, asPostgres(err)
}

func (p *postgres) space(ctx context.Context, name string) (space, bool, error) {
	return scanSpace(p.pool.QueryRow(ctx, pgSpace, name), name)
}

func (p *postgres) get(ctx context.Context, namespace, key string, now int64) (r row, ok bool, err error) {
	var stored time.Time
	var expires *time.Time
	r.key = key
	err = p.row(ctx, `SELECT e.entry_no, e.rev, coalesce(e.value, ''), e.metadata, e.stored_at, e.expires_at,
			coalesce(s.embedder, ''), coalesce(s.dim, 0)
		FROM memory_entries e LEFT JOIN memory_spaces s ON s.name = e.namespace AND `+pgIndexed+`
		WHERE e.namespace = $2 AND e.key = $3 AND `+pgLive, []any{time.UnixMilli(now), namespace, key},
		&r.id, &r.rev, &r.value, &r.metadata, &stored, &expires, &r.pin.embedder, &r.pin.dim)
	if errors.Is(err, pgx.ErrNoRows) {
		return row{}, false, nil
	}
	r.stored, r.expires = stored.UnixMilli(), unstamp(expires)
	return r, err == nil, err
}

func (p *postgres) list(ctx context.Context, namespace string, after int64, n int, now int64) (list []row, err error) {
	var r row
	var stored time.Time
	var expires *time.Time
	err = pgEach(ctx, p.pool, `SELECT entry_no, key, stored_at, expires_at, octet_length(coalesce(value, ''))::bigint FROM memory_entries
		WHERE namespace = $2 AND entry_no > $3 AND `+pgLive+` ORDER BY entry_no LIMIT $4`,
		[]any{time.UnixMilli(now), namespace, after, n}, []any{&r.id, &r.key, &stored, &expires, &r.size}, func() {
			r.stored, r.expires = stored.UnixMilli(), unstamp(expires)
			list = append(list, r)
		})
	return list, err
}

func (p *postgres) namespaces(ctx context.Context, now int64) (list []adapters.Namespace, err error) {
	var n adapters.Namespace
	err = pgEach(ctx, p.pool, `SELECT c.namespace, coalesce(s.embedder, ''), coalesce(s.dim, 0), c.entries
		FROM (SELECT namespace, count(*) AS entries FROM memory_entries WHERE `+pgLive+` GROUP BY namespace) c
		LEFT JOIN memory_spaces s ON s.name = c.namespace ORDER BY c.namespace COLLATE "C" LIMIT $2`,
		[]any{time.UnixMilli(now), adapters.MaxNamespaces}, []any{&n.Name, &n.Embedder, &n.Dim, &n.Entries}, func() { list = append(list, n) })
	return list, err
}

func (p *postgres) changes(ctx context.Context, namespace string, since revision, to sink) error {
	return p.snapshot(ctx, func(tx pgx.Tx) error {
		sp, _, err := scanSpace(tx.QueryRow(ctx, pgSpace, namespace), namespace)
		if err != nil {
			return err
		}
		all := !sp.continues(since)
		if all {
			since.rev = -1
		}
		to.begin(sp, all)
		if err := pgUpserts(ctx, tx, namespace, since.rev, to); err != nil || all {
			return err
		}
		var id int64
		return pgEach(ctx, tx, "SELECT entry FROM memory_tombstones WHERE space = $1 AND rev > $2", []any{sp.id, since.rev}, []any{&id},
			func() { to.drop(id) })
	})
}

// pgUpserts reads in batches, so that each stays within the statement timeout. The position is a
// revision, because each belongs to only one entry.
func pgUpserts(ctx context.Context, tx pgx.Tx, namespace string, after int64, to sink) error {
	for n := changePage; n == changePage; {
		n = 0
		var v vectorRow
		var expires *time.Time
		err := pgEach(ctx, tx, `SELECT entry_no, rev, expires_at, key, embedding::real[] FROM memory_entries
			WHERE namespace = $1 AND rev > $2 AND `+pgIndexed+` ORDER BY rev LIMIT $3`,
			[]any{namespace, after, changePage}, []any{&v.id, &v.rev, &expires, &v.key, &v.vec}, func() {
				n++
				after = v.rev
				v.expires = unstamp(expires)
				to.upsert(v)
			})
		if err != nil {
			return err
		}
	}
	return nil
}

func (p *postgres) postings(ctx context.Context, sp space, t term, limit int, now int64, yield func(posting)) error {
	var one posting
	return pgEach(ctx, p.pool, `SELECT entry, tf, words FROM memory_postings
		WHERE space = $1 AND term = $2 AND (expires = 0 OR expires > $3) ORDER BY entry LIMIT $4`,
		[]any{sp.id, t, now, limit}, []any{&one.id, &one.tf, &one.words}, func() { yield(one) })
}

func (p *postgres) stats(ctx context.Context, sp space, now int64) (s stats, err error) {
	var until *time.Time
	err = p.row(ctx, "SELECT count(*), coalesce(sum(words), 0)::bigint, min(expires_at) FROM memory_entries WHERE namespace = $2 AND "+
		pgLive+" AND "+pgIndexed, []any{time.UnixMilli(now), sp.name}, &s.entries, &s.words, &until)
	s.until = unstamp(until)
	return s, owed(err)
}

func (p *postgres) fetch(ctx context.Context, sp space, ids []int64, now int64) (list []row, err error) {
	var r row
	err = pgEach(ctx, p.pool, `SELECT entry_no, rev, key, embedding::real[], metadata, coalesce(value, '') FROM memory_entries
		WHERE entry_no = ANY($2) AND namespace = $3 AND `+pgLive+` AND `+pgIndexed,
		[]any{time.UnixMilli(now), ids, sp.name}, []any{&r.id, &r.rev, &r.key, &r.vec, &r.metadata, &r.value}, func() {
			list = append(list, r)
			r.vec = nil // the next row gets a slice of its own
		})
	return list, err
}

func (p *postgres) keys(ctx context.Context, sp space, ids []int64) (map[int64]string, error) {
	out := make(map[int64]string, len(ids))
	var id int64
	var key string
	err := pgEach(ctx, p.pool, "SELECT entry_no, key FROM memory_entries WHERE entry_no = ANY($1) AND namespace = $2",
		[]any{ids, sp.name}, []any{&id, &key}, func() { out[id] = key })
	return out, err
}

// propose asks HNSW for more entries than are wanted, so that the exact ranking of them seldom
// lacks one. It declines small namespaces, for which the exact scan is better.
func (p *postgres) propose(ctx context.Context, sp space, q []float32, n int, now int64) (ids []int64, ok bool, err error) {
	if !p.vector || sp.rows <= p.exact {
		return nil, false, nil
	}
	n = max(4*n, 100)
	err = p.snapshot(ctx, func(tx pgx.Tx) error {
		// SET takes no parameters; these are integers of this package.
		if _, err := tx.Exec(ctx, fmt.Sprintf("SET LOCAL hnsw.ef_search = %d", min(max(2*n, 200), 1000))); err != nil {
			return err
		}
		// Without it, the filter on the namespace could remove all candidates (pgvector 0.8,
		// "iterative index scans").
		if _, err := tx.Exec(ctx, "SET LOCAL hnsw.iterative_scan = strict_order"); err != nil {
			return err
		}
		var id int64
		return pgEach(ctx, tx, fmt.Sprintf(`SELECT entry_no FROM memory_entries
			WHERE namespace = $2 AND %s AND %s AND vector_dims(embedding) = %d
			ORDER BY embedding::vector(%[3]d) <=> $3::real[]::vector(%[3]d) LIMIT $4`, pgLive, pgIndexed, len(q)),
			[]any{time.UnixMilli(now), sp.name, q, n}, []any{&id}, func() { ids = append(ids, id) })
	})
	return ids, err == nil, err
}
