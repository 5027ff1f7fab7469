package beads

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/contract"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if path := os.Getenv(crashEnv); path != "" {
		crashChild(path)
	}
	goleak.VerifyTestMain(m)
}

func newLocal(t testing.TB, path string) *Local {
	t.Helper()
	l, err := NewLocal(LocalConfig{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestContractLocal(t *testing.T) {
	contract.Beads(t, func(t testing.TB) adapters.Beads { return newLocal(t, filepath.Join(t.TempDir(), "beads.db")) })
}

func TestContractOff(t *testing.T) {
	contract.Beads(t, func(testing.TB) adapters.Beads { return adapters.Off(adapters.SlotBeads).(adapters.Beads) })
}
