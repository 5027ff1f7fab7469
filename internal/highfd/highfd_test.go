package highfd

import (
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

// TestMain lets a test run in a process of its own with another limit.
func TestMain(m *testing.M) {
	if os.Getenv("HIGHFD_TEST") == "" {
		os.Exit(m.Run())
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: First + 8, Max: First + 8}); err != nil {
		panic(err)
	}
	fd, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		panic(err)
	}
	if raised := Raise(fd); raised != fd {
		panic("the number is in the reserve")
	}
}

func TestRaise(t *testing.T) {
	fds := []int{0, 0}
	if err := unix.Pipe2(fds, unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	low := fds[0]
	r := Raise(low)
	defer unix.Close(r)
	if r < First {
		t.Fatalf("the number is %d, want %d at least", r, First)
	}
	if again := Raise(r); again != r {
		t.Errorf("a high number became %d", again)
	}
	if flags, err := unix.FcntlInt(uintptr(r), unix.F_GETFD, 0); err != nil || flags != unix.FD_CLOEXEC {
		t.Errorf("flags %d %v, want close-on-exec", flags, err)
	}
	if _, err := unix.Write(fds[1], []byte("x")); err != nil {
		t.Fatal(err)
	}
	if err := unix.Close(fds[1]); err != nil {
		t.Fatal(err)
	}
	var buf [2]byte
	if n, err := unix.Read(r, buf[:]); n != 1 || err != nil {
		t.Errorf("read %d bytes: %v", n, err)
	}
	if n, err := unix.Read(r, buf[:]); n != 0 || err != nil {
		t.Errorf("read %d bytes at the end: %v", n, err)
	}
}

// If the high numbers are the reserve, or there are none, a descriptor keeps its number.
func TestRaiseLeavesTheReserve(t *testing.T) {
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), "HIGHFD_TEST=1")
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("%v: %.500s", err, out)
	}
}

func TestRaiseOfNothing(t *testing.T) {
	if fd := Raise(-1); fd != -1 {
		t.Errorf("an invalid descriptor became %d", fd)
	}
}
