package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// fakeRunner returns a result by the command's name. It counts how many commands run at once.
type fakeRunner struct {
	answers map[string]func(context.Context) (CommandResult, error)
	mu      sync.Mutex
	now     int
	most    int
	ran     []Command
}

func (f *fakeRunner) Run(ctx context.Context, c Command) (CommandResult, error) {
	f.mu.Lock()
	f.now++
	f.most = max(f.most, f.now)
	f.ran = append(f.ran, c)
	f.mu.Unlock()
	defer func() { f.mu.Lock(); f.now--; f.mu.Unlock() }()
	if a, ok := f.answers[c.Argv[0]]; ok {
		return a(ctx)
	}
	return CommandResult{}, nil
}

func hang(ctx context.Context) (CommandResult, error) {
	<-ctx.Done()
	return CommandResult{}, ctx.Err()
}

// On the clock of a bubble a limit ends only when nothing else can run: on a
// loaded machine the file system may take longer than the limit of a command.
func TestArtifactVerdicts(t *testing.T) { synctest.Test(t, testArtifactVerdicts) }

func testArtifactVerdicts(t *testing.T) {
	r := testRoots(t)
	write(t, r.Image+"/svc-1.2/main.js", "x", 0o644)
	write(t, r.Image+"/svc-1.2/data/a.bin", "x", 0o644)
	write(t, r.Image+"/bin/tool", "x", 0o755)
	write(t, r.Image+"/bin/plain", "x", 0o644)
	write(t, r.Path("/usr/local/bin/onpath"), "x", 0o755)
	write(t, r.Image+"/store/b", "x", 0o644)
	for name, target := range map[string]string{"a": "/nowhere/package", "b": r.Image + "/store/b", "loop": "loop"} {
		if err := os.Mkdir(r.Image+"/links", 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			t.Fatal(err)
		}
		if err := os.Symlink(target, r.Image+"/links/"+name); err != nil {
			t.Fatal(err)
		}
	}
	runner := &fakeRunner{answers: map[string]func(context.Context) (CommandResult, error){
		"fails": func(context.Context) (CommandResult, error) {
			return CommandResult{Status: 3, Output: []byte("a\nno such device\n")}, nil
		},
		"absent":  func(context.Context) (CommandResult, error) { return CommandResult{}, os.ErrNotExist },
		"forever": hang,
	}}
	p := prober{Runner: runner, Roots: r, Env: []string{"PATH=" + r.Image + "/bin:/usr/local/bin"}}
	for _, c := range []struct {
		a    artifact
		want ArtifactOutcome
		why  string
	}{
		{artifact{Entry: "/opt/agentbox/svc-*/main.js", Class: "A", Assets: []string{"/opt/agentbox/svc-*/data/*.bin"}}, ArtifactPassed, ""},
		{artifact{Entry: "/opt/agentbox/svc-*/main.js", Class: "A", Assets: []string{"/opt/agentbox/svc-*/none"}}, ArtifactMissing, "asset "},
		{artifact{Entry: "/opt/agentbox/none", Class: "D"}, ArtifactMissing, "does not exist"},
		{artifact{Entry: "/opt/agentbox/[", Class: "D"}, ArtifactMissing, "is not a pattern"},
		{artifact{Entry: "/opt/agentbox/bin/tool", Class: "B"}, ArtifactPassed, ""},
		{artifact{Entry: "/opt/agentbox/bin/plain", Class: "B"}, ArtifactMissing, "not an executable"},
		{artifact{Entry: "onpath", Assets: []string{"onpath"}, Class: "B"}, ArtifactPassed, ""},
		{artifact{Entry: "onpath", Assets: []string{"no-such-tool"}, Class: "B"}, ArtifactMissing, "asset no-such-tool is not in PATH"},
		{artifact{Entry: "/opt/agentbox/bin/plain", Class: "C"}, ArtifactPassed, ""},
		{artifact{Entry: "tool", Class: "B"}, ArtifactPassed, ""},
		{artifact{Entry: "plain", Class: "B"}, ArtifactMissing, "not in PATH"},
		{artifact{Entry: "tool", Class: "B", Command: []string{"ok", "--version"}}, ArtifactPassed, ""},
		{artifact{Entry: "tool", Class: "B", Command: []string{"fails"}}, ArtifactFailed, "status 3: no such device"},
		{artifact{Entry: "tool", Class: "B", Command: []string{"absent"}}, ArtifactFailed, "cannot be run"},
		{artifact{Entry: "tool", Class: "B", Command: []string{"forever"}, Timeout: time.Millisecond}, ArtifactFailed, "was killed"},
		{artifact{Entry: "@POD_SERVER@/bin/x", Class: "A", Required: true}, ArtifactMissing, "@POD_SERVER@"},
		{artifact{Entry: "@POD_SERVER@/bin/x", Class: "A"}, ArtifactNotPackaged, "@POD_SERVER@"},
		{artifact{Entry: "tool", Class: "B", Command: []string{"x", "@NAME@"}}, ArtifactNotPackaged, "@NAME@"},
		{artifact{Class: "B", Command: []string{"ok"}}, ArtifactPassed, ""},
		{artifact{Class: "B", Command: []string{"fails"}}, ArtifactFailed, "status 3: no such device"},
		{artifact{Class: "A", Assets: []string{"/opt/agentbox/svc-*/data/*.bin"}}, ArtifactPassed, ""},
		{artifact{Class: "A", Assets: []string{"/opt/agentbox/none"}}, ArtifactMissing, "asset "},
		{artifact{Class: "D", Assets: []string{"/opt/agentbox/links/a"}}, ArtifactMissing, "links/a: no such file or directory"},
		{artifact{Class: "D", Assets: []string{"/opt/agentbox/links/loop"}}, ArtifactMissing, "too many levels of symbolic links"},
		{artifact{Class: "D", Entry: "/opt/agentbox/links/a"}, ArtifactMissing, "links/a: no such file or directory"},
		{artifact{Class: "D", Entry: "/opt/agentbox/links/*", Assets: []string{"/opt/agentbox/links/b"}}, ArtifactPassed, ""},
	} {
		got := p.probe(t.Context(), []artifact{c.a})[0]
		if got.Outcome != c.want || !strings.Contains(got.Reason, c.why) || (c.why == "") != (got.Reason == "") {
			t.Errorf("%+v: got %s %q", c.a, got.Outcome, got.Reason)
		}
	}
	for _, c := range runner.ran {
		if c.Dir != "/" || len(c.Env) == 0 || c.MaxOutput == 0 {
			t.Errorf("ran %+v", c)
		}
	}
}

func TestProbesRunTogetherButNotAllAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := testRoots(t)
		slow := func(ctx context.Context) (CommandResult, error) {
			select {
			case <-time.After(time.Second):
				return CommandResult{}, nil
			case <-ctx.Done():
				return CommandResult{}, ctx.Err()
			}
		}
		runner := &fakeRunner{answers: map[string]func(context.Context) (CommandResult, error){"slow": slow}}
		artifacts := make([]artifact, 3*probeLimit)
		write(t, r.Image+"/x", "", 0o755)
		for i := range artifacts {
			artifacts[i] = artifact{ID: string(rune('a' + i)), Class: "B", Entry: "/opt/agentbox/x", Command: []string{"slow"}}
		}
		begin := time.Now()
		results := prober{Runner: runner, Roots: r}.probe(t.Context(), artifacts)
		if took := time.Since(begin); took != 3*time.Second || runner.most != probeLimit {
			t.Fatalf("took %s, %d at once", took, runner.most)
		}
		for i, got := range results {
			if got.ID != artifacts[i].ID || got.Outcome != ArtifactPassed || got.DurationMS != 1000 {
				t.Fatalf("result %d: %+v", i, got)
			}
		}
	})
}

// A command that is stuck in the kernel survives its kill. It must not block the boot.
func TestStuckCommandDoesNotHoldUpTheBoot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := testRoots(t)
		write(t, r.Image+"/x", "", 0o755)
		release := make(chan struct{})
		var gone atomic.Bool
		runner := &fakeRunner{answers: map[string]func(context.Context) (CommandResult, error){
			"stuck": func(context.Context) (CommandResult, error) {
				<-release
				gone.Store(true)
				return CommandResult{}, errors.New("late")
			},
		}}
		begin := time.Now()
		got := prober{Runner: runner, Roots: r}.probe(t.Context(), []artifact{{Class: "B", Entry: "/opt/agentbox/x", Command: []string{"stuck"}, Timeout: 2 * time.Second}})
		if took := time.Since(begin); took != 2*time.Second+runnerGrace || got[0].Outcome != ArtifactFailed || !strings.Contains(got[0].Reason, "cannot be killed") {
			t.Fatalf("took %s: %+v", took, got)
		}
		close(release)
		synctest.Wait()
		if !gone.Load() {
			t.Fatal("the goroutine is stuck for ever")
		}
	})
}

// What does not return is given up after the limit, or when the boot is interrupted.
func TestWithin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dead := make(chan struct{})
		stuck := func() int { <-dead; return 1 }
		ctx, interrupt := context.WithCancelCause(t.Context())
		begin := time.Now()
		if n, answered := within(ctx, time.Second, func() int { return 7 }); n != 7 || !answered || time.Since(begin) != 0 {
			t.Errorf("%d %v after %s", n, answered, time.Since(begin))
		}
		if n, answered := within(ctx, time.Second, stuck); n != 0 || answered || time.Since(begin) != time.Second {
			t.Errorf("stuck: %d %v after %s", n, answered, time.Since(begin))
		}
		time.AfterFunc(time.Second, func() { interrupt(errors.New("TERM")) })
		if _, answered := within(ctx, time.Hour, stuck); answered || time.Since(begin) != 2*time.Second {
			t.Errorf("interrupted: %v after %s", answered, time.Since(begin))
		}
		close(dead) // neither call is left behind, or synctest fails
	})
}

// A boot that is interrupted during the look for files does not blame the file system.
func TestAnInterruptedLookIsNoDeadFileSystem(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	interrupt()
	r := testRoots(t)
	for range 100 { // the look may win
		got := prober{Runner: &fakeRunner{}, Roots: r}.probe(ctx, []artifact{{Class: "D", Entry: "/opt/agentbox/none"}})[0]
		if strings.Contains(got.Reason, "did not answer") {
			t.Fatalf("%+v", got)
		}
	}
}

// A file system whose server does not answer holds up neither the probe of its own artifact nor the boot.
func TestAnArtifactOnADeadFileSystem(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to mount a file system")
	}
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skipf("needs root and /dev/fuse: %v", err)
	}
	dir := t.TempDir()
	if err := unix.Mount("dead", dir, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fd)); err != nil {
		unix.Close(fd)
		t.Skipf("needs root and the right to mount: %v", err)
	}
	// The end of the server ends the requests that it has not answered.
	t.Cleanup(func() {
		unix.Close(fd)
		_ = unix.Unmount(dir, unix.MNT_DETACH)
	})
	r := testRoots(t)
	write(t, r.Image+"/x", "", 0o755)
	got := prober{Runner: &fakeRunner{}, Roots: r}.probe(t.Context(), []artifact{
		{ID: "dead", Class: "D", Entry: dir + "/tool", Timeout: 50 * time.Millisecond},
		{ID: "asset", Class: "D", Entry: "/opt/agentbox/x", Assets: []string{dir + "/data"}, Timeout: 50 * time.Millisecond},
		{ID: "sound", Class: "D", Entry: "/opt/agentbox/x"},
	})
	for _, one := range got[:2] {
		if one.Outcome != ArtifactFailed || !strings.Contains(one.Reason, "did not answer within 50ms") {
			t.Errorf("%+v", one)
		}
	}
	if got[2].Outcome != ArtifactPassed {
		t.Errorf("%+v", got[2])
	}
}
