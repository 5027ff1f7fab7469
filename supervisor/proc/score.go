package proc

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dreamlab-ai/agentinit/internal/lateclose"
)

// scoreKeeper restores agentinit's OOM score when a program has raised it. A program with uid 0 may
// write agentinit's score without any capability. The OOM killer would then kill agentinit first.
// The kernel allows a return to the lowest score that a privileged process has set (proc(5),
// oom_score_adj_min). So restoring needs no capability, only an open descriptor.
//
// It uses no CPU time at rest. The kernel reports writes (inotify(7)) and memory pressure (PSI).
// The score is also checked with each start and each reaping, and once more a second after them.
// There is no other timer. If agentinit makes a thread at another time, the file of that thread is
// not watched until the next check. Then only PSI can reveal a write to it.
type scoreKeeper struct {
	file    *os.File // agentinit's score file, opened before PR_SET_DUMPABLE gave it to root
	tell    func(ScoreRaised)
	threads ownThreads
	ep      epoll // watches what wakes run

	mu      sync.Mutex
	events  int // inotify(7), or -1
	want    int
	watched map[string]int // O_PATH descriptors of the directories that events watches
	count   uint64
	failed  bool // whether the last attempt to restore failed
	next    time.Time
	seen    uint64 // how many threads there were when the threads' files were watched
	again   bool   // a check is due scoreSettles after a start or a reaping
}

// ScoreRaised says that agentinit's OOM score was raised.
type ScoreRaised struct {
	Was   int    // the value that a program set
	Now   int    // the value after agentinit restored it
	Count uint64 // how often it was restored since the start of agentinit
	Err   error  // why it could not be restored; Now then equals Was
}

// scoreToldAgain is how long a score that is raised again and again is not reported again.
const scoreToldAgain = time.Minute

// scoreSettles is the time after which all threads exist that a start or a reaping needed.
const scoreSettles = time.Second

// psiTrigger asks to be woken when some task waited for memory 150 ms within 2 s, both in
// µs. Without CAP_SYS_RESOURCE the window must be a multiple of 2 s
// (Documentation/accounting/psi.rst).
const (
	ownDir     = "/proc/self/" // with the slash: the entry itself is a link
	psiFile    = "/proc/pressure/memory"
	psiTrigger = "some 150000 2000000"
)

// newScoreKeeper must be called while agentinit's files in /proc still belong to its user.
func newScoreKeeper(tell func(ScoreRaised), threads ownThreads) (*scoreKeeper, error) {
	f, err := os.OpenFile(scoreFile, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	k := &scoreKeeper{file: f, tell: tell, threads: threads, events: -1, watched: map[string]int{}}
	if k.want, err = k.read(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return k, nil
}

func (k *scoreKeeper) read() (int, error) {
	var buf [16]byte
	n, err := k.file.ReadAt(buf[:], 0)
	if n == 0 {
		return 0, err
	}
	line, _, _ := bytes.Cut(buf[:n], []byte("\n"))
	return strconv.Atoi(string(line))
}

// keep makes the present score the one that is kept.
func (k *scoreKeeper) keep() {
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if own, err := k.read(); err == nil {
		k.want = own
	}
}

// look restores the score if it was raised. A lowered score protects agentinit more, so it stays.
func (k *scoreKeeper) look() {
	k.watchThreads()
	if told := k.restore(time.Now()); told != nil {
		k.tell(*told)
	}
}

// active checks now and once more a while later.
func (k *scoreKeeper) active() {
	if k == nil {
		return
	}
	k.look()
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.again {
		k.again = true
		time.AfterFunc(scoreSettles, func() {
			k.mu.Lock()
			k.again = false
			k.mu.Unlock()
			k.look()
		})
	}
}

// restore returns the report, or nil if there is none to make now.
func (k *scoreKeeper) restore(now time.Time) *ScoreRaised {
	k.mu.Lock()
	defer k.mu.Unlock()
	was, err := k.read()
	if err != nil || was <= k.want {
		return nil
	}
	r := ScoreRaised{Was: was, Now: k.want}
	if _, r.Err = k.file.WriteAt([]byte(strconv.Itoa(k.want)+"\n"), 0); r.Err != nil {
		r.Now = was
	} else {
		k.count++
	}
	r.Count = k.count
	if failed := r.Err != nil; failed != k.failed {
		k.failed = failed
	} else if now.Before(k.next) {
		return nil
	}
	k.next = now.Add(scoreToldAgain)
	return &r
}

func (k *scoreKeeper) restored() uint64 {
	if k == nil {
		return 0
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.count
}

// watch prepares run. Its error says why writes are not watched. A missing PSI is not reported,
// because PSI only covers the files that are not watched.
func (k *scoreKeeper) watch() (err error) {
	if k.ep, err = newEpoll(); err != nil {
		return err
	}
	k.watchPressure()
	return k.watchWrites()
}

func (k *scoreKeeper) watchWrites() error {
	in, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return fmt.Errorf("inotify: %w", err)
	}
	k.events = in
	if err := k.ep.watch(in, unix.EPOLLIN); err != nil {
		return fmt.Errorf("inotify: %w", err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.watchDir(ownDir)
}

// watchDir watches one directory with files that set the score: oom_score_adj, and the older
// oom_adj. The directory stays open: if memory is short, the kernel forgets an unused entry of
// /proc, and a watch on it ends.
func (k *scoreKeeper) watchDir(dir string) error {
	fd, err := openFlags(dir, unix.O_PATH)
	if err != nil {
		return err
	}
	if _, err := unix.InotifyAddWatch(k.events, dir, unix.IN_MODIFY); err != nil {
		unix.Close(fd)
		return fmt.Errorf("inotify: %w", err)
	}
	k.watched[dir] = fd
	return nil
}

// watchThreads also watches the directories of agentinit's threads. All threads share one score,
// but each has its own file with its own inode. If one cannot be watched or its thread has ended,
// the others stay watched.
func (k *scoreKeeper) watchThreads() {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := k.threads.count()
	if k.events < 0 || n == 0 || n == k.seen {
		return
	}
	k.seen = n
	// Not filepath.Glob: with that import, this package and init mode would be initialised after
	// most other packages.
	entries, err := os.ReadDir(taskDir)
	if err != nil {
		return
	}
	var dirs []string
	for _, e := range entries {
		dirs = append(dirs, taskDir+"/"+e.Name())
	}
	for dir, fd := range k.watched {
		if strings.HasPrefix(dir, taskDir+"/") && !slices.Contains(dirs, dir) {
			unix.Close(fd)
			delete(k.watched, dir)
		}
	}
	for _, dir := range dirs {
		if _, ok := k.watched[dir]; !ok {
			_ = k.watchDir(dir)
		}
	}
}

func (k *scoreKeeper) watchPressure() {
	fd, err := openFlags(psiFile, unix.O_RDWR)
	if err != nil {
		return
	}
	_, err = unix.Write(fd, append([]byte(psiTrigger), 0))
	if err == nil {
		err = k.ep.watch(fd, unix.EPOLLPRI)
	}
	if err != nil {
		unix.Close(fd)
		return
	}
	k.watched[psiFile] = fd
}

// run checks whenever the kernel reports something, until close. It needs the epoll because package
// os cannot wait for EPOLLPRI, with which PSI reports.
func (k *scoreKeeper) run() {
	k.look()
	k.ep.each(func([]unix.EpollEvent) {
		k.drain()
		k.look()
	})
}

// drain discards the events of inotify: it does not matter which file was written.
func (k *scoreKeeper) drain() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.events < 0 {
		return
	}
	var buf [4096]byte
	for {
		if n, err := unix.Read(k.events, buf[:]); n <= 0 || err != nil {
			return
		}
	}
}

// stop makes run return.
func (k *scoreKeeper) stop() {
	if k != nil {
		k.ep.close()
	}
}

// close releases what is left after run has returned.
func (k *scoreKeeper) close() {
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	_ = k.file.Close() // the error of each write was handled
	if k.events >= 0 {
		closeLate(k.events)
		k.events = -1
	}
	if fd, ok := k.watched[psiFile]; ok {
		closeLate(fd) // the close of a trigger waits for an RCU grace period
		delete(k.watched, psiFile)
	}
	for _, fd := range k.watched {
		unix.Close(fd)
	}
}

// closeLate closes what was only read, so that the error of a close has no meaning.
func closeLate(fd int) {
	_ = lateclose.Hand(fd, func() error { return unix.Close(fd) })
}
