package proc

import (
	"errors"
	"os"
	"testing"

	"github.com/dreamlab-ai/agentinit/internal/testprog/built"
)

// With its own cgroup, a process that leaves no other trace is still known to belong to its
// program, and is killed.
func TestCgroupCatchesTheTraceless(t *testing.T) {
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
	p := startTester(t, o, prog(bin, "double-fork", "scrub"))
	escapee := p.number(t)
	p.line(t)
	if id, ok := o.Owns(escapee); id != p.ID || !ok {
		t.Errorf("escapee %d: Owns says %d, %v", escapee, id, ok)
	}
	if err := o.Kill(p.ID); err != nil {
		t.Fatal(err)
	}
	if e := next(t, o, p.ID, Emptied); e.Leaked != 0 || alivePID(escapee) {
		t.Errorf("leaked %d, escapee alive: %v", e.Leaked, alivePID(escapee))
	}
	if err := o.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(o.cgroups().dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is left: %v", o.cgroups().dir, err)
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
