package memory

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/contract"
	"github.com/dreamlab-ai/agentinit/internal/foreign"
)

// servers are the external servers that the tests of this package share. A server starts with the
// first test that needs it and ends after the last test.
type servers struct {
	postgres, pglite server
}

type server struct {
	once    sync.Once
	failed  error
	running *foreign.Server
	schemas atomic.Int64
}

var shared servers

// ownPostgres starts a server that no other test uses.
func ownPostgres(t *testing.T) *foreign.Server {
	t.Helper()
	s, err := foreign.PostgreSQL(t.Context())
	foreign.SkipOrFail(t, err)
	t.Cleanup(s.Stop)
	return s
}

func (s *servers) end() {
	for _, one := range []*server{&s.postgres, &s.pglite} {
		if one.running != nil {
			one.running.Stop()
		}
	}
}

const startLimit = time.Minute

// conn returns the conninfo of a shared server.
func (s *server) conn(t testing.TB, start func(context.Context) (*foreign.Server, error)) string {
	t.Helper()
	s.once.Do(func() { s.running, s.failed = start(context.Background()) })
	foreign.SkipOrFail(t, s.failed)
	return s.running.Address
}

// directly uses the server as another program would.
func directly(t testing.TB, conninfo string, use func(context.Context, *pgx.Conn) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	c, err := foreign.Dial(ctx, conninfo)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(ctx)
	if err := use(ctx, c); err != nil {
		t.Fatal(err)
	}
}

// statements runs SQL directly on the server.
func statements(t testing.TB, conninfo string, list ...string) {
	t.Helper()
	directly(t, conninfo, func(ctx context.Context, c *pgx.Conn) error {
		for _, q := range list {
			if _, err := c.Exec(ctx, q, pgx.QueryExecModeSimpleProtocol); err != nil {
				return fmt.Errorf("%s: %w", q, err)
			}
		}
		return nil
	})
}

// realPostgres returns the conninfo of an empty schema on PostgreSQL 15.
func realPostgres(t testing.TB) string {
	t.Helper()
	base := shared.postgres.conn(t, foreign.PostgreSQL)
	name := fmt.Sprintf("t%d", shared.postgres.schemas.Add(1))
	statements(t, base, "CREATE SCHEMA "+name)
	return base + " search_path=" + name
}

// pglite returns the conninfo of an empty PGlite with pgvector. All connections share one backend:
// two transactions on two connections would wait for each other forever. Therefore one test at a
// time may use it, with one connection.
func pglite(t testing.TB) string {
	t.Helper()
	conninfo := shared.pglite.conn(t, foreign.PGlite)
	statements(t, conninfo, "DROP TABLE IF EXISTS memory_postings, memory_entries, memory_spaces, memory_tombstones, memory_meta CASCADE")
	return conninfo
}

func newPostgres(t testing.TB, c PostgresConfig) *Memory {
	t.Helper()
	if c.Embedder == nil {
		c.Embedder = hashV1{}
	}
	m, err := NewPostgres(c)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func postgresClass(conninfo func(testing.TB) string, c PostgresConfig) contract.MemoryClass {
	open := func(e Embedder) func(*testing.T) adapters.Memory {
		return func(t *testing.T) adapters.Memory {
			own := c
			own.Conninfo, own.Embedder = conninfo(t), e
			return newPostgres(t, own)
		}
	}
	return contract.MemoryClass{New: open(hashV1{}), Deaf: open(deaf{})}
}
