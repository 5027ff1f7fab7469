package supervisor

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// nameAnother is the program of the tests below: the test binary itself. "forks" starts a process,
// names it as main process and ends; "forks and stays" does not end. "wavers" names the new process
// and itself in turn, 100 times. "main" is that process: on USR1 it ends with status 7. "reloads" is
// ready, reloads on USR1, is ready again on USR2, and announces its end on HUP; "flips" reloads 100 times
// and ends.
// Any other word is sent as a notification.
func nameAnother(word string) {
	conn, err := net.Dial("unixgram", os.Getenv("NOTIFY_SOCKET"))
	fail := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	fail(err)
	say := func(text string) {
		_, err := conn.Write([]byte(text))
		fail(err)
	}
	switch word {
	case "main":
		usr1 := make(chan os.Signal, 1)
		signal.Notify(usr1, syscall.SIGUSR1)
		fmt.Println("caught") // the parent waits for this line
		<-usr1
		os.Exit(7)
	case "forks", "forks and stays", "wavers":
		child := exec.Command(os.Args[0])
		child.Env = append(os.Environ(), "SUPERVISOR_TEST_PROGRAM=main")
		child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		out, err := child.StdoutPipe()
		fail(err)
		fail(child.Start())
		_, err = out.Read(make([]byte, 1))
		fail(err)
		for range 50 {
			if word == "wavers" {
				say("MAINPID=" + strconv.Itoa(child.Process.Pid))
				say("MAINPID=" + strconv.Itoa(os.Getpid()))
			}
		}
		say("MAINPID=" + strconv.Itoa(child.Process.Pid) + "\nREADY=1")
		if word == "forks" {
			os.Exit(0)
		}
		fmt.Fprintln(os.Stderr, child.Wait())
	case "reloads":
		signals := make(chan os.Signal, 1)
		signal.Notify(signals, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGHUP)
		say("READY=1")
		for s := range signals {
			say(map[os.Signal]string{syscall.SIGUSR1: "RELOADING=1", syscall.SIGUSR2: "READY=1", syscall.SIGHUP: "STOPPING=1"}[s])
		}
	case "flips":
		for range 100 {
			say("READY=1")
			say("RELOADING=1")
		}
		os.Exit(0)
	default:
		say(word)
	}
	time.AfterFunc(patience, func() { os.Exit(1) }) // if the test does not kill it
	select {}
}

func names(word string, f ...func(*program.Spec)) func(*program.Spec) {
	return func(s *program.Spec) {
		notify(s)
		s.Argv, s.Umask = []string{os.Args[0]}, -1
		// Without this setting, the race detector delays the exit of a process.
		s.Env = []string{"SUPERVISOR_TEST_PROGRAM=" + word, "GORACE=atexit_sleep_ms=0"}
		s.Backoff.Initial = 0
		for _, change := range f {
			change(s)
		}
	}
}

// moved waits until the program's main process is another than the one that was started.
func (b *realBox) moved(name string) Status {
	b.t.Helper()
	return b.await(name, func(st Status) bool {
		for _, e := range (&box{bus: b.bus}).events(event.MainProcessChanged) {
			if e.Program == name && e.Run == st.Run && e.Fields["pid"] == st.PID {
				return st.State == program.Running
			}
		}
		return false
	})
}

// orphaned waits until the process is our child: only then we get its exit status.
func (b *realBox) orphaned(pid int) {
	b.t.Helper()
	for ctx := b.t.Context(); ; {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			b.t.Fatal(err)
		}
		if fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')'):])); fields[2] == strconv.Itoa(os.Getpid()) {
			return
		}
		must(b.t, b.sup.Ping(ctx))
	}
}

// A program forks, names the new process as its main process, and ends. The program is alive as
// long as that process, and has the exit status of that process. The end of the first process often
// arrives before the notification.
func TestRealMainPID(t *testing.T) {
	b := newRealBox(t, Config{}, spec("p", names("forks", func(s *program.Spec) { s.RestartLimit.Count = 0 })))
	b.sup.Boot()
	for run := uint64(1); run <= 10; run++ {
		st := b.moved("p")
		if st.Run != run {
			t.Fatalf("run %d, want %d: %s, last exit %v, refused %v", st.Run, run, st.Reason, st.LastExit,
				(&box{bus: b.bus}).events(event.NotifyRefused))
		}
		b.orphaned(st.PID)
		must(t, b.sup.Signal(t.Context(), "USR1", "p"))
		st = b.await("p", func(st Status) bool { return st.Run > run })
		if st.LastExit == nil || st.LastExit.Code != 7 {
			t.Fatalf("%+v", st.LastExit)
		}
	}
	b.orphaned(b.moved("p").PID)
	must(t, b.sup.Stop(t.Context(), "p"))
	if st := b.await("p", in(program.Stopped)); st.LastExit.Signal != "TERM" {
		t.Errorf("%+v", st.LastExit)
	}
}

// If the main process ends, the program ends, even if the first process lives on and receives the
// exit status.
func TestRealMainPIDOfALivingParent(t *testing.T) {
	b := newRealBox(t, Config{}, spec("p", names("forks and stays", func(s *program.Spec) { s.Restart = program.RestartNever })))
	b.sup.Boot()
	b.moved("p")
	must(t, b.sup.Signal(t.Context(), "USR1", "p"))
	st := b.await("p", in(program.Exited))
	if st.LastExit.Code != 1 || !strings.Contains(st.Reason, "the exit status went to that process's parent") {
		t.Errorf("%s; %+v", st.Reason, st.LastExit)
	}
}

// TestRealMainPIDRefused: MAINPID= is refused if it names a process of another program, agentinit
// itself, or a process that does not exist. It is refused, too, for a program whose whole tree ends
// with its first process.
func TestRealMainPIDRefused(t *testing.T) {
	for name, c := range map[string]struct {
		pid  func(other int) int
		f    func(*program.Spec)
		word string
	}{
		"another program's": {func(other int) int { return other }, func(*program.Spec) {}, "MAINPID=PID\nREADY=1"},
		"agentinit's own":   {func(int) int { return os.Getpid() }, func(*program.Spec) {}, "MAINPID=PID\nREADY=1"},
		"no process":        {func(int) int { return 1 << 22 }, func(*program.Spec) {}, "MAINPID=PID\nREADY=1"},
		"of a group":        {nil, func(s *program.Spec) { s.Kill = program.KillGroup }, "forks and stays"},
	} {
		t.Run(name, func(t *testing.T) {
			other := spec("other", names("READY=1"))
			p := spec("p", manual, names(c.word, c.f))
			b := newRealBox(t, Config{}, other, p)
			b.sup.Boot()
			st := b.await("other", in(program.Running))
			if c.pid != nil {
				for i, kv := range p.Env {
					p.Env[i] = strings.ReplaceAll(kv, "PID=PID", "PID="+strconv.Itoa(c.pid(st.PID)))
				}
			}
			must(t, b.sup.Start(t.Context(), "p"))
			b.await("p", in(program.Running))
			// The readiness came in the same message. It counts although MAINPID was refused.
			if refused := (&box{bus: b.bus}).events(event.NotifyRefused); len(refused) != 1 {
				t.Errorf("%v", refused)
			}
			if changed := (&box{bus: b.bus}).events(event.MainProcessChanged); len(changed) != 0 {
				t.Errorf("%v", changed)
			}
		})
	}
}

// A program that names main processes all the time does not fill the ring of events.
func TestRealMainPIDIsNamedTooOften(t *testing.T) {
	b := newRealBox(t, Config{}, spec("p", names("wavers")))
	b.sup.Boot()
	b.await("p", in(program.Running))
	if changed := (&box{bus: b.bus}).events(event.MainProcessChanged); len(changed) != changesMost {
		t.Errorf("%d changes were told: %v", len(changed), changed)
	}
	refused := (&box{bus: b.bus}).events(event.NotifyRefused)
	if len(refused) != 1 || !strings.Contains(fmt.Sprint(refused[0].Fields["reason"]), "more than 20 times a minute") {
		t.Errorf("%v", refused)
	}
	f := following{}
	now := time.Unix(1000, 0)
	for range 2 * changesMost {
		f.mayChange(now)
	}
	if ok, _ := f.mayChange(now); ok {
		t.Error("it may name more")
	}
	if ok, _ := f.mayChange(now.Add(changesEvery)); !ok {
		t.Error("it may name none a minute later")
	}
}

// A program withdraws its readiness while it reloads and before it ends. What needs it waits meanwhile.
func TestRealReadinessIsWithdrawn(t *testing.T) {
	b := newRealBox(t, Config{}, spec("p", names("reloads")), spec("client", manual, needs("p"), names("READY=1")))
	b.sup.Boot()
	b.await("p", in(program.Running))
	withdrawn := func(signal, why string) {
		must(t, b.sup.Signal(t.Context(), signal, "p"))
		st := b.await("p", func(st Status) bool { return !st.Ready })
		if st.State != program.Running || !st.Healthy || st.Reason != why {
			t.Errorf("after %s: %v, healthy %v: %s", signal, st.State, st.Healthy, st.Reason)
		}
	}
	withdrawn("USR1", "it reloads its configuration (RELOADING=1)")
	must(t, b.sup.Start(t.Context(), "client"))
	if st, _ := b.sup.Status("client"); st.State != program.Stopped || !st.Queued {
		t.Errorf("started too early: %v: %s", st.State, st.Reason)
	}
	must(t, b.sup.Signal(t.Context(), "USR2", "p"))
	b.await("client", in(program.Running))
	if st, _ := b.sup.Status("p"); !st.Ready || st.Reason != "" || st.Run != 1 {
		t.Errorf("ready %v, run %d: %s", st.Ready, st.Run, st.Reason)
	}
	withdrawn("HUP", "it says that it stops (STOPPING=1)")
	must(t, b.sup.Restart(t.Context(), "p"))
	b.await("p", func(st Status) bool { return st.Run == 2 && st.Ready })
}

// A program that withdraws its readiness all the time does not fill the ring of events.
func TestRealReadinessIsWithdrawnTooOften(t *testing.T) {
	b := newRealBox(t, Config{}, spec("p", names("flips", func(s *program.Spec) { s.Restart = program.RestartNever })))
	b.sup.Boot()
	b.await("p", in(program.Exited, program.Fatal))
	if changed := (&box{bus: b.bus}).events(event.ProgramStateChanged); len(changed) > 2*changesMost+5 {
		t.Errorf("%d changes were told", len(changed))
	}
	refused := (&box{bus: b.bus}).events(event.NotifyRefused)
	if len(refused) != 1 || !strings.Contains(fmt.Sprint(refused[0].Fields["reason"]), "withdraws its readiness more than 20 times a minute") {
		t.Errorf("%v", refused)
	}
}

// A program whose messages are refused all the time does not fill the ring of events.
func TestRefusedMessagesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := event.NewBus(10000)
		s := System{cfg: SystemConfig{Bus: bus}}
		const all = 3600 * 50
		for range all {
			s.refused(7, "too many messages")
			time.Sleep(20 * time.Millisecond)
		}
		told := uint64(0)
		refused := (&box{bus: bus}).events(event.NotifyRefused)
		for _, e := range refused {
			told += 1 + e.Fields["suppressed"].(uint64)
		}
		if len(refused) < 100 || len(refused) > 400 || told > all || told < all-600 {
			t.Errorf("%d events tell of %d refusals", len(refused), told)
		}
	})
}
