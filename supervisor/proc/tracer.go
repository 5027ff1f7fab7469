package proc

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// deaths tells of the end of processes whose end a tracer can keep from us. The kernel gives
// the end of a traced process to its tracer (ptrace(2)); until that has waited or
// ended, we get no SIGCHLD and wait4(2) finds nothing. A pidfd becomes readable all the same
// (do_notify_parent in kernel/signal.c).
//
// Guarded programs of our own user need none: they cannot trace each other.
type deaths struct {
	ep epoll // of pidfds; the kernel may have none
}

// tracerPatience is how long a tracer may take to wait for the end of one of our processes.
const tracerPatience = time.Second

func newDeaths() deaths {
	ep, err := newEpoll()
	if err != nil {
		return deaths{} // a held end is met when the program is stopped
	}
	return deaths{ep}
}

// watchDeath is called for a process that is registered and not reaped, with the mutex
// held. Without a descriptor to spare a held end is met when the program is stopped.
func (o *Owner) watchDeath(p *process) {
	if !o.deaths.ep.ok() || p.guarded || p.reaped {
		return
	}
	fd, err := unix.PidfdOpen(p.pid, 0)
	if err != nil {
		return
	}
	// Once: a child of ours that is not at its exec yet has the descriptor, too.
	ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT, Fd: int32(uint32(p.id)), Pad: int32(uint32(p.id >> 32))}
	if err := o.deaths.ep.control(unix.EPOLL_CTL_ADD, fd, &ev); err != nil {
		unix.Close(fd)
		return
	}
	p.pidfd = fd
}

// forgetDeath is called with the mutex held.
func (o *Owner) forgetDeath(p *process) {
	if p.pidfd == 0 {
		return
	}
	// Closing it is not enough while a child has it. It fails after Close.
	_ = o.deaths.ep.control(unix.EPOLL_CTL_DEL, p.pidfd, nil)
	unix.Close(p.pidfd)
	p.pidfd = 0
}

// run looks, a while after each end, whether it was reaped; until the epoll is closed.
func (d deaths) run(o *Owner) {
	d.ep.each(func(ready []unix.EpollEvent) {
		for _, ev := range ready {
			o.ended(uint64(uint32(ev.Fd)) | uint64(uint32(ev.Pad))<<32)
		}
	})
}

func (o *Owner) ended(id uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if p := o.byID[id]; p != nil && !p.reaped {
		time.AfterFunc(o.tracerPatience, func() { o.freeDead(p) })
	}
}

// freeDead ends the tracer that keeps the end of a process from us.
func (o *Owner) freeDead(p *process) {
	o.mu.Lock()
	var told string
	if !p.reaped && !o.closed {
		if st, err := readStat(p.pid); err == nil && st.dead() {
			told = o.endTracer(p.pid)
		}
	}
	o.mu.Unlock()
	if told != "" {
		o.report(told)
		time.AfterFunc(o.tracerPatience, func() { o.freeDead(p) }) // it may not have been the last one
	}
}

// freeKilled ends the tracers of what was killed and is still there: a tracer can also hold
// a process at the door (PTRACE_O_TRACEEXIT), where a second KILL is dropped.
func (o *Owner) freeKilled(p *process) {
	var told []string
	end := func(traced []int) {
		for _, tid := range traced {
			if message := o.endTracer(tid); message != "" {
				told = append(told, message)
			}
		}
	}
	tasks := o.tree(p)
	leader := tracedThreads(p.pid) // not with the mutex held: it may have very many
	o.mu.Lock()
	if !p.reaped {
		end(leader)
	}
	o.mu.Unlock()
	for _, t := range p.inScope(tasks, p.scope) {
		end(tracedThreads(t.pid))
	}
	for _, message := range told {
		o.report(message)
	}
}

// tracedThreads lists one thread of a process for each of its tracers: as long as a tracer
// keeps the end of a thread to itself, the kernel tells nobody of the end of the process.
func tracedThreads(pid int) (tids []int) {
	threads, err := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/task")
	if err != nil {
		return nil // gone
	}
	seen := map[int]bool{0: true}
	for _, thread := range threads {
		tid, err := strconv.Atoi(thread.Name())
		if err != nil {
			continue
		}
		if tracer := tracerOf(tid); !seen[tracer] {
			seen[tracer] = true
			tids = append(tids, tid)
		}
	}
	return tids
}

// endTracer kills the tracer of a thread, if it has one that descends from us, and returns
// what to tell of that.
func (o *Owner) endTracer(pid int) string {
	tracer := tracerOf(pid)
	if tracer == 0 || tracer == o.selfPID {
		return ""
	}
	fd, err := unix.PidfdOpen(tracer, 0)
	if err != nil {
		return "" // gone
	}
	defer unix.Close(fd)
	if tracerOf(pid) != tracer || !o.isInit && !o.descends(tracer) {
		return ""
	}
	name, uid := nameOf(tracer), "?"
	if n, ok := ownerUID(tracer); ok {
		uid = strconv.FormatUint(uint64(n), 10)
	}
	if unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) != nil {
		return ""
	}
	return fmt.Sprintf("process %d (%q, uid %s) traced process %d and kept its end from agentinit; it was killed", tracer, name, uid, pid)
}

// descends says whether a process is below us.
func (o *Owner) descends(pid int) bool {
	for range maxAncestors {
		if pid == o.selfPID {
			return true
		}
		st, err := readStat(pid)
		if err != nil || pid <= 1 {
			return false
		}
		pid = st.ppid
	}
	return false
}

// tracerOf is the process that traces a thread; 0 for none, or one that we do not see.
func tracerOf(pid int) int {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "TracerPid:"); ok {
			n, err := strconv.Atoi(strings.TrimSpace(rest))
			if err != nil {
				return 0
			}
			return n
		}
	}
	return 0
}
