package main

import (
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"github.com/dreamlab-ai/agentinit/supervisor/event"
)

// signalsHeld is how many signals wait while they are not read: those that arrive
// before there is a box, or a child to forward them to.
const signalsHeld = 1024

// listen hands every signal that can be caught to one channel, so that none that
// the box did not choose can end it. Left out, so that a storm of them cannot
// push a TERM out of the channel: SIGCHLD, which belongs to proc, and SIGURG,
// which Go's scheduler sends itself. Also left out are the runtime's own: SIGPROF,
// and 32 to 34 of the C libraries, which programs know as SIGRTMIN: it does
// nothing to a PID 1. Faults are among the caught: a real one is a panic all the
// same, but one that somebody sends with kill(2) would end the box. None is
// ignored in the sense of signal(7), so programs start with default dispositions.
func listen() (caught <-chan os.Signal) {
	ch := make(chan os.Signal, signalsHeld)
	var all []os.Signal
	for n := syscall.Signal(1); n <= 64; n++ {
		switch n {
		case syscall.SIGKILL, syscall.SIGSTOP, syscall.SIGCHLD, syscall.SIGURG, syscall.SIGPROF, 32, 33, 34:
		default:
			all = append(all, n)
		}
	}
	signal.Notify(ch, all...)
	return ch
}

// obey carries out what signals ask for, until done is closed.
func (b *box) obey(caught <-chan os.Signal, done <-chan struct{}) {
	for {
		select {
		case <-done:
			return
		case s := <-caught:
			b.signalled(s)
		}
	}
}

func (b *box) signalled(s os.Signal) {
	switch s {
	case syscall.SIGTERM, syscall.SIGINT:
		b.sup.Shutdown("signal " + s.String())
	case syscall.SIGQUIT:
		b.dumpGoroutines()
		b.sup.Shutdown("signal " + s.String())
	case syscall.SIGHUP:
		// Beside the loop of signals: an apply may take as long as a program's
		// start, and a TERM must not wait for it.
		go b.reapply()
	case syscall.SIGUSR1:
		b.dumpStatus()
	case syscall.SIGUSR2:
		b.plane.Reopen()
		b.publish(event.Info, "LogsReopened", nil)
	}
}

// dumpGoroutines writes every goroutine's stack to stderr, at most 1 MiB.
func (b *box) dumpGoroutines() {
	buf := make([]byte, 1<<20)
	buf = buf[:runtime.Stack(buf, true)]
	if _, err := b.stderr.Write(buf); err != nil {
		b.publish(event.Warn, "GoroutineDumpFailed", map[string]any{"reason": err.Error()})
	}
}

func (b *box) dumpStatus() {
	for _, p := range b.sup.Snapshot().Programs {
		b.publish(event.Info, "Status", map[string]any{
			"name": p.Name, "state": p.State.String(), "ready": p.Ready, "pid": p.PID, "run": p.Run,
			"restarts": p.Restarts, "reason": p.Reason,
		})
	}
}
