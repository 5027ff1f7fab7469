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
	for name, make := range map[string]func(*testing.T) (fd int){
		"lingering": func(t *testing.T) int { fd, _ := lingertest.Lingering(t); return fd },
		"nested":    nested,
	} {
		t.Run(name, func(t *testing.T) {
			fd := make(t)
			s.Interrupt(func() {
				if err := unix.Close(fd); err != nil {
					t.Error(err)
				}
			})
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
