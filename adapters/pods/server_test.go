package pods

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"github.com/dreamlab-ai/agentinit/internal/foreign"
)

// quota is the total size that the reference server may hold, in bytes.
const quota = 24 << 20

// reference is the Community Solid Server of this test binary, which the first test that needs it
// starts. It has a file backend and a quota, and Web Access Control with the identity in
// "Authorization: WebID <iri>".
var reference struct {
	once    sync.Once
	running *foreign.Server
	err     error
	pods    atomic.Int64 // number of pods made so far
}

// withReference stops the server before the check for leaks.
type withReference struct{ *testing.M }

func (m withReference) Run() int {
	defer func() {
		if reference.running != nil {
			reference.running.Stop()
		}
	}()
	return m.M.Run()
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(withReference{m}) }

// solidServer returns the base URL of the running reference server.
func solidServer(t testing.TB) string {
	t.Helper()
	reference.once.Do(func() { reference.running, reference.err = foreign.Solid(context.Background(), referenceConfig) })
	foreign.SkipOrFail(t, reference.err)
	return reference.running.Address
}

// referenceConfig is the server's own file-root.json with some parts replaced.
func referenceConfig(raw []byte) ([]byte, error) {
	text := strings.NewReplacer(
		"authentication/dpop-bearer.json", "authentication/debug-auth-header.json",
		"backend/file.json", "backend/global-quota-file.json",
		`"css:config/util/resource-locker/file.json",`, "",
		"key-value/resource-store.json", "key-value/memory.json",
	).Replace(string(raw))
	var config map[string]any
	if err := json.Unmarshal([]byte(text), &config); err != nil {
		return nil, err
	}
	config["@graph"] = []any{map[string]any{
		"@id": "urn:solid-server:default:QuotaStrategy", "@type": "GlobalQuotaStrategy", "limit_amount": quota, "limit_unit": "bytes",
	}, map[string]any{
		// Locks in memory that expire later than after the server's six seconds: on a loaded
		// machine, a body as long as the quota may take more time.
		"@id": "urn:solid-server:default:ResourceLocker", "@type": "WrappedExpiringReadWriteLocker",
		"locker": map[string]any{
			"@type": "GreedyReadWriteLocker", "locker": map[string]any{"@type": "MemoryResourceLocker"},
			"storage": map[string]any{"@id": "urn:solid-server:default:LockStorage"},
		},
		"expiration": 120_000,
	}}
	return json.Marshal(config)
}

// webID authorises in the way that the reference server's configuration accepts.
type webID string

func (w webID) Authorize(r *http.Request, _ []byte) error {
	if w != "" {
		r.Header.Set("Authorization", "WebID "+string(w))
	}
	return nil
}

// emptyPod is a new, empty pod on the reference server.
func emptyPod(t testing.TB) Config {
	t.Helper()
	return Config{BaseURL: fmt.Sprintf("%s/pod-%d/", solidServer(t), reference.pods.Add(1))}
}

func mustSolid(t testing.TB, build func(Config) (*Solid, error), cfg Config) *Solid {
	t.Helper()
	s, err := build(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// connected returns a client that is connected until the end of the test.
func connected(t testing.TB, cfg Config) *Solid {
	t.Helper()
	s := mustSolid(t, NewExternal, cfg)
	t.Cleanup(func() {
		if err := s.Disconnect(context.Background()); err != nil {
			t.Error(err)
		}
	})
	if err := s.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}
