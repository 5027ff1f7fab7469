package proc

import (
	"maps"
	"os"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// inSession is a process in a session of its own. It says "up", and "got" when it gets TERM.
const inSession = `setsid sh -c 'trap "echo got; exit" TERM; echo up; sleep 60 & wait' &`

// Members of other groups get the signal, whichever of their ancestors have ended.
func TestSignalSoonReachesOtherSessions(t *testing.T) {
	for what, tc := range map[string]struct {
		script string
		ended  bool // the leader ends before the signal
	}{
		"the leader ends last":        {script: `trap : TERM; ` + inSession + ` wait $!; wait $!`},
		"the leader ends at once":     {script: inSession + ` wait`},
		"two generations end at once": {script: `(` + inSession + ` wait) & wait`},
		"the parent ended before":     {script: `(` + inSession + `); sleep 60`},
		"the leader ended before":     {script: inSession, ended: true},
	} {
		t.Run(what, func(t *testing.T) {
			o := newOwner(t, Options{})
			p := startTester(t, o, sh(tc.script))
			if got := p.line(t); got != "up" {
				t.Fatal(got)
			}
			if tc.ended {
				next(t, o, p.ID, Exited)
			}
			r := SignalRequest{ID: p.ID, Signal: syscall.SIGTERM, Scope: ScopeTree, Asked: time.Now()}
			if sent := o.SignalSoon([]SignalRequest{r})[0]; sent == tc.ended {
				t.Errorf("sent: %v", sent)
			}
			if tc.ended {
				if err := o.SignalAsked(r); err != nil {
					t.Fatal(err)
				}
			}
			if got := p.line(t); got != "got" {
				t.Error(got)
			}
			if err := o.Kill(p.ID); err != nil && err != ErrNoProcess {
				t.Fatal(err)
			}
			next(t, o, p.ID, Emptied)
		})
	}
}

// A process that a program starts while it ends, such as one that tidies up, does not get the signal.
func TestSignalSoonSparesLaterProcesses(t *testing.T) {
	o := newOwner(t, Options{})
	p := startTester(t, o, sh(`trap 'sleep 0.1; setsid sleep 60 & echo $!' TERM; setsid sleep 61 & echo $!; wait; wait`))
	early := p.number(t)
	waitUntil(t, "the early one is no copy of the shell", func() bool { // which would only note the signal
		comm, err := os.ReadFile("/proc/" + strconv.Itoa(early) + "/comm")
		return err == nil && string(comm) == "sleep\n"
	})
	if !o.SignalSoon([]SignalRequest{{ID: p.ID, Signal: syscall.SIGTERM, Scope: ScopeTree, Asked: time.Now()}})[0] {
		t.Fatal("not sent")
	}
	late := p.number(t)
	waitUntil(t, "the early one ends", func() bool { return !alivePID(early) })
	for range 2 { // the sweeper begins the second search after the first one has ended
		o.mu.Lock()
		main := o.byID[p.ID]
		o.lookForOthers(main)
		o.mu.Unlock()
		waitUntil(t, "the members were searched for", func() bool {
			o.mu.Lock()
			defer o.mu.Unlock()
			return !main.owed.look
		})
	}
	if !alivePID(late) {
		t.Error("the late one has ended")
	}
	if err := o.Kill(p.ID); err != nil {
		t.Fatal(err)
	}
	next(t, o, p.ID, Emptied)
}

// What SignalSoon cannot do without a search, or does not know, is left to SignalAsked. The others of
// the same call are signalled.
func TestSignalSoonLeavesTheRest(t *testing.T) {
	o := newOwner(t, Options{})
	var ids []uint64
	for range 4 {
		p := startTester(t, o, sh(`trap "exit 7" TERM; echo up; sleep 60 & wait`))
		if got := p.line(t); got != "up" {
			t.Fatal(got)
		}
		ids = append(ids, p.ID)
	}
	sent := o.SignalSoon([]SignalRequest{
		{ID: ids[0], Signal: syscall.SIGTERM, Scope: ScopeTree},
		{ID: 0, Signal: syscall.SIGTERM, Scope: ScopeTree},
		{ID: ids[1], Signal: syscall.SIGTERM, Scope: ScopeProcess},
		{ID: ids[2], Signal: syscall.SIGKILL, Scope: ScopeTree},
		{ID: ids[3], Signal: syscall.SIGTERM, Scope: ScopeTree},
	})
	if want := []bool{true, false, false, false, true}; !slices.Equal(sent, want) {
		t.Errorf("%v, want %v", sent, want)
	}
	ended := map[uint64]int{}
	for len(ended) < 2 {
		select {
		case e := <-o.Exits():
			if e.Kind == Exited {
				ended[e.ID] = e.Status.ExitStatus()
			}
		case <-time.After(patience):
			t.Fatalf("only these have ended: %v", ended)
		}
	}
	if want := map[uint64]int{ids[0]: 7, ids[3]: 7}; !maps.Equal(ended, want) {
		t.Errorf("ended: %v, want %v", ended, want)
	}
	for _, id := range ids[1:3] {
		if got := o.members(id); len(got) == 0 {
			t.Error("one that needs SignalAsked has ended")
		}
		if err := o.Kill(id); err != nil {
			t.Fatal(err)
		}
		next(t, o, id, Emptied)
	}
}
