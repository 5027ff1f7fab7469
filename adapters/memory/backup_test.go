package memory

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/dreamlab-ai/agentinit/adapters"
)

func TestBackupIsAMemoryOfItsOwn(t *testing.T) {
	embedder, err := NewEmbedder(EmbedderConfig{})
	if err != nil {
		t.Fatal(err)
	}
	open := func(dir string) *Memory {
		m, err := NewEmbedded(EmbeddedConfig{Dir: dir, Embedder: embedder})
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Connect(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := m.Disconnect(context.Background()); err != nil {
				t.Error(err)
			}
		})
		return m
	}
	m := open(t.TempDir())
	if _, err := m.Store(t.Context(), "k", "kept", "default", adapters.StoreOpt{}); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := m.Backup(t.Context(), filepath.Join(dir, "memory.db")); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Store(t.Context(), "later", "not in it", "default", adapters.StoreOpt{}); err != nil {
		t.Fatal(err)
	}
	copied := open(dir)
	if e, ok, err := copied.Retrieve(t.Context(), "k", "default"); err != nil || !ok || e.Value != "kept" {
		t.Errorf("%+v %v %v", e, ok, err)
	}
	if _, ok, err := copied.Retrieve(t.Context(), "later", "default"); err != nil || ok {
		t.Errorf("what came after the backup is in it: %v %v", ok, err)
	}
}
