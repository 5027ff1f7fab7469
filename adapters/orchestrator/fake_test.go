package orchestrator

import (
	"context"
	"errors"
	"io"
	"sync"
	"syscall"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// fakeSpawner's agents exist in memory and end when the test says so.
type fakeSpawner struct {
	fail error
	hold chan struct{} // if not nil, a start waits for it

	mu      sync.Mutex
	started []*fakeProcess
}

type fakeProcess struct {
	command Command
	stdin   io.WriteCloser
	deaf    bool // ignores TERM

	mu      sync.Mutex
	signals []syscall.Signal
	once    sync.Once
}

func (f *fakeSpawner) Spawn(_ context.Context, c Command) (Process, error) {
	if f.hold != nil {
		<-f.hold
	}
	if f.fail != nil {
		return nil, f.fail
	}
	p := &fakeProcess{command: c}
	if c.StdinPipe {
		r, w := io.Pipe()
		p.stdin = w
		_ = r
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.started = append(f.started, p)
	return p, nil
}

func (f *fakeSpawner) last() *fakeProcess {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.started[len(f.started)-1]
}

func (p *fakeProcess) PID() int              { return 42 }
func (p *fakeProcess) Refused() uint64       { return 2 }
func (p *fakeProcess) Started() time.Time    { return time.Now() }
func (p *fakeProcess) Stdin() io.WriteCloser { return p.stdin }

func (p *fakeProcess) Signal(sig syscall.Signal) error {
	p.mu.Lock()
	p.signals = append(p.signals, sig)
	p.mu.Unlock()
	if sig == syscall.SIGTERM && !p.deaf {
		p.end(Ending{Signal: sig})
	}
	return nil
}

func (p *fakeProcess) Kill() error {
	p.end(Ending{Signal: syscall.SIGKILL})
	return nil
}

func (p *fakeProcess) end(e Ending) {
	p.once.Do(func() {
		if e.Time.IsZero() {
			e.Time = time.Now()
		}
		go p.command.Ended(e)
	})
}

var errNoExec = errors.New("cannot exec")

func fakeLocal(t interface {
	Helper()
	Fatal(...any)
	TempDir() string
}, f *fakeSpawner) *Local {
	t.Helper()
	l, err := NewLocal(LocalConfig{Spawner: f, Roots: []string{t.TempDir()}})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Connect(context.Background()); err != nil {
		t.Fatal(err)
	}
	return l
}

var _ adapters.Orchestrator = (*Local)(nil)
