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

// scoreKeeper undoes what raises our OOM score. A program with uid 0 may write our
// score without any capability, and the OOM killer would then take us first. The kernel
// lets us go back to the lowest score that a privileged process has set (proc(5),
// oom_score_adj_min), so nothing is needed for that but a descriptor.
//
// It costs nothing at rest. The kernel tells of writes (inotify(7)) and of pressure on
// memory (PSI); besides, the score is looked at with each start and each reaping, and once more
// a while after them. There is no timer beyond that one: a thread that we make at another
// time has a file that is not watched until then, and a write to it is met by PSI at best.
type scoreKeeper struct {
	file *os.File // ours, open since before PR_SET_DUMPABLE made it root's
	tell func(ScoreRaised)
	ep   epoll // of what wakes run

	mu      sync.Mutex
	events  int // inotify(7), or -1
	want    int
	watched map[string]int // O_PATH descriptors of what events watches
	count   uint64
	failed  bool // the last attempt to restore
	next    time.Time
	threads uint64 // links of /proc/self/task when its files were watched
	again   bool   // a look is due scoreSettles after a start or a reaping
}

// ScoreRaised says that our OOM score was raised.
type ScoreRaised struct {
	Was   int    // what a program set
	Now   int    // what it is after we restored it
	Count uint64 // how often it has been restored since the start
	Err   error  // why it could not be restored; Now is then Was
}

// scoreToldAgain is how long we say nothing of a score that is raised again and again.
const scoreToldAgain = time.Minute

// scoreSettles is when threads that a start or a reaping needed have been made.
const scoreSettles = time.Second

// psiTrigger asks to be woken when some task waited for memory 150 ms within 2 s, both in
// µs. Without CAP_SYS_RESOURCE the window must be a multiple of 2 s
// (Documentation/accounting/psi.rst).
const (
	ownDir     = "/proc/self/" // with the slash: the entry itself is a link
	psiFile    = "/proc/pressure/memory"
	psiTrigger = "some 150000 2000000"
)

// newScoreKeeper must be called while our files in /proc are ours.
func newScoreKeeper(tell func(ScoreRaised)) (*scoreKeeper, error) {
	f, err := os.OpenFile(scoreFile, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	k := &scoreKeeper{file: f, tell: tell, events: -1, watched: map[string]int{}}
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

// look restores the score if it was raised. One that was lowered does us no harm and is left.
func (k *scoreKeeper) look() {
	k.watchThreads()
	if told := k.restore(time.Now()); told != nil {
		k.tell(*told)
	}
}

// active looks now and again a while later, and then no more.
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

// restore returns what to tell, nil for nothing now.
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

// watch prepares run. What it returns is why writes are not watched. PSI may be missing
// without a word: it only stands in for the files that are not watched.
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

// watchDir adds one directory with files that set the score: oom_score_adj, and oom_adj, which is
// older. It is held open because a watch ends when the kernel forgets an entry of /proc that
// nobody uses, as it does when memory is short.
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

// watchThreads watches the directories of our threads as well: the score is one, and each file
// of it an inode of its own. Where that is refused or a thread has ended meanwhile, the others
// stay watched.
func (k *scoreKeeper) watchThreads() {
	k.mu.Lock()
	defer k.mu.Unlock()
	var st unix.Stat_t
	if k.events < 0 || unix.Stat("/proc/self/task", &st) != nil || uint64(st.Nlink) == k.threads {
		return
	}
	k.threads = uint64(st.Nlink)
	// Not filepath.Glob: the import would move the initialisation of this package,
	// and with it init mode, behind most others.
	entries, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return
	}
	var dirs []string
	for _, e := range entries {
		dirs = append(dirs, "/proc/self/task/"+e.Name())
	}
	for dir, fd := range k.watched {
		if strings.HasPrefix(dir, "/proc/self/task/") && !slices.Contains(dirs, dir) {
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

// run looks whenever the kernel has something to tell, until close. The epoll is also
// there because package os does not wait for EPOLLPRI, which is how PSI tells.
func (k *scoreKeeper) run() {
	k.look()
	k.ep.each(func([]unix.EpollEvent) {
		k.drain()
		k.look()
	})
}

// drain forgets what inotify has queued: which file it was does not matter.
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
	_ = k.file.Close() // each write was answered
	if k.events >= 0 {
		_ = lateclose.Hand(k.events) // it only saves time
		unix.Close(k.events)
		k.events = -1
	}
	if fd, ok := k.watched[psiFile]; ok {
		_ = lateclose.Hand(fd) // the close of a trigger waits for an RCU grace period
	}
	for _, fd := range k.watched {
		unix.Close(fd)
	}
}
