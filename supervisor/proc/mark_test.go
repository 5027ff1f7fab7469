package proc

import (
	"os"
	"strconv"
	"testing"

	"github.com/dreamlab-ai/agentinit/internal/testprog/built"
)

// An escapee without any other trace is found by its mark. Without a mark it is not found.
func TestMarkCatchesTheTraceless(t *testing.T) {
	bin := built.Path(t)
	for name, shape := range map[string]func(*Command) (marked bool){
		"guarded":              func(c *Command) bool { c.Guard = GuardFull; return true },
		"of a control program": func(c *Command) bool { c.Guard = GuardControl; return true },
		"another user": func(c *Command) bool {
			c.Credential = &Credential{UID: 12345, GID: 23456}
			return MayChangeUser()
		},
		"unguarded": func(*Command) bool { return false },
	} {
		t.Run(name, func(t *testing.T) {
			o := newOwner(t, Options{})
			c := prog(bin, "double-fork", "scrub")
			marked := shape(&c)
			if c.Credential != nil && !o.marks.group {
				t.Skip("needs root to change users and groups")
			}
			if c.Credential != nil { // as the only process of its user, it would be known by the user
				other := mustStart(t, o, Command{Path: "/bin/sleep", Args: []string{"sleep", "1000"}, Credential: c.Credential})
				defer func() { _ = o.Kill(other.ID) }()
			}
			p := startTester(t, o, c)
			escapee := p.number(t)
			p.line(t)
			id, ok := o.Owns(escapee)
			if !ok || (id == p.ID) != marked {
				t.Errorf("Owns says %d, %v; the program is %d", id, ok, p.ID)
			}
			if err := o.Kill(p.ID); err != nil {
				t.Fatal(err)
			}
			if e := next(t, o, p.ID, Emptied); e.Leaked != 0 || marked && alivePID(escapee) {
				t.Errorf("got %+v, the escapee is alive: %v", e, alivePID(escapee))
			}
			o.KillAll(patience)
		})
	}
}

// The mark is a resource limit. A guarded program cannot change it.
func TestMarkCannotBeChanged(t *testing.T) {
	o := newOwner(t, Options{})
	bin := built.Path(t)
	for guard, works := range map[Guard]bool{GuardNone: true, GuardFull: false} {
		c := prog(bin, "shed-mark")
		c.Guard = guard
		r, err := o.Run(t.Context(), c, 1000)
		if err != nil || (string(r.Output) == "shed\n") != works {
			t.Errorf("guard %d: %q %+v, %v", guard, r.Output, r.Exit, err)
		}
	}
}

// An unguarded program of another user lowers its limit to the mark of a guarded program. Its
// escapee still belongs to it. Without the group, agentinit would count the escapee to the
// other program, or to no program.
func TestMarkCannotBeBorrowed(t *testing.T) {
	bin := built.Path(t)
	o := newOwner(t, Options{})
	if !o.marks.group {
		t.Skip("needs root to change users and groups")
	}
	victim := mustStart(t, o, Command{Path: "/bin/sleep", Args: []string{"sleep", "1000"}, Guard: GuardFull})
	defer func() { _ = o.Kill(victim.ID) }()
	o.mu.Lock()
	limit := o.marks.limit(o.byID[victim.ID].mark)
	o.mu.Unlock()
	c := prog(bin, "borrow-mark", strconv.FormatUint(limit, 10), "double-fork", "scrub")
	c.Credential = &Credential{UID: 12345, GID: 23456}
	p := startTester(t, o, c)
	escapee := p.number(t)
	p.line(t)
	if id, ok := o.Owns(escapee); id != p.ID || !ok {
		t.Errorf("Owns says %d, %v; the program is %d, the other %d", id, ok, p.ID, victim.ID)
	}
	seen := readMarks(escapee)
	seen.groups = nil
	o.mu.Lock()
	if p := o.marked(seen); p == nil || p.id != victim.ID {
		t.Errorf("with the limit alone: %+v; the attack does not work", p)
	}
	o.marks.group = false
	if p := o.marked(seen); p != nil {
		t.Errorf("without groups the limit of another user proves %+v", p)
	}
	o.marks.group = true
	o.mu.Unlock()
	if err := o.Kill(p.ID); err != nil {
		t.Fatal(err)
	}
	if e := next(t, o, p.ID, Emptied); e.Leaked != 0 || alivePID(escapee) {
		t.Errorf("got %+v, the escapee is alive: %v", e, alivePID(escapee))
	}
}

// Root without capabilities can enter the cgroup of another program. A guarded program still has
// its mark there; for an unguarded one the cgroup counts.
func TestCgroupCannotBeBorrowed(t *testing.T) {
	bin := built.Path(t)
	for guard, borrows := range map[Guard]bool{GuardFull: false, GuardNone: true} {
		o := newOwner(t, Options{Cgroups: true})
		victim := mustStart(t, o, Command{Path: "/bin/sleep", Args: []string{"sleep", "1000"}})
		c := prog(bin, "double-fork", "scrub")
		c.Guard = guard
		p := startTester(t, o, c)
		escapee := p.number(t)
		p.line(t)
		o.mu.Lock()
		cg := o.byID[victim.ID].cgroup
		o.mu.Unlock()
		if cg == nil {
			t.Skip("needs root and a cgroup v2 that can be written")
		}
		if err := writeCgroup(cg.dir, "cgroup.procs", strconv.Itoa(escapee)); err != nil {
			t.Fatal(err)
		}
		st, err := readStat(escapee)
		if err != nil {
			t.Fatal(err)
		}
		if owner := o.ownerByKernel(&st); owner == nil || (owner.id == victim.ID) != borrows {
			t.Errorf("guard %d: it belongs to %+v", guard, owner)
		}
		o.KillAll(patience)
	}
}

func TestMarksAreTakenInTurn(t *testing.T) {
	m := marks{used: map[int]*process{}, top: 1000, slots: 3}
	p := []*process{{}, {}, {}, {}}
	for i := range 4 {
		m.take(p[i])
	}
	if p[0].mark != 0 || p[2].mark != 2 || p[3].mark != -1 || m.limit(2) != 998 {
		t.Errorf("%d %d %d", p[0].mark, p[2].mark, p[3].mark)
	}
	m.release(p[1])
	m.release(p[3])
	if m.take(p[3]); p[3].mark != 1 {
		t.Errorf("the free one is 1, it got %d", p[3].mark)
	}
	if own := readMarks(os.Getpid()); own.limit == ^uint64(0) || !own.trusted() {
		t.Errorf("our own: %+v", own)
	}
}
