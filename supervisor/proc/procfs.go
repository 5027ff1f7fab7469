package proc

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// statInfo is what proc(5) tells in /proc/PID/stat and is of use here.
type statInfo struct {
	pid, ppid, pgrp, sid int
	state                byte
	utime, stime         uint64 // clock ticks, see ticksPerSecond
	cutime, cstime       uint64
	threads              int
	start                uint64 // ticks after boot; with the pid it names a process for good
	rssPages             int64
	noEnviron            bool // its environment is there and empty
}

// envStart and envEnd are the fields that say where the environment lies (since
// Linux 3.5), 0 before there is one.
const envStart, envEnd = 50, 51

// ticksPerSecond is USER_HZ, which is 100 on every Linux architecture that Go
// supports.
const ticksPerSecond = 100

// dead is not just state Z: a process whose first thread has ended shows that
// too, while its other threads run on.
func (s *statInfo) dead() bool { return (s.state == 'Z' || s.state == 'X') && s.threads <= 1 }

// readStat never sleeps on the process it reads about: the kernel takes no lock
// of its memory for this file.
func readStat(pid int) (statInfo, error) {
	var buf [1024]byte
	n, err := readProc("/proc/"+strconv.Itoa(pid)+"/stat", buf[:])
	if err != nil {
		return statInfo{}, err
	}
	return parseStat(pid, buf[:n])
}

// parseStat begins after the last ')': the name before it is the process's to
// choose and may hold blanks, newlines and parentheses.
func parseStat(pid int, b []byte) (statInfo, error) {
	end := bytes.LastIndexByte(b, ')')
	if end < 0 || end+2 >= len(b) {
		return statInfo{}, fmt.Errorf("/proc/%d/stat: no name in it", pid)
	}
	f := strings.Fields(string(b[end+2:]))
	if len(f) < 22 {
		return statInfo{}, fmt.Errorf("/proc/%d/stat: only %d fields", pid, len(f))
	}
	num := func(i int) int64 { // fields are counted from 3, "state"
		n, err := strconv.ParseInt(f[i-3], 10, 64)
		if err != nil {
			return 0 // an unsigned one beyond int64: none of those we read
		}
		return n
	}
	return statInfo{
		pid: pid, state: f[0][0],
		ppid: int(num(4)), pgrp: int(num(5)), sid: int(num(6)),
		utime: uint64(num(14)), stime: uint64(num(15)), cutime: uint64(num(16)), cstime: uint64(num(17)),
		threads: int(num(20)), start: uint64(num(22)), rssPages: num(24),
		noEnviron: len(f) <= envEnd-3 || f[envEnd-3] != "0" && f[envEnd-3] == f[envStart-3],
	}, nil
}

// readProc reads a small file in one go, without the poller and the allocations
// of package os.
func readProc(path string, buf []byte) (int, error) {
	fd, err := openRetry(path)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	n := 0
	for n < len(buf) {
		m, err := readRetry(fd, buf[n:])
		if err != nil {
			return n, err
		}
		if m == 0 {
			break
		}
		n += m
	}
	return n, nil
}

func openRetry(path string) (int, error) { return openFlags(path, 0) }

func openFlags(path string, flags int) (int, error) {
	for {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|flags, 0)
		if err != unix.EINTR {
			return fd, err
		}
	}
}

// childrenLists are the kernel's lists of our children, one for each thread that
// has any: orphans come to the first one (kernel/exit.c, find_new_reaper), and who
// was forked is a child of the thread that forked it. They stay open, being read at
// every exit. A thread of Go's ends only with a goroutine that is locked to it; as
// none of ours does that, no list is of a thread that is gone.
type childrenLists struct {
	absent bool // the kernel has no such lists (CONFIG_PROC_CHILDREN)
	files  map[int]int
	buf    []byte
}

// of makes sure that the children of a thread are listed. Called with Owner.mu held.
func (c *childrenLists) of(tid int) error {
	if _, ok := c.files[tid]; ok || c.absent {
		return nil
	}
	fd, err := openRetry("/proc/self/task/" + strconv.Itoa(tid) + "/children")
	if err != nil {
		return err
	}
	if c.files == nil {
		c.files, c.buf = map[int]int{}, make([]byte, 4096)
	}
	c.files[tid] = fd
	return nil
}

func (c *childrenLists) close() {
	for _, fd := range c.files {
		unix.Close(fd)
	}
}

// list is called with Owner.mu held. ok is false where the lists cannot be read.
func (c *childrenLists) list() (pids []int, ok bool) {
	if c.absent {
		return nil, false
	}
	for _, fd := range c.files {
		n, err := c.read(fd)
		if err != nil {
			return nil, false
		}
		pids = append(pids, parsePIDs(c.buf[:n])...)
	}
	return pids, true
}

func (c *childrenLists) read(fd int) (n int, err error) {
	for {
		m, err := unix.Pread(fd, c.buf[n:], int64(n))
		if err == unix.EINTR {
			continue
		}
		if err != nil || m == 0 {
			return n, err
		}
		n += m
		if n == len(c.buf) {
			c.buf = append(c.buf, make([]byte, len(c.buf))...)
		}
	}
}

func parsePIDs(b []byte) []int {
	var pids []int
	for len(b) > 0 {
		var word []byte
		word, b, _ = bytes.Cut(b, []byte(" "))
		if n, err := strconv.Atoi(string(word)); err == nil {
			pids = append(pids, n)
		}
	}
	return pids
}

// childrenMost is the room that most lists of children fit in.
const childrenMost = 512

// childrenOf lists the children of all threads of another process. ok is false
// where the kernel has no such list (CONFIG_PROC_CHILDREN).
func childrenOf(st *statInfo) (pids []int, ok bool) {
	dir := "/proc/" + strconv.Itoa(st.pid) + "/task/"
	tasks := []string{strconv.Itoa(st.pid)}
	if st.threads > 1 {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return nil, true // it has just gone
		}
		tasks = tasks[:0]
		for _, e := range entries {
			tasks = append(tasks, e.Name())
		}
	}
	for _, t := range tasks {
		var room [childrenMost]byte
		b := room[:]
		n, err := readProc(dir+t+"/children", b)
		if b = b[:n]; n == len(room) {
			b, err = os.ReadFile(dir + t + "/children")
		}
		if errors.Is(err, os.ErrNotExist) {
			if _, statErr := os.Stat(dir + t); statErr == nil {
				return nil, false
			}
			continue
		}
		if err == nil {
			pids = append(pids, parsePIDs(b)...)
		}
	}
	return pids, true
}

// childless tells that a process has one thread and no children, as most programs
// that are stopped: half of what it takes to list it. False where that is not known.
func childless(pid int) bool {
	dir := "/proc/" + strconv.Itoa(pid) + "/task"
	var st unix.Stat_t
	// The directory itself, its parent's entry, and one for each thread.
	if err := unix.Stat(dir, &st); err != nil || st.Nlink != 3 {
		return false
	}
	var one [1]byte
	n, err := readProc(dir+"/"+strconv.Itoa(pid)+"/children", one[:])
	return err == nil && n == 0
}

// allProcesses reads /proc once: the way without children lists.
func allProcesses() (map[int][]statInfo, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	byParent := map[int][]statInfo{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if st, err := readStat(pid); err == nil {
			byParent[st.ppid] = append(byParent[st.ppid], st)
		}
	}
	return byParent, nil
}

// environLimit bounds how much of an environment is searched for the tag, and
// environPatience how long. execPause is the time between two looks at a process
// that is in the middle of an exec.
const (
	environLimit    = 256 << 10
	environPatience = time.Second
	execPause       = 5 * time.Millisecond
)

// tagAnswer is what the environment of one process said.
type tagAnswer struct {
	pid  int
	tag  string
	read bool // false: we may not look, or it took too long
	exec bool // it has no environment yet
}

// readTags reads the value of EnvTag in the initial environments of processes.
// The kernel locks the memory of a process for this file, and a hostile one could
// hold that lock, so the reads happen aside, and what has not answered within
// a second counts as unreadable.
func readTags(pids []int) map[int]tagAnswer {
	// Each process is in at most one of them: nobody is left hanging at a send.
	answers := make(chan tagAnswer, len(pids))
	work := make(chan int, len(pids))
	stop := make(chan struct{})
	defer close(stop)
	for _, pid := range pids {
		work <- pid
	}
	for range min(len(pids), 16) {
		go answerTags(work, answers, stop)
	}
	timer := time.NewTimer(environPatience)
	defer timer.Stop()
	out := make(map[int]tagAnswer, len(pids))
	for len(out) < len(pids) {
		select {
		case a := <-answers:
			if a.exec {
				time.AfterFunc(execPause, func() { work <- a.pid })
				continue
			}
			out[a.pid] = a
		case <-timer.C:
			return out
		}
	}
	return out
}

func answerTags(work <-chan int, answers chan<- tagAnswer, stop <-chan struct{}) {
	for {
		select {
		case pid := <-work:
			answers <- readTag(pid)
		case <-stop:
			return
		}
	}
}

func readTag(pid int) tagAnswer {
	b, err := readEnviron(pid)
	if err != nil {
		return tagAnswer{pid: pid}
	}
	if len(b) == 0 && betweenImages(pid) {
		return tagAnswer{pid: pid, exec: true}
	}
	for kv := range bytes.SplitSeq(b, []byte{0}) {
		if v, ok := bytes.CutPrefix(kv, []byte(EnvTag+"=")); ok {
			return tagAnswer{pid: pid, tag: string(v), read: true}
		}
	}
	return tagAnswer{pid: pid, read: true}
}

func readEnviron(pid int) ([]byte, error) {
	f, err := os.Open("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, environLimit))
}

// betweenImages tells none from an empty environment, of a process whose
// environment read as nothing: execve(2) gives up the old memory, and closes what
// is close-on-exec, some time before the new memory has its environment. Whoever
// started the process may take that closing for its success and be gone already,
// and an escapee asked then would be nobody's for good. One that has got its
// environment since the reading counts too.
func betweenImages(pid int) bool {
	st, err := readStat(pid)
	return err == nil && !st.dead() && !st.noEnviron
}

// readPipes returns the inodes behind a process's first three descriptors that
// are pipes or sockets.
func readPipes(pid int) []uint64 {
	var out []uint64
	for fd := range 3 {
		link, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", pid, fd))
		if err != nil {
			continue
		}
		for _, kind := range []string{"pipe:[", "socket:["} {
			if rest, ok := strings.CutPrefix(link, kind); ok {
				if n, err := strconv.ParseUint(strings.TrimSuffix(rest, "]"), 10, 64); err == nil {
					out = append(out, n)
				}
			}
		}
	}
	return out
}

// countFDs counts open descriptors; ok is false when we may not look.
func countFDs(pid int) (n int, ok bool) {
	dir := "/proc/" + strconv.Itoa(pid) + "/fd"
	f, err := os.Open(dir)
	if err != nil {
		return 0, false
	}
	defer f.Close()
	// Since Linux 6.2 the size of the directory is the count.
	if st, err := f.Stat(); err == nil && st.Size() > 0 {
		return int(st.Size()), true
	}
	names, err := f.Readdirnames(-1)
	return len(names), err == nil
}

// ownerUID is the effective uid of a process.
func ownerUID(pid int) (uint32, bool) {
	var st unix.Stat_t
	// The directory of an undumpable process belongs to root; its task list in
	// status does not lie.
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err == nil {
		for line := range strings.Lines(string(b)) {
			if rest, ok := strings.CutPrefix(line, "Uid:"); ok {
				f := strings.Fields(rest)
				if len(f) >= 2 {
					if n, err := strconv.ParseUint(f[1], 10, 32); err == nil {
						return uint32(n), true
					}
				}
			}
		}
	}
	if err := unix.Stat(path.Join("/proc", strconv.Itoa(pid)), &st); err != nil {
		return 0, false
	}
	return st.Uid, true
}

type signalState struct{ blocked, ignored uint64 }

func readSelfSignals() (signalState, error) {
	b, err := os.ReadFile("/proc/thread-self/status")
	if err != nil {
		return signalState{}, err
	}
	var st signalState
	for line := range strings.Lines(string(b)) {
		name, value, ok := strings.Cut(line, ":")
		if !ok {
			continue
		}
		switch name {
		case "SigBlk", "SigIgn":
			n, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64)
			if err != nil {
				return st, fmt.Errorf("%s: %w", name, err)
			}
			if name == "SigBlk" {
				st.blocked = n
			} else {
				st.ignored = n
			}
		}
	}
	return st, nil
}

// closeOnExecFrom marks every descriptor from first on; fallback for kernels
// before 5.11 is the list in /proc.
func closeOnExecFrom(first int) error {
	err := unix.CloseRange(uint(first), ^uint(0)>>1, unix.CLOSE_RANGE_CLOEXEC)
	if err == nil {
		return nil
	}
	entries, dirErr := os.ReadDir("/proc/self/fd")
	if dirErr != nil {
		return errors.Join(err, dirErr)
	}
	for _, e := range entries {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd >= first {
			unix.CloseOnExec(fd)
		}
	}
	return nil
}

func readRetry(fd int, buf []byte) (int, error) {
	for {
		n, err := unix.Read(fd, buf)
		if err != unix.EINTR {
			return n, err
		}
	}
}
