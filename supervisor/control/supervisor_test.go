package control_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/control/controltest"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// kernel is a supervisor.Processes whose processes live until they are sent a
// signal.
type kernel struct {
	mu      sync.Mutex
	pid     int
	ends    map[string]bool // programs whose start fails
	notices chan supervisor.Notice
}

func (k *kernel) Start(spec *program.Spec, _ uint64) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ends[spec.Name] {
		return 0, errors.New("no such file or directory")
	}
	k.pid++
	return 100 + k.pid, nil
}

func (k *kernel) Signal(name string, run uint64, signal string, _ program.KillScope) error {
	if signal == "TERM" {
		k.end(name, run)
	}
	return nil
}

func (k *kernel) Kill(name string, run uint64) error {
	k.end(name, run)
	return nil
}

func (k *kernel) Forget(string) {}

func (k *kernel) end(name string, run uint64) {
	k.notices <- supervisor.Notice{Program: name, Run: run, Exit: &program.Exit{Code: 0}}
	k.notices <- supervisor.Notice{Program: name, Run: run}
}

func (k *kernel) Notices() <-chan supervisor.Notice { return k.notices }

// TestWithTheRealLoop checks what control takes for granted of the supervisor:
// what it refuses, and that a change can be seen before its event.
func TestWithTheRealLoop(t *testing.T) {
	spec := func(name string, needs ...program.Need) program.Spec {
		return program.Spec{
			Name: name, Group: name, Type: program.Service, Argv: []string{name}, Needs: needs, Priority: 1,
			Restart: program.RestartNever, Kill: program.KillTree, StartRetries: -1,
			Stop: []program.StopStep{{Signal: "TERM", Wait: time.Minute}},
		}
	}
	box := controltest.New()
	k := &kernel{notices: make(chan supervisor.Notice, 100), ends: map[string]bool{"bad": true}}
	sup, err := supervisor.New(supervisor.Config{Processes: k, Bus: box.Bus},
		[]program.Spec{spec("db"), spec("web", program.Need{Program: "db", Condition: program.NeedReady}), spec("bad")})
	must(t, err)
	ran := make(chan supervisor.Result, 1)
	go func() { ran <- sup.Run(context.Background()) }()
	defer func() { sup.Shutdown("the test is over"); <-ran }()
	cfg := own(box)
	cfg.Supervisor = sup
	c := dial(t, cfg)
	ctx := t.Context()

	r, err := c.Start(ctx, api.ActionRequest{Names: []string{"web"}})
	must(t, err)
	if r.Failed() || r.Results[0].State != "RUNNING" || !r.Results[0].Changed {
		t.Fatalf("start: %+v %v", r, r.Results[0].Error)
	}
	_, err = c.Wait(ctx, api.WaitQuery{Names: []string{"db", "web"}, For: api.ForReady})
	must(t, err)
	r, err = c.Start(ctx, api.ActionRequest{Names: []string{"web"}})
	must(t, err)
	if r.Failed() || r.Results[0].Changed {
		t.Fatalf("start again: %+v", r)
	}
	r, err = c.Start(ctx, api.ActionRequest{Names: []string{"bad"}})
	must(t, err)
	if !r.Failed() || r.Results[0].Error.Code != api.CodeFailed {
		t.Fatalf("start of what cannot be: %+v", r)
	}
	r, err = c.Restart(ctx, api.ActionRequest{Names: []string{"db", "web"}, Rolling: true})
	must(t, err)
	equal(t, changed(r), []string{"db", "web"})
	r, err = c.Stop(ctx, api.ActionRequest{All: true})
	must(t, err)
	if r.Failed() {
		t.Fatalf("stop: %+v", r)
	}
	for _, p := range sup.Snapshot().Programs {
		if p.PID != 0 {
			t.Errorf("%s still has pid %d", p.Name, p.PID)
		}
	}
	r, err = c.Signal(ctx, api.ActionRequest{Names: []string{"web"}, Signal: "HUP"})
	must(t, err)
	if !r.Failed() || r.Results[0].Error.Code != api.CodeConflict {
		t.Fatalf("signal to what does not run: %+v", r)
	}
	w, err := c.Why(ctx, "web")
	must(t, err)
	if len(w.Needs) != 1 || w.Needs[0].Met || len(w.Recent) == 0 {
		t.Errorf("why: %+v", w)
	}
}
