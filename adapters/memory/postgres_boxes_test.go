package memory

import (
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// The clock of a box is an hour ahead of the server's. The box goes by the server's clock, so it removes no entry
// of another box that has not expired.
func TestPostgresClocksDiffer(t *testing.T) {
	ctx := t.Context()
	conninfo := realPostgres(t) + ",pg_catalog" // what follows hides the function of PostgreSQL
	statements(t, conninfo, "CREATE FUNCTION clock_timestamp() RETURNS timestamptz LANGUAGE sql AS $$SELECT pg_catalog.clock_timestamp() - interval '1 hour'$$")
	m := newPostgres(t, PostgresConfig{Conninfo: conninfo})
	if err := m.Connect(ctx); err != nil {
		t.Fatal(err)
	}
	defer m.Disconnect(ctx)
	for _, key := range []string{"k", "gone"} {
		if _, err := m.Store(ctx, key, "a value", "n", adapters.StoreOpt{TTL: 24 * time.Hour}); err != nil {
			t.Fatal(err)
		}
	}
	statements(t, conninfo, "UPDATE memory_entries SET expires_at = clock_timestamp() + interval '30 minutes' WHERE key = 'k'",
		"UPDATE memory_entries SET expires_at = clock_timestamp() - interval '1 minute' WHERE key = 'gone'")
	s := m.current.Load()
	s.round()
	for key, want := range map[string]bool{"k": true, "gone": false} {
		if _, ok, err := m.Retrieve(ctx, key, "n"); err != nil || ok != want {
			t.Errorf("%s is there: %v, %v", key, ok, err)
		}
	}
	if n := asked[int](t, conninfo, "SELECT count(*) FROM memory_entries"); n != 1 {
		t.Errorf("%d entries are left", n)
	}
	p := s.backend.(*postgres)
	own := time.Now()
	for _, c := range []struct{ took, server, want time.Duration }{
		{0, 0, 0},
		{time.Second, 1900 * time.Millisecond, 0}, // as good as equal
		{time.Second, -time.Hour, -time.Hour},
		{time.Minute, time.Hour, -time.Hour}, // too slow to tell: as before
		{time.Second, time.Hour, time.Hour},
	} {
		p.setClock(own, own.Add(c.took), own.Add(c.server))
		if have := time.Duration(p.ahead.Load()); have != c.want {
			t.Errorf("%+v: %v", c, have)
		}
	}
}

// A box that is cut off in the middle of a transaction keeps no lock of a namespace for long, and a statement
// does not wait for one for long.
func TestPostgresLocksEnd(t *testing.T) {
	m := newPostgres(t, PostgresConfig{Conninfo: realPostgres(t)})
	if err := m.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer m.Disconnect(t.Context())
	p := m.current.Load().backend.(*postgres)
	for name, want := range map[string]string{"statement_timeout": "5s", "idle_in_transaction_session_timeout": "10s"} {
		var have string
		if err := p.row(t.Context(), "SHOW "+name, nil, &have); err != nil || have != want {
			t.Errorf("%s is %q, want %q: %v", name, have, want, err)
		}
	}
}
