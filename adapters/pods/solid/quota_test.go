package solid

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func quotasOf(t *testing.T, most int) (*quotas, resource) {
	t.Helper()
	dir := t.TempDir()
	pod := filepath.Join(dir, "pods", "a", "sub")
	if err := os.MkdirAll(pod, 0o700); err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		if err := os.WriteFile(filepath.Join(pod, fmt.Sprint(i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s, err := New(Config{Root: dir, BaseURL: "http://pods.test", Quota: 1_000_000, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	s.quotas.most = most
	return s.quotas, resource{names: []string{"pods", "a", "x"}}
}

// A pod that cannot be counted is not counted again for each write, and takes nothing.
func TestCountThatFails(t *testing.T) {
	q, doc := quotasOf(t, 10)
	counts := 0
	q.warn = func(string, error) { counts++ }
	for range 10 {
		if _, err := q.left(doc, nil); err == nil {
			t.Fatal("a pod with too many entries takes a document")
		}
	}
	if counts != 1 {
		t.Errorf("the pod was counted %d times", counts)
	}
	if left, err := q.left(resource{names: []string{"pods", "b", "x"}}, nil); err != nil || left != q.limit {
		t.Errorf("another pod: %d, %v", left, err)
	}
}

// While a pod is counted, only its own writers wait, and those only for the first sum.
func TestWritersDuringACount(t *testing.T) {
	q, doc := quotasOf(t, maxCounted)
	other := resource{names: []string{"pods", "b", "x"}}
	u := q.of(podOf(doc))
	u.counting.Lock()
	waiting := make(chan int64)
	go func() {
		left, _ := q.left(doc, nil)
		waiting <- left
	}()
	if left, err := q.left(other, nil); err != nil || left != q.limit || !q.take(other, 1) {
		t.Errorf("another pod: %d, %v", left, err)
	}
	u.counting.Unlock()
	want := q.limit - 21*entryCost
	if left := <-waiting; left != want {
		t.Errorf("the first sum leaves %d, want %d", left, want)
	}
	q.mu.Lock()
	u.until = time.Now().Add(-time.Second)
	q.mu.Unlock()
	u.counting.Lock()
	defer u.counting.Unlock()
	if left, err := q.left(doc, nil); err != nil || left != want || !q.take(doc, 1) {
		t.Errorf("the old sum: %d, %v", left, err)
	}
}
