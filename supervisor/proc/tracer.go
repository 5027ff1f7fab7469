package proc

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dreamlab-ai/agentinit/internal/highfd"
)

// deaths reports the end of processes whose end a tracer can hide from agentinit. The kernel
// reports the end of a traced process to its tracer (ptrace(2)). Until the tracer has waited or
// ended, agentinit gets no SIGCHLD and wait4(2) finds no dead child. A pidfd becomes readable
// nevertheless (do_notify_parent in kernel/signal.c).
//
// Guarded programs of agentinit's own user are not watched: they cannot trace each other.
type deaths struct {
	ep epoll // watches pidfds; the kernel may have none
}

// tracerPatience is how long a tracer may take until it waits for the ended process.
const tracerPatience = time.Second

func newDeaths() deaths {
	ep, err := newEpoll()
	if err != nil {
		return deaths{} // a hidden end is then found when the program is stopped
	}
	return deaths{ep}
}

// watchDeath is called for a process that is registered and not reaped, with the mutex held. If no
// descriptor is free, a hidden end is found when the program is stopped.
func (o *Owner) watchDeath(p *process) {
	if !o.deaths.ep.ok() || p.guarded || p.reaped {
		return
	}
	fd, err := unix.PidfdOpen(p.pid, 0)
	if err != nil {
		return
	}
	fd = highfd.Raise(fd)
	ev := deathEvent(p.id)
	if err := o.deaths.ep.control(unix.EPOLL_CTL_ADD, fd, &ev); err != nil {
		unix.Close(fd)
		return
	}
	p.pidfd = fd
}

// ofMain marks the event of a process that is followed.
const ofMain = 1 << 63

// deathEvent asks for one event, because a child of ours that is not at its exec yet may have the
// descriptor, too.
func deathEvent(key uint64) unix.EpollEvent {
	return unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT, Fd: int32(uint32(key)), Pad: int32(uint32(key >> 32))}
}

// forgetDeath is called with the mutex held.
func (o *Owner) forgetDeath(p *process) {
	if p.pidfd == 0 {
		return
	}
	// Closing is not enough, because a child may hold a copy. The call fails after Close.
	_ = o.deaths.ep.control(unix.EPOLL_CTL_DEL, p.pidfd, nil)
	unix.Close(p.pidfd)
	p.pidfd = 0
}

// run checks, a while after each end, whether the process was reaped. It runs until the epoll is
// closed.
func (d deaths) run(o *Owner) {
	d.ep.each(func(ready []unix.EpollEvent) {
		for _, ev := range ready {
			o.ended(uint64(uint32(ev.Fd)) | uint64(uint32(ev.Pad))<<32)
		}
	})
}

func (o *Owner) ended(key uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	p := o.byID[key&^ofMain]
	switch {
	case p == nil:
	case key&ofMain != 0:
		o.mainDied(p, handOver)
	case !p.reaped:
		time.AfterFunc(o.tracerPatience, func() { o.freeDead(p) })
	}
}

// freeDead kills the tracer that hides the end of a process from agentinit.
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
		time.AfterFunc(o.tracerPatience, func() { o.freeDead(p) }) // there may be another tracer
	}
}

// freeKilled kills the tracers of killed processes that still exist. With PTRACE_O_TRACEEXIT, a
// tracer can also stop a process during its exit, and there a second KILL has no effect.
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
	leader := tracedThreads(p.pid) // without the mutex: the process may have very many threads
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

// tracedThreads lists one thread of a process for each of its tracers. As long as a tracer does not
// wait for an ended thread, the kernel does not report the end of the process.
func tracedThreads(pid int) (tids []int) {
	threads, err := threadsIn("/proc/" + strconv.Itoa(pid) + "/task")
	if err != nil {
		return nil // the process has ended
	}
	seen := map[int]bool{0: true}
	for _, tid := range threads {
		if tracer := tracerOf(tid); !seen[tracer] {
			seen[tracer] = true
			tids = append(tids, tid)
		}
	}
	return tids
}

// endTracer kills the tracer of a thread, if the tracer descends from agentinit. It returns what to
// report about that.
func (o *Owner) endTracer(pid int) string {
	tracer := tracerOf(pid)
	if tracer == 0 || tracer == o.selfPID {
		return ""
	}
	fd, err := unix.PidfdOpen(tracer, 0)
	if err != nil {
		return "" // the tracer has ended
	}
	defer unix.Close(fd)
	if tracerOf(pid) != tracer || !o.isInit && !o.descends(tracer) {
		return ""
	}
	name, uid := Name(tracer), "?"
	if n, ok := ownerUID(tracer); ok {
		uid = strconv.FormatUint(uint64(n), 10)
	}
	if unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) != nil {
		return ""
	}
	return fmt.Sprintf("process %d (%q, uid %s) traced process %d and kept its end from agentinit; it was killed", tracer, name, uid, pid)
}

// descends tells whether a process descends from agentinit. It is false if the ancestors end too fast for
// an answer.
func (o *Owner) descends(pid int) bool {
	for range ancestorTries {
		passed, complete := ancestry(pid, o.selfPID)
		if complete && haveSameParents(passed) {
			for _, p := range passed {
				pid = p.ppid
			}
			return pid == o.selfPID
		}
	}
	return false
}

// ancestry lists a process and its ancestors up to one below the process last, or to the first process of
// all. complete is false if one of them ended meanwhile, or if there are too many.
func ancestry(pid, last int) (passed []statInfo, complete bool) {
	for range maxAncestors {
		if pid == last || pid <= 0 {
			return passed, true
		}
		st, err := readStat(pid)
		if err != nil || st.released() {
			return nil, false
		}
		passed = append(passed, st)
		pid = st.ppid
	}
	return nil, false
}

// tracerOf returns the process that traces a thread. It returns 0 if there is none, or none that
// agentinit can see.
func tracerOf(tid int) int {
	tracer := statusNumber(tid, "TracerPid:") // a thread: any thread of a process can be the tracer
	if tracer == 0 {
		return 0
	}
	return statusNumber(tracer, "Tgid:")
}

// statusNumber returns a number from /proc/TID/status (proc_pid_status(5)), or 0 if the thread has ended.
func statusNumber(tid int, key string) int {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(tid) + "/status")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, key); ok {
			if n := numbers(rest); len(n) == 1 {
				return n[0]
			}
		}
	}
	return 0
}
