package main

import (
	"os"
	"runtime"
	"slices"
	"syscall"
	"time"

	"github.com/dreamlab-ai/agentinit/cmd/agentinit/early"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
)

// obey carries out the requests of signals until done is closed.
func (b *box) obey(caught <-chan os.Signal, done <-chan struct{}) {
	early.Also(syscall.SIGUSR1, syscall.SIGUSR2)
	var quiet event.Throttle
	var lost uint64
	for {
		select {
		case <-done:
			return
		case <-caught:
			// The handler has recorded which signal it was, and its sender.
			inTurn(done, early.Take, b.received, func(n uint64) {
				lost += n
				if _, ok := quiet.Pass(time.Now()); ok {
					b.publish(event.Warn, EventSignalRefused, map[string]any{"overwritten": lost, "reason": "more signals than could be noted"})
					lost = 0
				}
			})
		}
	}
}

// inTurn handles the signals that have come, until there are none or done is closed. It looks for
// new ones after each: to find out whose process sent a signal can take a second and more, and a
// signal from outside, such as the TERM of a container runtime, must not wait for a queue of these.
// miss gets the number of those that are not handled.
func inTurn(done <-chan struct{}, take func() ([]early.Sent, uint64), handle func(early.Sent), miss func(uint64)) {
	var queue []early.Sent
	for {
		more, lost := take()
		outside := 0 // Take returns those from outside first
		for outside < len(more) && more[outside].Outside {
			outside++
		}
		if len(more) > 0 {
			queue = slices.Concat(more[:outside], queue, more[outside:])
		}
		if surplus := len(queue) - maxQueued; surplus > 0 {
			queue, lost = queue[:maxQueued], lost+uint64(surplus)
		}
		if lost > 0 {
			miss(lost)
		}
		if len(queue) == 0 {
			return
		}
		select {
		case <-done:
			return
		default:
		}
		handle(queue[0])
		queue = queue[1:]
	}
}

// maxQueued bounds the signals that wait: a program can send them faster than they are handled.
const maxQueued = 4096

// received obeys a signal whose sender may control the box, and reports the others.
func (b *box) received(s early.Sent) {
	why := b.gate.refuse(s)
	if why == nil {
		// The record is made while the programs are already stopping: it takes as long as to signal
		// a hundred of them.
		b.signalled(s.Signal)
		auditSignal(b.audit, s, "", "")
	} else if fields := b.gate.note(why, time.Now()); fields != nil {
		auditSignal(b.audit, s, why.program, "refused")
		b.bus.Publish(event.Event{Level: event.Warn, Stage: "supervisor", Name: EventSignalRefused, Program: why.program, Fields: fields})
	}
}

// mayControl tells whether a program's processes may change the box.
func (b *box) mayControl(program string) bool {
	status, ok := b.sup.Status(program)
	return ok && status.Spec.Control
}

func (b *box) signalled(s os.Signal) {
	switch s {
	case syscall.SIGTERM, syscall.SIGINT:
		b.sup.Shutdown("signal " + s.String())
	case syscall.SIGQUIT:
		b.sup.Shutdown("signal " + s.String())
		b.dumpGoroutines()
	case syscall.SIGHUP:
		// In a goroutine: an apply may take as long as a program's start, and a TERM must not wait
		// for it.
		go b.reapply()
	case syscall.SIGUSR1:
		b.dumpStatus()
	case syscall.SIGUSR2:
		b.plane.Reopen()
		b.publish(event.Info, "LogsReopened", nil)
	}
}

// dumpGoroutines writes every goroutine's stack to stderr, at most 1 MiB. It does not wait for the
// write: a dump is for a box that is stuck, and the reader of stderr may be stuck too. Only one
// dump is written at a time.
func (b *box) dumpGoroutines() {
	if b.dumping.Swap(true) {
		return
	}
	buf := make([]byte, 1<<20)
	buf = buf[:runtime.Stack(buf, true)]
	b.stderr.say(buf, func(err error) {
		b.dumping.Store(false)
		if err != nil {
			b.publish(event.Warn, "GoroutineDumpFailed", map[string]any{"reason": err.Error()})
		}
	})
}

func (b *box) dumpStatus() {
	for _, p := range b.sup.Snapshot().Programs {
		b.publish(event.Info, "Status", map[string]any{
			"name": p.Name, "state": p.State.String(), "ready": p.Ready, "pid": p.PID, "run": p.Run,
			"restarts": p.Restarts, "reason": p.Reason,
		})
	}
}
