package proc

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// statInfo holds the fields of /proc/PID/stat (proc(5)) that this package needs.
type statInfo struct {
	pid, ppid, pgrp, sid int
	state                byte
	utime, stime         uint64 // clock ticks, see ticksPerSecond
	cutime, cstime       uint64
	threads              int
	start                uint64 // ticks after boot; no other process ever has the same pid and start
	rssPages             int64
	noEnviron            bool // its environment exists and is empty
}

// envStart and envEnd are the fields with the addresses of the environment (since Linux 3.5). They
// are 0 as long as the process has no environment.
const envStart, envEnd = 50, 51

// ticksPerSecond is USER_HZ, which is 100 on every Linux architecture that Go
// supports.
const ticksPerSecond = 100

// dead does not look at state Z alone. A process whose first thread has ended is in that state too,
// although its other threads still run.
func (s *statInfo) dead() bool { return s.zombie() && s.threads <= 1 }

// zombie tells whether the first thread has ended.
func (s *statInfo) zombie() bool { return s.state == 'Z' || s.state == 'X' }

// released tells whether the process was just being reaped when it was read: the kernel no longer tells
// its parent and how many threads it has. The state that it tells may be older than that, so it may still
// be Z (do_task_stat in fs/proc/array.c).
func (s *statInfo) released() bool { return s.threads == 0 }

// readStat never waits for the process that it reads about: for this file the kernel takes no lock
// of the process's memory.
func readStat(pid int) (statInfo, error) {
	var buf [1024]byte
	n, err := readProc("/proc/"+strconv.Itoa(pid)+"/stat", buf[:])
	if err != nil {
		return statInfo{}, err
	}
	return parseStat(pid, buf[:n])
}

// parseStat begins after the last ')'. The process chooses the name before it, which may contain
// blanks, newlines and parentheses.
func parseStat(pid int, b []byte) (statInfo, error) {
	end := bytes.LastIndexByte(b, ')')
	if end < 0 || end+2 >= len(b) {
		return statInfo{}, fmt.Errorf("/proc/%d/stat: it contains no name", pid)
	}
	var f [envEnd - 2][]byte // fields are counted from 3, "state"
	found := 0
	for rest := bytes.TrimSpace(b[end+2:]); found < len(f) && len(rest) > 0; found++ {
		f[found], rest, _ = bytes.Cut(rest, []byte{' '})
	}
	if found < 22 {
		return statInfo{}, fmt.Errorf("/proc/%d/stat: only %d fields", pid, found)
	}
	num := func(i int) int64 {
		n, err := strconv.ParseInt(string(f[i-3]), 10, 64)
		if err != nil {
			return 0 // a value above the range of int64: no field that is used here has one
		}
		return n
	}
	return statInfo{
		pid: pid, state: f[0][0],
		ppid: int(num(4)), pgrp: int(num(5)), sid: int(num(6)),
		utime: uint64(num(14)), stime: uint64(num(15)), cutime: uint64(num(16)), cstime: uint64(num(17)),
		threads: int(num(20)), start: uint64(num(22)), rssPages: num(24),
		noEnviron: found < len(f) || string(f[envEnd-3]) != "0" && bytes.Equal(f[envEnd-3], f[envStart-3]),
	}, nil
}

// readProc reads a small file with one read, without the poller and the allocations of package os.
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

// taskDir lists agentinit's threads.
const taskDir = "/proc/self/task"

// threadsIn are the ids of the threads that a directory such as taskDir lists.
func threadsIn(dir string) (tids []int, err error) {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if tid, err := strconv.Atoi(e.Name()); err == nil {
			tids = append(tids, tid)
		}
	}
	return tids, err
}

// ownThreads tells how many threads agentinit has. The directory stays open, because they are
// counted at every start and every reaping, and looking up its name takes most of the time.
type ownThreads struct{ dir int } // O_PATH, or -1

func newOwnThreads() ownThreads {
	dir, err := openFlags(taskDir, unix.O_PATH)
	if err != nil {
		dir = -1
	}
	return ownThreads{dir}
}

// count returns 0 if /proc does not tell.
func (t ownThreads) count() uint64 {
	var st unix.Stat_t
	if unix.Fstat(t.dir, &st) != nil {
		return 0
	}
	return uint64(st.Nlink)
}

func (t ownThreads) close() {
	if t.dir >= 0 {
		unix.Close(t.dir)
	}
}

// childrenLists are the kernel's lists of agentinit's children. Each thread that has children has a
// list. Orphans go to the first thread (kernel/exit.c, find_new_reaper). A forked process is a
// child of the thread that forked it. The files stay open, because they are read at every exit. The
// list of an ended thread is empty: its children went to the first thread (kernel/exit.c,
// find_alive_thread), which never ends before agentinit.
type childrenLists struct {
	absent bool // the kernel has no such lists (CONFIG_PROC_CHILDREN)
	files  map[int]int
	buf    []byte
}

// of makes sure that the children of a thread are listed. The caller holds Owner.mu.
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

// list returns all children. ok is false if the lists cannot be read. The caller holds Owner.mu.
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

// childrenMost is large enough for most lists of children.
const childrenMost = 512

// childrenOf lists the children of all threads of another process. ok is false if the kernel has no
// such list (CONFIG_PROC_CHILDREN).
func childrenOf(st *statInfo) (pids []int, ok bool) {
	dir := "/proc/" + strconv.Itoa(st.pid) + "/task/"
	tasks := []string{strconv.Itoa(st.pid)}
	if st.threads > 1 {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return nil, true // the process has just ended
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

// allProcesses reads all of /proc once and returns the pids by parent. It is used if the kernel has no
// lists of children.
func allProcesses() (map[int][]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	byParent := map[int][]int{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if st, err := readStat(pid); err == nil {
			byParent[st.ppid] = append(byParent[st.ppid], pid)
		}
	}
	return byParent, nil
}

// environLimit bounds how many bytes of an environment are searched for the tag, and
// environPatience for how long. execPause is the time before the next attempt with a process that
// is in the middle of an exec.
const (
	environLimit    = 256 << 10
	environPatience = time.Second
	execPause       = 5 * time.Millisecond
)

// tagAnswer is what was found in the environment of one process.
type tagAnswer struct {
	pid  int
	tag  string
	read bool // false: reading is not allowed, or it took too long
	exec bool // the process has no environment yet, or is partlyDead
}

// tagReads is how many environments are read at once, reads that hang included.
const tagReads = 16

// tagReader reads the value of EnvTag in the initial environments of processes. For this file the
// kernel takes the lock of a process's memory (fs/proc/base.c, environ_read). A process can hold
// that lock for as long as it likes: in an mmap of a FUSE file whose server does not answer, or with
// a CPU quota of almost 0. So other goroutines read, and a process whose environment cannot be
// read within a second counts as unreadable. A read that hangs keeps its thread until the process
// ends. Their number is bounded, because the Go runtime ends a process that has 10,000 threads.
type tagReader struct {
	read     func(pid int) tagAnswer // readTag, except in tests
	patience time.Duration           // environPatience, except in tests
	slots    chan struct{}           // holds one element for each read that has not returned

	mu   sync.Mutex
	hung int // reads that no call waits for any more
}

func newTagReader(read func(int) tagAnswer) *tagReader {
	return &tagReader{read: read, patience: environPatience, slots: make(chan struct{}, tagReads)}
}

// tagRead is one read of a call. tagReader.mu guards it.
type tagRead struct{ returned, hung bool }

// tags reads about all pids. A pid without an answer counts as unreadable.
func (r *tagReader) tags(pids []int) map[int]tagAnswer {
	out := make(map[int]tagAnswer, len(pids))
	if r.allHang() {
		return out // a wait for one of them would delay every caller by a second
	}
	// A process is in at most one of the three, so no send blocks.
	next, again, answers := slices.Clone(pids), make(chan int, len(pids)), make(chan tagAnswer, len(pids))
	var reads []*tagRead
	defer func() { r.giveUp(reads) }()
	timer := time.NewTimer(r.patience)
	defer timer.Stop()
	for len(out) < len(pids) {
		var slots chan struct{} // nil, so that it is never ready, if no pid waits
		if len(next) > 0 {
			slots = r.slots
		}
		select {
		case slots <- struct{}{}:
			one := &tagRead{}
			reads = append(reads, one)
			go r.one(one, next[0], answers)
			next = next[1:]
		case a := <-answers:
			if a.exec {
				time.AfterFunc(execPause, func() { again <- a.pid })
				continue
			}
			out[a.pid] = a
		case pid := <-again:
			next = append(next, pid)
		case <-timer.C:
			return out
		}
	}
	return out
}

func (r *tagReader) one(read *tagRead, pid int, answers chan<- tagAnswer) {
	a := r.read(pid)
	r.mu.Lock()
	read.returned = true
	if read.hung {
		r.hung--
	}
	r.mu.Unlock()
	<-r.slots
	answers <- a
}

// giveUp counts the reads of a call that have not returned.
func (r *tagReader) giveUp(reads []*tagRead) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, read := range reads {
		if !read.returned {
			read.hung = true
			r.hung++
		}
	}
}

func (r *tagReader) allHang() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.hung == cap(r.slots)
}

func readTag(pid int) tagAnswer {
	tid := pid
	b, err := readEnviron(tid)
	if len(b) == 0 && partlyDead(pid, err) {
		tid = livingThread(pid)
		if b, err = readEnviron(tid); errors.Is(err, unix.ESRCH) || errors.Is(err, os.ErrNotExist) {
			return tagAnswer{pid: pid, exec: true}
		}
	}
	if err != nil {
		return tagAnswer{pid: pid}
	}
	if len(b) == 0 && betweenImages(tid) {
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

// betweenImages tells apart a missing environment from an empty one. It is called after an
// environment was read as empty. execve(2) gives up the old memory, and closes what is
// close-on-exec, some time before the new memory has its environment. The parent may take that
// closing for success and end. If this process were then attributed without its tag, its program
// would never be known. A process that has got its environment since it was read counts too.
func betweenImages(pid int) bool {
	st, err := readStat(pid)
	return err == nil && !st.dead() && !st.noEnviron
}

// partlyDead tells whether a child is ending: it has given up its memory (ESRCH), or its first thread
// has ended, but another thread has not. Its children become children of agentinit only when its last
// thread ends. If it were attributed before, its tree could look empty.
func partlyDead(pid int, environErr error) bool {
	st, err := readStat(pid)
	return err == nil && (st.dead() || errors.Is(environErr, unix.ESRCH)) && !isDead(pid)
}

// livingThread returns the first thread of a process, or another one if the first has ended. An ended
// thread has neither memory nor descriptors (exit_mm and exit_files in kernel/exit.c), so the files of the
// process in /proc show none.
func livingThread(pid int) int {
	if st, err := readStat(pid); err != nil || !st.zombie() {
		return pid
	}
	tids, _ := threadsIn("/proc/" + strconv.Itoa(pid) + "/task") // none if the process has just ended
	for _, tid := range tids {
		if st, err := readStat(tid); err == nil && !st.zombie() {
			return tid
		}
	}
	return pid
}

// readPipes returns the inodes of those among a process's first three descriptors that are pipes or
// sockets.
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

// countFDs counts the open descriptors of a process; ok is false if that is not allowed.
func countFDs(pid int) (n int, ok bool) {
	dir := "/proc/" + strconv.Itoa(pid) + "/fd"
	f, err := os.Open(dir)
	if err != nil {
		return 0, false
	}
	defer f.Close()
	// Since Linux 6.2 the size of the directory is the number of descriptors.
	if st, err := f.Stat(); err == nil && st.Size() > 0 {
		return int(st.Size()), true
	}
	names, err := f.Readdirnames(-1)
	return len(names), err == nil
}

// ownerUID is the effective uid of a process.
func ownerUID(pid int) (uint32, bool) {
	// The directory of an undumpable process belongs to root. Its status file shows the true uid.
	if uids, _ := readOwner(pid); len(uids) >= 2 {
		return uint32(uids[1]), true
	}
	var st unix.Stat_t
	if err := unix.Stat(path.Join("/proc", strconv.Itoa(pid)), &st); err != nil {
		return 0, false
	}
	return st.Uid, true
}

// ignoredSignals is the set of signals that agentinit ignores.
func ignoredSignals() (uint64, error) {
	b, err := os.ReadFile("/proc/thread-self/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if value, ok := strings.CutPrefix(line, "SigIgn:"); ok {
			set, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64)
			if err != nil {
				return 0, fmt.Errorf("SigIgn: %w", err)
			}
			return set, nil
		}
	}
	return 0, nil
}

// closeOnExecFrom marks every descriptor from first on. It uses the list in /proc if the kernel has
// no close_range(2) with that flag (before 5.11) or a filter forbids it; ranges is false then.
func closeOnExecFrom(first int) (ranges bool, err error) {
	err = unix.CloseRange(uint(first), ^uint(0)>>1, unix.CLOSE_RANGE_CLOEXEC)
	if err == nil {
		return true, nil
	}
	entries, dirErr := os.ReadDir("/proc/self/fd")
	if dirErr != nil {
		return false, errors.Join(err, dirErr)
	}
	for _, e := range entries {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd >= first {
			unix.CloseOnExec(fd)
		}
	}
	return false, nil
}

func readRetry(fd int, buf []byte) (int, error) {
	for {
		n, err := unix.Read(fd, buf)
		if err != unix.EINTR {
			return n, err
		}
	}
}
