package proc

import (
	"encoding/binary"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
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

// message is the msghdr with which a new process sends its listener (sendmsg(2), cmsg(3)).
type message struct {
	header  unix.Msghdr
	body    unix.Iovec
	id      uint64
	control struct {
		unix.Cmsghdr
		fd uint64 // an int; the step stores a whole word
	}
	sent uint64 // how many bytes were sent; 0 before that
}

// addFilters puts the filters of the guard and of the sandbox into force. If the caller wants
// refusals reported, they become one filter with a listener. A process that a launcher makes has
// the guard's filter already, and no other.
func (o *Owner) addFilters(l *launch, c *Command, p *process, by *launcher) error {
	if by != nil {
		o.refused.Load().share(p.mark, &watched{guard: by.filter.judge, tell: c.Refused})
		return nil
	}
	guard, err := o.guardFilter(c)
	if err != nil {
		return err
	}
	var sandbox []unix.SockFilter
	if c.Sandbox != nil {
		sandbox = c.Sandbox.Filter
	}
	var r *refusals
	if c.Refused != nil && (guard.plain != nil || sandbox != nil) && o.maySend(sandbox) {
		r = o.refusals()
	}
	if r == nil {
		l.addPlainFilters(guard.plain, sandbox)
		return nil
	}
	all := guard.notifies
	switch {
	case sandbox == nil:
	case guard.plain == nil:
		all = filter.Notify(sandbox)
	default:
		all = filter.Notify(filter.Chain(sandbox, guard.plain))
	}
	r.expect(p.id, &watched{guard: guard.judge, sandbox: newFilterJudge(sandbox), tell: c.Refused})
	l.addListener(all, p.id, r.remote)
	l.addPlainFilters(guard.plain, sandbox)
	l.steps[l.jump].OnError = uintptr(len(l.steps))
	return nil
}

// maySend tells whether a process can send its listener under its own filter. If the filter refuses
// sendmsg, the process would wait for ever: it waits for an answer to that call, but no one has the
// listener yet.
func (o *Owner) maySend(sandbox []unix.SockFilter) bool {
	if sandbox == nil || filter.Passes(runtime.GOARCH, sandbox, unix.SYS_SENDMSG) {
		return true
	}
	o.mute.Do(func() {
		o.report("the seccomp filter of a program refuses or audits sendmsg(2): what such programs are refused is not counted")
	})
	return false
}

func (l *launch) addPlainFilters(guard, sandbox []unix.SockFilter) {
	if guard != nil {
		l.addFilter(stepInfo{op: opGuard}, guard)
	}
	if sandbox != nil {
		l.addFilter(stepInfo{op: opSandbox + " seccomp"}, sandbox)
	}
}

// listenerFlags make a listener with the filter. Its processes wait for answers so that only KILL
// ends the wait.
const listenerFlags = unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV | unix.SECCOMP_FILTER_FLAG_SPEC_ALLOW

// addListener installs a filter with a listener and sends the listener. The steps after it are for
// a kernel that refuses the listener: before Linux 5.19, or if a filter around agentinit already
// has one. The kernel can also refuse to send it: other processes of the user may have as many
// descriptors under way as the program may open (ETOOMANYREFS, unix(7)). Then the exec closes the
// listener, and refused calls get ENOSYS.
func (l *launch) addListener(f []unix.SockFilter, id uint64, sock int) {
	m := &message{id: id}
	l.message = m
	m.control.Level, m.control.Type = unix.SOL_SOCKET, unix.SCM_RIGHTS
	m.control.SetLen(unix.CmsgLen(4))
	m.body.Base = (*byte)(unsafe.Pointer(&m.id))
	m.body.SetLen(8)
	m.header.Iov, m.header.Control = &m.body, (*byte)(unsafe.Pointer(&m.control))
	m.header.SetIovlen(1)
	m.header.SetControllen(unix.CmsgSpace(4))

	prog := &unix.SockFprog{Len: uint16(len(f)), Filter: &f[0]}
	l.kept = append(l.kept, f)
	install := len(l.steps)
	l.add(stepInfo{}, unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, listenerFlags, addr(l, prog)).Store = uintptr(unsafe.Pointer(&m.control.fd))
	l.try(unix.SYS_SENDMSG, uintptr(sock), addr(l, m), unix.MSG_NOSIGNAL)
	l.steps[len(l.steps)-1].Store = uintptr(unsafe.Pointer(&m.sent))
	// A step that always fails works as a jump.
	l.jump = len(l.steps)
	l.add(stepInfo{}, unix.SYS_CLOSE, ^uintptr(0))
	l.steps[install].OnError = uintptr(len(l.steps))
}

// listening records whether agentinit gets the listener of a running process.
func (o *Owner) listening(l *launch, id uint64) {
	if l.message == nil || atomic.LoadUint64(&l.message.sent) != 0 {
		return
	}
	o.refused.Load().forget(id)
	if !o.noListener.Swap(true) {
		o.report("no listener for the seccomp filter of a program (needs Linux 5.19, no filter around agentinit that has one, a free descriptor, and fewer descriptors of its user under way in sockets): what it is refused is not counted")
	}
}
