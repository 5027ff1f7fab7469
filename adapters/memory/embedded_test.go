package memory

import (
	"context"
	"testing"

	"go.uber.org/goleak"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/contract"
)

func TestMain(m *testing.M) {
	if asCrashChild() {
		return
	}
	goleak.VerifyTestMain(withServers{m})
}

// withServers stops the external servers before the check for leaks.
type withServers struct{ *testing.M }

func (m withServers) Run() int {
	defer shared.end()
	return m.M.Run()
}

// deaf is an embedder that is down.
type deaf struct{}

func (deaf) ID() string { return "deaf" }
func (deaf) Dim() int   { return 0 }
func (deaf) Embed(context.Context, []string) ([][]float32, error) {
	return nil, adapters.Errorf(adapters.CodeEmbedding, "the embedder is down")
}

func embedded(t testing.TB, dir string, e Embedder, cacheBytes int64) *Memory {
	t.Helper()
	m, err := NewEmbedded(EmbeddedConfig{Dir: dir, Embedder: e, CacheBytes: cacheBytes})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func embeddedClass(cacheBytes int64) contract.MemoryClass {
	return contract.MemoryClass{
		New:  func(t *testing.T) adapters.Memory { return embedded(t, t.TempDir(), hashV1{}, cacheBytes) },
		Deaf: func(t *testing.T) adapters.Memory { return embedded(t, t.TempDir(), deaf{}, cacheBytes) },
	}
}

func TestEmbeddedContract(t *testing.T) { contract.Memory(t, embeddedClass(0)) }

// A namespace that does not fit in the cache is streamed and gives the same answers.
func TestEmbeddedContractStreaming(t *testing.T) { contract.Memory(t, embeddedClass(1)) }

func TestStreamingSameAsHeld(t *testing.T) {
	contract.SameMemory(t, embeddedClass(0), embeddedClass(1))
}

func TestOff(t *testing.T) { contract.MemoryOff(t) }
