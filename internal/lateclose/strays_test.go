package lateclose

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dreamlab-ai/agentinit/internal/lateclose/lingertest"
)

// nested returns a socket in whose queue a lingering descriptor is the last one.
func nested(t *testing.T) (fd int) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	inner, _ := lingertest.Lingering(t)
	defer unix.Close(inner)
	defer unix.Close(pair[1])
	if err := unix.Sendmsg(pair[1], []byte{0}, unix.UnixRights(inner), nil, 0); err != nil {
		t.Fatal(err)
	}
	return pair[0]
}

func TestStraysDoNotWait(t *testing.T) {
	s := NewStrays(1)
	for name, fds := range map[string]func() []int{
		"one":    func() []int { fd, _ := lingertest.Lingering(t); return []int{fd} },
		"nested": func() []int { return []int{nested(t)} },
		"several": func() (fds []int) {
			for range 20 {
				fd, _ := lingertest.Lingering(t)
				fds = append(fds, fd)
			}
			return fds
		},
	} {
		t.Run(name, func(t *testing.T) {
			s.Close(fds())
		})
	}
}

// The twin: a plain close waits until the other end is gone.
func TestAPlainCloseWaits(t *testing.T) {
	fd, release := lingertest.Lingering(t)
	tid, returned := make(chan int), make(chan struct{})
	go func() {
		runtime.LockOSThread()
		tid <- unix.Gettid()
		unix.Close(fd)
		close(returned)
	}()
	// The file says "running" unless the thread waits in a system call.
	file, inClose := fmt.Sprintf("/proc/self/task/%d/syscall", <-tid), fmt.Sprintf("%d ", unix.SYS_CLOSE)
	for waits := false; !waits; {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		waits = strings.HasPrefix(string(b), inClose)
		select {
		case <-returned:
			t.Fatal("the close has returned")
		default:
		}
	}
	release()
	<-returned
}

// sd_notify_barrier(3) waits for the close of a pipe: it must not wait for other closes.
func TestPipesAreClosedAtOnce(t *testing.T) {
	s := NewStrays(0) // no thread is ever free
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pipe[0])
	s.Close([]int{pipe[1]})
	if n, err := unix.Read(pipe[0], make([]byte, 1)); n != 0 || err != nil {
		t.Errorf("the pipe is still open: %d, %v", n, err)
	}
}
