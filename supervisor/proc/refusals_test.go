package proc

import (
	"context"
	"encoding/binary"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dreamlab-ai/agentinit/internal/testprog/built"
	"github.com/dreamlab-ai/agentinit/supervisor/proc/filter"
)

// listened runs a command and returns its refusals in order. It skips the test if the kernel has no
// listeners.
func listened(t *testing.T, o *Owner, c Command, reports *reports) (Result, []Refusal) {
	t.Helper()
	heard := make(chan Refusal, 10_000)
	c.Refused, c.NoNewPrivs = func(r Refusal) { heard <- r }, true
	res, err := o.Run(t.Context(), c, 10_000)
	if err != nil {
		t.Fatal(err)
	}
	if reports.has("no listener") {
		t.Skip("needs a kernel with listeners of seccomp filters")
	}
	var out []Refusal
	for range len(heard) {
		out = append(out, <-heard)
	}
	return res, out
}

// reports holds the reports of an Owner.
type reports struct{ c chan string }

func newReports() *reports { return &reports{make(chan string, 100)} }

func (r *reports) add(s string) { r.c <- s }

func (r *reports) has(part string) bool {
	for range len(r.c) {
		if s := <-r.c; strings.Contains(s, part) {
			return true
		}
	}
	return false
}

func TestRefusalsAreTold(t *testing.T) {
	deny := filter.Policy{Preset: "default"}
	audit := deny
	audit.Log = true
	for _, tc := range []struct {
		name    string
		guard   Guard
		policy  *filter.Policy
		command string
		fails   bool
		want    string // source and name of the call that must be among the refusals
	}{
		{"guard", GuardFull, nil, "renice -n 5 -p " + self(), true, "guard setpriority"},
		{"sandbox", GuardNone, &deny, "unshare --user true", true, "seccomp unshare"},
		{"both: guard", GuardFull, &deny, "renice -n 5 -p " + self(), true, "guard setpriority"},
		{"both: sandbox", GuardFull, &deny, "unshare --user true", true, "seccomp unshare"},
		{"audit", GuardFull, &audit, "swapoff /nonexistent", true, "seccomp swapoff allowed"},
		{"audit: guard", GuardFull, &audit, "renice -n 5 -p " + self(), true, "guard setpriority"},
		{"nothing refused", GuardFull, &deny, "ls /", false, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			reports := newReports()
			o := newOwner(t, Options{Report: reports.add})
			c := sh(tc.command)
			c.Guard = tc.guard
			if tc.policy != nil {
				c.Sandbox = &Sandbox{Filter: compiled(t, *tc.policy)}
			}
			res, told := listened(t, o, c, reports)
			if failed := res.Exit.Code() != 0; failed != tc.fails {
				t.Errorf("%s %+v", res.Output, res.Exit)
			}
			var all []string
			for _, r := range told {
				text := r.By + " " + r.Call
				if r.Allowed {
					text += " allowed"
				}
				if r.PID == 0 {
					t.Errorf("%+v has no pid", r)
				}
				all = append(all, text)
			}
			switch got := strings.Join(all, ", "); {
			case tc.want == "" && got != "":
				t.Errorf("told %q", got)
			case !strings.Contains(got, tc.want):
				t.Errorf("told %q, want %q", got, tc.want)
			}
		})
	}
}

// A refusal to any thread of a process is told with the pid of the process.
func TestRefusalToAThread(t *testing.T) {
	bin := built.Path(t)
	reports := newReports()
	o := newOwner(t, Options{Report: reports.add})
	c := sh("echo $$; exec " + bin + " kill " + self() + " 0 from-thread")
	c.Guard = GuardFull
	res, told := listened(t, o, c, reports)
	if res.Exit.Code() == 0 || len(told) == 0 {
		t.Fatalf("%s %+v, told %+v", res.Output, res.Exit, told)
	}
	pid, _, _ := strings.Cut(string(res.Output), "\n")
	for _, r := range told {
		if strconv.Itoa(r.PID) != pid {
			t.Errorf("told %+v of process %s", r, pid)
		}
	}
}

func TestProcessOf(t *testing.T) {
	tids, err := threadsIn(taskDir)
	if err != nil || len(tids) < 2 {
		t.Fatal(tids, err)
	}
	want := map[int]int{0: 0, 1: 1, 1 << 22: 1 << 22} // none in the namespace, one of another user, none
	for _, tid := range tids {
		want[tid] = os.Getpid()
	}
	for tid, pid := range want {
		got := processOf(tid)
		if now, _ := threadsIn(taskDir); pid == os.Getpid() && !slices.Contains(now, tid) {
			continue // the thread has ended, and another process may have its number
		}
		if got != pid {
			t.Errorf("thread %d: %d, want %d", tid, got, pid)
		}
	}
}

// self is our pid, which a guarded program must not touch.
func self() string { return strconv.Itoa(os.Getpid()) }

// If the kernel refuses the listener, the filters stay in force. Here, the kernel refuses because
// the new process has no free descriptor; GuardBeside makes it install its filter itself.
func TestFiltersWithoutAListener(t *testing.T) {
	reports := newReports()
	o := newOwner(t, Options{Report: reports.add})
	c := sh("kill -0 " + self())
	c.Guard = GuardBeside
	c.Rlimits = map[string]Rlimit{"nofile": {Soft: 3, Hard: 1000}}
	c.Refused = func(r Refusal) { t.Errorf("told %+v", r) }
	if res, err := o.Run(t.Context(), c, 1000); err != nil || res.Exit.Code() == 0 {
		t.Errorf("%s %+v, %v", res.Output, res.Exit, err)
	}
	if !reports.has("listener") {
		t.Error("that nothing is counted was not reported")
	}
}

// If the kernel refuses to send the listener, the filter stays in force, and agentinit says that nothing is
// counted. Here, the kernel refuses because the other end is no socket.
func TestFiltersWhoseListenerIsNotSent(t *testing.T) {
	reports := newReports()
	o := newOwner(t, Options{Report: reports.add})
	r := o.refusals()
	if r == nil {
		t.Fatal("no listeners")
	}
	socket := r.remote
	r.remote = int(o.null.Fd())
	defer func() { r.remote = socket }()
	c := sh("kill -0 " + self())
	c.Guard = GuardBeside
	c.Refused = func(r Refusal) { t.Errorf("told %+v", r) }
	if res, err := o.Run(t.Context(), c, 1000); err != nil || res.Exit.Code() == 0 {
		t.Errorf("%s %+v, %v", res.Output, res.Exit, err)
	}
	if !reports.has("listener") {
		t.Error("that nothing is counted was not reported")
	}
}

// The judge gives the same answer as the filter. A chain refuses what either of its parts refuses.
func TestChainRefusesWhatEitherRefuses(t *testing.T) {
	guard, err := filter.Guard(runtime.GOARCH, filter.Guarded{PID: 4711, Scoped: true})
	if err != nil {
		t.Fatal(err)
	}
	sandbox := compiled(t, filter.Policy{Deny: []string{"mount"}})
	j, err := filter.NewJudge(filter.Chain(sandbox, guard))
	if err != nil {
		t.Fatal(err)
	}
	arch := map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}[runtime.GOARCH]
	for _, tc := range []struct {
		nr   int32
		arg  uint64
		want bool
	}{{unix.SYS_MOUNT, 0, true}, {unix.SYS_KILL, 4711, true}, {unix.SYS_KILL, 4712, false}, {unix.SYS_READ, 0, false}} {
		d := filter.Data{Nr: tc.nr, Arch: arch}
		d.Args[0] = tc.arg
		if errno, _ := j.Decide(d); (errno != 0) != tc.want {
			t.Errorf("%s(%d): %v", filter.CallName(runtime.GOARCH, d), tc.arg, errno)
		}
	}
}

// A process that makes refused calls in a loop uses up its budget, and gets it back later.
func TestRefusalBudget(t *testing.T) {
	var r refusals
	w, now := &watched{}, time.Unix(1000, 0)
	for range 3 {
		for n := 1; n < refusalBudget; n++ {
			if r.spend(w, now, refusalBudget) {
				t.Fatalf("used up after %d", n)
			}
		}
		if !r.spend(w, now.Add(time.Millisecond), refusalBudget) {
			t.Fatal("never used up")
		}
		now = now.Add(time.Second)
	}
}

// A flood of refused calls is answered and does not delay the calls of another process. GuardFull
// shares its listener with that process, GuardBeside has its own.
func TestFloodOfRefusals(t *testing.T) {
	for _, tc := range []struct {
		name      string
		guard     Guard
		processes int
	}{
		{"shared listener", GuardFull, 1}, {"own listener", GuardBeside, 1},
		{"shared listener, more than may wait", GuardFull, 2 * heldMost},
	} {
		t.Run(tc.name, func(t *testing.T) {
			reports := newReports()
			o := newOwner(t, Options{Report: reports.add})
			var told atomic.Int64
			reached := map[int64]chan struct{}{refusalBudget - 1: make(chan struct{}), 2 * refusalBudget: make(chan struct{})}
			flood := sh("for i in $(seq " + strconv.Itoa(tc.processes) + "); do while :; do kill -0 " + self() + "; done 2>/dev/null & done; wait")
			flood.Guard, flood.Refused = tc.guard, func(Refusal) {
				if c := reached[told.Add(1)]; c != nil {
					close(c)
				}
			}
			p, err := o.Start(flood)
			if err != nil {
				t.Fatal(err)
			}
			c := sh("renice -n 5 -p " + self())
			c.Guard = GuardFull
			if _, told := listened(t, o, c, reports); len(told) == 0 {
				t.Error("nothing was told")
			}
			<-reached[refusalBudget-1] // from here on the flood waits
			if _, told := listened(t, o, c, reports); len(told) != 1 {
				t.Errorf("told %+v", told)
			}
			<-reached[2*refusalBudget] // it was answered again in later seconds
			if err := o.Kill(p.ID); err != nil {
				t.Error(err)
			}
		})
	}
}

// If the program's filter refuses the system call that sends the listener, the process must not
// wait for an answer: agentinit has no listener to answer on.
func TestFilterThatRefusesSending(t *testing.T) {
	for _, tc := range []struct {
		name string
		log  bool
	}{{"denied", false}, {"audited", true}} {
		t.Run(tc.name, func(t *testing.T) {
			reports := newReports()
			o := newOwner(t, Options{Report: reports.add})
			c := sh("exit 7")
			c.NoNewPrivs = true
			c.Sandbox = &Sandbox{Filter: compiled(t, filter.Policy{Preset: "default", Deny: []string{"sendmsg"}, Log: tc.log})}
			c.Refused = func(Refusal) {}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			res, err := o.Run(ctx, c, 100)
			if err != nil || res.Exit.Code() != 7 {
				t.Errorf("got %+v, %v", res.Exit, err)
			}
			if !reports.has("sendmsg") {
				t.Error("that nothing is counted was not reported")
			}
		})
	}
}

// A listener is closed when its processes have ended, even while a new process before its exec
// holds a copy of it.
func TestListenerThatIsHeldElsewhere(t *testing.T) {
	r, err := newRefusals(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	var pipe [2]int // when the write end closes, the read end becomes ready like a listener without processes
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pipe[0])
	r.expect(1, &watched{})
	id := [8]byte{}
	binary.NativeEndian.PutUint64(id[:], 1)
	if err := unix.Sendmsg(r.remote, id[:], unix.UnixRights(pipe[0]), nil, 0); err != nil {
		t.Fatal(err)
	}
	ep := int(r.ep.file.Fd())
	step := func() int {
		var ready [1]unix.EpollEvent
		n, err := unix.EpollWait(ep, ready[:], 0)
		if err != nil {
			t.Fatal(err)
		}
		if n > 0 {
			r.serve(ready[0])
		}
		return n
	}
	if step() != 1 || len(r.listeners) != 1 {
		t.Fatalf("the listener did not arrive: %v", r.listeners)
	}
	unix.Close(pipe[1])
	if step() != 1 || len(r.listeners) != 0 {
		t.Fatalf("its end was not noticed: %v", r.listeners)
	}
	if step() != 0 {
		t.Error("the copy of the listener is still waited for")
	}
}
