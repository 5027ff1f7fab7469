package memory

import (
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
	contract.Memory(t, postgresClass(pglite, PostgresConfig{}))
}

// With a bound of one entry every search goes through HNSW.
func TestPGliteIndexContract(t *testing.T) {
	contract.Memory(t, postgresClass(pglite, PostgresConfig{ExactRows: 1}))
}

func TestPGliteSameAsEmbedded(t *testing.T) {
	contract.SameMemory(t, embeddedClass(0), postgresClass(pglite, PostgresConfig{ExactRows: 1}))
}
