package events

import (
	"os"
	"testing"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/contract"
	"go.uber.org/goleak"
)

func testSource() string { return "urn:agentbox:test" }

func TestMain(m *testing.M) {
	if dir := os.Getenv(crashEnv); dir != "" {
		crashChild(dir)
	}
	goleak.VerifyTestMain(m)
}

func newLocal(t testing.TB, cfg LocalConfig) *Local {
	t.Helper()
	if cfg.Source == nil {
		cfg.Source = testSource
	}
	l, err := NewLocal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestContractLocal(t *testing.T) {
	for _, fsync := range []string{"1s", "always"} {
		t.Run(fsync, func(t *testing.T) {
			contract.Events(t, func(t testing.TB) adapters.Events { return newLocal(t, LocalConfig{Dir: t.TempDir(), Fsync: fsync}) })
		})
	}
}

func TestContractOff(t *testing.T) {
	contract.Events(t, func(testing.TB) adapters.Events { return adapters.WrapEvents(nil, nil) })
}
