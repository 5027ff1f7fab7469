package control_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/dreamlab-ai/agentinit/supervisor"
	"github.com/dreamlab-ai/agentinit/supervisor/control"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/control/controltest"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/supervisor/logs"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func dial(tb testing.TB, cfg control.Config) *api.Client {
	tb.Helper()
	return api.NewClient(controltest.Serve(tb, cfg))
}

func stoppedProgram(name string) supervisor.Status {
	p := controltest.Program(name)
	p.State, p.PID, p.Run, p.Ready, p.Reason = program.Stopped, 0, 0, false, "not started yet"
	return p
}

// TestContract calls every route through the client. A route without a case here is an error.
func TestContract(t *testing.T) {
	db, web := controltest.Program("db"), controltest.Program("web")
	web.Spec.Needs = []program.Need{{Program: "db", Condition: program.NeedReady}}
	cases := map[string]func(*testing.T, *api.Client, *controltest.Box){
		"GET /v1/status": func(t *testing.T, c *api.Client, _ *controltest.Box) {
			s, err := c.Status(t.Context())
			must(t, err)
			equal(t, names(s.Programs), []string{"db", "web", "idle"})
			equal(t, s.Programs[0].State, "RUNNING")
			s, err = c.Status(t.Context(), "w*", "idle")
			must(t, err)
			equal(t, names(s.Programs), []string{"web", "idle"})
		},
		"GET /v1/program": func(t *testing.T, c *api.Client, b *controltest.Box) {
			p, err := c.Program(t.Context(), "web")
			must(t, err)
			var spec struct{ Argv []string }
			must(t, json.Unmarshal(p.Spec, &spec))
			equal(t, spec.Argv, []string{"/bin/web"})
			b.Set("web", func(p *supervisor.Status) {
				p.Spec = &program.Spec{Argv: []string{"web", `--key=hid"den\word`}, Secrets: []program.Secret{{Name: "KEY", Value: `hid"den\word`}}}
			})
			p, err = c.Program(t.Context(), "web")
			must(t, err)
			must(t, json.Unmarshal(p.Spec, &spec))
			equal(t, spec.Argv, []string{"web", "--key=${KEY}"})
		},
		"GET /v1/usage": func(t *testing.T, c *api.Client, _ *controltest.Box) {
			u, err := c.Usage(t.Context())
			must(t, err)
			equal(t, len(u.Programs), 3)
			equal(t, u.Programs[0].MemoryBytes, 4096)
		},
		"GET /v1/processes": func(t *testing.T, c *api.Client, _ *controltest.Box) {
			u, err := c.Processes(t.Context(), "web")
			must(t, err)
			equal(t, len(u.Processes), 2)
			equal(t, u.Processes[1].PPID, u.Processes[0].PID)
			_, err = c.Processes(t.Context(), "nosuch")
			equal(t, api.CodeOf(err), api.CodeUnknownProgram)
		},
		"GET /v1/manifest": func(t *testing.T, c *api.Client, _ *controltest.Box) {
			m, err := c.Manifest(t.Context())
			must(t, err)
			equal(t, m.Settings, []api.Setting{{Path: "supervisor.barrier", Value: "ready", Source: "default"}})
		},
		"GET /v1/why": func(t *testing.T, c *api.Client, b *controltest.Box) {
			b.Set("web", func(p *supervisor.Status) { p.Reason = "told" })
			w, err := c.Why(t.Context(), "web")
			must(t, err)
			equal(t, w.Summary, "web has been RUNNING for 3m12s and is ready")
			equal(t, w.Needs, []api.WhyNeed{{Program: "db", Condition: "ready", Met: true, State: "RUNNING"}})
			equal(t, len(w.Recent), 1)
			equal(t, w.LogTrouble, "")
			b.LogTroubles = map[string]error{"db": errors.New("no space left")}
			w, err = c.Why(t.Context(), "db")
			must(t, err)
			equal(t, w.LogTrouble, "no space left")
			equal(t, w.Program.LogTrouble, "no space left")
			detail, err := c.Program(t.Context(), "db")
			must(t, err)
			equal(t, detail.LogTrouble, "no space left")
			equal(t, w.Dependents, []string{"web"})
		},
		"POST /v1/start": func(t *testing.T, c *api.Client, _ *controltest.Box) {
			r, err := c.Start(t.Context(), api.ActionRequest{All: true})
			must(t, err)
			equal(t, changed(r), []string{"idle"})
			equal(t, r.Results[2].State, "RUNNING")
		},
		"POST /v1/run": func(t *testing.T, c *api.Client, _ *controltest.Box) {
			r, err := c.Run(t.Context(), api.ActionRequest{Names: []string{"idle", "db"}})
			must(t, err)
			equal(t, changed(r), []string{"idle"})
			_, err = c.Run(t.Context(), api.ActionRequest{All: true})
			equal(t, api.CodeOf(err), api.CodeBadRequest)
		},
		"POST /v1/stop": func(t *testing.T, c *api.Client, _ *controltest.Box) {
			r, err := c.Stop(t.Context(), api.ActionRequest{Names: []string{"idle", "db"}})
			must(t, err)
			equal(t, changed(r), []string{"db"})
			equal(t, r.Results[0].State, "STOPPED")
		},
		"POST /v1/restart": func(t *testing.T, c *api.Client, _ *controltest.Box) {
			r, err := c.Restart(t.Context(), api.ActionRequest{Names: []string{"db", "web"}, Rolling: true})
			must(t, err)
			equal(t, changed(r), []string{"db", "web"})
		},
		"POST /v1/signal": func(t *testing.T, c *api.Client, b *controltest.Box) {
			_, err := c.Signal(t.Context(), api.ActionRequest{Names: []string{"web"}, Signal: "HUP"})
			must(t, err)
			equal(t, b.Signals(), []string{"web HUP"})
		},
		"GET /v1/logs": func(t *testing.T, c *api.Client, b *controltest.Box) {
			b.Lines = []logs.Line{
				{Time: controltest.Epoch, Program: "web", Stream: logs.Stdout, Text: "hello"},
				{Time: controltest.Epoch, Program: "web", Stream: logs.Stderr, Text: "\xff\x00"},
				{Time: controltest.Epoch, Program: "db", Stream: logs.Stdout},
			}
			equal(t, logTexts(t, c, api.LogQuery{}), []string{"hello", "\xff\x00", ""})
			equal(t, logTexts(t, c, api.LogQuery{Names: []string{"web"}, Grep: "^h"}), []string{"hello"})
			equal(t, logTexts(t, c, api.LogQuery{Lines: 1}), []string{""})

			// A cursor is valid in this box and after a restart.
			for i := range b.Lines {
				b.Lines[i].Seq, b.Lines[i].Time = uint64(i+1), controltest.Epoch.Add(time.Duration(i)*time.Second)
			}
			var cursors []string
			must(t, c.Logs(t.Context(), api.LogQuery{}, func(l api.LogLine) error { cursors = append(cursors, l.Cursor); return nil }))
			equal(t, logTexts(t, c, api.LogQuery{After: cursors[0]}), []string{"\xff\x00", ""})
			// The first two are of the life before. The clock was set back then, but what is of this
			// life comes after the cursor.
			b.Lines[0].Seq, b.Lines[1].Seq, b.Lines[2].Seq = 0, 0, 1
			b.Lines[2].Time = controltest.Epoch.Add(-time.Hour)
			equal(t, logTexts(t, c, api.LogQuery{After: "other" + cursors[1][4:]}), []string{""})
			equal(t, logTexts(t, c, api.LogQuery{After: "other" + cursors[0][4:]}), []string{"\xff\x00", ""})
			b.Lines[2].Time = controltest.Epoch.Add(2 * time.Second)
			equal(t, logTexts(t, c, api.LogQuery{Until: controltest.Epoch.Add(time.Second)}), []string{"hello"})
			b.Lines[0].Run, b.Lines[1].Run, b.Lines[2].Run = 1, 2, 1
			equal(t, logTexts(t, c, api.LogQuery{Previous: true}), nil)
		},
		"POST /v1/logs/reopen": func(t *testing.T, c *api.Client, b *controltest.Box) {
			must(t, c.ReopenLogs(t.Context()))
			equal(t, b.Reopened.Load(), 1)
		},
		"GET /v1/events": func(t *testing.T, c *api.Client, b *controltest.Box) {
			b.Bus.Publish(event.Event{Name: "One", Fields: map[string]any{"k": 1}})
			b.Bus.Publish(event.Event{Name: "Two"})
			var got []string
			must(t, c.Events(t.Context(), 1, false, func(e api.Event) error {
				got = append(got, e.Name)
				return nil
			}))
			equal(t, got, []string{"Two"})
		},
		"GET /v1/wait": func(t *testing.T, c *api.Client, _ *controltest.Box) {
			w, err := c.Wait(t.Context(), api.WaitQuery{Names: []string{"db"}, For: api.ForRunning})
			must(t, err)
			equal(t, names(w.Programs), []string{"db"})
		},
		"GET /v1/plan": func(t *testing.T, c *api.Client, b *controltest.Box) {
			b.PlanJSON = []byte(`{"waves":[]}`)
			plan, err := c.Plan(t.Context())
			must(t, err)
			equal(t, string(plan), `{"waves":[]}`)
		},
		"POST /v1/apply": func(t *testing.T, c *api.Client, b *controltest.Box) {
			b.Result.Changes = []api.ApplyChange{{Program: "web", Action: api.ApplyRestart, Keys: []string{"command"}}}
			r, err := c.Apply(t.Context(), api.ApplyRequest{DryRun: true})
			must(t, err)
			equal(t, r, api.ApplyResult{DryRun: true, Changes: b.Result.Changes})
		},
		"GET /v1/ready": func(t *testing.T, c *api.Client, _ *controltest.Box) {
			r, err := c.Ready(t.Context())
			must(t, err)
			equal(t, r.Ready, true)
		},
		"GET /v1/boot": func(t *testing.T, c *api.Client, b *controltest.Box) {
			b.BootData = api.Boot{Outcome: "sealed", Programs: []api.BootProgram{{Name: "db"}}, CriticalChain: []string{"db"}}
			boot, err := c.Boot(t.Context())
			must(t, err)
			equal(t, boot.CriticalChain, []string{"db"})
			_, err = c.PreviousBoot(t.Context())
			code(t, err, api.CodeUnsupported)
			b.BootBefore = api.Boot{Outcome: "timeout", StartedAt: controltest.Epoch}
			boot, err = c.PreviousBoot(t.Context())
			must(t, err)
			equal(t, boot, b.BootBefore)
		},
		"GET /v1/log-level": func(t *testing.T, c *api.Client, _ *controltest.Box) {
			l, err := c.LogLevel(t.Context())
			must(t, err)
			equal(t, l.Level, "info")
		},
		"PUT /v1/log-level": func(t *testing.T, c *api.Client, b *controltest.Box) {
			l, err := c.SetLogLevel(t.Context(), "debug")
			must(t, err)
			equal(t, l.Level, "debug")
			_, err = c.SetLogLevel(t.Context(), "loud")
			code(t, err, api.CodeBadRequest)
		},
		"POST /v1/bridge": func(t *testing.T, c *api.Client, b *controltest.Box) {
			conn, err := c.Bridge(t.Context())
			must(t, err)
			defer conn.Close()
			for _, line := range []string{"one", "two"} {
				_, err = fmt.Fprintln(conn, line)
				must(t, err)
				var got string
				_, err = fmt.Fscanln(conn, &got)
				must(t, err)
				equal(t, got, line)
			}
			must(t, conn.CloseWrite())
			_, err = conn.Read(make([]byte, 1))
			if !errors.Is(err, io.EOF) {
				t.Fatalf("after the end: %v", err)
			}
			for w := b.Bus.Watch(0); ; {
				e, err := w.Next(t.Context())
				must(t, err)
				if e.Name == control.EventUpgradeEnded {
					break
				}
			}
		},
		"GET /v1/listen": func(t *testing.T, c *api.Client, b *controltest.Box) {
			conn, err := c.Listen(t.Context(), api.ListenQuery{Events: []string{"SUPERVISOR_STATE_CHANGE", "PROCESS_STATE_FATAL"}, Buffer: 5, Pool: "mine"})
			must(t, err)
			defer conn.Close()
			for serial, e := range []string{event.ProgramsStarted, event.ShutdownStarted} {
				_, err = io.WriteString(conn, "READY\n")
				must(t, err)
				if serial == 0 {
					b.Bus.Publish(event.Event{Name: e})
					b.Bus.Publish(event.Event{Name: event.ShutdownStarted})
				}
				got, err := bufio.NewReader(conn).ReadString('\n')
				must(t, err)
				name := []string{"RUNNING", "STOPPING"}[serial]
				equal(t, got, fmt.Sprintf("ver:3.0 server:agentinit serial:%d pool:mine poolserial:%[1]d eventname:SUPERVISOR_STATE_CHANGE_%s len:0\n", serial, name))
				_, err = io.WriteString(conn, "RESULT 2\nOK")
				must(t, err)
			}
			_, err = io.WriteString(conn, "RESULT 999999999\n")
			must(t, err)
			_, err = conn.Read(make([]byte, 1))
			if !errors.Is(err, io.EOF) {
				t.Fatalf("after a violation: %v", err)
			}
			for w := b.Bus.Watch(0); ; {
				e, err := w.Next(t.Context())
				must(t, err)
				if e.Name == control.EventUpgradeEnded {
					equal(t, e.Level, event.Warn)
					break
				}
			}
			for _, q := range []api.ListenQuery{
				{}, {Events: []string{" , "}}, {Events: []string{"PROCESS_STATE", "PROCESS_LOG"}}, {Events: []string{"TICK"}, Buffer: -1},
				{Events: []string{"TICK"}, Buffer: 1001}, {Events: []string{"TICK"}, Pool: "a b"},
			} {
				_, err := c.Listen(t.Context(), q)
				code(t, err, api.CodeBadRequest)
			}
			conn, err = c.Listen(t.Context(), api.ListenQuery{Events: []string{"TICK_5, TICK_60", "EVENT"}, Buffer: 1000})
			must(t, err)
			must(t, conn.Close())
		},
		"POST /v1/shutdown": func(t *testing.T, c *api.Client, b *controltest.Box) {
			must(t, c.Shutdown(t.Context(), api.ShutdownRequest{Reason: "test"}))
			equal(t, b.Shutdowns(), []string{"test"})
		},
		"GET /v1/confinement": func(t *testing.T, c *api.Client, b *controltest.Box) {
			b.Set("web", func(p *supervisor.Status) {
				p.PID = os.Getpid()
				p.Spec = &program.Spec{Name: "web", Limits: program.Limits{Rlimits: map[string]program.Limit{"nproc": {}}}, Sandbox: &program.Sandbox{Read: []string{"/"}}}
			})
			x, err := c.Confinement(t.Context(), "web")
			must(t, err)
			equal(t, x.UID, uint32(os.Geteuid()))
			equal(t, x.PID, os.Getpid())
			equal(t, x.Paths, true)
			equal(t, x.Ports, false)
			equal(t, x.Limited, []string{"nproc"})
			equal(t, len(x.Capabilities), 16)
			// An empty list forbids all.
			b.Set("web", func(p *supervisor.Status) {
				p.Spec = &program.Spec{Name: "web", Sandbox: &program.Sandbox{Write: []string{}, TCPConnect: []int{}}}
			})
			x, err = c.Confinement(t.Context(), "web")
			must(t, err)
			equal(t, x.Paths, true)
			equal(t, x.Ports, true)
			b.Refusals = map[string][]supervisor.Refusal{"web": {{By: "guard", Call: "kill", Count: 3, PID: 71, Command: "sh"}, {By: "seccomp", Call: "mount", Count: 2}}}
			x, err = c.Confinement(t.Context(), "web")
			must(t, err)
			equal(t, x.Refused[0].String(), "guard: kill ×3, last by pid 71 (sh)")
			why, err := c.Why(t.Context(), "web")
			must(t, err)
			equal(t, len(why.Refused), 2)
			status, err := c.Status(t.Context(), "web")
			must(t, err)
			equal(t, status.Programs[0].Refused, uint64(5))
			equal(t, len(x.Limits)+len(status.Programs[0].Limits), 0)
			limits := []api.ProgramLimit{{Name: "pids", Max: 750, Source: api.LimitDefault, Counts: api.LimitOfProgram}}
			b.Bounds = map[string][]api.ProgramLimit{"web": limits}
			x, err = c.Confinement(t.Context(), "web")
			must(t, err)
			equal(t, x.Limits, limits)
			status, err = c.Status(t.Context(), "web")
			must(t, err)
			equal(t, status.Programs[0].Limits, limits)
			detail, err := c.Program(t.Context(), "web")
			must(t, err)
			equal(t, detail.Limits, limits)
		},
		"POST /v1/sandbox/test": func(t *testing.T, c *api.Client, b *controltest.Box) {
			b.Set("web", func(p *supervisor.Status) { p.Spec = &program.Spec{Name: "web"} })
			x, err := c.SandboxTest(t.Context(), api.SandboxTest{Program: "web", Command: []string{"true"}})
			must(t, err)
			equal(t, x.Output, "web true")
			equal(t, x.Status, 3)
			equal(t, x.Refused[0].Call, "mount")
			_, err = c.SandboxTest(t.Context(), api.SandboxTest{Program: "web"})
			equal(t, api.CodeOf(err), api.CodeBadRequest)
			_, err = c.SandboxTest(t.Context(), api.SandboxTest{Program: "web", Command: []string{"true"}, TimeoutMS: 600_001})
			equal(t, api.CodeOf(err), api.CodeBadRequest)
		},
		"GET /v1/crash": func(t *testing.T, c *api.Client, b *controltest.Box) {
			all, err := c.Crash(t.Context(), "")
			must(t, err)
			equal(t, len(all.Crashes), 0)
			b.Crashes = map[string]supervisor.Crash{"web": {Program: "web", Exit: program.Exit{Code: -1, Signal: "KILL", Cause: "killed by the kernel: out of memory"}, Output: []logs.Line{{Stream: logs.Stdout, Text: "boom"}}}}
			one, err := c.Crash(t.Context(), "web")
			must(t, err)
			equal(t, one.Crashes[0].Exit.String(), "killed by the kernel: out of memory")
			equal(t, len(one.Crashes[0].Output), 1)
			equal(t, one.Crashes[0].Output[0].Stream+": "+one.Crashes[0].Output[0].Text, "stdout: boom")
			none, err := c.Crash(t.Context(), "db")
			must(t, err)
			equal(t, len(none.Crashes), 0)
		},
		"GET /v1/audit": func(t *testing.T, c *api.Client, b *controltest.Box) {
			must(t, c.Shutdown(t.Context(), api.ShutdownRequest{Reason: "test"}))
			n := 0
			must(t, c.Audit(t.Context(), 0, func(e api.AuditEntry) error {
				n++
				equal(t, e.Action, "shutdown")
				return nil
			}))
			equal(t, n, 1)
		},
		"GET /v1/audit/check": func(t *testing.T, c *api.Client, _ *controltest.Box) {
			r, err := c.AuditCheck(t.Context())
			must(t, err)
			equal(t, r.Problem, "")
		},
		"GET /v1/version": func(t *testing.T, c *api.Client, _ *controltest.Box) {
			v, err := c.Version(t.Context())
			must(t, err)
			equal(t, v.Version, "1.2.3")
		},
		"GET /v1/meta": func(t *testing.T, c *api.Client, _ *controltest.Box) {
			m, err := c.Meta(t.Context())
			must(t, err)
			equal(t, string(m), `{"probe":"/v1/meta"}`)
		},
		"GET /v1/openapi.json": func(t *testing.T, c *api.Client, _ *controltest.Box) {
			doc, err := c.OpenAPI(t.Context())
			must(t, err)
			var parsed struct{ Paths map[string]map[string]any }
			must(t, json.Unmarshal(doc, &parsed))
			equal(t, len(parsed.Paths["/v1/log-level"]), 2)
			equal(t, strings.Count(string(doc), `"text/plain"`), 1)
			equal(t, strings.Count(string(doc), `"`+api.HeaderAllRunning+`"`), 1)
		},
	}
	for _, rt := range control.RouteList() {
		if !rt.API() {
			continue
		}
		name := rt.Method + " " + rt.Path
		t.Run(name, func(t *testing.T) {
			check, ok := cases[name]
			if !ok {
				t.Fatal("no case for this route")
			}
			b := controltest.New(db, web, stoppedProgram("idle"))
			check(t, dial(t, b.Own()), b)
		})
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func equal[T any](t testing.TB, got, want T) {
	t.Helper()
	g, err := json.Marshal(got)
	must(t, err)
	w, err := json.Marshal(want)
	must(t, err)
	if string(g) != string(w) {
		t.Fatalf("got  %s\nwant %s", g, w)
	}
}

func code(t testing.TB, err error, want api.Code) {
	t.Helper()
	if got := api.CodeOf(err); got != want {
		t.Fatalf("got error %v with code %q, want %q", err, got, want)
	}
}

func names(programs []api.Program) []string {
	var out []string
	for _, p := range programs {
		out = append(out, p.Name)
	}
	return out
}

func changed(r api.ActionResult) []string {
	var out []string
	for _, p := range r.Results {
		if p.Changed {
			out = append(out, p.Name)
		}
	}
	return out
}

func logTexts(t *testing.T, c *api.Client, q api.LogQuery) []string {
	t.Helper()
	var out []string
	must(t, c.Logs(t.Context(), q, func(l api.LogLine) error {
		out = append(out, string(l.Bytes()))
		return nil
	}))
	return out
}

func TestStartReportsEachProgram(t *testing.T) {
	b := controltest.New(stoppedProgram("good"), stoppedProgram("bad"), stoppedProgram("shut"))
	b.Fails, b.Refuse = []string{"bad"}, []string{"shut"}
	r, err := dial(t, b.Own()).Start(t.Context(), api.ActionRequest{All: true})
	must(t, err)
	if !r.Failed() || r.Results[0].Error != nil {
		t.Fatalf("good failed or nothing did: %+v", r)
	}
	equal(t, r.Results[1].Error.Message, "bad: FATAL: /bin/bad: no such file")
	equal(t, r.Results[2].Error.Message, "shut: refused in this state")
	equal(t, r.Results[2].Error.State, "STOPPED")
}

// Events and output are read in terminals, where \u003e is no >.
func TestTextsAreNotEscapedForHTML(t *testing.T) {
	b := controltest.New(controltest.Program("web"))
	b.Bus.Publish(event.Event{Name: "One", Fields: map[string]any{"text": "<&>", "list": []string{"<&>"}}})
	b.Lines = []logs.Line{{Seq: 1, Program: "web", Text: "<&>"}}
	path := controltest.Serve(t, b.Own())
	for target, want := range map[string]string{"/v1/events": `"list":["<&>"]`, "/v1/logs": `"text":"<&>"`, "/v1/status?name=<%26>": "<&>"} {
		if _, body := ask(t, path, "GET", target, ""); !strings.Contains(body, want) {
			t.Errorf("%s: %s", target, body)
		}
	}
}

// Before the seal, a stop may stop a need of a required program. Then the box ends, and the answer
// says so.
func TestStopSaysThatTheBootFails(t *testing.T) {
	web := controltest.Program("web")
	web.State, web.PID, web.Ready, web.Required, web.Blocked, web.Reason = program.Stopped, 0, false, true, true, "waits for db to be ready"
	for outcome, want := range map[string]string{
		api.BootUnderWay: "the box is not sealed yet and ends with status 67: the required program web cannot start: it waits for db to be ready",
		api.BootFailed:   "the box is not sealed yet and ends with status 67: the required program web cannot start: it waits for db to be ready",
		api.BootSealed:   "",
		api.BootTimeout:  "",
	} {
		t.Run(outcome, func(t *testing.T) {
			b := controltest.New(controltest.Program("db"), web)
			b.BootData.Outcome = outcome
			c := api.NewClient(controltest.Serve(t, b.Own()))
			result, err := c.Stop(t.Context(), api.ActionRequest{Names: []string{"db"}})
			must(t, err)
			equal(t, result.Note, want)
		})
	}
}

func TestStartWaitsForTheEvent(t *testing.T) {
	b := controltest.New(stoppedProgram("slow"))
	b.Hold = []string{"slow"}
	c := dial(t, b.Own())
	done := make(chan api.ActionResult, 1)
	go func() {
		r, err := c.Start(context.Background(), api.ActionRequest{Names: []string{"slow"}})
		if err != nil {
			t.Error(err)
		}
		done <- r
	}()
	w := b.Bus.Watch(0)
	for {
		e, err := w.Next(t.Context())
		must(t, err)
		if e.Change != nil && e.Change.To == "STARTING" {
			break
		}
	}
	select {
	case r := <-done:
		t.Fatalf("answered while the program was STARTING: %+v", r)
	default:
	}
	b.Release("slow")
	equal(t, (<-done).Results[0].State, "RUNNING")
}

func TestWaitTimesOutWithTheReason(t *testing.T) {
	b := controltest.New(stoppedProgram("slow"))
	b.Hold = []string{"slow"}
	c := dial(t, b.Own())
	r, err := c.Start(t.Context(), api.ActionRequest{Names: []string{"slow"}, TimeoutMS: 1})
	must(t, err)
	equal(t, r.Results[0].Error.Code, api.CodeTimeout)
	equal(t, r.Results[0].Error.Message, "slow: still STARTING: starting")
	r, err = c.Start(t.Context(), api.ActionRequest{Names: []string{"slow"}, NoWait: true})
	must(t, err)
	equal(t, r.Failed(), false)
	_, err = c.Wait(t.Context(), api.WaitQuery{Names: []string{"slow"}, For: "ready", Timeout: time.Millisecond})
	code(t, err, api.CodeTimeout)
	b.Set("slow", func(p *supervisor.Status) { p.State, p.Reason = program.Fatal, "gave up" })
	_, err = c.Wait(t.Context(), api.WaitQuery{Names: []string{"slow"}, For: "ready"})
	code(t, err, api.CodeConflict)
	b.SetReadiness(api.Readiness{Missing: []api.Requirement{{ID: "program:slow", Reason: "FATAL"}}})
	_, err = c.Wait(t.Context(), api.WaitQuery{For: "ready", Timeout: time.Millisecond})
	code(t, err, api.CodeTimeout)
}

// TestWaitsEndWithTheServer: a client that waits when agentinit ends is told so, and is not left with
// an empty answer.
func TestWaitsEndWithTheServer(t *testing.T) {
	for name, wait := range map[string]func(c *api.Client) error{
		"a program": func(c *api.Client) error {
			_, err := c.Wait(context.Background(), api.WaitQuery{Names: []string{"slow"}, For: api.ForReady})
			return err
		},
		"the box": func(c *api.Client) error {
			_, err := c.Wait(context.Background(), api.WaitQuery{For: api.ForReady})
			return err
		},
		"a start": func(c *api.Client) error {
			r, err := c.Start(context.Background(), api.ActionRequest{Names: []string{"slow"}})
			if err != nil {
				return err
			}
			return r.Results[0].Error
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := controltest.New(stoppedProgram("slow"))
			b.Hold = []string{"slow"}
			b.SetReadiness(api.Readiness{Missing: []api.Requirement{{ID: "program:slow", Reason: "STOPPED"}}})
			arrived := make(chan struct{})
			cfg := b.Own()
			cfg.Wrap = func(h http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					close(arrived)
					h.ServeHTTP(w, r)
				})
			}
			ctx, cancel := context.WithCancel(context.Background())
			path := controltest.SocketPath(t)
			s, _, err := control.Listen(ctx, control.SocketConfig{Path: path, Mode: 0o600, GID: -1})
			must(t, err)
			served, ended := make(chan error, 1), make(chan error, 1)
			go func() { served <- control.New(cfg).Serve(ctx, s) }()
			go func() { ended <- wait(api.NewClient(path)) }()
			<-arrived
			cancel()
			code(t, <-ended, api.CodeShuttingDown)
			must(t, <-served)
		})
	}
}

func TestRollingStopsAtTheFirstThatDoesNotReturn(t *testing.T) {
	b := controltest.New(controltest.Program("a"), controltest.Program("b"), controltest.Program("c"))
	b.Fails = []string{"b"}
	r, err := dial(t, b.Own()).Restart(t.Context(), api.ActionRequest{All: true, Rolling: true})
	must(t, err)
	equal(t, changed(r), []string{"a"})
	equal(t, r.Results[2].Error.Message, "c: not restarted, because b did not return")
	equal(t, b.Snapshot().Programs[2].Run, uint64(1))
}

func TestRemovedWhileWaiting(t *testing.T) {
	b := controltest.New(stoppedProgram("slow"))
	b.Hold = []string{"slow"}
	c := dial(t, b.Own())
	w := b.Bus.Watch(0)
	go func() {
		for {
			if e, err := w.Next(context.Background()); err != nil || e.Change != nil {
				b.Remove("slow")
				return
			}
		}
	}()
	r, err := c.Start(t.Context(), api.ActionRequest{Names: []string{"slow"}})
	must(t, err)
	equal(t, r.Results[0].Error.Message, "slow: removed meanwhile")
}

func TestFollowersSeeTheEndAndTheBreak(t *testing.T) {
	b := controltest.New(controltest.Program("web"))
	ctx, cancel := context.WithCancel(context.Background())
	path := controltest.SocketPath(t)
	s, _, err := control.Listen(ctx, control.SocketConfig{Path: path, Mode: 0o600, GID: -1})
	must(t, err)
	served := make(chan error, 1)
	go func() { served <- control.New(b.Own()).Serve(ctx, s) }()
	c := api.NewClient(path)
	b.Bus.Publish(event.Event{Name: "One"})
	seen := make(chan string, 10)
	ended := make(chan error, 1)
	go func() {
		ended <- c.Events(context.Background(), 0, true, func(e api.Event) error {
			seen <- e.Name
			return nil
		})
	}()
	equal(t, <-seen, "One")
	b.Bus.Publish(event.Event{Name: "Two"})
	equal(t, <-seen, "Two")
	cancel()
	must(t, <-ended)
	must(t, <-served)
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("the socket file is still there: %v", err)
	}
	_, err = c.Status(t.Context())
	if _, ok := errors.AsType[*api.UnreachableError](err); !ok {
		t.Fatalf("got %v, want unreachable", err)
	}
}

// endlessLogs gives its lines and then has more, until the server ends the reading. A follower that catches
// up gets the last line then.
type endlessLogs struct {
	*controltest.Box
	reading    chan bool
	catchingUp bool
}

func (l endlessLogs) Read(ctx context.Context, q logs.Query) iter.Seq[logs.Line] {
	return func(yield func(logs.Line) bool) {
		for _, line := range l.Lines {
			if !yield(line) {
				return
			}
		}
		l.reading <- true
		if l.catchingUp {
			select {
			case <-q.Ending:
			case <-ctx.Done():
			}
		} else {
			<-ctx.Done()
		}
		if ctx.Err() == nil {
			yield(logs.Line{Time: controltest.Epoch, Program: "web", Stream: logs.Stdout, Text: "last"})
		}
	}
}

// The server ends while it lists lines. The client must not take the listing for complete. Only a
// follower that has caught up has all that there was.
func TestListingIsCutOffByTheEnd(t *testing.T) {
	some := []logs.Line{{Time: controltest.Epoch, Program: "web", Stream: logs.Stdout, Text: "hello"}}
	for name, tc := range map[string]struct {
		lines    []logs.Line
		follow   bool
		complete bool
		want     []string
	}{
		"listing":               {lines: some},
		"listing without lines": {},
		"follower":              {lines: some, follow: true, complete: true, want: []string{"hello", "last"}},
		"follower left behind":  {lines: some, follow: true, want: []string{"hello"}},
	} {
		b := controltest.New(controltest.Program("web"))
		b.Lines = tc.lines
		source := endlessLogs{b, make(chan bool), tc.complete}
		cfg := b.Own()
		cfg.Logs = source
		ctx, cancel := context.WithCancel(context.Background())
		path := controltest.SocketPath(t)
		s, _, err := control.Listen(ctx, control.SocketConfig{Path: path, Mode: 0o600, GID: -1})
		must(t, err)
		served, ended := make(chan error, 1), make(chan error, 1)
		go func() { served <- control.New(cfg).Serve(ctx, s) }()
		var got []string
		go func() {
			ended <- api.NewClient(path).Logs(context.Background(), api.LogQuery{Follow: tc.follow}, func(l api.LogLine) error {
				got = append(got, l.Text)
				return nil
			})
		}()
		<-source.reading
		cancel()
		if err := <-ended; (err == nil) != tc.complete || tc.follow && !slices.Equal(got, tc.want) {
			t.Errorf("%s: the client got %q and %v", name, got, err)
		}
		must(t, <-served)
	}
}

// While a client follows web, an apply makes a set of it: its instances have other names.
func TestAFollowerGetsLaterInstances(t *testing.T) {
	b := controltest.New(controltest.Program("web"), controltest.Program("other"))
	for _, name := range []string{"web", "other", "web:1"} {
		b.Lines = append(b.Lines, logs.Line{Time: controltest.Epoch, Program: name, Stream: logs.Stdout, Text: "hello"})
	}
	client := api.NewClient(controltest.Serve(t, b.Own()))
	for _, follow := range []bool{true, false} {
		ctx, cancel := context.WithCancel(t.Context())
		var got []string
		err := client.Logs(ctx, api.LogQuery{Names: []string{"web"}, Follow: follow}, func(l api.LogLine) error {
			if got = append(got, l.Program); len(got) == 2 {
				cancel()
			}
			return nil
		})
		cancel()
		want := []string{"web"}
		if follow {
			want = []string{"web", "web:1"}
		} else {
			must(t, err)
		}
		if !slices.Equal(got, want) {
			t.Errorf("follow %v: lines of %q, want %q", follow, got, want)
		}
	}
}

func TestEveryWriteIsAudited(t *testing.T) {
	bodies := map[string]string{
		"/v1/start": `{"all":true}`, "/v1/stop": `{"all":true}`, "/v1/restart": `{"all":true}`, "/v1/run": `{"names":["web"]}`,
		"/v1/signal": `{"all":true,"signal":"HUP"}`, "/v1/log-level": `{"level":"debug"}`,
		"/v1/sandbox/test": `{"program":"web","command":["true"]}`,
	}
	for _, rt := range control.RouteList() {
		t.Run(rt.Method+rt.Path, func(t *testing.T) {
			b := controltest.New(controltest.Program("web"))
			path := controltest.Serve(t, b.Own())
			status, _ := ask(t, path, rt.Method, rt.Path, bodies[rt.Path])
			var audited []event.Event
			for w := b.Bus.Watch(0); ; {
				e, ok := w.TryNext()
				if !ok {
					break
				}
				if e.Name == control.EventChange {
					audited = append(audited, e)
				}
			}
			if want := rt.Access == control.Write; (len(audited) == 1) != want {
				t.Fatalf("%d audit events, status %d, access %s", len(audited), status, rt.Access)
			}
			if len(audited) == 1 && (audited[0].Fields["peer_uid"] != uint32(os.Geteuid()) || audited[0].Fields["peer_pid"] != os.Getpid()) {
				t.Fatalf("who it was is not told: %v", audited[0].Fields)
			}
		})
	}
}

func TestRouteTable(t *testing.T) {
	seen := make(map[string]bool)
	for _, rt := range control.RouteList() {
		key := rt.Method + " " + rt.Path
		if seen[key] {
			t.Errorf("%s stands twice in the table", key)
		}
		seen[key] = true
		if rt.Doc == "" || !slices.Contains([]string{"GET", "POST", "PUT"}, rt.Method) {
			t.Errorf("%s: no documentation, or an unexpected method", key)
		}
		if (rt.Method == "GET") == (rt.Access == control.Write) {
			t.Errorf("%s: GET reads, everything else writes", key)
		}
	}
}

func TestBridgeNeedsItsProtocolAndAnOrchestrator(t *testing.T) {
	b := controltest.New()
	cfg := b.Own()
	cfg.Bridge = nil
	_, err := dial(t, cfg).Bridge(t.Context())
	code(t, err, api.CodeUnsupported)

	conn, err := net.Dial("unix", controltest.Serve(t, b.Own()))
	must(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "POST /v1/bridge HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n")
	must(t, err)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	must(t, err)
	resp.Body.Close()
	equal(t, resp.StatusCode, http.StatusBadRequest)
}

// TestBridgeEndsWithTheServer keeps a bridge open while the server stops.
func TestBridgeEndsWithTheServer(t *testing.T) {
	socket := controltest.SocketPath(t)
	stop, err := controltest.Start(controltest.New().Own(), socket)
	must(t, err)
	conn, err := api.NewClient(socket).Bridge(t.Context())
	must(t, err)
	defer conn.Close()
	must(t, stop())
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Fatal("the bridge outlives its server")
	}
}

// TestNobodysProcessMayOnlyRead: a process of the box that belongs to no program, such as an agent,
// has no operator rights.
func TestNobodysProcessMayOnlyRead(t *testing.T) {
	b := controltest.New(controltest.Program("web"))
	b.Owners = func(int) (string, bool) { return "", true }
	c := dial(t, b.Own())
	_, err := c.Status(t.Context())
	must(t, err)
	_, err = c.Stop(t.Context(), api.ActionRequest{Names: []string{"web"}})
	code(t, err, api.CodeForbidden)
	_, err = c.Bridge(t.Context())
	code(t, err, api.CodeForbidden)
}

// Even a program with control = true may not run commands in the sandbox of other programs.
func TestSandboxTestIsNotForPrograms(t *testing.T) {
	b := controltest.New(controltest.Program("web"))
	b.Owners = func(int) (string, bool) { return "web", true }
	b.Set("web", func(p *supervisor.Status) { p.Spec = &program.Spec{Name: "web", Control: true} })
	_, err := dial(t, b.Own()).SandboxTest(t.Context(), api.SandboxTest{Program: "web", Command: []string{"true"}})
	equal(t, api.CodeOf(err), api.CodeForbidden)
}
