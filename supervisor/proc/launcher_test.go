package proc

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"

	"github.com/dreamlab-ai/agentinit/supervisor/proc/filter"
)

// heardBy collects the names of refused calls by program.
type heardBy struct {
	mu    sync.Mutex
	calls map[string][]string
}

func (h *heardBy) of(name string) func(Refusal) {
	return func(r Refusal) {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.calls == nil {
			h.calls = map[string][]string{}
		}
		h.calls[name] = append(h.calls[name], r.Call)
	}
}

func (h *heardBy) got(name string) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.calls[name])
}

// needsLaunchers skips the test if the kernel refuses launchers, or has no Landlock scope. It is for
// an Owner that has started a program.
func needsLaunchers(t *testing.T, o *Owner) {
	t.Helper()
	o.launchers.mu.Lock()
	defer o.launchers.mu.Unlock()
	if o.launchers.left == 0 || o.launchers.left == launchersEver {
		t.Skip("needs a kernel with listeners of seccomp filters and Landlock scopes")
	}
}

// launching is an Owner that has a launcher.
func launching(t *testing.T) *Owner {
	t.Helper()
	o := newOwner(t, Options{})
	if r, err := o.Run(t.Context(), guarded("exit 7", func(Refusal) {}), 100); err != nil || r.Exit.Code() != 7 {
		t.Fatalf("%+v, %v", r.Exit, err)
	}
	needsLaunchers(t, o)
	return o
}

// guarded is a shell script under the full guard.
func guarded(script string, refused func(Refusal)) Command {
	c := sh(script)
	c.Guard, c.Refused = GuardFull, refused
	return c
}

// Programs that share a filter have just this one, and what they are refused is told to their own
// starts, also if the caller has lost its program.
func TestLauncherTellsWhose(t *testing.T) {
	o := newOwner(t, Options{})
	var h heardBy
	dir := t.TempDir()
	begin, end := filepath.Join(dir, "begin"), filepath.Join(dir, "end")
	for _, f := range []string{begin, end} {
		if err := unix.Mkfifo(f, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	late := mustStart(t, o, guarded("setsid sh -c 'read x <"+begin+"; kill -0 "+self()+"; echo >"+end+"' & exit 3", h.of("late")))
	needsLaunchers(t, o)
	if e := next(t, o, late.ID, Exited); e.Code() != 3 {
		t.Fatalf("%+v", e)
	}
	for _, x := range []struct{ name, script string }{
		{"renice", "renice -n 5 -p " + self()}, {"limit", "prlimit --sigpending=5:5 true"},
		{"none", "test \"$(grep Seccomp_filters /proc/self/status | tr -dc 0-9)\" = " + strconv.Itoa(ownFilters(t)+1)},
	} {
		r, err := o.Run(t.Context(), guarded(x.script, h.of(x.name)), 1000)
		if ok := r.Exit.Code() == 0; err != nil || ok != (x.name == "none") {
			t.Errorf("%s: %s %+v, %v", x.name, r.Output, r.Exit, err)
		}
	}
	if err := os.WriteFile(begin, []byte("\n"), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := os.ReadFile(end); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string][]string{"renice": {"setpriority"}, "limit": {"prlimit64"}, "late": {"kill"}, "none": nil} {
		if got := h.got(name); !slices.Equal(got, want) {
			t.Errorf("%s: told %v, want %v", name, got, want)
		}
	}
	next(t, o, late.ID, Emptied)
	r := o.refused.Load()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.sharing) != 0 {
		t.Errorf("%d ended programs are kept", len(r.sharing))
	}
	for fd, w := range r.listeners {
		if !w.shared {
			t.Errorf("a program has made listener %d", fd)
		}
	}
}

// ownFilters is how many seccomp filters the test itself has.
func ownFilters(t *testing.T) int {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "Seccomp_filters:"); ok {
			return numbers(rest)[0]
		}
	}
	t.Skip("needs a kernel that counts filters (Linux 5.16)")
	return 0
}

// The thread of a launcher is not the first one, and no other thread of agentinit has the filter:
// agentinit signals its programs from there.
func TestLauncherKeepsToItsThread(t *testing.T) {
	launching(t)
	tasks, err := filepath.Glob(taskDir + "/*/status")
	if err != nil {
		t.Fatal(err)
	}
	var under []string
	base := ownFilters(t)
	for _, file := range tasks {
		b, err := os.ReadFile(file)
		if err == nil && strings.Contains(string(b), "Seccomp_filters:\t"+strconv.Itoa(base+1)+"\n") {
			under = append(under, filepath.Base(filepath.Dir(file)))
		}
	}
	if len(under) == 0 || slices.Contains(under, strconv.Itoa(os.Getpid())) {
		t.Errorf("under the filter: %v", under)
	}
}

// A thread that agentinit makes later is protected from programs that start later.
func TestLauncherProtectsNewThreads(t *testing.T) {
	o := launching(t)
	before := o.threads.count()
	stop := make(chan struct{})
	defer close(stop)
	tid := 0
	for o.threads.count() == before {
		id := make(chan int)
		go func() {
			runtime.LockOSThread()
			id <- unix.Gettid()
			<-stop
		}()
		tid = <-id
	}
	for guard, want := range map[Guard]bool{GuardFull: true, GuardNone: false} {
		c := guarded("renice -n 5 -p "+strconv.Itoa(tid), func(Refusal) {}) // Landlock allows it
		c.Guard = guard
		r, err := o.Run(t.Context(), c, 1000)
		if failed := r.Exit.Code() != 0; err != nil || failed != want {
			t.Errorf("guard %d: %s %+v, %v", guard, r.Output, r.Exit, err)
		}
	}
}

// A start that hangs holds up its launcher, but no other start.
func TestLaunchersBusy(t *testing.T) {
	o := launching(t)
	c := guarded("exit 7", func(Refusal) {})
	f, err := o.guardFilter(&c)
	if err != nil {
		t.Fatal(err)
	}
	for range launchersEver { // more than there may be
		w, more := o.launchers.take(f)
		if w != nil {
			defer o.launchers.put(w)
		} else if !more {
			break
		}
	}
	if r, err := o.Run(t.Context(), c, 100); err != nil || r.Exit.Code() != 7 {
		t.Errorf("%+v, %v", r.Exit, err)
	}
}

// A start that fails before the fork gives its launcher back.
func TestLauncherComesBack(t *testing.T) {
	o := launching(t)
	o.launchers.mu.Lock()
	o.launchers.left = 1000 // each new thread of agentinit makes the filter newer, and so launchers stale
	o.launchers.mu.Unlock()
	good := guarded("exit 7", func(Refusal) {})
	bad := good
	bad.Args = append(slices.Clone(good.Args), "a\x00b")
	for range launchersEver {
		if _, err := o.Start(bad); err == nil {
			t.Fatal("an argument with a NUL byte was accepted")
		}
	}
	f, err := o.guardFilter(&good)
	if err != nil {
		t.Fatal(err)
	}
	// If the filter is newer than the launchers, one may be made.
	w, more := o.launchers.take(f)
	switch {
	case w != nil:
		o.launchers.put(w)
	case !more:
		t.Error("no launcher is left")
	}
}

// A start whose filter has become older meanwhile takes a launcher with the newer one. A start with
// the newer filter leaves those with the older one.
func TestLauncherWithANewerFilter(t *testing.T) {
	older, newer := &guardFilter{age: 1}, &guardFilter{age: 2}
	w := &launcher{filter: newer}
	s := launchers{idle: []*launcher{w}, serving: launchersServing}
	if got, more := s.take(older); got != w || more {
		t.Errorf("the launcher with the newer filter was not taken: %v, %v", got, more)
	}
	s = launchers{idle: []*launcher{{filter: older}}, serving: launchersServing, left: 1}
	if got, more := s.take(newer); got != nil || !more || len(s.stale) != 1 {
		t.Errorf("the launcher with the older filter was taken: %v, %v, %d stale", got, more, len(s.stale))
	}
}

// A launcher that comes back after Close ends.
func TestLauncherComesBackAfterClose(t *testing.T) {
	var s launchers
	idle, stale, busy := make(chan launchJob), make(chan launchJob), make(chan launchJob)
	s.idle, s.stale = []*launcher{{jobs: idle}}, []*launcher{{jobs: stale}}
	s.close()
	s.put(&launcher{jobs: busy})
	for name, jobs := range map[string]chan launchJob{"idle": idle, "stale": stale, "busy": busy} {
		select {
		case <-jobs:
		default:
			t.Errorf("the launcher that was %s does not end", name)
		}
	}
	if len(s.idle) != 0 {
		t.Error("an ended launcher counts as idle")
	}
}

// If the kernel refuses a launcher, programs install the filter themselves, and no launcher is tried
// again. Here, the kernel refuses because the test runs under a filter that has a listener already,
// as some container engines install one.
func TestNoLaunchersUnderAFilterWithAListener(t *testing.T) {
	const inside = "AGENTINIT_TEST_LISTENER"
	if os.Getenv(inside) == "" {
		reports := newReports()
		o := newOwner(t, Options{Report: reports.add})
		c := Command{Path: os.Args[0], Args: []string{os.Args[0], "-test.run=^" + t.Name() + "$", "-test.v"}, Env: append(os.Environ(), inside+"=1")}
		c.Sandbox = &Sandbox{Filter: compiled(t, filter.Policy{Deny: []string{"mount"}})}
		res, _ := listened(t, o, c, reports)
		switch out := string(res.Output); {
		case strings.Contains(out, "--- SKIP"):
			t.Skip(out)
		case res.Exit.Code() != 0 || !strings.Contains(out, "--- PASS"):
			t.Errorf("%+v\n%s", res.Exit, out)
		}
		return
	}
	needsLandlock(t, landlockScopeABI)
	reports := newReports()
	o := newOwner(t, Options{Report: reports.add})
	for range 2 * launchersServing {
		c := guarded("kill -0 "+self()+" || exit 7", func(r Refusal) { t.Errorf("told %+v", r) })
		if r, err := o.Run(t.Context(), c, 1000); err != nil || r.Exit.Code() != 7 {
			t.Fatalf("%s %+v, %v", r.Output, r.Exit, err)
		}
	}
	if !reports.has("listener") {
		t.Error("that nothing is counted was not reported")
	}
	o.launchers.mu.Lock()
	if o.launchers.serving != 1 || o.launchers.left != 0 {
		t.Errorf("%d launchers were tried, %d more may be", o.launchers.serving, o.launchers.left)
	}
	o.launchers.mu.Unlock()
	tasks, err := threadsIn(taskDir)
	if err != nil {
		t.Fatal(err)
	}
	c := guarded("", nil)
	if _, err := o.guardFilter(&c); err != nil {
		t.Fatal(err)
	}
	o.guard.mu.Lock()
	defer o.guard.mu.Unlock()
	for _, tid := range tasks {
		if !slices.Contains(o.guard.named, tid) {
			t.Errorf("the filters do not name thread %d", tid)
		}
	}
}

// The thread of a refused launcher stays until Close. If it ended, another thread could take its
// place in the count of threads, and no filter would name that thread.
func TestThreadOfARefusedLauncherStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &Owner{stop: make(chan struct{})}
		o.refusalsOnce.Do(func() {}) // so there is no server of refused calls, and no launcher
		made, ended := make(chan *launcher, 1), false
		go func() {
			o.launchUnder(nil, made)
			ended = true
		}()
		synctest.Wait()
		if w := <-made; w != nil || ended {
			t.Errorf("launcher %v, ended: %v", w, ended)
		}
		close(o.stop)
		synctest.Wait()
		if !ended {
			t.Error("it does not end after Close")
		}
	})
}
