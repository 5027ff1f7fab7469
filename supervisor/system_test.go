package supervisor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dreamlab-ai/agentinit/internal/lateclose/lingertest"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/supervisor/logs"
	"github.com/dreamlab-ai/agentinit/supervisor/proc"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// realBox is a supervisor with real processes.
type realBox struct {
	t     testing.TB
	owner *proc.Owner
	plane *logs.Plane
	sys   *System
	sup   *Supervisor
	bus   *event.Bus
	close func() // a test may have only one owner at a time
}

func newRealBox(t testing.TB, cfg Config, specs ...program.Spec) *realBox {
	t.Helper()
	owner, err := proc.New(proc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	b := &realBox{t: t, owner: owner, plane: logs.New(logs.Config{}), bus: event.NewBus(10000)}
	b.sys = NewSystem(SystemConfig{Owner: owner, Logs: b.plane, Bus: b.bus, NotifyDir: t.TempDir()})
	cfg.Processes, cfg.Prober, cfg.Hooks, cfg.Bus = b.sys, b.sys, b.sys, b.bus
	b.sup, err = New(cfg, specs)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		b.sup.Run(context.Background())
	}()
	b.close = sync.OnceFunc(func() {
		b.sup.Shutdown("end of the test")
		<-done
		if left := owner.KillAll(time.Second); left > 0 {
			t.Errorf("%d processes left", left)
		}
		if err := b.sys.Close(); err != nil {
			t.Error(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := b.plane.Close(ctx); err != nil {
			t.Error(err)
		}
		if err := owner.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(b.close)
	return b
}

// patience limits a wait that would be endless if the program were broken.
const patience = 30 * time.Second

func (b *realBox) await(name string, until func(Status) bool) Status {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	st, err := b.sup.Await(ctx, name, until)
	if err != nil {
		b.t.Fatalf("%s is %v (%s): %v", name, st.State, st.Reason, err)
	}
	return st
}

func in(states ...program.State) func(Status) bool {
	return func(st Status) bool { return slices.Contains(states, st.State) }
}

func shell(script string) func(*program.Spec) {
	return func(s *program.Spec) {
		s.Argv = []string{"/bin/sh", "-c", script}
		s.Env = []string{"PATH=" + os.Getenv("PATH")}
		s.RunningAfter = 0
		s.Umask = -1
	}
}

// A hook that does not end is killed, and the event says why. One that cannot be started has not
// ended.
func TestHooksThatFail(t *testing.T) {
	hook := func(timeout time.Duration, argv ...string) *program.Hook {
		return &program.Hook{Argv: argv, Timeout: timeout}
	}
	b := newRealBox(t, Config{},
		spec("slow", shell("exec sleep 1000"), func(s *program.Spec) {
			s.StartRetries, s.Hooks.PreStart = 0, hook(50*time.Millisecond, "/bin/sh", "-c", "exec sleep 1000")
		}),
		spec("nosuch", shell("exec sleep 1000"), func(s *program.Spec) {
			s.StartRetries, s.Hooks.PreStart = 0, hook(patience, "/no/such/hook")
		}),
		spec("talks", shell("exec sleep 1000"), func(s *program.Spec) {
			s.StartRetries, s.Hooks.PreStart = 0, hook(patience, "/bin/sh", "-c", "echo begins; echo no table s3cret >&2; echo; exit 5")
			s.Secrets = []program.Secret{{Name: "PASSWORD", Value: "s3cret"}}
		}),
		spec("talksmuch", shell("exec sleep 1000"), func(s *program.Spec) { // its output is cut, so its last line is not known
			s.StartRetries, s.Hooks.PreStart = 0, hook(patience, "/bin/sh", "-c", "yes line | head -n 10000; exit 5")
		}),
	)
	b.sup.Boot()
	for name, want := range map[string]string{
		"slow": "did not end within its timeout of 50ms", "nosuch": "/no/such/hook",
		"talks": "its pre_start hook failed: ended with status 5: no table ${PASSWORD};", "talksmuch": "its pre_start hook failed: ended with status 5;",
	} {
		if st := b.await(name, in(program.Fatal)); !strings.Contains(st.Reason, want) {
			t.Errorf("%s: %s", name, st.Reason)
		}
	}
	for _, e := range (&box{bus: b.bus}).events(event.HookCompleted) {
		if e.Program == "nosuch" {
			t.Errorf("a hook that never ran has ended: %v", e.Fields)
		}
	}
}

func TestRealPrograms(t *testing.T) {
	dir := t.TempDir()
	b := newRealBox(t, Config{},
		spec("fd", shell("sleep 0.2; echo >&3; exec sleep 1000"), func(s *program.Spec) {
			s.Readiness.Probes = []program.Probe{{Dialect: "fd", Target: "3"}}
			s.Hooks.PreStart = &program.Hook{Argv: []string{"/bin/sh", "-c", "echo early > " + filepath.Join(dir, "hook")}, Timeout: patience}
		}),
		spec("crash", shell("echo a panic; echo doomed >&2; exit 3"), func(s *program.Spec) { s.StartRetries = 0; s.RunningAfter = time.Minute }),
		spec("nosuch", func(s *program.Spec) { s.Argv = []string{"no-such-command"}; s.StartRetries = 0; s.Umask = -1 }),
		spec("job", oneshot, shell("exit 0")),
		spec("after", shell("exec sleep 1000"), needs("job:completed", "fd")),
		spec("limits", shell("ulimit -n; exec sleep 1000"), func(s *program.Spec) {
			s.Umask = 0o077
			s.Limits.Rlimits = map[string]program.Limit{"nofile": {Soft: 77, Hard: 77}}
		}),
		spec("audited", shell("exec sleep 1000"), func(s *program.Spec) { s.Sandbox = &program.Sandbox{Read: []string{"/"}, Mode: "audit"} }),
		spec("sandboxed", shell("true"), func(s *program.Spec) {
			s.Sandbox, s.StartRetries = &program.Sandbox{NoNewPrivileges: true, Write: []string{"/no/such/directory"}}, 0
		}),
	)
	b.sup.Boot()
	b.await("fd", in(program.Running))
	if text, err := os.ReadFile(filepath.Join(dir, "hook")); err != nil || string(text) != "early\n" {
		t.Errorf("pre_start: %q, %v", text, err)
	}
	if st := b.await("crash", in(program.Fatal)); st.LastExit.Code != 3 {
		t.Errorf("%+v", st)
	}
	if st := b.await("nosuch", in(program.Fatal)); !strings.Contains(st.Reason, "no-such-command") {
		t.Error(st.Reason)
	}
	b.await("audited", in(program.Running))
	if st := b.await("sandboxed", in(program.Fatal)); proc.LandlockABI() > 0 && !strings.Contains(st.Reason, "/no/such/directory: no such file") {
		t.Error(st.Reason)
	}
	b.await("job", func(st Status) bool { return st.Completed })
	after := b.await("after", in(program.Running))
	if name, ok := b.sys.Owner(after.PID); !ok || name != "after" {
		t.Errorf("pid %d belongs to %q, %v", after.PID, name, ok)
	}
	if _, ok := b.sys.Owner(os.Getpid()); ok {
		t.Error("we belong to a program")
	}
	if u := b.sys.Usage("after", after.Run, time.Now()); u.Members != 1 {
		t.Errorf("%+v", u)
	}
	b.await("limits", in(program.Running))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for line := range b.plane.Read(ctx, logs.Query{Programs: []string{"limits"}, Follow: true}) {
		if line.Text != "77" {
			t.Errorf("limits printed %q", line.Text)
		}
		break
	}
	for line := range b.plane.Read(ctx, logs.Query{Programs: []string{"crash"}, Streams: []logs.Stream{logs.Stderr}, Follow: true}) {
		if line.Text != "doomed" {
			t.Errorf("crash printed %q", line.Text)
		}
		break
	}
	if c := b.sys.Crashes()["crash"]; c.Exit.Code != 3 || c.Run != 1 {
		t.Errorf("%+v", c)
	}
	b.sys.draining.Wait()
	var said []string
	for _, l := range b.sys.Crashes()["crash"].Output {
		said = append(said, l.Stream.String()+": "+l.Text)
	}
	slices.Sort(said) // the two pipes may be read in any order
	if !slices.Equal(said, []string{"stderr: doomed", "stdout: a panic"}) {
		t.Errorf("the crash record has %q", said)
	}
	if _, ok := b.sys.Crashes()["job"]; ok {
		t.Error("a completed job has a crash record")
	}
}

// A program may close its terminal and open it again: agentinit must not take that for the end of the
// output.
func TestRealTerminalIsOpenedAgain(t *testing.T) {
	dir := t.TempDir()
	closed, again := filepath.Join(dir, "closed"), filepath.Join(dir, "again")
	for _, fifo := range []string{closed, again} {
		if err := unix.Mkfifo(fifo, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	b := newRealBox(t, Config{}, spec("web", shell(fmt.Sprintf(`t=$(tty)
exec <&- >&- 2>&-
: >%s
read -r go <%s
echo hello >"$t"
exec sleep 1000`, closed, again)), func(s *program.Spec) { s.TTY = true }))
	b.sup.Boot()
	lines := b.plane.Subscribe("web", b.await("web", in(program.Running)).Run, regexp.MustCompile("hello"))
	defer lines.Close()
	if _, err := os.ReadFile(closed); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(again, []byte("go\n"), 0); err != nil {
		t.Fatal(err)
	}
	select {
	case <-lines.C:
	case <-time.After(patience):
		t.Error("the line does not come")
	}
}

func TestRealNotify(t *testing.T) {
	b := newRealBox(t, Config{}, spec("p", notify, func(s *program.Spec) {
		s.Argv, s.Umask = []string{os.Args[0]}, -1
		s.Env = []string{"SUPERVISOR_TEST_PROGRAM=notify"}
	}))
	b.plane.Redact("passw0rd-passw0")
	b.sup.Boot()
	b.await("p", in(program.Running))
	// The text comes with the readiness, but is processed separately.
	text := ""
	for ; text == ""; text = b.sup.Snapshot().Programs[0].Text {
		must(t, b.sup.Ping(t.Context()))
	}
	if text != "all set with ***************" {
		t.Errorf("the status is %q", text)
	}
}

// A notification of an unknown process waits for the starts that may have created the process, and
// for no others. While the notification waits, all later notifications wait too.
func TestPatienceWithStrangers(t *testing.T) {
	now := time.Now()
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	for name, c := range map[string]struct {
		id     uint64
		came   time.Time
		starts []time.Time
		want   time.Duration
	}{
		"no start":                   {7, now, nil, 0},
		"a fresh one":                {7, now, []time.Time{ago(fresh / 4)}, 3 * fresh / 4},
		"the younger of two":         {7, now, []time.Time{ago(fresh / 2), ago(fresh / 4)}, 3 * fresh / 4},
		"one that hangs":             {7, now, []time.Time{ago(time.Hour)}, 0},
		"begun after it came":        {7, ago(fresh / 2), []time.Time{ago(fresh / 4)}, 0},
		"one hangs, others go on":    {7, ago(fresh / 2), []time.Time{ago(time.Hour), ago(fresh / 4)}, 0},
		"nobody can say whose it is": {0, now, []time.Time{now}, 0},
		"looked at before":           {8, now, []time.Time{now}, 0},
	} {
		s := &System{starting: map[*systemRun]time.Time{}, strangers: map[uint64]bool{8: true}}
		for _, began := range c.starts {
			s.starting[&systemRun{}] = began
		}
		if left := max(s.patience(c.id, c.came, now), 0); left != c.want {
			t.Errorf("%s: waits %v, want %v", name, left, c.want)
		}
	}
	s := &System{strangers: map[uint64]bool{}}
	for id := range uint64(10 * maxStrangers) {
		s.addStranger(id)
	}
	if len(s.strangers) > maxStrangers {
		t.Errorf("%d strangers are remembered", len(s.strangers))
	}
}

// A program may send a notification, or connect to the control socket, before its start has been answered.
func TestRealResolve(t *testing.T) {
	b := newRealBox(t, Config{})
	sleeper := func() proc.Process {
		p, err := b.owner.Start(proc.Command{Path: "/bin/sleep", Args: []string{"sleep", "1000"}, Scope: proc.ScopeTree})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	early, stranger := sleeper(), sleeper()
	r := &systemRun{key: runKey{"early", 3}, born: runKey{"early", 3}, spec: &program.Spec{Name: "early"}, proc: early}
	b.sys.mu.Lock()
	b.sys.starting[r] = time.Now()
	b.sys.mu.Unlock()
	type answer struct {
		name string
		run  uint64
		ok   bool
	}
	got := make(chan answer)
	resolve := func(pid int) {
		name, run, ok := b.sys.resolve(pid, time.Time{})
		got <- answer{name, run, ok}
	}
	go func() {
		name, ok := b.sys.Owner(early.PID)
		got <- answer{name, 3, ok}
	}()
	waitUntil(t, func() bool {
		b.sys.mu.Lock()
		defer b.sys.mu.Unlock()
		return b.sys.answered != nil
	})
	go resolve(early.PID)
	b.sys.register(r, true)
	for range 2 {
		if a := <-got; a != (answer{"early", 3, true}) {
			t.Errorf("%+v", a)
		}
	}
	for _, pid := range []int{stranger.PID, os.Getpid(), 1} {
		go resolve(pid)
		if a := <-got; a.ok {
			t.Errorf("%d: %+v", pid, a)
		}
	}
	b.sys.mu.Lock()
	defer b.sys.mu.Unlock()
	if !b.sys.strangers[stranger.ID] || b.sys.strangers[early.ID] || len(b.sys.starting) > 0 {
		t.Errorf("strangers %v, starting %v", b.sys.strangers, b.sys.starting)
	}
}

func waitUntil(t *testing.T, what func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !what(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it does not happen")
		}
	}
}

func TestRealHealth(t *testing.T) {
	flag := filepath.Join(t.TempDir(), "healthy")
	if err := os.WriteFile(flag, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	b := newRealBox(t, Config{}, spec("p", shell("exec sleep 1000"), func(s *program.Spec) {
		check := program.Probe{Dialect: "exec", Argv: []string{"/bin/sh", "-c", "test -e " + flag}, Interval: 20 * time.Millisecond, Timeout: patience}
		s.Readiness.Probes = []program.Probe{check}
		s.Health = program.Health{Probes: []program.Probe{check}, Failures: 2, Action: program.HealthRestart}
		s.Backoff.Initial = 0
	}))
	b.sup.Boot()
	b.await("p", in(program.Running))
	if err := os.Remove(flag); err != nil {
		t.Fatal(err)
	}
	b.await("p", func(st Status) bool { return st.Run == 2 && st.State == program.Starting })
	if err := os.WriteFile(flag, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	st := b.await("p", in(program.Running))
	if st.Run != 2 || st.Restarts != 1 {
		t.Errorf("%+v", st)
	}
}

// A failing exec probe says what its command printed: no secret, and no part of one that was cut.
func TestRealProbeOutput(t *testing.T) {
	for name, c := range map[string]struct{ script, want string }{
		"secret":    {`echo first; echo "cannot log in with $TOKEN" >&2; exit 3`, "exit status 3: cannot log in with ${TOKEN} (attempt 1)"},
		"long line": {`printf %0490d 0; echo $TOKEN; exit 3`, "000${TO… (attempt 1)"},
		"cut":       {`printf %04086d 0; echo; echo with $TOKEN; exit 3`, "exit status 3: with (attempt 1)"},
		// A secret that the manifest does not name, but that the logs know.
		"other":     {`echo "cannot log in with $KEY" >&2; exit 3`, "exit status 3: cannot log in with *************** (attempt 1)"},
		"other cut": {`printf %04086d 0; echo; echo with $KEY; exit 3`, "exit status 3: with (attempt 1)"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newRealBox(t, Config{}, spec("p", shell("exec sleep 1000"), func(s *program.Spec) {
				s.Env = append(s.Env, "TOKEN=hunter2hunter2", "KEY=passw0rd-passw0")
				s.Secrets = []program.Secret{{Name: "TOKEN", Value: "hunter2hunter2"}}
				check := program.Probe{Dialect: "exec", Argv: []string{"/bin/sh", "-c", c.script}, Interval: 20 * time.Millisecond, Timeout: patience}
				s.Health = program.Health{Probes: []program.Probe{check}, Failures: 1, Action: program.HealthNone}
			}))
			b.plane.Redact("passw0rd-passw0")
			b.sup.Boot()
			st := b.await("p", func(st Status) bool { return strings.HasPrefix(st.Reason, "unhealthy") })
			if !strings.HasSuffix(st.Reason, c.want) {
				t.Errorf("%q, want %q", st.Reason, c.want)
			}
		})
	}
}

func TestRealKillAndRestart(t *testing.T) {
	b := newRealBox(t, Config{}, spec("p", shell("exec sleep 1000"), func(s *program.Spec) {
		s.Backoff.Initial = 0
		s.RestartLimit.Count = 0
	}))
	b.sup.Boot()
	st := b.await("p", in(program.Running))
	for range 50 {
		must(t, b.sup.Signal(t.Context(), "KILL", "p"))
		st = b.await("p", func(now Status) bool { return now.Run > st.Run && now.State == program.Running })
	}
	if st.Restarts != 50 || st.LastExit == nil || st.LastExit.Signal != "KILL" {
		t.Errorf("%d restarts, %+v", st.Restarts, st.LastExit)
	}
}

// The usage of a program includes all its runs: the first run uses processor time, the second does
// not, and after the stop there is no run.
func TestRealBounds(t *testing.T) {
	limit := program.Limit{Soft: 1 << 30, Hard: 1 << 30}
	b := newRealBox(t, Config{}, spec("free", shell("exec sleep 1000")), spec("bound", shell("exec sleep 1000"), func(s *program.Spec) {
		s.Limits.Rlimits = map[string]program.Limit{"memory": limit}
	}))
	b.sup.Boot()
	free, bound := b.await("free", in(program.Running)), b.await("bound", in(program.Running))
	if got := b.sys.Bounds("free", free.Run); len(got) != 0 {
		t.Errorf("without cgroups, a program without limits is bound by %+v", got)
	}
	want := []proc.Bound{{Name: "memory", Of: proc.OfProcess, Rlimit: proc.Rlimit{Soft: limit.Soft, Hard: limit.Hard}}}
	if got := b.sys.Bounds("bound", bound.Run); !slices.Equal(got, want) {
		t.Errorf("bound by %+v, want %+v", got, want)
	}
	must(t, b.sup.Stop(t.Context(), "bound"))
	b.await("bound", in(program.Stopped))
	if got := b.sys.Bounds("bound", bound.Run); len(got) != 0 {
		t.Errorf("a run that has ended is bound by %+v", got)
	}
}

func TestRealUsageIsThatOfAllRuns(t *testing.T) {
	did := filepath.Join(t.TempDir(), "did")
	work := "if [ ! -e " + did + " ]; then i=0; while [ $i -lt 50000 ]; do i=$((i+1)); done; : > " + did + "; fi; "
	b := newRealBox(t, Config{}, spec("p", shell(work+"echo >&3; exec sleep 1000"), func(s *program.Spec) {
		s.Readiness.Probes = []program.Probe{{Dialect: "fd", Target: "3"}}
		s.Backoff.Initial = 0
	}))
	b.sup.Boot()
	first := b.await("p", in(program.Running))
	worked := b.sys.Usage("p", first.Run, time.Now()).CPU
	if worked == 0 {
		t.Fatal("the work took no time")
	}
	must(t, b.sup.Signal(t.Context(), "KILL", "p"))
	second := b.await("p", func(st Status) bool { return st.Run > first.Run && st.State == program.Running })
	if u := b.sys.Usage("p", second.Run, time.Now()); u.CPU < worked || u.Members == 0 {
		t.Errorf("the second run: %+v after %v", u, worked)
	}
	must(t, b.sup.Stop(t.Context(), "p"))
	b.await("p", in(program.Stopped))
	if u := b.sys.Usage("p", second.Run, time.Now()); u.CPU < worked || u.Members != 0 {
		t.Errorf("after the stop: %+v after %v", u, worked)
	}
	must(t, b.sup.Start(t.Context(), "p"))
	third := b.await("p", in(program.Running))
	b.sys.Forget("p")
	if u := b.sys.Usage("p", third.Run, time.Now()); u.CPU >= worked {
		t.Errorf("forgotten: %+v after %v", u, worked)
	}
	must(t, b.sup.Stop(t.Context(), "p"))
	b.await("p", in(program.Stopped))
	if u := b.sys.Usage("p", third.Run, time.Now()); u.CPU != 0 {
		t.Errorf("a run that ended after that: %+v", u)
	}
}

func TestRealTreeIsEmptyAfterAStop(t *testing.T) {
	pidfile := filepath.Join(t.TempDir(), "pid")
	b := newRealBox(t, Config{}, spec("p",
		shell("sleep 1000 & echo $! > "+pidfile+"; setsid sleep 1000 & echo $! >> "+pidfile+"; echo >&3; exec sleep 1000"),
		func(s *program.Spec) { s.Readiness.Probes = []program.Probe{{Dialect: "fd", Target: "3"}} }))
	b.sup.Boot()
	b.await("p", in(program.Running))
	must(t, b.sup.Stop(t.Context(), "p"))
	b.await("p", in(program.Stopped))
	pids, err := os.ReadFile(pidfile)
	if err != nil || len(strings.Fields(string(pids))) != 2 {
		t.Fatalf("%q, %v", pids, err)
	}
	for pid := range strings.FieldsSeq(string(pids)) {
		stat, err := os.ReadFile("/proc/" + pid + "/stat")
		if err != nil {
			continue
		}
		_, rest, _ := strings.Cut(string(stat), ") ")
		fields := strings.Fields(rest)
		const exiting = 0x4 // PF_EXITING: the process is ending and cannot return
		flags, err := strconv.ParseUint(fields[6], 10, 64)
		if err != nil {
			t.Fatalf("%q: %v", stat, err)
		}
		if fields[0] != "Z" && flags&exiting == 0 {
			t.Errorf("process %s outlives the stop: %s", pid, stat)
		}
	}
}

// If a program ends at once, the reaper may see its end before the launcher has recorded its start.
func TestEndDatedBeforeTheStart(t *testing.T) {
	s := &System{
		notices: make(chan Notice, 256), stop: make(chan struct{}),
		runs: make(map[runKey]*systemRun), byID: make(map[uint64]*systemRun), spent: make(map[string]time.Duration),
		oom: newOOMWatch(t.TempDir()),
	}
	began := time.Now()
	for id, c := range []struct{ after, want time.Duration }{{-time.Millisecond, 0}, {time.Second, time.Second}} {
		p := spec(fmt.Sprint("p", id))
		r := &systemRun{key: runKey{p.Name, 1}, spec: &p, proc: proc.Process{Started: began}}
		s.byID[uint64(id)], s.runs[r.key] = r, r
		s.mu.Lock()
		s.route(proc.Exit{Kind: proc.Exited, ID: uint64(id), Time: began.Add(c.after)})
		s.mu.Unlock()
		if n := <-s.Notices(); n.Exit == nil || n.Exit.Lived != c.want {
			t.Errorf("the end %s after the start: %+v, want a life of %s", c.after, n.Exit, c.want)
		}
	}
}

// The end of a run removes the run under all its names, also if the last one is the first one.
func TestARenamedRunIsForgotten(t *testing.T) {
	s := &System{
		notices: make(chan Notice, 256), stop: make(chan struct{}),
		runs: make(map[runKey]*systemRun), byID: make(map[uint64]*systemRun), spent: make(map[string]time.Duration),
	}
	p, key := spec("web"), runKey{"web", 1}
	r := &systemRun{key: key, born: key, spec: &p}
	s.byID[1], s.runs[key] = r, r
	s.Rename("web", "web:0")
	s.Rename("web:0", "web")
	s.mu.Lock()
	s.route(proc.Exit{Kind: proc.Emptied, ID: 1})
	s.mu.Unlock()
	if n := <-s.Notices(); n.Program != "web" || len(s.runs) != 0 {
		t.Errorf("notice %+v, left %v", n, s.runs)
	}
}

// After the end of the supervisor, no goroutine reads notices, and all calls to the System must
// still return. A late reader gets all notices in order.
func TestNoticesThatNobodyReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const programs = 1000
		s := &System{
			notices: make(chan Notice, 256), stop: make(chan struct{}),
			runs: make(map[runKey]*systemRun), byID: make(map[uint64]*systemRun), spent: make(map[string]time.Duration), oom: newOOMWatch(t.TempDir()),
		}
		for id := range uint64(programs) {
			p := spec(fmt.Sprint("p", id))
			r := &systemRun{key: runKey{p.Name, id}, spec: &p}
			s.byID[id], s.runs[r.key] = r, r
		}
		sort := func(e proc.Exit) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.route(e)
		}
		for id := range uint64(programs) {
			sort(proc.Exit{Kind: proc.Exited, ID: id})
			sort(proc.Exit{Kind: proc.Emptied, ID: id})
		}
		if _, ok := s.id("p0", 0); ok {
			t.Error("p0 is still there")
		}
		for id := range uint64(programs / 2) {
			for _, exited := range []bool{true, false} {
				if n := <-s.Notices(); n.Run != id || (n.Exit != nil) != exited {
					t.Fatalf("got %+v, want run %d, exited %v", n, id, exited)
				}
			}
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestRealShutdown(t *testing.T) {
	var specs []program.Spec
	for i := range 20 {
		specs = append(specs, spec(fmt.Sprint("p", i), shell("exec sleep 1000"), priority(i%3)))
	}
	specs = append(specs, spec("deaf", shell("trap '' TERM; echo >&3; while :; do sleep 1000; done"), func(s *program.Spec) {
		s.Stop = []program.StopStep{{Signal: "TERM", Wait: 100 * time.Millisecond}}
		s.Readiness.Probes = []program.Probe{{Dialect: "fd", Target: "3"}}
	}))
	b := newRealBox(t, Config{}, specs...)
	b.sup.Boot()
	select {
	case <-b.sup.Started():
	case <-time.After(patience):
		t.Fatal("not started")
	}
	b.sup.Shutdown("test")
	<-b.sup.Done()
	r, _ := b.sup.Result()
	if len(r.Leftover) > 0 || r.Code != 0 {
		t.Errorf("leftover %v, code %d", r.Leftover, r.Code)
	}
	for _, st := range r.Programs {
		if want := map[bool]string{true: "KILL", false: "TERM"}[st.Name == "deaf"]; st.LastExit == nil || st.LastExit.Signal != want {
			t.Errorf("%s ended by %+v, want %s", st.Name, st.LastExit, want)
		}
	}
}

// sleepers returns n programs that only sleep.
func sleepers(n int) []program.Spec {
	var specs []program.Spec
	for i := range n {
		specs = append(specs, spec(fmt.Sprint("p", i), func(s *program.Spec) {
			s.Argv = []string{"/bin/sleep", "1000"}
			s.Umask, s.RunningAfter = -1, 0
		}))
	}
	return specs
}

func BenchmarkStart(b *testing.B) {
	for _, n := range []int{1, 100, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				box := newRealBox(b, Config{}, sleepers(n)...)
				b.StartTimer()
				box.sup.Boot()
				<-box.sup.Started()
				b.StopTimer()
				box.close()
				b.StartTimer()
			}
		})
	}
}

func BenchmarkShutdown(b *testing.B) {
	for _, n := range []int{1, 100, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				box := newRealBox(b, Config{}, sleepers(n)...)
				box.sup.Boot()
				<-box.sup.Started()
				b.StartTimer()
				box.sup.Shutdown("benchmark")
				<-box.sup.Done()
				b.StopTimer()
				box.close()
				b.StartTimer()
			}
		})
	}
}

func BenchmarkRestart(b *testing.B) {
	box := newRealBox(b, Config{}, spec("p", func(s *program.Spec) {
		s.Argv, s.Umask, s.RunningAfter = []string{"/bin/sleep", "1000"}, -1, 0
		s.Backoff.Initial, s.RestartLimit.Count = 0, 0
	}))
	box.sup.Boot()
	st := box.await("p", in(program.Running))
	for b.Loop() {
		if err := box.sup.Signal(b.Context(), "KILL", "p"); err != nil {
			b.Fatal(err)
		}
		st = box.await("p", func(now Status) bool { return now.Run > st.Run && now.State == program.Running })
	}
}

// A process that holds a pipe of a program (splice(2)) keeps agentinit from closing it. Supervision goes on,
// and the program does not start again and again: each run would occupy more threads of agentinit.
func TestHeldPipes(t *testing.T) {
	pipes := map[string]struct {
		change func(*program.Spec)
		state  program.State
		fd     int
	}{
		"stdin": {func(s *program.Spec) { s.Stdin = program.StdinPipe }, program.Running, 0},
		"ready": {func(s *program.Spec) {
			s.Readiness = program.Readiness{Probes: []program.Probe{{Dialect: "fd", Target: "3"}}, Deadline: patience}
		}, program.Starting, 3},
	}
	for name, p := range pipes {
		t.Run(name, func(t *testing.T) {
			b := newRealBox(t, Config{},
				spec("holder", shell("exec sleep 1000"), p.change, func(s *program.Spec) { s.Backoff.Initial, s.Autostart = 0, false }),
				spec("other", shell("exec sleep 1000")))
			b.sup.Boot()
			b.await("other", in(program.Running))
			must(t, b.sup.Start(t.Context(), "holder"))
			var release []func()
			for range mostHeld {
				st := b.await("holder", func(st Status) bool { return st.State == p.state && st.PID > 0 })
				// Another process must have the program's own end too: otherwise the program cannot end either.
				defer unix.Close(descriptorOf(t, st.PID, p.fd))
				end, err := unix.Open(fmt.Sprintf("/proc/%d/fd/%d", st.PID, p.fd), unix.O_WRONLY|unix.O_CLOEXEC, 0)
				if err != nil {
					t.Fatal(err)
				}
				release = append(release, lingertest.HoldPipe(t, end))
				unix.Close(end)
				must(t, b.sup.Stop(t.Context(), "holder"))
				b.await("holder", in(program.Stopped))
				must(t, b.sup.Start(t.Context(), "holder"))
			}
			if st := b.await("holder", in(program.Backoff, program.Fatal)); !strings.Contains(st.Reason, "processes hold them") {
				t.Errorf("the reason is %s", st.Reason)
			}
			must(t, b.sup.Restart(t.Context(), "other"))
			b.await("other", in(program.Running))
			for _, end := range release {
				end()
			}
			waitUntil(t, func() bool {
				b.sys.mu.Lock()
				defer b.sys.mu.Unlock()
				return b.sys.held["holder"] == 0
			})
			must(t, b.sup.Restart(t.Context(), "holder"))
			b.await("holder", in(p.state))
		})
	}
}

// descriptorOf duplicates a descriptor of another process.
func descriptorOf(t *testing.T, pid, fd int) int {
	t.Helper()
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pidfd)
	own, err := unix.PidfdGetfd(pidfd, fd, 0)
	if err != nil {
		t.Fatal(err)
	}
	return own
}
