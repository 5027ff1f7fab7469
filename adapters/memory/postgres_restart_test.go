package memory

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/internal/foreign"
)

// A server that is killed at any instant and restarted has all acknowledged writes and no partial
// ones. The adapter uses the server again by itself.
func TestPostgresIsKilledAndComesBack(t *testing.T) {
	server := ownPostgres(t)
	m := newPostgres(t, PostgresConfig{Conninfo: server.Address})
	if err := within(t, "connect", startLimit, m.Connect); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := within(t, "disconnect", startLimit, m.Disconnect); err != nil {
			t.Error(err)
		}
	}()
	w := &killedWriter{t: t, memory: adapters.WrapMemory(m, nil), acked: map[string]string{}}
	for range 4 {
		w.writeUntilKilled(server, rand.IntN(40))
		w.check(server.Address)
	}
	// The negative test: the check finds missing and changed entries.
	if lost := w.lost(map[string]string{"never-stored": "x"}); lost == "" {
		t.Error("a lost entry went unnoticed")
	}
	for key := range w.acked {
		if lost := w.lost(map[string]string{key: "another value"}); lost == "" {
			t.Error("a changed entry went unnoticed")
		}
		break
	}
}

// killedWriter stores entries without end and remembers the acknowledged ones.
type killedWriter struct {
	t      *testing.T
	memory adapters.Memory
	acked  map[string]string // key → value
	next   int
}

func (w *killedWriter) store() error {
	key := fmt.Sprintf("k%04d", w.next)
	value := fmt.Sprintf("value %d", w.next)
	err := within(w.t, "store", startLimit, func(ctx context.Context) error {
		_, err := w.memory.Store(ctx, key, value, "n", adapters.StoreOpt{})
		return err
	})
	if err == nil {
		w.acked[key] = value
		w.next++
	}
	return err
}

// writeUntilKilled kills the server after n acknowledged writes, while writes go on. It restarts
// the server and repeats the interrupted write.
func (w *killedWriter) writeUntilKilled(server *foreign.Server, n int) {
	w.t.Helper()
	reached, up := make(chan struct{}), make(chan error, 1)
	go func() {
		<-reached
		up <- server.Restart(w.t.Context())
	}()
	var err error
	for i := 0; err == nil; i++ {
		if i == n {
			close(reached)
		}
		err = w.store()
	}
	if code := adapters.CodeOf(err); code != adapters.CodeUnavailable {
		w.t.Fatalf("a store while the server was killed: %v, want UNAVAILABLE", err)
	}
	if err := <-up; err != nil {
		w.t.Fatalf("the server did not come back: %v", err)
	}
	// Every dead connection in the pool may make one call fail.
	for range poolLimit + 1 {
		if err = w.store(); err == nil {
			return
		}
	}
	w.t.Fatalf("the adapter did not recover: %v", err)
}

func (w *killedWriter) check(conninfo string) {
	w.t.Helper()
	if lost := w.lost(w.acked); lost != "" {
		w.t.Fatal(lost)
	}
	for what, query := range map[string]string{
		"entries without words": "SELECT count(*) FROM memory_entries e WHERE NOT EXISTS (SELECT 1 FROM memory_postings p WHERE p.entry = e.entry_no)",
		"unfinished entries":    "SELECT count(*) FROM memory_entries WHERE embedding IS NULL OR indexed_at IS DISTINCT FROM stored_at",
		"a wrong count":         "SELECT count(*) FROM memory_spaces s WHERE entries <> (SELECT count(*) FROM memory_entries e WHERE e.namespace = s.name)",
	} {
		if n := asked[int](w.t, conninfo, query); n != 0 {
			w.t.Fatalf("%s: %d", what, n)
		}
	}
}

// lost describes the first wanted entry that the memory does not have as acknowledged, or returns
// "".
func (w *killedWriter) lost(wanted map[string]string) string {
	for key, value := range wanted {
		e, ok, err := w.memory.Retrieve(w.t.Context(), key, "n")
		if err != nil || !ok || e.Value != value {
			return fmt.Sprintf("%s was acknowledged: there %v, %q, %v", key, ok, e.Value, err)
		}
	}
	return ""
}
