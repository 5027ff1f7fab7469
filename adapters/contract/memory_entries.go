package contract

import (
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
)

func memoryUpsert(t *testing.T, class MemoryClass) {
	ctx, m := openMemory(t, class.New(t))
	absent(ctx, t, m, "a", "n")
	before := adapters.At(time.Now())
	first := ok[adapters.Stored](t, "store")(m.Store(ctx, "a", "one", "n", adapters.StoreOpt{Metadata: json.RawMessage(` {"x": [1, 2]} `)}))
	equal(t, "stored", first, adapters.Stored{Key: "a", Namespace: "n", Created: true, StoredAt: first.StoredAt, Embedder: "hash-v1", Dim: 256})
	equal(t, "stored before the call", first.StoredAt.Before(before.Time), false)
	entry := func() adapters.MemoryEntry {
		t.Helper()
		e, found, err := m.Retrieve(ctx, "a", "n")
		succeed(t, "retrieve", err)
		equal(t, "found", found, true)
		return e
	}
	equal(t, "retrieved", entry(), adapters.MemoryEntry{
		Key: "a", Namespace: "n", Value: "one", Metadata: json.RawMessage(`{"x":[1,2]}`),
		StoredAt: first.StoredAt, Embedder: "hash-v1", Dim: 256,
	})
	second := remember(ctx, t, m, "a", "two", "n")
	holds(t, second, facts{"not created": !second.Created, "time goes on": !second.StoredAt.Before(first.StoredAt.Time)})
	equal(t, "after an upsert", entry(), adapters.MemoryEntry{
		Key: "a", Namespace: "n", Value: "two", Metadata: json.RawMessage("{}"),
		StoredAt: second.StoredAt, Embedder: "hash-v1", Dim: 256,
	})
	gives(t, "delete", true)(m.Del(ctx, "a", "n"))
	gives(t, "delete again", false)(m.Del(ctx, "a", "n"))
	gives(t, "delete in a namespace that is not there", false)(m.Del(ctx, "a", "no"))
	equal(t, "found after a delete", hitKeys(search(ctx, t, m, "two", adapters.SearchOpt{})), []string{})
	equal(t, "a store after a delete creates", remember(ctx, t, m, "a", "three", "n").Created, true)
}

// memoryCrowd makes many calls at once. No call may fail and no entry may be lost.
func memoryCrowd(t *testing.T, class MemoryClass) {
	ctx, m := openMemory(t, class.New(t))
	const workers, each = 16, 8
	errs := make(chan error, workers*each*3)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := range each {
				_, err := m.Store(ctx, fmt.Sprintf("%d-%d", w, i), fmt.Sprintf("worker %d wrote %d", w, i), "n", adapters.StoreOpt{})
				errs <- err
				_, err = m.Search(ctx, "worker wrote", adapters.SearchOpt{Namespace: "n", Limit: 5})
				errs <- err
				_, err = m.Store(ctx, "shared", fmt.Sprint(w), "n", adapters.StoreOpt{})
				errs <- err
			}
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
	p, err := m.List(ctx, "n", adapters.PageOpt{Limit: 1000})
	if err != nil || len(p.Items) != workers*each+1 {
		t.Errorf("%d entries, %v", len(p.Items), err)
	}
	hits, err := m.Search(ctx, "worker 3 wrote 7", adapters.SearchOpt{Namespace: "n", Limit: 1})
	if err != nil || len(hits) != 1 || hits[0].Key != "3-7" {
		t.Errorf("hits %v, %v", hits, err)
	}
}

// memoryWhole searches while another goroutine switches an entry between two contents. The value,
// metadata and score of a hit must always belong to the same content.
func memoryWhole(t *testing.T, class MemoryClass) {
	ctx, m := openMemory(t, class.New(t))
	faces := []adapters.StoreOpt{
		{Embedding: []float32{1, 0}, Metadata: json.RawMessage(`{"f":0}`)},
		{Embedding: []float32{0, 1}, Metadata: json.RawMessage(`{"f":1}`)},
	}
	flip := func(i int) error {
		_, err := m.Store(ctx, "k", fmt.Sprint(i), "n", faces[i])
		return err
	}
	if err := flip(0); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		for i := range 200 {
			if err := flip(i % 2); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	for {
		hits, err := m.Search(ctx, "", adapters.SearchOpt{Namespace: "n", Embedding: []float32{1, 0}})
		if err != nil {
			t.Fatal(err)
		}
		if len(hits) != 1 {
			t.Fatalf("hits %v", hits)
		}
		h := hits[0]
		want := map[string]float64{"0": 1, "1": 0}[h.Value]
		if h.Score != want || string(h.Metadata) != `{"f":`+h.Value+`}` {
			t.Fatalf("a mixed entry: %+v", h)
		}
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
			return
		default:
		}
	}
}
