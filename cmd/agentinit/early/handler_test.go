package early

import (
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// TestMain also runs the process without the handler, for the negative test below.
func TestMain(m *testing.M) {
	if os.Getenv("UNPROTECTED") != "" {
		for sig := range syscall.Signal(64) {
			if ours>>sig&1 == 0 || next[sig] == 0 {
				continue
			}
			var act sigaction
			rtSigaction(sig, nil, &act)
			act.handler = next[sig]
			rtSigaction(sig, &act, nil)
		}
		time.AfterFunc(20*time.Second, func() { os.Exit(0) })
		queue(syscall.SIGSEGV, siQueue, 0, 0)
		select {} // another thread may get the signal, and later
	}
	os.Exit(m.Run())
}

// The first thread takes the signals, so no goroutine but main's may run on it: it could wait there in a
// system call that no signal interrupts.
func TestFirstThreadOnlyWaits(t *testing.T) {
	var here sync.WaitGroup
	all := make(chan struct{})
	threads := make(chan int, 64)
	here.Add(cap(threads))
	for range cap(threads) {
		go func() {
			runtime.LockOSThread() // all have a thread at the same time, so idle threads are used too
			defer runtime.UnlockOSThread()
			threads <- syscall.Gettid()
			here.Done()
			<-all
		}()
	}
	here.Wait()
	close(all)
	for range cap(threads) {
		if <-threads == os.Getpid() {
			t.Error("a goroutine runs on the first thread")
		}
	}
}

const siQueue = -1

// queue sends this process a signal with rt_sigqueueinfo(2), with which any sender can claim any
// pid and uid.
func queue(sig syscall.Signal, code int32, pid int32, uid uint32) syscall.Errno {
	var info [128]byte
	*(*int32)(unsafe.Pointer(&info[8])) = code
	*(*int32)(unsafe.Pointer(&info[16])) = pid
	*(*uint32)(unsafe.Pointer(&info[20])) = uid
	_, _, errno := syscall.RawSyscall(syscall.SYS_RT_SIGQUEUEINFO, uintptr(os.Getpid()), uintptr(sig), uintptr(unsafe.Pointer(&info[0])))
	return errno
}

// await reads the channel until the signal arrives, and returns the records of senders.
func await(t *testing.T, sig syscall.Signal) []Sent {
	t.Helper()
	for got := range Caught() {
		if got == sig {
			break
		}
	}
	sent, lost := Take()
	if lost != 0 {
		t.Errorf("%d records lost", lost)
	}
	return sent
}

func TestTheSenderIsKnown(t *testing.T) {
	Also(syscall.SIGUSR1)
	Caught()
	Take()
	if err := syscall.Kill(os.Getpid(), syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	want := Sent{Signal: syscall.SIGUSR1, PID: os.Getpid(), UID: uint32(os.Getuid())}
	if sent := await(t, syscall.SIGUSR1); len(sent) != 1 || sent[0] != want {
		t.Errorf("got %+v, want %+v", sent, want)
	}
}

// A sender can write any pid and uid into a queued signal. Such a signal is not believed, above all
// not the pid 0 of a sender outside the namespace.
func TestAForgedSenderIsNot(t *testing.T) {
	Also(syscall.SIGUSR1)
	Caught()
	Take()
	for _, code := range []int32{siQueue, -3, -60} {
		if errno := queue(syscall.SIGUSR1, code, 0, 0); errno != 0 {
			t.Fatal(errno)
		}
		if sent := await(t, syscall.SIGUSR1); len(sent) != 1 || !sent[0].Forgeable || sent[0].Outside || sent[0].PID != 0 {
			t.Errorf("code %d: %+v", code, sent)
		}
	}
}

func TestFaultsThatWereSentAreNone(t *testing.T) {
	Caught()
	Take()
	for _, sig := range []syscall.Signal{syscall.SIGSEGV, syscall.SIGBUS, syscall.SIGILL, syscall.SIGFPE,
		syscall.SIGTRAP, syscall.SIGSTKFLT, syscall.SIGSYS} {
		if errno := queue(sig, siQueue, 1, 0); errno != 0 {
			t.Fatal(errno)
		}
		if sent := await(t, sig); len(sent) != 1 || !sent[0].Fault || sent[0].Signal != sig {
			t.Errorf("%v: %+v", sig, sent)
		}
	}
}

func TestWithoutTheHandlerAFaultEndsTheProcess(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "UNPROTECTED=1")
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "SIGSEGV") {
		t.Errorf("the attack should work there: %v\n%s", err, out)
	}
}

func TestARealFaultStillPanics(t *testing.T) {
	defer func() {
		if v := recover(); v == nil {
			t.Error("no panic")
		} else if err, ok := v.(error); !ok || !strings.Contains(err.Error(), "nil pointer") {
			t.Errorf("another panic: %v", v)
		}
	}()
	var p *record
	p.seq++
}

// If there are more signals than the ring holds, the oldest are counted and the newest are kept.
func TestAFloodIsCounted(t *testing.T) {
	Take()
	before := head
	for i := range uint64(3 * ringSize) {
		slot := &ring[head%ringSize]
		slot.sig, slot.code, slot.pid, slot.uid = int32(syscall.SIGHUP), siUser, int32(i+1), 7
		head++
		slot.seq = head
	}
	sent, lost := Take()
	if len(sent) != ringSize || lost != 2*ringSize || sent[ringSize-1].PID != 3*ringSize || taken.next != before+3*ringSize {
		t.Errorf("%d records, %d lost, the last %+v", len(sent), lost, sent[len(sent)-1])
	}
}

// The runtime leaves 32 and 34 at their default action, which ends a process: one that is not PID 1
// always, and PID 1 if its first thread blocks the signal.
func TestSignals32And34EndNothing(t *testing.T) {
	Caught()
	for _, sig := range []syscall.Signal{32, 34} {
		var act sigaction
		if rtSigaction(sig, nil, &act); act.handler == 1 {
			continue // SIG_IGN: posix_spawn(3) of glibc, which make uses, has children ignore 32
		}
		before := atomic.LoadUint64(&relayed[sig])
		if err := syscall.Kill(os.Getpid(), sig); err != nil {
			t.Fatal(err)
		}
		for atomic.LoadUint64(&relayed[sig]) == before {
			runtime.Gosched()
		}
	}
	if came := Relayed(); len(came) != 1 || came[0] != 34 {
		t.Errorf("32 and 34 were sent, and %v came; 32 is for C libraries", came)
	}
}

// Each signal that can be caught has a handler, except those that the kernel drops by default.
func TestNoSignalHasAFatalDefault(t *testing.T) {
	Caught()
	const dropped = 1<<syscall.SIGCHLD | 1<<syscall.SIGCONT | 1<<syscall.SIGURG | 1<<syscall.SIGWINCH
	for sig := syscall.Signal(1); sig <= 64; sig++ {
		if sig == syscall.SIGKILL || sig == syscall.SIGSTOP || uint64(dropped)>>sig&1 != 0 {
			continue
		}
		var act sigaction
		if errno := rtSigaction(sig, nil, &act); errno != 0 || act.handler == 0 {
			t.Errorf("signal %d: %v, handler %#x", int(sig), errno, act.handler)
		}
	}
}

// Signals that the runtime is not asked for are relayed, those too that it reserves, and so is the
// signal that stands for them.
func TestSignalsAreRelayed(t *testing.T) {
	signals := CaughtAll()
	for sig := range relays {
		if err := syscall.Kill(os.Getpid(), sig); err != nil {
			t.Fatal(err)
		}
		var came []syscall.Signal
		for len(came) == 0 {
			if <-signals == Relay {
				came = Relayed()
			}
		}
		if len(came) != 1 || came[0] != sig {
			t.Errorf("sent %v, got %v", sig, came)
		}
	}
}

// A signal that arrives before a receiver is registered is kept once, with its sender.
func TestASignalThatNobodyHasAskedForWaits(t *testing.T) {
	runtime.LockOSThread() // a thread's signal to itself has arrived when tgkill(2) returns
	defer runtime.UnlockOSThread()
	caught := make(chan os.Signal, 8)
	before := state[syscall.SIGUSR2]
	defer func() { state[syscall.SIGUSR2] = before | 1 }()
	state[syscall.SIGUSR2] = 0
	Take()
	for range 2 {
		if err := syscall.Tgkill(os.Getpid(), syscall.Gettid(), syscall.SIGUSR2); err != nil {
			t.Fatal(err)
		}
	}
	notify(caught, syscall.SIGUSR2)
	notify(caught, syscall.SIGUSR2)
	signal.Stop(caught)
	if len(caught) != 1 {
		t.Errorf("%d signals waited, want 1", len(caught))
	}
	if sent, _ := Take(); len(sent) == 0 || sent[0].Signal != syscall.SIGUSR2 {
		t.Errorf("nothing is known of the sender: %+v", sent)
	}
}
