package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// tree makes a directory with every kind of node that NAR has.
func tree(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"a.txt": 0o644, "run": 0o755, "sub/b": 0o600} {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte("content of "+name), mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("a.txt", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	return dir
}

// The expected value was computed by `nix hash path` over the same tree.
func TestHashIsNix(t *testing.T) {
	got, err := hashTree(tree(t))
	if err != nil {
		t.Fatal(err)
	}
	if want := "sha256-sI4x5h6Fn2Jb8wnDd0SrfUnO06QYcc7BqHbLMl10AEA="; got != want {
		t.Fatalf("got %s, want %s", got, want)
	}
}

func TestCheckNoticesAChange(t *testing.T) {
	dir, file := tree(t), filepath.Join(t.TempDir(), "hashes.json")
	if err := run(dir, file, false); err != nil {
		t.Fatal(err)
	}
	if err := run(dir, file, true); err != nil {
		t.Fatalf("just written, and out of date: %v", err)
	}
	if err := os.Chmod(filepath.Join(dir, "a.txt"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := run(dir, file, true); err == nil || !strings.Contains(err.Error(), "make vendor-hash") {
		t.Fatalf("a changed tree passed: %v", err)
	}
}
