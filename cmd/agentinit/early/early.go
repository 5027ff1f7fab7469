// Package early catches signals before the rest of the program exists.
//
// Until a Go program asks for signals, most of them end it. (As PID 1 it exits with status 2,
// because the kernel drops a signal that PID 1 sends itself.) The packages of a box take several
// times as long to initialise as the runtime takes to start. A container that is stopped during
// that time must still stop cleanly. So this package catches signals when it is initialised. It
// imports very little: by the language specification's order, Go then initialises it before nearly
// all other packages.
//
// Before that, its handler holds what comes (first.go, handler.go). What comes before
// the runtime has set its handlers is dropped by the kernel, as with every init: no Go
// program can be asked earlier.
//
// It also keeps the first thread of the process for main, which only waits. The kernel gives a signal for
// the process to its first thread, unless that thread blocks it (complete_signal in kernel/signal.c). If
// that thread waited in a system call that no signal interrupts, such as a read from a dead disk, no other
// thread would take the signal, and agentinit would not hear of TERM.
//
// It must not import anything that would make Go initialise it later, and must not do anything
// else.
package early

import (
	"os"
	"os/signal"
	"runtime"
	"sync/atomic"
	"syscall"
)

// held is how many signals can wait until they are read: they may arrive before there is a box, or
// a child to forward them to.
const held = 1024

// caught is an exception to "no global state": only package variables are initialised so early.
// complete is closed when all signals of caught were requested.
var caught, complete = listen()

// Caught returns the only channel of all caught signals. When it returns, none of them ends
// agentinit any more. The channel is never closed.
func Caught() <-chan os.Signal {
	<-complete
	return caught
}

// CaughtAll is Caught with every signal that can be caught, except four. SIGCHLD belongs to
// supervisor/proc. Go's scheduler sends itself SIGURG. The C libraries use 32 and 33 between their
// threads. Most signals come as Relay.
func CaughtAll() <-chan os.Signal {
	Also(forwarded...)
	return Caught()
}

// forwarded are the signals that CaughtAll asks the runtime for, besides those of Caught.
var forwarded = []os.Signal{syscall.SIGUSR1, syscall.SIGUSR2, Relay}

// Also adds signals to that channel; no signal is removed from it. It is safe for concurrent use.
//
// Each signal costs tens of microseconds, because the runtime hands it to a thread and waits. To
// add all of them would take a fifth of a box's start, and half of the start of init mode.
func Also(more ...os.Signal) {
	notify(caught, more...)
}

func notify(caught chan os.Signal, signals ...os.Signal) {
	signal.Notify(caught, signals...)
	release(caught, signals...)
}

// listen asks for the signals that would end or stop agentinit without a handler; the runtime
// ignores the others (runtime/sigtab_linux_generic.go). It does that during the initialisation of
// later packages: the signals that people and container engines send wait in the handler until then,
// and no program can send others yet. SIGPIPE is included because a broken stdout would end
// agentinit. A real fault still panics. A fault signal that a process sends is handled like any
// other signal (handler.go). No signal gets SIG_IGN (signal(7)), so programs start with default
// dispositions.
func listen() (caught chan os.Signal, complete chan struct{}) {
	complete = make(chan struct{})
	caught = make(chan os.Signal, held)
	runtime.LockOSThread() // packages are initialised on the first thread
	install()
	go func() {
		defer close(complete)
		notify(caught, syscall.SIGTERM, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGHUP)
		signal.Notify(caught,
			syscall.SIGABRT, syscall.SIGPIPE, syscall.SIGTTIN, syscall.SIGTTOU, syscall.SIGTSTP,
			syscall.SIGILL, syscall.SIGTRAP, syscall.SIGBUS, syscall.SIGFPE, syscall.SIGSEGV, syscall.SIGSTKFLT, syscall.SIGSYS,
		)
		if expectAll() {
			notify(caught, forwarded...)
		}
		installRelays()              // without a reader of Relay, the runtime drops them
		atomic.StoreUint32(&pass, 1) // sent faults now go on to the runtime, which puts them into the channel
	}()
	return caught, complete
}

// expectAll guesses from the first argument whether CaughtAll will be called, as in init mode. If
// so, all signals are requested during the initialisation too.
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
