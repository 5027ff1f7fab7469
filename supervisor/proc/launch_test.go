package proc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dreamlab-ai/agentinit/internal/testprog/built"
)

// ways are the ways in which a process can be started.
var ways = []struct {
	name   string
	scored bool // with its own OOM score
	old    bool // without clone3(2)
	copied bool // with a copy of the whole descriptor table, without close_range(2)
}{
	{"plain", false, false, false}, {"score, copied table", true, false, true},
	{"plain, old clone", false, true, false}, {"score, old clone, copied table", true, true, true},
}

// inEachWay runs a test with an Owner and a Command for each way.
func inEachWay(t *testing.T, opts Options, f func(t *testing.T, o *Owner, shape func(Command) Command)) {
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			o := newOwner(t, opts)
			o.noClone3.Store(way.old)
			if !o.ownTable {
				t.Log("the kernel has no close_range(2)")
			}
			o.ownTable = o.ownTable && !way.copied
			f(t, o, func(c Command) Command {
				if way.scored {
					score := 500
					c.OOMScoreAdj = &score
				}
				return c
			})
		})
	}
}

// Only a limit is called a limit.
func TestCloneErrors(t *testing.T) {
	l := newLaunch()
	defer l.release()
	l.cloneBy(false, -1, true)
	for errno, want := range map[syscall.Errno]string{
		syscall.EAGAIN: "limit of processes", syscall.ENOMEM: "limit of processes", syscall.EINVAL: "qemu-user", syscall.EPERM: "",
	} {
		if start, ok := errors.AsType[*StartError](l.cloneError(errno)); !ok || start.Err != errno || !strings.Contains(start.Hint, want) || want == "" && start.Hint != "" {
			t.Errorf("%v: %+v", errno, start)
		}
	}
	l.cloneBy(true, -1, true)
	if err := l.cloneError(syscall.EINVAL); !errors.Is(err, errNoClone3) {
		t.Errorf("of clone3: %v", err)
	}
}

// collectGarbage runs the garbage collector without pause until the test ends. If a start keeps a
// thread from being stopped, the whole process stops, and the test fails.
func collectGarbage(t *testing.T) {
	stop := make(chan struct{})
	var done sync.WaitGroup
	done.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				runtime.GC()
			}
		}
	})
	t.Cleanup(func() { close(stop); done.Wait() })
}

// script writes an executable script.
func script(t *testing.T, file, text string) string {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return file
}

// A file lease delays an exec for 45 seconds. The start is given up, and everything else goes on
// meanwhile.
func TestLeaseHoldsUpOneStartOnly(t *testing.T) {
	bin := built.Path(t)
	inEachWay(t, Options{}, func(t *testing.T, o *Owner, shape func(Command) Command) {
		dir := t.TempDir()
		leased := script(t, filepath.Join(dir, "leased"), "#!/bin/sh\nexit 0\n")
		byLeased := script(t, filepath.Join(dir, "script"), "#!"+leased+"\n")
		holder := startTester(t, o, prog(bin, "lease", leased))
		if said := holder.line(t); said != "held" {
			t.Fatalf("the holder says %q", said)
		}
		o.execPatience = 200 * time.Millisecond
		collectGarbage(t)
		for _, file := range []string{leased, byLeased} {
			_, err := o.Start(shape(Command{Path: file}))
			if err == nil || !strings.Contains(err.Error(), "its exec did not happen within 200ms") {
				t.Fatalf("start of %s: %v", file, err)
			}
		}
		if err := o.Kill(holder.ID); err != nil {
			t.Fatal(err)
		}
		next(t, o, holder.ID, Emptied)
		o.execPatience = execPatience
		p := mustStart(t, o, shape(Command{Path: byLeased}))
		if e := next(t, o, p.ID, Exited); e.Status.ExitStatus() != 0 {
			t.Errorf("without the lease: %+v", e)
		}
	})
}

// deadFUSE mounts a file system whose server answers only the first request. The kernel then waits
// for an answer in a state that even SIGKILL does not end (fs/fuse/dev.c, request_wait_answer).
func deadFUSE(t *testing.T) (dir string, abort func()) {
	t.Helper()
	return mountFUSE(t, func([]byte) []byte { return nil })
}

// mountFUSE mounts a file system. Its server answers each request after the first with what answer
// returns; nil is no answer.
func mountFUSE(t *testing.T, answer func(request []byte) []byte) (dir string, abort func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to mount a file system")
	}
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skipf("needs root and /dev/fuse: %v", err)
	}
	dir = t.TempDir()
	if err := unix.Mount("dead", dir, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fd)); err != nil {
		unix.Close(fd)
		t.Skipf("needs root and the right to mount: %v", err)
	}
	var once sync.Once
	abort = func() {
		once.Do(func() {
			_ = unix.Unmount(dir, unix.MNT_DETACH|unix.MNT_FORCE)
			unix.Close(fd)
		})
	}
	t.Cleanup(abort)
	buf := make([]byte, 256<<10)
	if _, err := unix.Read(fd, buf); err != nil { // FUSE_INIT
		t.Fatal(err)
	}
	reply := make([]byte, 16+64) // fuse_out_header, fuse_init_out
	binary.NativeEndian.PutUint32(reply, uint32(len(reply)))
	copy(reply[8:16], buf[8:16]) // unique
	binary.NativeEndian.PutUint32(reply[16:], 7)
	binary.NativeEndian.PutUint32(reply[20:], 31)
	binary.NativeEndian.PutUint32(reply[24:], 4096) // max_readahead
	binary.NativeEndian.PutUint32(reply[36:], 4096) // max_write
	if _, err := unix.Write(fd, reply); err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			n, err := unix.Read(fd, buf)
			if err == unix.EINTR {
				continue
			}
			if err != nil {
				return
			}
			if reply := answer(buf[:n]); reply != nil {
				_, _ = unix.Write(fd, reply) // who asked may have been killed
			}
		}
	}()
	return dir, abort
}

// A start from a file system whose server is dead ends at its deadline. The process hangs in the
// kernel and is reaped when it returns.
func TestDeadFileSystemHoldsUpOneStartOnly(t *testing.T) {
	inEachWay(t, Options{}, func(t *testing.T, o *Owner, shape func(Command) Command) {
		dir, abort := deadFUSE(t)
		o.execPatience = 100 * time.Millisecond
		collectGarbage(t)
		// On a loaded machine, a process may be killed before it has asked the file system. It does not
		// hang then.
		hung := dir + "/program"
		for own := false; !own; _, own = o.hung.count(hung) {
			_, err := o.Start(shape(Command{Path: hung}))
			if err == nil || !strings.Contains(err.Error(), "its exec did not happen within 100ms") {
				t.Fatalf("got %v", err)
			}
		}
		o.hung.add("another", maxHung-1)
		if _, err := o.Start(shape(sh("exit 3"))); err == nil || !strings.Contains(err.Error(), "8 starts hang in the kernel") || !Starved(err) {
			t.Errorf("with every thread for that in use: %v; starved: %t", err, Starved(err))
		}
		if _, err := o.Start(shape(Command{Path: hung})); !errors.Is(err, errHang) || Starved(err) {
			t.Errorf("a file that hangs itself: %v; starved: %t", err, Starved(err))
		}
		o.hung.add("another", 1-maxHung)
		o.execPatience = execPatience
		p := mustStart(t, o, shape(sh("exit 3")))
		if e := next(t, o, p.ID, Exited); e.Code() != 3 {
			t.Errorf("the start after it: %+v", e)
		}
		abort()
		if left := o.KillAll(patience); left != 0 {
			t.Errorf("%d left", left)
		}
	})
}

// A program of the same user sends SIGSTOP to all processes that it can reach, without pause, while
// programs start and the garbage collector runs. A start may fail, but it returns, and the first
// start after the storm succeeds.
func TestPID1StopStorm(t *testing.T) {
	bin := built.Path(t)
	if !insidePID1(t) {
		return
	}
	inEachWay(t, Options{}, func(t *testing.T, o *Owner, shape func(Command) Command) {
		collectGarbage(t)
		storm := startTester(t, o, prog(bin, "stop-storm"))
		if said := storm.line(t); said != "storm" {
			t.Fatalf("the storm says %q", said)
		}
		o.execPatience = 500 * time.Millisecond
		for range 10 {
			if _, err := o.Start(shape(Command{Path: "/bin/true"})); err != nil && !errors.Is(err, errKilled) && !errors.Is(err, errNoExec) {
				t.Error(err)
			}
		}
		// The storm also stops the running programs. KillAll must end stopped processes too.
		if left := o.KillAll(0); left != 0 {
			t.Errorf("%d left", left)
		}
		o.execPatience = execPatience
		after := mustStart(t, o, shape(sh("exit 3")))
		if e := next(t, o, after.ID, Exited); e.Code() != 3 {
			t.Errorf("the start after the storm: %+v", e)
		}
	})
}

// Many parallel starts, with the garbage collector running: no start fails and no process is lost.
func TestParallelStarts(t *testing.T) {
	for name, cgroups := range map[string]bool{"cgroups": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			inEachWay(t, Options{Cgroups: cgroups}, func(t *testing.T, o *Owner, shape func(Command) Command) {
				each := 250
				switch {
				case testing.Short():
					each = 15
				case cgroups || o.noClone3.Load():
					each = 100
				}
				collectGarbage(t)
				var failed atomic.Int32
				var wg sync.WaitGroup
				for range 8 {
					wg.Go(func() {
						for range each {
							var ends sync.WaitGroup
							ends.Add(1)
							_, err := o.StartTo(shape(Command{Path: "/bin/true"}), func(e Exit) {
								if e.Kind == Exited {
									if e.Code() != 0 {
										failed.Add(1)
									}
									ends.Done()
								}
							})
							if err != nil {
								t.Error(err)
								return
							}
							ends.Wait()
						}
					})
				}
				wg.Wait()
				if n := failed.Load(); n > 0 {
					t.Errorf("%d ended otherwise than /bin/true", n)
				}
				if s := o.Stats(); s.Exited != uint64(8*each) || s.Live != 0 {
					t.Errorf("stats %+v", s)
				}
			})
		})
	}
}

// PID 1's OOM score belongs to its memory, which a new process shares until its exec. A start must
// not change that score.
func TestOOMScoreIsTheProgramsAlone(t *testing.T) {
	own := func() string {
		b, err := os.ReadFile("/proc/self/oom_score_adj")
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(b))
	}
	before := own()
	inEachWay(t, Options{}, func(t *testing.T, o *Owner, shape func(Command) Command) {
		// For an ordinary user, the score is set after the program has started.
		c := prog("/bin/sh", "-c", "i=0; while [ $i -lt 100000 ] && read s </proc/self/oom_score_adj && [ $s != 321 ]; do i=$((i+1)); done; echo oom_score_adj $s")
		score := 321
		c.OOMScoreAdj = &score
		r, err := o.Run(t.Context(), c, 1<<16)
		if err != nil || !strings.Contains(string(r.Output), "oom_score_adj 321\n") {
			t.Errorf("got %q, %v", r.Output, err)
		}
		if after := own(); after != before {
			t.Errorf("our own score was %s and is %s", before, after)
		}
	})
}

// A program gets the limit of open files with which agentinit was started, not the limit to which
// the Go runtime raised it.
func TestOpenFilesLimitIsTheOriginal(t *testing.T) {
	if os.Getenv("AGENTINIT_TEST_NOFILE") == "" {
		o := newOwner(t, Options{})
		c := sh("ulimit -Sn 77; exec " + os.Args[0] + " -test.run='^TestOpenFilesLimitIsTheOriginal$'")
		c.Env = append(c.Env, "AGENTINIT_TEST_NOFILE=1")
		if r, err := o.Run(t.Context(), c, 1<<16); err != nil || r.Exit.Code() != 0 {
			t.Errorf("%s %v", r.Output, err)
		}
		return
	}
	var own syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &own); err != nil || own.Cur == 77 {
		t.Errorf("package syscall no longer raises the limit (%+v, %v): this test shows nothing", own, err)
	}
	inEachWay(t, Options{}, func(t *testing.T, o *Owner, shape func(Command) Command) {
		r, err := o.Run(t.Context(), shape(sh("ulimit -Sn")), 100)
		if err != nil || string(r.Output) != "77\n" {
			t.Errorf("got %s, %v", r.Output, err)
		}
	})
}

// Each file gets its target number, even if another file has that number.
func TestDescriptorsCross(t *testing.T) {
	inEachWay(t, Options{}, func(t *testing.T, o *Owner, shape func(Command) Command) {
		var files []*os.File
		for _, text := range []string{"a", "b", "c"} {
			f, err := os.OpenFile(filepath.Join(t.TempDir(), "f"), os.O_CREATE|os.O_RDWR, 0o600)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if _, err := f.WriteString(text); err != nil {
				t.Fatal(err)
			}
			if _, err := f.Seek(0, 0); err != nil {
				t.Fatal(err)
			}
			files = append(files, f)
		}
		// Low numbers, as in a supervisor with few open files.
		n := int(files[0].Fd())
		all := make([]*os.File, n+3)
		all[n], all[n+1], all[n+2] = files[1], files[2], files[0]
		c := shape(sh(fmt.Sprintf("cd /dev/fd; cat %d %d %d", n, n+1, n+2)))
		c.Files = all
		if r, err := o.Run(t.Context(), c, 100); err != nil || string(r.Output) != "bca" {
			t.Errorf("got %q, %v", r.Output, err)
		}
	})
}

func TestTableCopyIsTried(t *testing.T) {
	open := func() []string {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names
	}
	before := open()
	if works := tryTableCopy(); works != copiesTables() {
		t.Errorf("the kernel's version says %v, a try %v", !works, works)
	}
	if after := open(); len(after) != len(before) {
		t.Errorf("%v were open, now %v", before, after)
	}
	// Often enough for the first thread to be chosen, too.
	for range 100 {
		onThread(func() {
			if unix.Gettid() == unix.Getpid() {
				t.Error("it runs on the first thread")
			}
		})
	}
	works := true
	withOpenFiles(t, 300, func() { works = tryTableCopy() })
	if works {
		t.Error("the try succeeds without the numbers that it needs")
	}
}

// A program gets the declared descriptors and no others, however high their numbers are, and
// whatever it does with them changes nothing in agentinit.
func TestDescriptorTableIsItsOwn(t *testing.T) {
	inEachWay(t, Options{}, func(t *testing.T, o *Owner, shape func(Command) Command) {
		var open []int
		for i := range 300 {
			fd, err := unix.FcntlInt(o.null.Fd(), unix.F_DUPFD_CLOEXEC, 100+i%2*1000)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(fd)
			open = append(open, fd)
		}
		text := filepath.Join(t.TempDir(), "text")
		if err := os.WriteFile(text, []byte("declared"), 0o600); err != nil {
			t.Fatal(err)
		}
		low, err := unix.Open(text, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(low)
		high, err := unix.FcntlInt(uintptr(low), unix.F_DUPFD_CLOEXEC, 1100)
		if err != nil {
			t.Fatal(err)
		}
		file := os.NewFile(uintptr(high), "text")
		defer file.Close()
		c := shape(sh(fmt.Sprintf("cat <&4; for fd in %s; do if [ -e /proc/$$/fd/$fd ]; then echo $fd; fi; done; exec <&- 4<&-",
			strings.Trim(fmt.Sprint(open), "[]"))))
		c.Files = []*os.File{4: file}
		if r, err := o.Run(t.Context(), c, 1000); err != nil || string(r.Output) != "declared" {
			t.Errorf("got %q, %v", r.Output, err)
		}
		for _, fd := range append(open, low, high) {
			if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil {
				t.Errorf("descriptor %d of agentinit is closed: %v", fd, err)
			}
		}
	})
}
