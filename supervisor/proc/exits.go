package proc

import (
	"sync"
	"syscall"
	"time"
)

// ExitKind tells the two notices about a started process apart.
type ExitKind int

// The kinds of notice.
const (
	// Exited: the process itself has ended and was reaped.
	Exited ExitKind = iota
	// Emptied: nothing is left in its scope, or Kill gave up on Leaked members.
	// It follows Exited, unless the process itself is what could not be killed.
	Emptied
)

// Rusage is what wait4(2) tells about a reaped process and the children that it
// had waited for.
type Rusage struct {
	User, System time.Duration
	// MaxRSS is the most memory that the largest process had resident, in bytes. Before
	// its exec a process shares our memory, and the kernel counts that: what is not
	// clearly more is 0, not known.
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
	ByUs   bool               // Exited: ended by a KILL that the Owner sent
	Leaked int                // Emptied: members that could not be killed
	Left   []int              // Emptied: their pids
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

// exitQueue carries notices from the reaper to a reader that may be slow. The
// channel takes what fits at once; the rest waits in memory and is moved over by
// a goroutine that lives only as long as there is something to move.
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
