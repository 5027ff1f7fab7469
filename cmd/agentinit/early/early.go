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
// It must never import anything that would move it back, and never do anything
// else.
package early

import (
	"os"
	"os/signal"
	"syscall"
)

// Shim is what the exec shim is called by (supervisor/proc). It is a program
// between its fork and its exec: a TERM has to end it as it ends the program.
const Shim = "agentinit: exec"

// held is how many signals wait while they are not read: those that arrive
// before there is a box, or a child to forward them to.
const held = 1024

// caught is the exception to "no global state": nothing else runs so early.
var caught = listen()

// Caught is the one channel of all signals that can be caught. It is not closed;
// in the shim it is nil.
func Caught() <-chan os.Signal { return caught }

// listen asks for every signal that can be caught, so that none that the box did
// not choose can end it. Left out, so that a storm of them cannot push a TERM out
// of the channel: SIGCHLD, which belongs to proc, and SIGURG, which Go's
// scheduler sends itself. Also left out are the runtime's own: SIGPROF, and 32 to
// 34 of the C libraries, which programs know as SIGRTMIN: it does nothing to a
// PID 1. Faults are among the caught: a real one is a panic all the same, but one
// that somebody sends with kill(2) would end the box. None is ignored in the sense
// of signal(7), so programs start with default dispositions.
func listen() <-chan os.Signal {
	if os.Args[0] == Shim {
		return nil
	}
	ch := make(chan os.Signal, held)
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
