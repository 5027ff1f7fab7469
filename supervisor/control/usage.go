package control

import (
	"net/http"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
)

// To read the use of all programs takes some microseconds of /proc for each process. A client that
// polls a large box must not slow down its programs. So the next reading waits usageShare times the
// processor time of the last one, and at least usagePause.
const (
	usagePause = time.Second
	usageShare = 125 // at most 0.8 per cent of one processor
)

// sampler keeps the last reading for all requests that come before the next one is due.
type sampler[T any] struct {
	mu   sync.Mutex
	last T
	due  time.Time
}

// sample reads again if a reading is due. stamp records in the reading how long it stays valid.
func (u *sampler[T]) sample(read func(at time.Time) T, stamp func(t *T, pause time.Duration)) T {
	u.mu.Lock()
	defer u.mu.Unlock()
	began := time.Now()
	if began.Before(u.due) {
		return u.last
	}
	spent := processorTime(func() { u.last = read(began) })
	pause := max(usagePause, usageShare*spent)
	u.due = began.Add(pause)
	stamp(&u.last, pause)
	return u.last
}

// processorTime is the processor time of f on its own thread (getrusage(2), RUSAGE_THREAD). On a
// busy machine the elapsed time of f is much longer.
func processorTime(f func()) time.Duration {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := threadTime()
	f()
	return threadTime() - before
}

func threadTime() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_THREAD, &u) != nil {
		return 0 // it fails only for a bad address
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func getUsage(s *Server, _ *http.Request) (any, error) {
	return s.readUsage(), nil
}

func (s *Server) readUsage() api.Usage {
	return s.usage.sample(
		func(at time.Time) api.Usage { return api.Usage{Time: at, Programs: s.cfg.Usage()} },
		func(u *api.Usage, pause time.Duration) { u.NextMS = pause.Milliseconds() },
	)
}

// treeKey names a run. The processes of a run are read together.
type treeKey struct {
	program string
	run     uint64
}

// trees holds a sampler for each run whose processes were requested lately.
type trees struct {
	mu  sync.Mutex
	all map[treeKey]*sampler[api.Processes]
}

// maxTrees is how many readings are kept at once.
const maxTrees = 64

// of finds the sampler of a run. If there are too many, all are dropped and read again.
func (t *trees) of(key treeKey) *sampler[api.Processes] {
	t.mu.Lock()
	defer t.mu.Unlock()
	if found := t.all[key]; found != nil {
		return found
	}
	if t.all == nil || len(t.all) >= maxTrees {
		t.all = make(map[treeKey]*sampler[api.Processes])
	}
	made := new(sampler[api.Processes])
	t.all[key] = made
	return made
}

func getProcesses(s *Server, r *http.Request) (any, error) {
	p, err := resolveOne(r.URL.Query().Get("name"), s.cfg.Supervisor.Snapshot().Programs)
	if err != nil {
		return nil, err
	}
	return s.trees.of(treeKey{p.Name, p.Run}).sample(
		func(at time.Time) api.Processes {
			return api.Processes{Time: at, Program: p.Name, Processes: s.cfg.Processes(p.Name, p.Run)}
		},
		func(u *api.Processes, pause time.Duration) { u.NextMS = pause.Milliseconds() },
	), nil
}
