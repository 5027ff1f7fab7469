package bootstrap

import (
	"os"
	"path/filepath"
	"testing"
)

func TestBoxIDStays(t *testing.T) {
	r := testRoots(t)
	p := NewPolicy(r)
	first, err := BoxID(p, r)
	if err != nil || len(first) != 32 {
		t.Fatalf("%q %v", first, err)
	}
	if again, err := BoxID(NewPolicy(r), r); err != nil || again != first {
		t.Errorf("the next start: %q %v, want %q", again, err, first)
	}
	path := filepath.Join(r.Workspace, "box-id")
	for text, want := range map[string]string{"box.7\n": "box.7", "": "", "a b": "", "urn:x": ""} {
		if err := os.WriteFile(path, []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
		if got, err := BoxID(p, r); got != want || (err != nil) != (want == "") {
			t.Errorf("%q: %q %v", text, got, err)
		}
	}
	if raw, err := os.ReadFile(path); err != nil || madeBoxID(raw) {
		t.Errorf("a file that holds no id was replaced: %q %v", raw, err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if other, err := BoxID(p, r); err != nil || other == first {
		t.Errorf("another box: %q %v", other, err)
	}
}

// madeBoxID reports whether raw has the form that agentinit generates.
func madeBoxID(raw []byte) bool { return len(raw) == 33 }
