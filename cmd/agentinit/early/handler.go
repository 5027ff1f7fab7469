package early

import (
	"sync/atomic"
	"syscall"
	"unsafe"
)

// Package os/signal tells which signal came and not who sent it, and the runtime
// takes a fault that was sent with sigqueue(3) for a real one. So this package puts
// a handler of its own before the runtime's: handler_amd64.s, handler_arm64.s.
//
// The handler runs on the signal stack, on any thread, at any instant. It uses no
// stack and no Go: it writes a record into the ring below and jumps on.

// The values of si_code for which si_pid and si_uid are the kernel's word
// (sigaction(2)). Of all others the sender can choose them: rt_sigqueueinfo(2) takes
// them as they are, and F_SETSIG (fcntl(2)) puts other things in their place.
const (
	siUser   = 0    // kill(2)
	siTkill  = -6   // tgkill(2)
	siKernel = 0x80 // the kernel itself: a terminal's interrupt key
)

// ringSize is how many records wait for Take; the oldest are overwritten.
const ringSize = 1024 // also in handler_*.s

// record is one signal, as the handler writes it.
type record struct {
	seq       uint64 // number of the record + 1; 0 while it is written
	sig, code int32
	pid       int32
	uid       uint32
}

// What the handler reads and writes. It cannot be anything but global.
var (
	ring    [ringSize]record
	head    uint64      // number of the next record
	outside [65]uint64  // signals from outside the pid namespace, which no flood overwrites
	next    [65]uintptr // the runtime's handlers
	pass    uint32      // 1: faults that were sent go on to the runtime, as messages

	// Signals that the runtime keeps to itself: the one as which it is told of
	// them, and how many came.
	relayAs [65]uint32
	relayed [65]uint64

	handlerAddress uintptr // of the handler; set in handler_*.s
)

// handled are the signals that get the handler: those whose sender matters, and the
// faults, which by the runtime's table are a crash unless kill(2) sent them.
var handled = [...]syscall.Signal{
	syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2,
	syscall.SIGILL, syscall.SIGTRAP, syscall.SIGBUS, syscall.SIGFPE, syscall.SIGSEGV, syscall.SIGSTKFLT, syscall.SIGSYS,
}

// faults are those of them that the handler makes messages of if a process sent them,
// or drops as long as the runtime would not take them as such.
const faults = 1<<syscall.SIGILL | 1<<syscall.SIGTRAP | 1<<syscall.SIGBUS | 1<<syscall.SIGFPE |
	1<<syscall.SIGSEGV | 1<<syscall.SIGSTKFLT | 1<<syscall.SIGSYS

// sigaction is struct sigaction of the kernel, on amd64 and arm64.
type sigaction struct {
	handler, flags, restorer uintptr
	mask                     uint64
}

// install puts the handler before the runtime's. Where the runtime has none (an
// inherited SIG_IGN) there is nothing to chain to, and nothing is done. The kernel
// refuses none of these calls (rt_sigaction(2)).
func install() {
	for _, sig := range handled {
		var act sigaction
		if rtSigaction(sig, nil, &act) != 0 || act.handler <= 1 {
			continue
		}
		next[sig] = act.handler
		act.handler = handlerAddress
		rtSigaction(sig, &act, nil)
	}
}

// Relay is the signal that the channel of CaughtAll has instead of SIGPROF and 34;
// Relayed then says which came.
const Relay = syscall.Signal(64)

// relays are the signals that os/signal cannot be asked for, and Relay itself. The
// runtime takes SIGPROF for its own profiler, and leaves 34, which the GNU C library
// knows as SIGRTMIN, to the C library (runtime/sigtab_linux_generic.go).
var relays = [...]syscall.Signal{syscall.SIGPROF, 34, Relay}

// installRelays has the runtime told of relays. It takes flags, mask and restorer from
// the runtime's own handler of SIGTERM, and does nothing where SIGTERM is ignored.
func installRelays() {
	var act sigaction
	if next[syscall.SIGTERM] == 0 || rtSigaction(syscall.SIGTERM, nil, &act) != 0 {
		return
	}
	next[Relay] = next[syscall.SIGTERM] // the runtime has one handler for all
	for _, sig := range relays {
		atomic.StoreUint32(&relayAs[sig], uint32(Relay))
		rtSigaction(sig, &act, nil)
	}
}

var relaysTaken [65]uint64

// Relayed returns which of the relayed signals came since the last call. Only one
// goroutine may call it.
func Relayed() []syscall.Signal {
	var came []syscall.Signal
	for _, sig := range relays {
		if n := atomic.LoadUint64(&relayed[sig]); n != relaysTaken[sig] {
			relaysTaken[sig] = n
			came = append(came, sig)
		}
	}
	return came
}

// sigsetSize is that of the kernel's sigset_t, in bytes.
const sigsetSize = 8

func rtSigaction(sig syscall.Signal, set, old *sigaction) syscall.Errno {
	_, _, errno := syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(sig),
		uintptr(unsafe.Pointer(set)), uintptr(unsafe.Pointer(old)), sigsetSize, 0, 0)
	return errno
}

// Sent is one signal that came.
type Sent struct {
	Signal syscall.Signal
	// Outside: the kernel sent it, or a process that cannot be seen from this pid
	// namespace.
	Outside bool
	// PID and UID are the sender's. They are 0 if Forgeable: then it chose a way by
	// which it could have written any numbers.
	PID       int
	UID       uint32
	Forgeable bool
	// Fault: it was sent as if agentinit had made a mistake.
	Fault bool
}

// outsideMost is how many of one signal from outside are told of at once: a third
// one means no more than a second.
const outsideMost = 16

// reader is how far Take has come.
type reader struct {
	next    uint64
	outside [65]uint64
}

var taken reader

// Take returns the signals with a sender that came since the last call: those from
// outside first, then the others in their order. lost is how many of the others were
// overwritten. A record is there before the channel of Caught has its signal. Only
// one goroutine may call it.
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
			continue // overwritten meanwhile: look again how far behind we are
		case seq != r.next+1:
			return sent, lost // being written; its signal is still to come
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
