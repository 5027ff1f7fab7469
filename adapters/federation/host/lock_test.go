package host

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/federation"
	"github.com/dreamlab-ai/agentinit/internal/foreign"
)

// Another session of the PostgreSQL server holds a lock, and the caller of the host would wait for ever. The
// call ends with one line of text, and works again when the lock is gone. A host that is cut off in a
// transaction holds no lock for long.
func TestRegistryIsLocked(t *testing.T) {
	database := emptyDatabase(t)
	h, err := Open(t.Context(), Config{Server: NewServer(database), Endpoints: func() federation.Endpoints { return federation.Endpoints{} }})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	err = h.store.write(context.Background(), func(t tx) error {
		if _, bounded := t.ctx.Deadline(); !bounded {
			return adapters.Errorf(adapters.CodeInternal, "a call without a deadline is not bounded")
		}
		for name, want := range map[string]string{"statement_timeout": "5s", "idle_in_transaction_session_timeout": "10s"} {
			var have string
			if err := t.row("SHOW " + name).Scan(&have); err != nil || have != want {
				return adapters.Errorf(adapters.CodeInternal, "%s is %q, want %q: %v", name, have, want, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	register(t, h, "box-1", "boot-1")
	other, err := foreign.Dial(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close(context.Background())
	lock, err := other.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lock.Exec(t.Context(), "LOCK TABLE federation_sessions"); err != nil {
		t.Fatal(err)
	}
	waiting, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	err = h.Evict(waiting, "box-1", "", false, 0)
	if said := fmt.Sprint(err); adapters.CodeOf(err) != adapters.CodeUnavailable || !strings.Contains(said, "may hold a lock") || strings.Contains(said, "\n") {
		t.Errorf("%q", said)
	}
	if err := lock.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := h.Evict(t.Context(), "box-1", "", false, 0); err != nil {
		t.Errorf("without the lock: %v", err)
	}
}

// The error of a registry that cannot be reached goes to boxes. It is one line, and names no user, password or
// database.
func TestWhyTheRegistryIsAway(t *testing.T) {
	_, err := Open(t.Context(), Config{Server: NewServer("host=127.0.0.1,127.0.0.1 port=1,2 user=someone password=geheim dbname=secrets")})
	said := fmt.Sprint(err)
	if adapters.CodeOf(err) != adapters.CodeUnavailable || !strings.Contains(said, "127.0.0.1:2: connect: connection refused") {
		t.Errorf("%s", said)
	}
	for _, hidden := range []string{"\n", "someone", "geheim", "secrets"} {
		if strings.Contains(said, hidden) {
			t.Errorf("%q is in %q", hidden, said)
		}
	}
}
