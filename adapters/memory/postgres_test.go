package memory

import (
	"os"
	"testing"

	"github.com/dreamlab-ai/agentinit/adapters/contract"
)

func TestPostgresContract(t *testing.T) {
	contract.Memory(t, postgresClass(realPostgres, PostgresConfig{}))
}

func TestPostgresSameAsEmbedded(t *testing.T) {
	contract.SameMemory(t, embeddedClass(0), postgresClass(realPostgres, PostgresConfig{}))
}

func TestPGliteContract(t *testing.T) {
	endToEnd(t)
	contract.Memory(t, postgresClass(pglite, PostgresConfig{}))
}

// With ExactRows 1, every search uses the HNSW index.
func TestPGliteIndexContract(t *testing.T) {
	endToEnd(t)
	contract.Memory(t, postgresClass(pglite, PostgresConfig{ExactRows: 1}))
}

func TestPGliteSameAsEmbedded(t *testing.T) {
	endToEnd(t)
	contract.SameMemory(t, embeddedClass(0), postgresClass(pglite, PostgresConfig{ExactRows: 1}))
}

// endToEnd leaves the whole contract on PGlite (PostgreSQL in WebAssembly, one minute) to `make
// e2e`. TestPGliteRecall always runs.
func endToEnd(t *testing.T) {
	t.Helper()
	if os.Getenv("AGENTINIT_E2E") == "" {
		t.Skip("runs under `make e2e` (AGENTINIT_E2E=1)")
	}
}
