package proc

import (
	"runtime"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/dreamlab-ai/agentinit/supervisor/proc/filter"
)

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
