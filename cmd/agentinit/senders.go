package main

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dreamlab-ai/agentinit/cmd/agentinit/early"
)

// EventSignalRefused: a signal came from a process that may not send it.
const EventSignalRefused = "SignalRefused"

// signalGate decides whose signals agentinit obeys. The kernel lets every process of
// agentinit's uid, and root, signal PID 1; that would make control = true of a
// program mean nothing. Only one goroutine may use it.
type signalGate struct {
	init bool // we are PID 1 of a namespace
	uid  uint32
	// whose tells to which program a process belongs; ours without a name is a
	// descendant of an unknown program.
	whose      func(pid int) (program string, ours, gone bool)
	mayControl func(program string) bool
	// lostInfo tells whether the kernel may have lost who sent a signal.
	lostInfo func() bool
	told     map[refusalKey]*refusalCount
}

func newSignalGate(init bool, whose func(int) (string, bool, bool), mayControl func(string) bool) *signalGate {
	return &signalGate{
		init: init, uid: uint32(os.Geteuid()), whose: whose, mayControl: mayControl,
		lostInfo: signalQueueFull, told: map[refusalKey]*refusalCount{},
	}
}

// refusal says why a signal is not obeyed.
type refusal struct {
	sent    early.Sent
	program string
	reason  string
}

// refuse returns nil for a signal that is to be obeyed.
func (g *signalGate) refuse(s early.Sent) *refusal {
	no := func(program, format string, args ...any) *refusal {
		return &refusal{sent: s, program: program, reason: fmt.Sprintf(format, args...)}
	}
	switch {
	case s.Fault:
		// A real fault of agentinit would not come as a signal that a process sent.
		return no("", "it is a fault that was sent and did not happen")
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
		// Where agentinit is not PID 1, its uid can also kill it.
		return nil
	}
	return no("", "uid %d is not root", s.UID)
}

// signalQueueFull tells whether agentinit's uid has as many signals queued as
// RLIMIT_SIGPENDING allows: then sigqueue(3) delivers a signal without its sender,
// which looks as if it came from outside (signal(7), kernel/signal.c,
// collect_signal).
func signalQueueFull() bool {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return true
	}
	_, rest, _ := bytes.Cut(text, []byte("\nSigQ:"))
	value, _, _ := bytes.Cut(rest, []byte("\n"))
	used, limit, found := strings.Cut(strings.TrimSpace(string(value)), "/")
	n, err1 := strconv.ParseUint(used, 10, 64)
	most, err2 := strconv.ParseUint(limit, 10, 64)
	return !found || err1 != nil || err2 != nil || n+sigqueueSlack >= most
}

// sigqueueSlack is how near the limit counts as full: a program that fills the queue
// cannot keep it full to the last place.
const sigqueueSlack = 64

// refusalKey is what one row of reports is about.
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

// A refusal is told of at once, and the same one again only after a while, with how
// many there were by then. Of more kinds than these there is one row.
const (
	tellAgain  = time.Minute
	maxRefused = 64
)

// note counts a refusal and returns what to tell of it, nil for nothing now.
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
		"signal": signalName(r.sent.Signal), "reason": r.reason, "count": c.count,
	}
	if !r.sent.Forgeable && !r.sent.Outside {
		fields["pid"], fields["uid"] = r.sent.PID, r.sent.UID
		if command := commandOf(r.sent.PID); command != "" {
			fields["command"] = command
		}
	}
	return fields
}

func signalName(s syscall.Signal) string { return strings.TrimPrefix(unix.SignalName(s), "SIG") }

// commandShown is how much of a sender's command line is told, in bytes.
const commandShown = 200

// commandOf is the command line of a process, "" if it is gone.
func commandOf(pid int) string {
	f, err := os.Open("/proc/" + strconv.Itoa(pid) + "/cmdline")
	if err != nil {
		return ""
	}
	defer f.Close()
	buf := make([]byte, commandShown)
	n, _ := f.Read(buf) // of a process that ended: nothing
	return strings.ToValidUTF8(strings.TrimRight(strings.ReplaceAll(string(buf[:n]), "\x00", " "), " "), "�")
}
