package proc

import (
	"maps"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dreamlab-ai/agentinit/internal/testprog/built"
)

// attempts are the attempts of testprog's command tamper that a guard refuses. All others must
// work.
var attempts = []string{
	"kill", "kill-thread", "tkill", "tgkill", "tgkill-urg", "sigqueue", "tgsigqueue", "kill-term", "pidfd_open", "pidfd-of-proc",
	"prlimit", "prlimit-thread", "affinity", "scheduler", "schedparam", "priority", "priority-user", "ioprio", "ioprio-user",
}

// attacked lets testprog attack the test's own process and returns the attempts that failed.
func attacked(t *testing.T, o *Owner, bin string, guard Guard) []string {
	t.Helper()
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	c := prog(bin, "tamper", strconv.Itoa(os.Getpid()), tasks[len(tasks)-1].Name())
	c.Guard = guard
	r, err := o.Run(t.Context(), c, 1<<16)
	if err != nil || r.Exit.Code() != 0 {
		t.Fatalf("%s %v", r.Output, err)
	}
	refused := map[string]bool{}
	for line := range strings.Lines(string(r.Output)) {
		what, answer, _ := strings.Cut(strings.TrimSpace(line), " ")
		// Another process of the user may have a lower priority than the kernel lets it leave. The guard
		// answers EPERM.
		if what == "priority-user" && answer == "EACCES" {
			continue
		}
		if answer != "ok" {
			refused[what] = true
		}
	}
	return slices.Sorted(maps.Keys(refused))
}

func TestGuard(t *testing.T) {
	bin := built.Path(t)
	without := func(list []string, names ...string) []string {
		return slices.Sorted(slices.Values(slices.DeleteFunc(slices.Clone(list), func(s string) bool { return slices.Contains(names, s) })))
	}
	for _, tc := range []struct {
		name   string
		guard  Guard
		scoped bool
		want   []string
	}{
		// The negative test: without a guard, all attempts work.
		{"none", GuardNone, true, nil},
		{"full", GuardFull, true, without(attempts)},
		{"full, without Landlock", GuardFull, false, without(attempts)},
		{"control", GuardControl, true, without(attempts)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := newOwner(t, Options{})
			if !tc.scoped && o.guard.scope >= 0 {
				unix.Close(o.guard.scope)
				o.guard.scope = -1
			}
			if got := attacked(t, o, bin, tc.guard); !slices.Equal(got, tc.want) {
				t.Errorf("refused %v\nwant    %v", got, tc.want)
			}
		})
	}
}

// A guarded program can signal its own descendants, and we can signal the program.
func TestGuardLeavesTheTreeAlone(t *testing.T) {
	o := newOwner(t, Options{})
	c := sh("sleep 1000 & kill -TERM $!; wait $!; test $? = 143 || exit 1; setsid sleep 1000 & sleep 0; kill -0 $! || exit 2; exit 7")
	c.Guard = GuardFull
	r, err := o.Run(t.Context(), c, 1000)
	if err != nil || r.Exit.Code() != 7 {
		t.Errorf("%s %+v, %v", r.Output, r.Exit, err)
	}
	c = sh("sleep 1000")
	c.Guard = GuardFull
	p := mustStart(t, o, c)
	if err := o.Signal(p.ID, unix.SIGTERM, ScopeTree); err != nil {
		t.Error(err)
	}
	if e := next(t, o, p.ID, Exited); e.Signal() != unix.SIGTERM {
		t.Errorf("got %+v", e)
	}
}

// The limit of queued signals of a guarded program leaves room for our signals.
func TestGuardLimits(t *testing.T) {
	o := newOwner(t, Options{})
	// As an ordinary user, agentinit sets the score just after the exec (adjustOOM).
	score := strconv.Itoa(o.guard.score)
	c := sh("set -- $(grep 'pending signals' /proc/self/limits); echo $5; " +
		"for i in $(seq 1000); do [ $(cat /proc/$$/oom_score_adj) = " + score + " ] && break; sleep 0.01; done; cat /proc/$$/oom_score_adj; grep NoNewPrivs /proc/self/status")
	c.Guard = GuardFull
	r, err := o.Run(t.Context(), c, 1000)
	want := strconv.FormatUint(o.marks.limit(0), 10) + "\n" + score + "\nNoNewPrivs:\t1\n"
	if err != nil || string(r.Output) != want {
		t.Errorf("got %q, want %q; %v", r.Output, want, err)
	}
}

// A program with control = true can send us the signals that are requests, and no others.
func TestGuardOfControl(t *testing.T) {
	o := newOwner(t, Options{})
	heard := make(chan os.Signal, 1)
	signal.Notify(heard, unix.SIGUSR2)
	defer signal.Stop(heard)
	me := strconv.Itoa(os.Getpid())
	for guard, script := range map[Guard]string{
		GuardControl: "kill -USR2 " + me + " && ! kill -WINCH " + me,
		GuardFull:    "! kill -USR2 " + me,
	} {
		c := sh(script)
		c.Guard = guard
		if r, err := o.Run(t.Context(), c, 1000); err != nil || r.Exit.Code() != 0 {
			t.Errorf("%d: %s %+v, %v", guard, r.Output, r.Exit, err)
		}
	}
	if sig := <-heard; sig != unix.SIGUSR2 || len(heard) > 0 {
		t.Errorf("heard %v", sig)
	}
}

// Without the right to lower our own score, every program has a higher one: with a guard or without,
// of our user or of another.
func TestEveryProgramIsAboveOurs(t *testing.T) {
	o := newOwner(t, Options{LowerOOMScore: true})
	if o.guard.lowered {
		if err := os.WriteFile(scoreFile, []byte(strconv.Itoa(o.guard.original)), 0); err != nil {
			t.Fatal(err)
		}
		o.guard.lowered, o.guard.raises = false, true // as without CAP_SYS_RESOURCE
	}
	for limit, above := range map[uint64]int{0: 100, 64 << 20: 1000, 1 << 30: 625, 64 << 30: 100} {
		o.BoxMemory(limit)
		want := strconv.Itoa(min(maxScore, max(o.guard.original, 0)+above))
		for _, guard := range []Guard{GuardNone, GuardFull} {
			// As an ordinary user, agentinit sets the score just after the exec (adjustOOM).
			c := sh("for i in $(seq 1000); do [ $(cat /proc/$$/oom_score_adj) = " + want + " ] && break; sleep 0.01; done; cat /proc/$$/oom_score_adj")
			c.Guard = guard
			if guard == GuardNone && os.Geteuid() == 0 {
				c.Credential = &Credential{UID: 65534, GID: 65534}
			}
			if r, err := o.Run(t.Context(), c, 100); err != nil || string(r.Output) != want+"\n" {
				t.Errorf("limit %d, guard %d: %q, want %s; %v", limit, guard, r.Output, want, err)
			}
		}
	}
}

// If we lower our own OOM score, no program inherits it.
func TestLoweredScoreIsOurs(t *testing.T) {
	if os.Geteuid() != 0 || ownCapabilities()&(1<<unix.CAP_SYS_RESOURCE) == 0 {
		t.Skip("needs CAP_SYS_RESOURCE to lower a score")
	}
	before, err := readNumber(scoreFile)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := os.WriteFile(scoreFile, []byte(strconv.Itoa(before)), 0); err != nil {
			t.Error(err)
		}
	}()
	o := newOwner(t, Options{LowerOOMScore: true})
	if own, err := readNumber(scoreFile); err != nil || own != scoreLowered {
		t.Errorf("our own score is %d, %v", own, err)
	}
	for guard, want := range map[Guard]int{GuardNone: before, GuardFull: o.guard.score} {
		c := sh("cat /proc/self/oom_score_adj")
		c.Guard = guard
		r, err := o.Run(t.Context(), c, 100)
		if err != nil || string(r.Output) != strconv.Itoa(want)+"\n" {
			t.Errorf("guard %d: %q, want %d; %v", guard, r.Output, want, err)
		}
	}
}
