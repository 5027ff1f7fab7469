package proc

import (
	"sync"
	"syscall"
	"time"
)

// ExitKind tells the two kinds of notice about a started process apart.
type ExitKind int

// The kinds of notice.
const (
	// Exited: the process itself has ended and was reaped, or the one that is
	// followed in its place (Follow) has ended.
	Exited ExitKind = iota
	// Emptied: no process is left in its scope, or Kill has given up on Leaked members. It follows
	// Exited, except if the started process itself cannot be killed.
	Emptied
)

// Rusage is what wait4(2) reports about a reaped process and the children that it had waited for.
type Rusage struct {
	User, System time.Duration
	// MaxRSS is the largest resident size, in bytes, that any single one of these processes had.
	// Before its exec a process shares agentinit's memory, and the kernel counts that too. So a
	// value that is not clearly higher than agentinit's own becomes 0, which means unknown.
	MaxRSS int64
}

// Exit is one notice of the stream.
type Exit struct {
	Kind   ExitKind
	ID     uint64
	PID    int
	Time   time.Time
	Status syscall.WaitStatus // Exited: how it ended
	Rusage Rusage             // Exited: what it used
	CPU    time.Duration      // Emptied: what all members used
	ByUs   bool               // Exited: a SIGKILL that the Owner sent ended it
	// MemoryLimit is, for Exited, the limit of the process's own cgroup in bytes, if the kernel killed it
	// because its processes had reached that limit; 0 if not, or if unknown.
	MemoryLimit uint64
	Untold      bool  // Exited, of a followed process: another process got its status
	Leaked      int   // Emptied: members that could not be killed
	Left        []int // Emptied: their pids
}

// Code is the exit status, or -1 when a signal ended the process.
func (e Exit) Code() int {
	if e.Status.Exited() {
		return e.Status.ExitStatus()
	}
	return -1
}

// Signal is the signal that ended the process, or 0.
func (e Exit) Signal() syscall.Signal {
	if e.Status.Signaled() {
		return e.Status.Signal()
	}
	return 0
}

// ShellStatus is what a shell reports: the exit status, or 128 + signal.
func (e Exit) ShellStatus() int {
	if s := e.Signal(); s != 0 {
		return 128 + int(s)
	}
	return e.Code()
}

// exitQueue carries notices from the reaper to a reader that may be slow. The channel takes what
// fits at once. The rest waits in memory; a goroutine moves it to the channel and ends when the
// memory is empty.
type exitQueue struct {
	out  chan Exit
	stop chan struct{}

	mu      sync.Mutex
	waiting []Exit
	moving  bool
	movers  sync.WaitGroup
}

func newExitQueue() *exitQueue {
	return &exitQueue{out: make(chan Exit, 256), stop: make(chan struct{})}
}

func (q *exitQueue) push(e Exit) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.moving {
		select {
		case q.out <- e:
			return
		default:
		}
		q.moving = true
		q.movers.Go(q.move)
	}
	q.waiting = append(q.waiting, e)
}

func (q *exitQueue) move() {
	for {
		q.mu.Lock()
		batch := q.waiting
		q.waiting = nil
		if len(batch) == 0 {
			q.moving = false
			q.mu.Unlock()
			return
		}
		q.mu.Unlock()
		for _, e := range batch {
			select {
			case q.out <- e:
			case <-q.stop:
				return
			}
		}
	}
}

func (q *exitQueue) close() {
	close(q.stop)
	q.movers.Wait()
}
