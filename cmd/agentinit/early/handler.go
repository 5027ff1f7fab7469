package early

import (
	"os"
	"sync/atomic"
	"syscall"
	"unsafe"
)

// Package os/signal tells which signal came but not which process sent it. And the runtime takes a
// fault that was sent with sigqueue(3) for a real fault. So this package installs its own handler
// before the runtime's: handler_amd64.s, handler_arm64.s.
//
// The handler runs on the signal stack, on any thread, at any moment. It uses no stack and no Go
// code: it writes a record into the ring below and jumps to the runtime's handler.

// The values of si_code for which the kernel itself sets si_pid and si_uid (sigaction(2)). With
// other values the sender can choose them: rt_sigqueueinfo(2) accepts any, and F_SETSIG (fcntl(2))
// stores other data there.
const (
	siUser  = 0  // kill(2)
	siTkill = -6 // tgkill(2)
)

// ringSize is how many records can wait for Take; then the oldest are overwritten.
const ringSize = 1024 // also in handler_*.s

// record is one signal, as the handler writes it.
type record struct {
	seq       uint64 // number of the record + 1; 0 while it is being written
	sig, code int32
	pid       int32
	uid       uint32
}

// The handler reads and writes these variables. They must be global.
var (
	ring    [ringSize]record
	head    uint64      // number of the next record
	outside [65]uint64  // signals from outside the pid namespace, which other signals cannot overwrite
	next    [65]uintptr // the runtime's handlers
	pass    uint32      // 1: faults that were sent go on to the runtime, as messages
	state   [65]uint64  // of those in holds: bit 0 says released, the others count what came

	// For signals that the runtime keeps to itself: the signal as which it is told of them, and how
	// many came.
	relayAs [65]uint32
	relayed [65]uint64

	handlerAddress uintptr // address of the handler; set in handler_*.s
)

// faults are those signals that are crashes for the runtime. If a process sent one, the handler
// turns it into an ordinary signal. As long as the runtime cannot take it as such, the handler
// drops it.
const faults = 1<<syscall.SIGILL | 1<<syscall.SIGTRAP | 1<<syscall.SIGBUS | 1<<syscall.SIGFPE |
	1<<syscall.SIGSEGV | 1<<syscall.SIGSTKFLT | 1<<syscall.SIGSYS

// asked are the signals whose sender matters. They wait in state until release, because the
// runtime would end the process for them, or drop them, until it is asked for them.
const asked = 1<<syscall.SIGTERM | 1<<syscall.SIGINT | 1<<syscall.SIGHUP | 1<<syscall.SIGQUIT | 1<<syscall.SIGUSR1 | 1<<syscall.SIGUSR2

// The compiler lays both out: the handler reads them before any package is initialised.
var (
	holds uint64 = asked          // those that wait
	ours  uint64 = asked | faults // all that get the handler
)

// sigaction is struct sigaction of the kernel, on amd64 and arm64.
type sigaction struct {
	handler, flags, restorer uintptr
	mask                     uint64
}

// install puts the handler before the runtime's, unless it is there already (first.go).
// Where the runtime has none (an inherited SIG_IGN) there is nothing to chain to, and
// nothing is done. The kernel refuses none of these calls (rt_sigaction(2)).
func install() {
	for sig := range syscall.Signal(64) {
		if ours>>sig&1 == 0 {
			continue
		}
		var act sigaction
		if rtSigaction(sig, nil, &act) != 0 || act.handler <= 1 || act.handler == handlerAddress {
			continue
		}
		next[sig] = act.handler
		act.handler = handlerAddress
		rtSigaction(sig, &act, nil)
	}
}

// release sends what waited of signals to the channel, each once, and lets what comes from
// now on go to the runtime, which must have been asked for it.
func release(caught chan<- os.Signal, signals ...os.Signal) {
	for _, sig := range signals {
		n, ok := sig.(syscall.Signal)
		if !ok || holds>>n&1 == 0 {
			continue
		}
		if was := atomic.OrUint64(&state[n], 1); was > 1 && was&1 == 0 {
			select {
			case caught <- sig:
			default: // a full channel has enough to tell
			}
		}
	}
}

// Relay is the signal that the channel of CaughtAll has instead of many others; Relayed then says
// which came.
const Relay = syscall.Signal(64)

// direct are the signals that Caught and CaughtAll ask the runtime for. The bits of unforwarded are
// those that are never forwarded; see CaughtAll.
const (
	direct      = asked | faults | 1<<syscall.SIGABRT | 1<<syscall.SIGPIPE | 1<<syscall.SIGTTIN | 1<<syscall.SIGTTOU | 1<<syscall.SIGTSTP
	unforwarded = 1<<syscall.SIGKILL | 1<<syscall.SIGSTOP | 1<<syscall.SIGCHLD | 1<<syscall.SIGURG | 1<<firstOfLibraries | 1<<lastOfLibraries
)

// relays are the signals that come as Relay, and Relay itself. One system call each is enough for
// them; see Also. Package os/signal could not deliver two of them: the runtime uses SIGPROF for its
// profiler, and leaves 34, which is SIGRTMIN in the GNU C library, to that library
// (runtime/sigtab_linux_generic.go).
func relays(yield func(syscall.Signal) bool) {
	for sig := syscall.Signal(1); sig <= Relay; sig++ {
		if uint64(direct|unforwarded)>>sig&1 == 0 && !yield(sig) {
			return
		}
	}
}

// The C libraries use these signals between their threads. The Go runtime uses 33 for the same
// purpose, and leaves 32 at its default action, which is to end the process (signal(7)). The kernel
// spares PID 1 of a namespace only if its first thread does not block the signal at that moment
// (Linux, kernel/signal.c: sig_ignored, complete_signal). Threads block all signals while they handle one.
const firstOfLibraries, lastOfLibraries = syscall.Signal(32), syscall.Signal(33)

// installRelays makes the runtime hear of the relays. It copies flags, mask and restorer from the
// runtime's handler of SIGTERM, and does nothing if SIGTERM is ignored. It also gives the handler to
// the signals of the libraries that have none; Relayed does not return them.
func installRelays() {
	var act sigaction
	if next[syscall.SIGTERM] == 0 || rtSigaction(syscall.SIGTERM, nil, &act) != 0 {
		return
	}
	next[Relay] = next[syscall.SIGTERM] // the runtime has one handler for all
	for sig := range relays {
		atomic.StoreUint32(&relayAs[sig], uint32(Relay))
		rtSigaction(sig, &act, nil)
	}
	for sig := firstOfLibraries; sig <= lastOfLibraries; sig++ {
		var was sigaction
		if rtSigaction(sig, nil, &was) == 0 && was.handler == 0 {
			atomic.StoreUint32(&relayAs[sig], uint32(Relay))
			rtSigaction(sig, &act, nil)
		}
	}
}

var relaysTaken [65]uint64

// Relayed returns which of the relayed signals came since the last call. Only one
// goroutine may call it.
func Relayed() []syscall.Signal {
	var came []syscall.Signal
	for sig := range relays {
		if n := atomic.LoadUint64(&relayed[sig]); n != relaysTaken[sig] {
			relaysTaken[sig] = n
			came = append(came, sig)
		}
	}
	return came
}

// sigsetSize is the size of the kernel's sigset_t, in bytes.
const sigsetSize = 8

func rtSigaction(sig syscall.Signal, set, old *sigaction) syscall.Errno {
	_, _, errno := syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(sig),
		uintptr(unsafe.Pointer(set)), uintptr(unsafe.Pointer(old)), sigsetSize, 0, 0)
	return errno
}

// Sent is one received signal.
type Sent struct {
	Signal syscall.Signal
	// Outside says that the kernel sent it, or a process that is not visible in this pid namespace.
	Outside bool
	// PID and UID are those of the sender. If Forgeable, both are 0, because the sender used a call
	// by which it could write any numbers.
	PID       int
	UID       uint32
	Forgeable bool
	// Fault says that a process sent a signal that normally reports an error of agentinit itself.
	Fault bool
}

// outsideMost is how many of one signal from outside are reported at once: a third one has no
// further effect.
const outsideMost = 16

// reader is the position of Take in the ring.
type reader struct {
	next    uint64
	outside [65]uint64
}

var taken reader

// Take returns the signals with a sender that came since the last call: first those from outside,
// then the others in order. lost is how many of the others were overwritten. The record of a signal
// is written before the channel of Caught gets the signal. Only one goroutine may call Take.
func Take() (sent []Sent, lost uint64) {
	r := &taken
	for sig := range outside {
		n := atomic.LoadUint64(&outside[sig])
		if n > outsideMost {
			r.outside[sig] = max(r.outside[sig], n-outsideMost)
		}
		for ; r.outside[sig] < n; r.outside[sig]++ {
			sent = append(sent, Sent{Signal: syscall.Signal(sig), Outside: true, Fault: faults>>sig&1 != 0})
		}
	}
	for {
		newest := atomic.LoadUint64(&head)
		if r.next == newest {
			return sent, lost
		}
		if newest-r.next > ringSize {
			lost += newest - ringSize - r.next
			r.next = newest - ringSize
		}
		slot := &ring[r.next%ringSize]
		seq := atomic.LoadUint64(&slot.seq)
		one := *slot
		switch again := atomic.LoadUint64(&slot.seq); {
		case seq > r.next+1 || seq != again:
			continue // it was overwritten meanwhile: compute again how many are lost
		case seq != r.next+1:
			return sent, lost // it is being written; its signal will come
		}
		r.next++
		sent = append(sent, one.sent())
	}
}

func (r record) sent() Sent {
	s := Sent{Signal: syscall.Signal(r.sig), Fault: faults>>uint32(r.sig)&1 != 0}
	switch r.code {
	case siUser, siTkill:
		s.PID, s.UID, s.Outside = int(r.pid), r.uid, r.pid == 0
	default:
		s.Forgeable = true
	}
	return s
}
