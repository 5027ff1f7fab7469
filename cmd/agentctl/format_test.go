package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/control/controltest"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

func TestJSONPath(t *testing.T) {
	data, err := generic(map[string]any{
		"phase": "running", "seq": 12345678901234567,
		"programs": []any{map[string]any{"name": "web", "pid": 7, "ready": true}, map[string]any{"name": "db", "share": 0.5}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ template, want string }{
		{"$.programs[*].name", "web\ndb\n"},
		{".seq", "12345678901234567\n"},
		{"{.phase}", "running"},
		{"{.programs[*].name}", "web db"},
		{"{.programs[0]}", `{"name":"web","pid":7,"ready":true}`},
		{`{range .programs[*]}{.name}{"\t"}{.pid}{"\n"}{end}done`, "web\t7\ndb\t\ndone"},
		{`{.programs[?(@.name == 'web')].pid}`, "7"},
		{`{.programs[?(@.name == "}")].pid}`, ""},
		{`{range .none[*]}x{range .y}z{end}{end}`, ""},
		{`{range .programs[*]}{range .name}[{.}]{end}{end}`, "[web][db]"},
		{"{.none}", ""},
		{"{$}", `{"phase":"running","programs":[{"name":"web","pid":7,"ready":true},{"name":"db","share":0.5}],"seq":12345678901234567}`},
	} {
		if got, err := jsonPath(c.template, data); got != c.want || err != nil {
			t.Errorf("%s: got %q, %v, want %q", c.template, got, err, c.want)
		}
	}
	for _, bad := range []string{"name", "{name}", "{.a", "{end}", "{range .programs[*]}", `{"a}`, "{.a[}", "$.[", `{"\q"}`} {
		if got, err := jsonPath(bad, data); err == nil {
			t.Errorf("%s: got %q and no error", bad, got)
		}
	}
}

func FuzzJSONPath(f *testing.F) {
	for _, seed := range []string{"$.a[*]", "{range .a[*]}{.b}{end}", `{"\n"}`, "{.a[?(@.b == 'c')]}", "{"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, template string) {
		if len(template) > 200 {
			return
		}
		_, _ = jsonPath(template, map[string]any{"a": []any{map[string]any{"b": "c"}}})
	})
}

func TestParseFormat(t *testing.T) {
	for _, ok := range []string{"", "wide", "json", "yaml", "name", "jsonpath={.a}", "go-template={{.a}}"} {
		if _, _, err := parseFormat(ok); err != nil {
			t.Errorf("%s: %v", ok, err)
		}
	}
	for _, bad := range []string{"xml", "json=x", "jsonpath", "jsonpath=", "go-template"} {
		if _, _, err := parseFormat(bad); err == nil || !strings.Contains(err.Error(), "-o") {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

// The page shows the count that decides: start_retries or restart_limit.
func TestRestartText(t *testing.T) {
	limit := program.RestartLimit{Count: 10, Window: 5 * time.Minute}
	for _, c := range []struct {
		retries int
		limit   program.RestartLimit
		want    string
	}{
		{-1, limit, "on-failure, restarted 0 times, FATAL after 10 within 5m00s"},
		{-1, program.RestartLimit{}, "on-failure, restarted 0 times"},
		{0, limit, "on-failure, restarted 0 times, FATAL after one failed start"},
		{3, limit, "on-failure, restarted 0 times, FATAL after 4 failed starts in a row"},
	} {
		pg := page{spec: program.Spec{Restart: program.RestartOnFailure, StartRetries: c.retries, RestartLimit: c.limit}}
		if got := restartText(pg); got != c.want {
			t.Errorf("start_retries %d, %+v: %q, want %q", c.retries, c.limit, got, c.want)
		}
	}
	if got := restartText(page{spec: program.Spec{Restart: program.RestartNever, StartRetries: -1, RestartLimit: limit}}); got != "never, restarted 0 times" {
		t.Errorf("restart = never has no limit to reach: %q", got)
	}
}

func TestCrashHeading(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for want, exit := range map[string]api.Exit{
		"web: exited with code 7 after 1.5s, at 2026-01-02T03:04:05.000Z\n": {Code: 7},
		"web: ended by signal TERM when agentinit stopped it: unhealthy: x (attempt 1); it ran for 1.5s, until 2026-01-02T03:04:05.000Z\n": {
			Code: -1, Signal: "TERM", Cause: "ended by signal TERM when agentinit stopped it: unhealthy: x (attempt 1)",
		},
	} {
		var out strings.Builder
		(&cli{stdout: &out}).printCrash(api.Crash{Program: "web", Exit: exit, UptimeMS: 1500, Time: at})
		if !strings.HasPrefix(out.String(), want) {
			t.Errorf("got %q, want %q", out.String(), want)
		}
	}
}

// A start can fail without a crash, so the answer about one program says where its state is shown.
func TestNoCrash(t *testing.T) {
	socket := controltest.Serve(t, controltest.New(controltest.Program("web")).Own())
	for args, want := range map[string]string{"crash": "no crash\n", "crash web": "no crash; see: agentctl status web\n"} {
		var out, stderr strings.Builder
		none := func(string) (string, bool) { return "", false }
		if run(t.Context(), append([]string{"--socket", socket}, strings.Fields(args)...), none, strings.NewReader(""), &out, &stderr); out.String() != want {
			t.Errorf("%s: %q %q, want %q", args, out.String(), stderr.String(), want)
		}
	}
}

func TestIdentityText(t *testing.T) {
	www := &program.Credential{UID: 33, GID: 34}
	for _, c := range []struct {
		spec program.Spec
		want string
	}{
		{program.Spec{}, ""},
		{program.Spec{Credential: www}, "user 33, group 34"},
		{program.Spec{Credential: www, Directory: "/srv"}, "user 33, group 34, in /srv"},
		{program.Spec{Directory: "/srv"}, "agentinit's user, in /srv"},
	} {
		if got := identityText(c.spec); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

// The page shows every check of the manifest, in its words.
func TestHealthText(t *testing.T) {
	probe := program.Probe{Dialect: "tcp", Target: "127.0.0.1:80", Interval: 5 * time.Second}
	for _, c := range []struct {
		health program.Health
		want   string
	}{
		{program.Health{Failures: 3, Action: program.HealthRestart}, ""},
		{program.Health{Probes: []program.Probe{probe}, Failures: 1, Action: program.HealthNone}, "TCP 127.0.0.1:80 every 5.0s; action none"},
		{
			program.Health{Probes: []program.Probe{probe}, Failures: 3, Watchdog: 30 * time.Second, Wedge: program.Wedge{Blocked: time.Minute}, Action: program.HealthRestart},
			"TCP 127.0.0.1:80 every 5.0s (3 failures in a row); watchdog 30s; blocked 1m00s; action restart",
		},
	} {
		if got := healthText(page{spec: program.Spec{Health: c.health}}); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

// An empty list of a sandbox forbids all of its kind. It survives JSON, as the page gets it.
func TestSandboxText(t *testing.T) {
	raw, err := json.Marshal(program.Sandbox{Capabilities: []string{}, Read: []string{"/usr", "/etc"}, Write: []string{}, TCPBind: []int{}})
	if err != nil {
		t.Fatal(err)
	}
	var s program.Sandbox
	if err := json.Unmarshal(raw, &s); err != nil {
		t.Fatal(err)
	}
	if got := sandboxText(&s); got != "capabilities none, read /usr /etc, write none, tcp_bind []" {
		t.Error(got)
	}
}

// A RUNNING program that fails its health check still counts for /ready. The page says the same.
func TestReadyTextOfAnUnhealthyProgram(t *testing.T) {
	pg := page{}
	pg.State, pg.PID, pg.Ready, pg.Reason = "RUNNING", 7, true, "unhealthy: refused"
	if got, want := readyText(pg), "yes, when it runs"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// A job is ready when it has completed, not while it runs.
func TestReadyTextOfAJob(t *testing.T) {
	pg := page{}
	pg.Type, pg.State = "oneshot", "STOPPED"
	for _, c := range []struct {
		pid       int
		completed bool
		reason    string
		want      string
	}{
		{0, false, "", "when it has completed"},
		{7, false, "runs to its completion", "no, runs to its completion; when it has completed"},
		{0, true, "completed: exited with code 0", "yes, when it has completed"},
	} {
		pg.PID, pg.Completed, pg.Reason = c.pid, c.completed, c.reason
		if got := readyText(pg); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

func TestResultsOfActions(t *testing.T) {
	for _, c := range []struct {
		result api.ProgramResult
		want   string
	}{
		{api.ProgramResult{Name: "web", State: "RUNNING", PID: 7, Changed: true}, "web: started, pid 7\n"},
		{api.ProgramResult{Name: "web", State: "RUNNING", PID: 7}, "web: already running\n"},
		{api.ProgramResult{Name: "nightly", State: "STOPPED", Shown: program.ShownScheduled, Changed: true}, "nightly: started, now SCHEDULED\n"},
		{api.ProgramResult{Name: "nightly", State: "STOPPED", Shown: program.ShownScheduled}, "nightly: already scheduled\n"},
		{api.ProgramResult{Name: "nightly", State: "STOPPED", Shown: program.ShownPaused}, "nightly: already paused\n"},
		{api.ProgramResult{Name: "nightly", State: "EXITED", Scheduled: true}, "nightly: already scheduled\n"},
		{api.ProgramResult{Name: "nightly", State: "EXITED", Shown: program.ShownCompleted, Scheduled: true, Changed: true}, "nightly: started, now SCHEDULED\n"},
	} {
		var out strings.Builder
		(&cli{stdout: &out}).printResults(verb{done: "started", already: "already running", resumes: true}, false, api.ActionResult{Results: []api.ProgramResult{c.result}})
		if out.String() != c.want {
			t.Errorf("%+v: %q, want %q", c.result, out.String(), c.want)
		}
	}
}
