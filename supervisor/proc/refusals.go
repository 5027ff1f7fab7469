package proc

import (
	"encoding/binary"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/dreamlab-ai/agentinit/internal/highfd"
	"github.com/dreamlab-ai/agentinit/supervisor/proc/filter"
)

// Refusal is one system call that a filter of a process refused, or would have refused.
type Refusal struct {
	PID int // in agentinit's pid namespace; 0 if the process is not in it or below it
	// By names the filter: RefusedByGuard or RefusedBySeccomp.
	By   string
	Call string // name of the system call
	// Allowed says that the call was carried out nevertheless, because the sandbox only audits.
	Allowed bool
}

// The values of Refusal.By.
const (
	RefusedByGuard   = "guard"
	RefusedBySeccomp = "seccomp"
)

// refusals answers and reports the calls that the filters of guarded and sandboxed processes refuse
// (seccomp_unotify(2)). What a launcher starts shares the listener of the launcher's filter. Any
// other new process installs its filter and sends the descriptor of the listener through a socket.
// The kernel asks here about each call that a filter refuses, and the calling process waits for the
// answer. The answer repeats the decision of the filter, so it never allows more than the filter
// would.
//
// One goroutine serves all listeners. A process that makes refused calls in a loop has a budget for
// each second. When it has used the budget up, it waits for the next second, so that it cannot keep
// agentinit busy.
type refusals struct {
	ep           epoll // watches sock and all listeners
	sock, remote int   // remote is the end that new processes send through

	slotOf func(pid int) int // which mark a process has, see mark.go

	mu        sync.Mutex
	closed    bool
	expected  map[uint64]*watched // by id of the process, until its listener arrives
	listeners map[int]*watched    // by descriptor
	sharing   map[int]*watched    // programs that a launcher started, by mark
}

// watched is one filter with a listener, or a program that shares the listener of a launcher.
type watched struct {
	guard, sandbox *filterJudge // nil if there is no such filter
	tell           func(Refusal)
	fd             int
	shared         bool // the listener of a launcher: the caller's mark tells which program asks
	// Number of calls answered in the second that began at since; refusals.mu guards these fields.
	since    time.Time
	calls    int
	held     []refusedCall // of a program that shares a listener and has used its budget up
	resuming bool          // resume is due, or at work
}

// refusedCall is a call whose process waits in the kernel for the answer on the listener via.
type refusedCall struct {
	via *watched
	n   notification
}

// refusalBudget is how many refused calls in a second are answered at once. A started process and
// its descendants share one budget. An answer takes some ten microseconds.
const refusalBudget = 2000

// filterJudge makes the judge of a filter when the first refusal needs it.
type filterJudge struct {
	f    []unix.SockFilter
	once sync.Once
	j    *filter.Judge
}

func newFilterJudge(f []unix.SockFilter) *filterJudge {
	if f == nil {
		return nil
	}
	return &filterJudge{f: f}
}

func (fj *filterJudge) decide(d filter.Data) (refused syscall.Errno, logged bool) {
	if fj == nil {
		return 0, false
	}
	fj.once.Do(func() { fj.j, _ = filter.NewJudge(fj.f) }) // the kernel has read the same filter
	if fj.j == nil {
		return unix.EPERM, false
	}
	return fj.j.Decide(d)
}

// newRefusals opens the descriptors that the goroutine waits on.
func newRefusals(slotOf func(pid int) int) (*refusals, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	r := &refusals{
		sock: pair[0], remote: pair[1], slotOf: slotOf,
		expected: map[uint64]*watched{}, listeners: map[int]*watched{}, sharing: map[int]*watched{},
	}
	if r.ep, err = newEpoll(); err == nil {
		err = r.ep.watch(r.sock, unix.EPOLLIN)
	}
	if err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

// stop makes run return.
func (r *refusals) stop() {
	if r != nil {
		r.ep.close()
	}
}

// close releases the rest after run has returned. From then on the kernel answers refused calls
// with ENOSYS.
func (r *refusals) close() {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	r.ep.close() // stop may have closed it
	for fd := range r.listeners {
		unix.Close(fd)
	}
	unix.Close(r.sock)
	unix.Close(r.remote)
}

// expect announces a listener; forget withdraws that.
func (r *refusals) expect(id uint64, w *watched) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.expected[id] = w
}

func (r *refusals) forget(id uint64) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.expected, id)
}

// run serves the listeners until stop.
func (r *refusals) run() {
	r.ep.each(func(ready []unix.EpollEvent) {
		for _, e := range ready {
			r.serve(e)
		}
	})
}

func (r *refusals) serve(e unix.EpollEvent) {
	fd := int(e.Fd)
	if fd == r.sock {
		r.receive()
		return
	}
	r.mu.Lock()
	w := r.listeners[fd]
	r.mu.Unlock()
	switch {
	case w == nil:
	case e.Events&unix.EPOLLIN != 0:
		r.answer(w)
	case e.Events&unix.EPOLLHUP == 0: // EPOLLERR: a signal has interrupted the look at the listener
	default: // no process has this filter any more
		r.mu.Lock()
		delete(r.listeners, fd)
		r.mu.Unlock()
		// It is removed from the epoll before it is closed. A child before its exec may still hold
		// a copy. Then the closed descriptor would be ready all the time, also under the number of
		// the next listener.
		_ = r.ep.control(unix.EPOLL_CTL_DEL, fd, nil) // it was added in receive
		unix.Close(fd)
	}
}

// receive takes a listener that a new process has sent. The message holds the id of that process.
func (r *refusals) receive() {
	var id [8]byte
	oob := make([]byte, unix.CmsgSpace(4))
	n, oobn, _, _, err := unix.Recvmsg(r.sock, id[:], oob, unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT)
	if err != nil || n != len(id) {
		return
	}
	fd := -1
	if msgs, err := unix.ParseSocketControlMessage(oob[:oobn]); err == nil && len(msgs) == 1 {
		if fds, err := unix.ParseUnixRights(&msgs[0]); err == nil && len(fds) == 1 {
			fd = fds[0]
		}
	}
	r.mu.Lock()
	key := binary.NativeEndian.Uint64(id[:])
	w := r.expected[key]
	delete(r.expected, key)
	r.mu.Unlock()
	if fd >= 0 { // otherwise agentinit has no free descriptor, and refused calls get ENOSYS
		r.add(fd, w)
	}
}

// add serves a listener from now on. If it cannot, it closes the listener, and refused calls get
// ENOSYS.
func (r *refusals) add(fd int, w *watched) bool {
	fd = highfd.Raise(fd)
	r.mu.Lock()
	defer r.mu.Unlock()
	if w == nil || r.closed || r.ep.watch(fd, unix.EPOLLIN) != nil {
		unix.Close(fd)
		return false
	}
	w.fd = fd
	r.listeners[fd] = w
	return true
}

// notification and response are struct seccomp_notif and struct seccomp_notif_resp.
type (
	notification struct {
		id         uint64
		pid, flags uint32
		data       filter.Data
	}
	response struct {
		id    uint64
		value int64
		errno int32
		flags uint32
	}
)

// answer receives one call and answers it.
func (r *refusals) answer(w *watched) {
	var n notification
	// ENOENT: the process was killed or its call interrupted meanwhile. EINTR: the epoll reports the call again.
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(w.fd), unix.SECCOMP_IOCTL_NOTIF_RECV, uintptr(unsafe.Pointer(&n))); errno != 0 {
		return
	}
	n.pid = uint32(processOf(int(n.pid))) // the kernel names the thread
	c := refusedCall{w, n}
	if w.shared {
		r.answerShared(c)
		return
	}
	r.decide(w, c)
	if r.spend(w, time.Now(), refusalBudget) {
		r.rest(w)
	}
}

// processOf returns the process that a thread belongs to. tgkill(2) finds a thread only under the number of
// its process, so it recognises a first thread. To read /proc takes more time than all else of an answer.
func processOf(tid int) int {
	if unix.Tgkill(tid, tid, 0) != unix.ESRCH {
		return tid
	}
	if process := statusNumber(tid, "Tgid:"); process != 0 {
		return process
	}
	return tid // it has ended
}

// decide answers a call of the program w, unless its listener was closed meanwhile.
func (r *refusals) decide(w *watched, c refusedCall) {
	refusal, resp := w.judge(&c.n)
	w.tell(refusal) // before the answer, so that the refusal is reported before the end of the process
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.serves(c.via) {
		// An error means that the process has ended meanwhile.
		_ = uninterrupted(c.via.fd, unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&resp))
	}
}

// Bounds of a listener that programs share. The kernel goes through the calls that wait whenever it
// looks for one, so a program may let only heldMost of them wait. Beyond that they are answered at
// once. sharedBudget then bounds how many in a second: when it is used up, the whole listener rests.
const (
	heldMost     = 64
	sharedBudget = 10 * refusalBudget
)

// answerShared answers a call on the listener of a launcher. If its program has used up its budget,
// the call waits, and the listener goes on with those of other programs.
func (r *refusals) answerShared(c refusedCall) {
	w := r.sharer(int(c.n.pid))
	switch {
	case !c.waits(): // its pid may be that of another process
		return
	case w == nil: // the program has ended, and this process was not found
		r.decide(c.via, c)
	case !r.hold(w, c, time.Now()):
		r.decide(w, c)
	}
	if r.spend(c.via, time.Now(), sharedBudget) {
		r.rest(c.via)
	}
}

// share says which program has a mark.
func (r *refusals) share(mark int, w *watched) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sharing[mark] = w
}

// unshare forgets the program of a mark.
func (r *refusals) unshare(mark int) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.sharing, mark)
}

// sharer is the program to which a process under the filter of a launcher belongs.
func (r *refusals) sharer(pid int) *watched {
	slot := r.slotOf(pid)
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sharing[slot]
}

// hold keeps the call for later if the budget of this second is used up. It tells whether it did.
func (r *refusals) hold(w *watched, c refusedCall, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(w.held) == 0 && !w.spend(now, refusalBudget) || len(w.held) >= heldMost {
		return false
	}
	w.held = append(w.held, c)
	if !w.resuming {
		w.resuming = true
		time.AfterFunc(time.Until(w.since.Add(time.Second)), func() { r.resume(w) })
	}
	return true
}

// resume answers the calls that have waited, as many as one second allows.
func (r *refusals) resume(w *watched) {
	for {
		c, ok := r.next(w)
		if !ok {
			return
		}
		r.decide(w, c)
	}
}

// next takes the first call whose process still waits. If the budget is used up, it has resume
// called again in a second.
func (r *refusals) next(w *watched) (c refusedCall, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(w.held) > 0 {
		c = w.held[0]
		waits := r.serves(c.via) && c.waits()
		if waits && w.spend(time.Now(), refusalBudget) {
			time.AfterFunc(time.Until(w.since.Add(time.Second)), func() { r.resume(w) })
			return refusedCall{}, false
		}
		if w.held = w.held[1:]; waits {
			return c, true
		}
	}
	w.held, w.resuming = nil, false
	return refusedCall{}, false
}

// serves tells whether the listener is open: its number may belong to another one. The caller holds
// the mutex.
func (r *refusals) serves(via *watched) bool { return !r.closed && r.listeners[via.fd] == via }

// waits tells whether the process still waits for the answer. It may have been killed.
func (c *refusedCall) waits() bool {
	return uninterrupted(c.via.fd, unix.SECCOMP_IOCTL_NOTIF_ID_VALID, unsafe.Pointer(&c.n.id)) == nil
}

// uninterrupted is ioctl(2) without EINTR: a signal to agentinit must not lose an answer, because the
// process waits for it until it is killed.
func uninterrupted(fd int, request uint, arg unsafe.Pointer) error {
	for {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(request), uintptr(arg))
		switch errno {
		case 0:
			return nil
		case unix.EINTR:
			continue
		}
		return errno
	}
}

// judge repeats what the filters say. A call is carried out only if the sandbox audits it.
func (w *watched) judge(n *notification) (Refusal, response) {
	out := Refusal{PID: int(n.pid), By: RefusedByGuard, Call: filter.CallName(runtime.GOARCH, n.data)}
	resp := response{id: n.id}
	refused, _ := w.guard.decide(n.data)
	if refused == 0 {
		out.By = RefusedBySeccomp
		refused, out.Allowed = w.sandbox.decide(n.data)
	}
	switch {
	case out.Allowed:
		resp.flags = unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE
	case refused != 0:
		resp.errno = -int32(refused)
	default: // the installed filters do not refuse this call
		resp.errno = -int32(unix.EPERM)
	}
	return out, resp
}

// spend is watched.spend for a caller that does not hold the mutex.
func (r *refusals) spend(w *watched, now time.Time, budget int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return w.spend(now, budget)
}

// spend tells whether the budget of this second is used up. The caller holds refusals.mu.
func (w *watched) spend(now time.Time, budget int) bool {
	if now.Sub(w.since) >= time.Second {
		w.since, w.calls = now, 0
	}
	w.calls++
	return w.calls >= budget
}

// rest stops serving a listener until the second is over.
func (r *refusals) rest(w *watched) {
	fd := w.fd
	if r.ep.control(unix.EPOLL_CTL_MOD, fd, &unix.EpollEvent{Fd: int32(fd)}) != nil {
		return
	}
	time.AfterFunc(time.Until(w.since.Add(time.Second)), func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if !r.closed && r.listeners[fd] == w { // otherwise the number belongs to another listener
			_ = r.ep.control(unix.EPOLL_CTL_MOD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}) // it was there before
		}
	})
}

// refusals returns the server of refused calls; nil if the kernel refuses what it needs.
func (o *Owner) refusals() *refusals {
	o.refusalsOnce.Do(func() {
		r, err := newRefusals(o.markOf)
		if err != nil {
			o.report("what programs are refused is not counted: " + err.Error())
			return
		}
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.closed {
			r.close()
			return
		}
		o.refused.Store(r)
		o.loops.Go(r.run)
	})
	return o.refused.Load()
}
