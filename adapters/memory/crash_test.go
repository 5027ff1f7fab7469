package memory

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/contract"
)

// crashChild stores entries without end and prints each acknowledged key.
func crashChild(dir string) error {
	m, err := NewEmbedded(EmbeddedConfig{Dir: dir, Embedder: hashV1{}})
	if err != nil {
		return err
	}
	ctx := context.Background()
	if err := m.Connect(ctx); err != nil {
		return err
	}
	for i := 0; ; i++ {
		key := fmt.Sprintf("%d-%d", os.Getpid(), i)
		if _, err := m.Store(ctx, key, "value of "+key, "n", adapters.StoreOpt{}); err != nil {
			return err
		}
		if i > 0 && i%5 == 0 {
			gone := fmt.Sprintf("%d-%d", os.Getpid(), i-1)
			// If the kill comes between these two lines, the entry may be gone or not.
			fmt.Println("deleting", gone)
			if _, err := m.Del(ctx, gone, "n"); err != nil {
				return err
			}
			fmt.Println("del", gone)
		}
		fmt.Println("put", key)
	}
}

// A kill -9 at any instant loses no acknowledged write and leaves no partial write.
func TestCrash(t *testing.T) {
	dir := t.TempDir()
	want := make(map[string]bool)
	contract.Killed(t, dir, func(line string) {
		what, key, _ := strings.Cut(line, " ")
		if what == "deleting" {
			delete(want, key)
		} else {
			want[key] = what == "put"
		}
	}, func() { checkCrashed(t, dir, want) })
}

func checkCrashed(t *testing.T, dir string, want map[string]bool) {
	t.Helper()
	ctx := t.Context()
	m := embedded(t, dir, hashV1{}, 0)
	if err := m.Connect(ctx); err != nil {
		t.Fatalf("the file does not open after a crash: %v", err)
	}
	defer m.Disconnect(ctx)
	for key, there := range want {
		e, ok, err := m.Retrieve(ctx, key, "n")
		if err != nil || there && (!ok || e.Value != "value of "+key) {
			t.Fatalf("%s was acknowledged: found %v, %q, %v", key, ok, e.Value, err)
		}
		if !there && ok {
			t.Fatalf("%s was deleted and is back", key)
		}
	}
	// Entries, vectors, postings and counters are consistent.
	b := m.current.Load().backend.(*file)
	for what, q := range map[string]string{
		"entries without words": "SELECT count(*) FROM entries e WHERE (SELECT count(*) FROM postings p WHERE p.entry = e.id) = 0",
		"words without entry":   "SELECT count(*) FROM postings WHERE entry NOT IN (SELECT id FROM entries)",
		"a wrong count":         "SELECT count(*) FROM namespaces n WHERE entries <> (SELECT count(*) FROM entries e WHERE e.ns = n.id)",
		"a vector cut off":      "SELECT count(*) FROM entries WHERE length(embedding) <> 1024",
	} {
		var n int
		if err := b.row(ctx, q, nil, &n); err != nil || n != 0 {
			t.Fatalf("%s: %d, %v", what, n, err)
		}
	}
}

// If a file cannot be read, Connect fails and the file stays unchanged.
func TestDamagedFile(t *testing.T) {
	ctx := context.Background()
	good := t.TempDir()
	m := embedded(t, good, hashV1{}, 0)
	if err := m.Connect(ctx); err != nil {
		t.Fatal(err)
	}
	for i := range 200 {
		if _, err := m.Store(ctx, fmt.Sprint(i), fmt.Sprintf("value %d", i), "n", adapters.StoreOpt{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.Disconnect(ctx); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(filepath.Join(good, "memory.db"))
	if err != nil {
		t.Fatal(err)
	}
	scribbled := append([]byte(nil), whole...)
	for i := 4096; i < 4096*6; i++ {
		scribbled[i] ^= 0x5a
	}
	newer := append([]byte(nil), whole...)
	newer[63] = 99 // the last byte of user_version
	other := append([]byte(nil), whole...)
	other[68] ^= 0xff // of application_id
	for name, content := range map[string][]byte{
		"garbage": []byte("this is no database, whatever its name says; it is long enough to be looked at"),
		"cut off": whole[:len(whole)/2], "scribbled": scribbled, "newer": newer, "another program's": other,
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "memory.db")
			if err := os.WriteFile(path, content, 0o600); err != nil {
				t.Fatal(err)
			}
			m := embedded(t, dir, hashV1{}, 0)
			if err := m.Connect(ctx); !errors.Is(err, adapters.ErrUnavailable) {
				t.Errorf("Connect: %v, want UNAVAILABLE", err)
			}
			if _, _, err := m.Retrieve(ctx, "1", "n"); !errors.Is(err, adapters.ErrUnavailable) {
				t.Errorf("a call after a failed Connect: %v", err)
			}
			after, err := os.ReadFile(path)
			if err != nil || string(after) != string(content) {
				t.Errorf("the file was changed (%v)", err)
			}
		})
	}
	// The negative test: the undamaged copy opens.
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "memory.db"), whole, 0o600); err != nil {
		t.Fatal(err)
	}
	m = embedded(t, dir, hashV1{}, 0)
	if err := m.Connect(ctx); err != nil {
		t.Fatal(err)
	}
	defer m.Disconnect(ctx)
	if e, ok, err := m.Retrieve(ctx, "199", "n"); !ok || err != nil || e.Value != "value 199" {
		t.Errorf("the good file: %v, %v", ok, err)
	}
}
