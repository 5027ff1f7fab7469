package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/dreamlab-ai/agentinit/cmd/agentinit/early"
	"github.com/dreamlab-ai/agentinit/internal/signame"
	"github.com/dreamlab-ai/agentinit/supervisor/proc"
)

// EventSignalRefused: a signal came from a process that may not send it.
const EventSignalRefused = "SignalRefused"

// signalGate decides which signals agentinit obeys. The kernel lets root and every process of
// agentinit's uid signal PID 1. Without the gate, a program would not need control = true. Only one
// goroutine may use it.
type signalGate struct {
	init bool // agentinit is PID 1 of a namespace
	uid  uint32
	// whose tells to which program a process belongs. ours without a name means a descendant whose
	// program is unknown.
	whose      func(pid int) (program string, ours, gone bool)
	mayControl func(program string) bool
	// lostInfo tells whether the kernel may have lost the sender of a signal.
	lostInfo func() bool
	told     map[refusalKey]*refusalCount
}

func newSignalGate(init bool, whose func(int) (string, bool, bool), mayControl func(string) bool) *signalGate {
	return &signalGate{
		init: init, uid: uint32(os.Geteuid()), whose: whose, mayControl: mayControl,
		lostInfo: signalQueueOf("/proc/self/status"), told: map[refusalKey]*refusalCount{},
	}
}

// refusal says why a signal is not obeyed.
type refusal struct {
	sent    early.Sent
	program string
	reason  string
}

// refuse returns nil for a signal that must be obeyed.
func (g *signalGate) refuse(s early.Sent) *refusal {
	no := func(program, format string, args ...any) *refusal {
		return &refusal{sent: s, program: program, reason: fmt.Sprintf(format, args...)}
	}
	switch {
	case s.Fault:
		// The kernel reports a real fault of agentinit in another way than a sent signal.
		return no("", "a process sent it as a fault, but agentinit made no fault")
	case s.Forgeable:
		return no("", "it was sent in a way (sigqueue, F_SETSIG) by which the sender can name any other")
	case s.Outside && g.init && g.lostInfo():
		return no("", "the queue of signals is full, so the kernel may not have told who sent it")
	case s.Outside:
		return nil
	}
	program, ours, gone := g.whose(s.PID)
	switch {
	case ours && program != "" && g.mayControl(program):
		return nil
	case ours && program != "":
		return no(program, "program %s does not have control = true", program)
	case ours:
		return no("", "the sender descends from this box, and from no program that has control = true")
	case gone && g.init:
		return no("", "the sender has ended, so it cannot be told whose it was; let it live a moment, or use agentctl")
	case s.UID == 0:
		return nil
	case !g.init && s.UID == g.uid:
		// If agentinit is not PID 1, processes of its uid can kill it anyway.
		return nil
	}
	return no("", "uid %d is not root", s.UID)
}

// signalQueueOf returns a function that tells whether agentinit's uid has as many signals queued as
// RLIMIT_SIGPENDING allows. Then sigqueue(3) delivers a signal without its sender, which looks like a
// signal from outside (signal(7), kernel/signal.c, collect_signal). The file is opened here and stays
// open: later a program may have taken every open file of the machine (ENFILE), or mounted something
// over /proc, and a TERM from outside must be obeyed then, too.
func signalQueueOf(status string) (full func() bool) {
	file, err := os.Open(status)
	if err != nil {
		return func() bool { return true }
	}
	buf := make([]byte, 8<<10) // the file has 1.5 KiB
	return func() bool {
		n, err := file.ReadAt(buf, 0)
		return err != nil && err != io.EOF || signalQueueFull(buf[:n])
	}
}

// signalQueueFull reads the text of /proc/PID/status.
func signalQueueFull(text []byte) bool {
	_, rest, _ := bytes.Cut(text, []byte("\nSigQ:"))
	value, _, _ := bytes.Cut(rest, []byte("\n"))
	used, limit, found := strings.Cut(strings.TrimSpace(string(value)), "/")
	n, err1 := strconv.ParseUint(used, 10, 64)
	most, err2 := strconv.ParseUint(limit, 10, 64)
	return !found || err1 != nil || err2 != nil || n+min(sigqueueSlack, most/2) >= most
}

// sigqueueSlack is how near to the limit the queue counts as full: a program that fills the queue
// cannot keep it completely full all the time. Of a small limit it is half: otherwise an empty queue
// would count as full, and a container with such a limit could not be stopped by a signal.
const sigqueueSlack = 64

// refusalKey identifies refusals that are reported together.
type refusalKey struct {
	signal  int
	uid     uint32
	program string
	reason  string
}

type refusalCount struct {
	next  time.Time
	count uint64
}

// A refusal is reported at once. The same refusal is reported again only after a while, with the
// number of refusals meanwhile. Kinds beyond this limit are reported together.
const (
	tellAgain  = time.Minute
	maxRefused = 64
)

// note counts a refusal and returns what to report now, or nil.
func (g *signalGate) note(r *refusal, now time.Time) map[string]any {
	key := refusalKey{int(r.sent.Signal), r.sent.UID, r.program, r.reason}
	c := g.told[key]
	if c == nil && len(g.told) >= maxRefused {
		key = refusalKey{}
		c = g.told[key]
	}
	if c == nil {
		c = &refusalCount{}
		g.told[key] = c
	}
	c.count++
	if now.Before(c.next) {
		return nil
	}
	c.next = now.Add(tellAgain)
	fields := map[string]any{
		"signal": signame.Of(r.sent.Signal), "reason": r.reason, "count": c.count,
	}
	if !r.sent.Forgeable && !r.sent.Outside {
		fields["pid"], fields["uid"] = r.sent.PID, r.sent.UID
		// Not the command line: see proc.Name. This goroutine must obey the next signal in time.
		if name := proc.Name(r.sent.PID); name != "" {
			fields["command"] = name
		}
	}
	return fields
}
