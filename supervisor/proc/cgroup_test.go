package proc

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/dreamlab-ai/agentinit/internal/testprog/built"
)

// startEscapee starts a program with a cgroup of its own, and a process of it that leaves no other trace.
func startEscapee(t *testing.T) (o *Owner, p tester, escapee int) {
	t.Helper()
	bin := built.Path(t)
	o, err := New(Options{Cgroups: true})
	if err != nil {
		t.Fatal(err)
	}
	if o.cgroups() == nil {
		if err := o.Close(); err != nil {
			t.Error(err)
		}
		t.Skip("no writable cgroup v2 hierarchy here")
	}
	p = startTester(t, o, prog(bin, "double-fork", "scrub"))
	escapee = p.number(t)
	p.line(t)
	return o, p, escapee
}

// killWith kills the program, and the escapee with it.
func killWith(t *testing.T, o *Owner, p tester, escapee int) {
	t.Helper()
	if id, ok := o.Owns(escapee); id != p.ID || !ok {
		t.Errorf("escapee %d: Owns says %d, %v", escapee, id, ok)
	}
	if err := o.Kill(p.ID); err != nil {
		t.Fatal(err)
	}
	if e := next(t, o, p.ID, Emptied); e.Leaked != 0 || alivePID(escapee) {
		t.Errorf("leaked %d, escapee alive: %v", e.Leaked, alivePID(escapee))
	}
}

// closeEmpty closes the owner, which leaves no cgroup.
func closeEmpty(t *testing.T, o *Owner) {
	t.Helper()
	if err := o.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(o.cgroups().dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is left: %v", o.cgroups().dir, err)
	}
}

// With its own cgroup, a process that leaves no other trace is still known to belong to its
// program, and is killed.
func TestCgroupCatchesTheTraceless(t *testing.T) {
	o, p, escapee := startEscapee(t)
	killWith(t, o, p, escapee)
	closeEmpty(t, o)
}

// A program, such as a container engine, makes cgroups below its own. Processes in them end with the program,
// and none of these cgroups stays behind.
func TestCgroupsOfAProgramEndWithIt(t *testing.T) {
	o, p, escapee := startEscapee(t)
	own := filepath.Join(o.cgroups().dir, strconv.FormatUint(p.ID, 10))
	for _, name := range []string{"a/b/c", "d", "e/f", "e/g"} {
		if err := os.MkdirAll(filepath.Join(own, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := writeCgroup(filepath.Join(own, "a/b/c"), "cgroup.procs", strconv.Itoa(escapee)); err != nil {
		t.Fatal(err)
	}
	killWith(t, o, p, escapee)
	waitUntil(t, "the cgroups of the program are removed", func() bool {
		_, err := os.Stat(own)
		return errors.Is(err, os.ErrNotExist)
	})
	closeEmpty(t, o)
}

// A program can make any number of cgroups, of any depth.
func TestRemovedCgroupsAreBounded(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cgroup")
	for i := range 30 {
		if err := os.MkdirAll(filepath.Join(dir, strconv.Itoa(i), "x", "y"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if n := removeCgroups(dir, 50); n != 50 {
		t.Errorf("%d were looked at", n)
	}
	if n := removeCgroups(dir, 90); n >= 90 {
		t.Errorf("%d were looked at, which are more than were left", n)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is left: %v", dir, err)
	}
}

// Without cgroups, all methods are called on nil values.
func TestCgroupWithout(t *testing.T) {
	var b *cgroupBase
	c := b.create(1)
	if _, ok := c.fd(); ok || c != nil || b.idOf(os.Getpid()) != 0 {
		t.Error("there is a cgroup where there is none")
	}
	c.kill()
	c.started()
	c.remove()
	b.close()
}
