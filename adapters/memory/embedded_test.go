package memory

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/contract"
	"github.com/dreamlab-ai/agentinit/adapters/sqlite"
)

func TestMain(m *testing.M) {
	contract.CrashChild(crashChild)
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
func TestEmbeddedContractStreaming(t *testing.T) {
	if testing.Short() {
		t.Skip("TestStreamingSameAsHeld compares the answers in this case, too")
	}
	contract.Memory(t, embeddedClass(1))
}

func TestStreamingSameAsHeld(t *testing.T) {
	contract.SameMemory(t, embeddedClass(0), embeddedClass(1))
}

// What another program wrote into the file: names and keys that are too long are left out of lists,
// and there is a limit to how many namespaces are listed.
func TestListsLeaveOutWhatOthersWrote(t *testing.T) {
	dir := t.TempDir()
	m := embedded(t, dir, hashV1{}, 0)
	if err := m.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Store(t.Context(), "k", "v", "n", adapters.StoreOpt{}); err != nil {
		t.Fatal(err)
	}
	if err := m.Disconnect(t.Context()); err != nil {
		t.Fatal(err)
	}
	db, err := sqlite.Open(t.Context(), sqlite.Options{Path: filepath.Join(dir, "memory.db"), AppID: fileID, Migrations: fileMigrations})
	if err != nil {
		t.Fatal(err)
	}
	err = db.Write(t.Context(), func(tx *sql.Tx) error {
		for _, write := range []string{
			`WITH RECURSIVE i(i) AS (SELECT 100 UNION ALL SELECT i + 1 FROM i WHERE i < 10200)
			 INSERT INTO namespaces (id, name) SELECT i, 'o' || i FROM i`,
			`UPDATE namespaces SET name = 'a' || printf('%.*c', 128, 'x') WHERE id = 100`,
			`WITH RECURSIVE i(i) AS (SELECT 100 UNION ALL SELECT i + 1 FROM i WHERE i < 10200)
			 INSERT INTO entries (ns, rev, expires_at, words, key, embedding, stored_at, size, metadata, value)
			 SELECT i, 1, 0, 1, 'k', x'', 0, 1, '{}', 'v' FROM i`,
			`INSERT INTO entries (ns, rev, expires_at, words, key, embedding, stored_at, size, metadata, value)
			 SELECT ns, 1, 0, 1, printf('%.*c', length, 'é'), x'', 0, 1, '{}', 'v'
			 FROM entries, (SELECT 256 AS length UNION SELECT 257) WHERE key = 'k' AND ns < 100`,
		} {
			if _, err := tx.ExecContext(t.Context(), write); err != nil {
				return err
			}
		}
		return nil
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	if err := m.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer m.Disconnect(context.WithoutCancel(t.Context()))
	list, err := m.Namespaces(t.Context())
	if err != nil || len(list) != adapters.MaxNamespaces || list[0].Name != "n" {
		t.Errorf("%d namespaces %v", len(list), err)
	}
	page, err := m.List(t.Context(), "n", adapters.PageOpt{})
	if err != nil || len(page.Items) != 2 || len(page.Items[1].Key) != adapters.MaxMemoryKey {
		t.Errorf("%d keys %v", len(page.Items), err)
	}
}

func TestOff(t *testing.T) { contract.MemoryOff(t) }

// The best hits come until they have maxHitBytes; the others are left out.
func TestHitsAreBoundedInBytes(t *testing.T) {
	m := embedded(t, t.TempDir(), hashV1{}, 0)
	if err := m.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer m.Disconnect(context.Background())
	vector := func(i int) []float32 { return []float32{1, float32(i)} } // the nearest to [1 0] is the first
	const stored, fit = readAtOnce + 4, readAtOnce + 2
	for i := range stored {
		value := strings.Repeat("x", maxHitBytes/fit)
		if _, err := m.Store(t.Context(), fmt.Sprintf("k%02d", i), value, "n", adapters.StoreOpt{Embedding: vector(i)}); err != nil {
			t.Fatal(err)
		}
	}
	hits, err := m.Search(t.Context(), "", adapters.SearchOpt{Namespace: "n", Embedding: vector(0), Limit: stored})
	if err != nil || len(hits) != fit || hits[0].Key != "k00" || hits[fit-1].Key != fmt.Sprintf("k%02d", fit-1) {
		t.Errorf("%d hits, %v", len(hits), err)
	}
}
