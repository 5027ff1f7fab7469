package control_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/control/controltest"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// kernel is a supervisor.Processes whose processes live until they get a signal.
type kernel struct {
	mu      sync.Mutex
	pid     int
	ends    map[string]bool // programs whose start fails
	deaf    map[string]bool // programs that ignore TERM
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

func (k *kernel) SignalSoon(requests []supervisor.SignalRequest) []bool {
	return make([]bool, len(requests))
}

func (k *kernel) Signal(r supervisor.SignalRequest) error {
	if r.Signal == "TERM" && !k.deaf[r.Program] {
		k.end(r.Program, r.Run)
	}
	return nil
}

func (k *kernel) Kill(name string, run uint64) error {
	k.end(name, run)
	return nil
}

func (k *kernel) Stopping(string, uint64, string) {}

func (k *kernel) Forget(string) {}

func (k *kernel) Rename(string, string) {}

func (k *kernel) end(name string, run uint64) {
	k.notices <- supervisor.Notice{Program: name, Run: run, Exit: &program.Exit{Code: 0}}
	k.notices <- supervisor.Notice{Program: name, Run: run}
}

func (k *kernel) Notices() <-chan supervisor.Notice { return k.notices }

// TestWaitBeforePrograms: until the boot comes to the programs, a wait for them neither succeeds nor finds
// that there is no such program.
func TestWaitBeforePrograms(t *testing.T) {
	box := controltest.New()
	sup, err := supervisor.New(supervisor.Config{Processes: &kernel{notices: make(chan supervisor.Notice)}, Bus: box.Bus}, nil)
	must(t, err)
	ran := make(chan supervisor.Result, 1)
	go func() { ran <- sup.Run(context.Background()) }()
	defer func() { sup.Shutdown("the test is over"); <-ran }()
	cfg := box.Own()
	cfg.Supervisor = sup
	c := dial(t, cfg)
	for _, names := range [][]string{nil, {"web"}} {
		_, err = c.Wait(t.Context(), api.WaitQuery{Names: names, For: api.ForRunning, Timeout: time.Millisecond})
		code(t, err, api.CodeTimeout)
	}
	sup.Boot()
	_, err = c.Wait(t.Context(), api.WaitQuery{For: api.ForRunning})
	must(t, err)
	_, err = c.Wait(t.Context(), api.WaitQuery{Names: []string{"web"}, For: api.ForRunning})
	code(t, err, api.CodeUnknownProgram)
}

// TestWithTheRealLoop checks what control expects of the supervisor: which requests it refuses, and
// that a change is visible before its event.
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
	cfg := box.Own()
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
	before := sup.Snapshot().Programs
	r, err = c.Restart(ctx, api.ActionRequest{All: true})
	must(t, err)
	equal(t, changed(r), []string{"db", "web"})
	for i, p := range sup.Snapshot().Programs {
		if p.Name != "bad" && (p.Run != before[i].Run+1 || p.State != program.Running) {
			t.Errorf("after a restart of all, %s is %v in run %d", p.Name, p.State, p.Run)
		}
	}
	r, err = c.Signal(ctx, api.ActionRequest{All: true, Signal: "HUP"})
	must(t, err)
	if r.Failed() || len(r.Results) != 2 { // "bad" does not run
		t.Fatalf("a signal to all: %+v", r)
	}
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

// TestOvertaken: if another request makes the goal of a waiting request impossible, the waiting
// request is answered at once.
func TestOvertaken(t *testing.T) {
	type request func(*api.Client, context.Context, api.ActionRequest) (api.ActionResult, error)
	start, stop, restart := (*api.Client).Start, (*api.Client).Stop, (*api.Client).Restart
	for _, c := range []struct {
		name        string
		first, then request
		want        string // "": it is not overtaken
	}{
		{"a stop by a start", stop, start, "deaf: overtaken by a start: it is "},
		{"a stop by a restart", stop, restart, "deaf: overtaken by a start: it is "},
		{"a restart by a stop", restart, stop, "deaf: overtaken by a stop: it is STOPPED: stopped by request"},
		{"a stop by a stop", stop, stop, ""},
		{"a restart by a restart", restart, restart, ""},
		{"a restart by a start", restart, start, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			box := controltest.New()
			k := &kernel{notices: make(chan supervisor.Notice, 100), deaf: map[string]bool{"deaf": true}}
			sup, err := supervisor.New(supervisor.Config{Processes: k, Bus: box.Bus}, []program.Spec{{
				Name: "deaf", Group: "deaf", Type: program.Service, Argv: []string{"deaf"}, Priority: 1, StartRetries: -1,
				Restart: program.RestartNever, Kill: program.KillTree,
				Stop: []program.StopStep{{Signal: "TERM", Wait: time.Hour}},
			}})
			must(t, err)
			seen := box.Bus.Watch(0)
			until := func(holds func(event.Event) bool) {
				t.Helper()
				for {
					e, err := seen.Next(t.Context())
					must(t, err)
					if holds(e) {
						return
					}
				}
			}
			to := func(state string) func(event.Event) bool {
				return func(e event.Event) bool { return e.Change != nil && e.Change.To == state }
			}
			ran := make(chan supervisor.Result, 1)
			go func() { ran <- sup.Run(context.Background()) }()
			defer func() {
				for range 3 { // the third one kills the programs
					sup.Shutdown("the test is over")
				}
				<-ran
			}()
			must(t, sup.Start(t.Context(), "deaf"))
			until(to("RUNNING"))
			cfg := box.Own()
			cfg.Supervisor = sup
			client := dial(t, cfg)
			req := api.ActionRequest{Names: []string{"deaf"}, TimeoutMS: 20_000}
			answered := make(chan api.ActionResult, 1)
			go func() {
				r, err := c.first(client, t.Context(), req)
				if err != nil {
					t.Error(err)
				}
				answered <- r
			}()
			until(to("STOPPING"))
			req.NoWait = true
			r, err := c.then(client, t.Context(), req)
			must(t, err)
			if r.Failed() {
				t.Fatalf("the second request: %v", r.Results[0].Error)
			}
			k.end("deaf", 1)
			got := ""
			if e := (<-answered).Results[0].Error; e != nil {
				equal(t, e.Code, api.CodeConflict)
				got = e.Message
			}
			if !strings.HasPrefix(got, c.want) || c.want == "" && got != "" {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}
