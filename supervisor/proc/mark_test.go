package proc

import (
	"os"
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
	if limit, groups := readMarks(os.Getpid()); limit == ^uint64(0) {
		t.Errorf("our own: %d, %v", limit, groups)
	}
}
