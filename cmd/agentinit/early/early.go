// Package early catches signals before the rest of the program exists.
//
// Until a Go program asks for signals, its runtime ends it for most of them; as
// PID 1, where the kernel drops what a process raises against itself, with exit
// status 2. The packages that a box is made of take several times as long to
// initialise as the runtime takes to start, and who stops a container at that
// moment must get a clean stop all the same. So this one package acts when it is
// initialised: it imports next to nothing, which by the order of the language
// specification puts it before nearly all others.
//
// What is left is the time from the runtime's own start, which installs its handlers
// first, to this package: a few hundred microseconds on an idle machine. A TERM in that
// time still ends PID 1 with status 2; an earlier one is dropped by the kernel, as
// with every init. No Go code can run earlier.
//
// It must never import anything that would move it back, and never do anything
// else.
package early

import (
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
)

// held is how many signals wait while they are not read: those that arrive
// before there is a box, or a child to forward them to.
const held = 1024

// caught is the exception to "no global state": nothing else runs so early.
// complete is closed when all that is caught has been asked for.
var caught, complete = listen()

// Caught is the one channel of all signals that are caught. When it returns, none
// of them ends agentinit any more. The channel is not closed.
func Caught() <-chan os.Signal {
	<-complete
	return caught
}

// CaughtAll is Caught with every signal that can be caught. Left out, so that a
// storm of them cannot push a TERM out of the channel: SIGCHLD, which belongs to
// supervisor/proc, and SIGURG, which Go's scheduler sends itself, and 32 and 33, which
// the C libraries use between their threads. SIGPROF and 34 come as Relay.
func CaughtAll() <-chan os.Signal {
	Also(all()...)
	signals := Caught()
	installRelays()
	return signals
}

func all() []os.Signal {
	var signals []os.Signal
	for n := syscall.Signal(1); n <= 64; n++ {
		switch n {
		case syscall.SIGKILL, syscall.SIGSTOP, syscall.SIGCHLD, syscall.SIGURG, syscall.SIGPROF, 32, 33, 34:
		default:
			signals = append(signals, n)
		}
	}
	return signals
}

// Also asks for more signals on that channel; none is taken back. It is safe for
// concurrent use.
//
// Each costs tens of microseconds, since the runtime hands it to a thread of its
// own and waits: all of them would be a fifth of a box's start.
func Also(more ...os.Signal) {
	signal.Notify(caught, more...)
}

// listen asks for the signals that would end or stop agentinit without a handler for
// them: the runtime ignores the others (runtime/sigtab_linux_generic.go). It waits
// for those that people and container engines send; the others are asked for
// beside the initialisation of what follows, long before a program could send one.
// SIGPIPE is among them because a broken stdout would end it too. A fault that is
// real is a panic all the same; one that a process sends is a signal like any other
// (handler.go). None is ignored in the sense of signal(7), so programs start with
// default dispositions.
func listen() (caught chan os.Signal, complete chan struct{}) {
	complete = make(chan struct{})
	caught = make(chan os.Signal, held)
	signal.Notify(caught, syscall.SIGTERM, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGHUP)
	install()
	go func() {
		defer close(complete)
		signal.Notify(caught,
			syscall.SIGABRT, syscall.SIGPIPE, syscall.SIGTTIN, syscall.SIGTTOU, syscall.SIGTSTP,
			syscall.SIGILL, syscall.SIGTRAP, syscall.SIGBUS, syscall.SIGFPE, syscall.SIGSEGV, syscall.SIGSTKFLT, syscall.SIGSYS,
		)
		if expectAll() {
			signal.Notify(caught, all()...)
			installRelays()
		}
		atomic.StoreUint32(&pass, 1) // the reader of the channel is told of faults that were sent
	}()
	return caught, complete
}

// expectAll guesses from the first argument that CaughtAll will be called: init
// mode. All are then asked for beside the initialisation too.
func expectAll() bool {
	if len(os.Args) < 2 {
		return false
	}
	switch os.Args[1] {
	case "--", "-g", "-s", "init":
		return true
	}
	return false
}
