package proc

import (
	"slices"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/dreamlab-ai/agentinit/supervisor/proc/filter"
)

// waitingCall is a call that a thread of the test waits in, on a listener of its own.
type waitingCall struct {
	refusedCall
	answer <-chan error
}

// waiting makes a call that waits on a listener of r. Nothing answers it unless the test does. When
// r is closed, it gets ENOSYS.
func waiting(t *testing.T, r *refusals) waitingCall {
	t.Helper()
	return waitingIn(t, r, "mount", func() error { return unix.Mount("", "", "", 0, "") })
}

// waitingIn is waiting for a function that makes the named call.
func waitingIn(t *testing.T, r *refusals, name string, call func() error) waitingCall {
	t.Helper()
	f := filter.Notify(compiled(t, filter.Policy{Deny: []string{name}}))
	prog := unix.SockFprog{Len: uint16(len(f)), Filter: &f[0]}
	made, answer := make(chan int, 1), make(chan error, 1)
	ended := make(chan struct{})
	t.Cleanup(func() { <-ended })
	go func() {
		defer close(ended)
		onThread(func() {
			_ = unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) // if it fails, an ordinary user gets no listener
			fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, listenerFlags, uintptr(unsafe.Pointer(&prog)))
			if errno != 0 {
				made <- -1
				return
			}
			made <- int(fd)
			answer <- call()
		})
	}()
	fd := <-made
	if fd < 0 {
		t.Skip("needs a kernel with listeners of seccomp filters")
	}
	c := waitingCall{refusedCall{via: &watched{tell: func(Refusal) {}, shared: true}}, answer}
	if !r.add(fd, c.via) {
		t.Fatal("the listener is not served")
	}
	c.receive(t)
	return c
}

// receive takes the call from the listener.
func (c *waitingCall) receive(t *testing.T) {
	t.Helper()
	err := error(unix.ENOENT)
	// ENOENT: a signal of the runtime interrupted the call, which is then made again.
	for err == unix.ENOENT {
		c.n = notification{} // the kernel refuses any other value
		err = uninterrupted(c.via.fd, unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&c.n))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// reply answers the call, and tells whether it still waited.
func (c *waitingCall) reply(errno unix.Errno) bool {
	resp := response{id: c.n.id, errno: -int32(errno)}
	return uninterrupted(c.via.fd, unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&resp)) == nil
}

// server is a server of refused calls whose goroutine does not run: the test calls its functions.
func server(t *testing.T, slotOf func(int) int) *refusals {
	t.Helper()
	r, err := newRefusals(slotOf)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// lost gives the number of the listener to another one, as if this one had been closed.
func (r *refusals) lost(c waitingCall) { r.listeners[c.via.fd] = &watched{} }

// No answer goes to a listener that has got the number of the caller's listener.
func TestAnswerOnlyOnTheCallersListener(t *testing.T) {
	r := server(t, nil)
	defer r.close()
	told := 0
	w := &watched{tell: func(Refusal) { told++ }}
	kept, lost := waiting(t, r), waiting(t, r)
	r.lost(lost)
	r.decide(w, kept.refusedCall)
	r.decide(w, lost.refusedCall)
	if !lost.reply(unix.EBUSY) {
		t.Error("the call was answered on another listener")
	}
	if got := <-kept.answer; got != unix.EPERM || kept.reply(unix.EBUSY) {
		t.Errorf("answered with %v", got)
	}
	if got := <-lost.answer; got != unix.EBUSY {
		t.Errorf("answered with %v", got)
	}
	if told != 2 {
		t.Errorf("told %d times", told)
	}
}

// Calls that wait for the next second are answered in the order in which they came, except those
// that no longer wait or whose listener was closed.
func TestHeldCallsKeepTheirOrder(t *testing.T) {
	r := server(t, nil)
	defer r.close()
	w := &watched{}
	var want, got []uint64
	for i := range 5 {
		c := waiting(t, r)
		switch i {
		case 1:
			c.reply(unix.EBUSY)
		case 3:
			r.lost(c)
		default:
			want = append(want, c.n.id)
		}
		w.held = append(w.held, c.refusedCall)
	}
	w.resuming = true
	for c, ok := r.next(w); ok; c, ok = r.next(w) {
		got = append(got, c.n.id)
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if w.resuming || len(w.held) != 0 {
		t.Errorf("%d calls are left", len(w.held))
	}
}

// As long as earlier calls wait, a later one waits behind them, also in a new second.
func TestHoldBehindOthers(t *testing.T) {
	r := server(t, nil)
	defer r.close()
	first, second := refusedCall{n: notification{id: 1}}, refusedCall{n: notification{id: 2}}
	w := &watched{held: []refusedCall{first}, resuming: true, since: time.Unix(1000, 0)}
	if !r.hold(w, second, time.Unix(2000, 0)) {
		t.Error("the later call does not wait")
	}
	if len(w.held) != 2 || w.held[0] != first || w.held[1] != second {
		t.Errorf("%+v wait", w.held)
	}
}

// A call is told to the program with the caller's mark. If that program is not known, the call is
// still answered. A call that no longer waits is told to no program, because another process may have
// got the caller's pid.
func TestSharedListenerTellsThePrograms(t *testing.T) {
	const known, unknown = 5, 6
	slot := known
	r := server(t, func(int) int { return slot })
	defer r.close()
	told := 0
	r.share(known, &watched{tell: func(Refusal) { told++ }})
	gone := waiting(t, r)
	gone.reply(unix.EBUSY)
	r.answerShared(gone.refusedCall)
	if told != 0 {
		t.Error("a call that no longer waits was told")
	}
	c := waiting(t, r)
	r.answerShared(c.refusedCall)
	if got := <-c.answer; got != unix.EPERM || told != 1 {
		t.Errorf("answered with %v, told %d times", got, told)
	}
	slot = unknown
	c = waiting(t, r)
	r.answerShared(c.refusedCall)
	if got := <-c.answer; got != unix.EPERM || told != 1 {
		t.Errorf("unknown program: answered with %v, told %d times", got, told)
	}
}

// The kernel reports EPOLLERR if a signal to agentinit interrupts its look at a listener. That does
// not close the listener.
func TestInterruptedLookAtAListener(t *testing.T) {
	r := server(t, nil)
	defer r.close()
	c := waiting(t, r)
	event := unix.EpollEvent{Fd: int32(c.via.fd), Events: unix.EPOLLERR}
	r.serve(event)
	r.mu.Lock()
	serves := r.serves(c.via)
	r.mu.Unlock()
	if !serves || !c.reply(unix.EBUSY) {
		t.Fatal("the listener was closed")
	}
	event.Events |= unix.EPOLLHUP
	r.serve(event)
	if len(r.listeners) != 0 {
		t.Error("a listener that no process has is kept")
	}
}

// A call of agentinit about a listener is repeated if a signal interrupts it. Otherwise an answer
// could be lost, and its program would wait for ever. Here, a listener answers that call, too.
func TestInterruptedAnswer(t *testing.T) {
	r := server(t, nil)
	defer r.close()
	c := waitingIn(t, r, "ioctl", func() error { return uninterrupted(-1, unix.SECCOMP_IOCTL_NOTIF_SEND, nil) })
	for range 3 {
		c.reply(unix.EINTR)
		c.receive(t)
	}
	c.reply(unix.EBUSY)
	if err := <-c.answer; err != unix.EBUSY {
		t.Errorf("the last answer is %v", err)
	}
}
