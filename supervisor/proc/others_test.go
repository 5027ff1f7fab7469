package proc

import (
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
			if err := o.SignalSoon(p.ID, syscall.SIGTERM, ScopeTree, time.Now()); err != nil {
				t.Fatal(err)
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
	if err := o.SignalSoon(p.ID, syscall.SIGTERM, ScopeTree, time.Now()); err != nil {
		t.Fatal(err)
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
