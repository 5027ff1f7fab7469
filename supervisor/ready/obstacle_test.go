package ready

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dreamlab-ai/agentinit/internal/hostname"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// attempts is an exec probe that returns one error per attempt, and repeats the last. Status 1 stands for the
// error errAnswered.
type attempts []error

var errAnswered = errors.New("the program answered that it is not well")

func (a *attempts) exec(context.Context, Target, []string) (int, []byte, error) {
	err := (*a)[0]
	if len(*a) > 1 {
		*a = (*a)[1:]
	}
	if err == errAnswered {
		return 1, nil, nil
	}
	return 0, nil, err
}

// What agentinit cannot ask says nothing about the program: it neither completes nor interrupts a series.
func TestCheckIgnoresWhatCannotBeAsked(t *testing.T) {
	files := &hostname.FilesError{Name: "db:1", Err: errors.New("/etc/hosts is no regular file")}
	for _, c := range []struct {
		name     string
		attempts attempts
		want     string
		unasked  int
	}{
		{"never asked", attempts{syscall.ENFILE}, "[]", 8},
		{"healthy, then not asked", attempts{nil, syscall.EMFILE}, "[10s true]", 7},
		{"other resources", attempts{nil, syscall.ENOBUFS, syscall.ENOMEM, files, nil}, "[10s true]", 3},
		{"within a series of failures", attempts{errAnswered, syscall.ENFILE, errAnswered, syscall.ENFILE, errAnswered}, "[50s false]", 2},
		{"unhealthy, then not asked", attempts{errAnswered, errAnswered, errAnswered, syscall.ENFILE}, "[30s false]", 5},
		{"a command that is missing was asked", attempts{syscall.ENOENT}, "[30s false]", 0},
		{"so was one that was refused", attempts{syscall.ECONNREFUSED}, "[30s false]", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 85*time.Second)
				defer cancel()
				var got, reasons []string
				began := time.Now()
				w := New(Config{Exec: c.attempts.exec, Unasked: func(of Target, reason string) {
					if of != web || !strings.HasPrefix(reason, "exec x: cannot ask: ") {
						t.Errorf("told of %+v: %s", of, reason)
					}
					reasons = append(reasons, reason)
				}})
				w.Check(ctx, web, program.Health{
					Probes: []program.Probe{{Dialect: "exec", Argv: []string{"x"}, Interval: 10 * time.Second}}, Failures: 3,
				}, func(r Result) { got = append(got, fmt.Sprint(time.Since(began), " ", r.Ready)) })
				if fmt.Sprint(got) != c.want || len(reasons) != c.unasked {
					t.Errorf("results %v, want %s; %d not asked (%q), want %d", got, c.want, len(reasons), reasons, c.unasked)
				}
			})
		})
	}
}

// A series of successes goes on after an attempt that could not be made, but does not count it.
func TestWatchIgnoresWhatCannotBeAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := attempts{nil, syscall.ENFILE, nil}
		probe := program.Probe{Dialect: "exec", Argv: []string{"x"}, Interval: time.Second, Successes: 2}
		results := watch(t.Context(), New(Config{Exec: a.exec}), web, program.Readiness{Probes: []program.Probe{probe}})
		if len(results) != 3 || results[1].Reason != "exec x: cannot ask: the machine has no open file left (fs.file-max) (attempt 2)" ||
			results[1].Ready || !results[2].Ready {
			t.Errorf("%+v", results)
		}
	})
}

// fewPorts moves the calling goroutine to a network of its own, which gives connections four local ports
// and has no IPv6 address. Its thread ends with the goroutine.
func fewPorts(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes a network")
	}
	runtime.LockOSThread() // for good
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Skip("needs root: cannot make a network: ", err)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		t.Fatal(err)
	}
	lo.SetUint16(unix.IFF_UP)
	err = os.WriteFile("/proc/sys/net/ipv6/conf/all/disable_ipv6", []byte("1"), 0)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", []byte("40000 40003"), 0); err != nil {
		t.Fatal(err)
	}
}

func TestAllLocalPortsAreTaken(t *testing.T) {
	fewPorts(t)
	server, err := net.Listen("tcp4", "127.0.0.1:80")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	probe := program.Probe{Dialect: "tcp", Target: "127.0.0.1:80"}
	w := New(Config{})
	var taken net.Listener
	for port := 40000; port <= 40003; port++ {
		if taken, err = net.Listen("tcp4", fmt.Sprintf("0.0.0.0:%d", port)); err != nil {
			t.Fatal(err)
		}
		defer taken.Close()
	}
	if err := once(t, w, web, probe); !unasked(err) || !strings.Contains(err.Error(), "all local ports") {
		t.Error("without a free port:", err)
	}
	// This address can never be reached here, however many ports are free: the manifest is wrong.
	if err := once(t, w, web, program.Probe{Dialect: "tcp", Target: "[::1]:80"}); err == nil || unasked(err) {
		t.Error("without an IPv6 address:", err)
	}
	if err := taken.Close(); err != nil {
		t.Fatal(err)
	}
	if err := once(t, w, web, probe); err != nil {
		t.Error("with a free port again:", err)
	}
}
