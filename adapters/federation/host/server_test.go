package host

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/dreamlab-ai/agentinit/internal/foreign"
)

// postgres is the PostgreSQL server of this test binary. The first test that needs it starts it.
var postgres struct {
	once      sync.Once
	running   *foreign.Server
	err       error
	databases atomic.Int64 // made so far
}

func TestMain(m *testing.M) {
	status := m.Run()
	if postgres.running != nil {
		postgres.running.Stop()
	}
	os.Exit(status)
}

// emptyDatabase returns the conninfo of a database that no other test uses.
func emptyDatabase(t *testing.T) string {
	t.Helper()
	postgres.once.Do(func() { postgres.running, postgres.err = foreign.PostgreSQL(context.Background()) })
	foreign.SkipOrFail(t, postgres.err)
	c, err := foreign.Dial(t.Context(), postgres.running.Address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.Background())
	name := fmt.Sprintf("test%d", postgres.databases.Add(1))
	if _, err := c.Exec(t.Context(), "CREATE DATABASE "+name); err != nil {
		t.Fatal(err)
	}
	return postgres.running.Address + " dbname=" + name
}
