package child

import (
	"io"
	"os"
	"syscall"
	"testing"
	"unsafe"
)

// run lets a new process execute a table. The process has a copy of the memory, so that the test
// also runs where CLONE_VM does not work (qemu-user). Tests of package proc cover the shared
// memory.
func run(t *testing.T, steps []Step) syscall.WaitStatus {
	t.Helper()
	b := &Block{
		First:   uintptr(unsafe.Pointer(&steps[0])),
		CloneNr: syscall.SYS_CLONE, CloneArgs: [5]uintptr{uintptr(syscall.SIGCHLD)},
		AllSignals: ^uint64(0),
	}
	pid := Spawn(b)
	if pid <= 0 {
		t.Fatalf("clone: %v", syscall.Errno(-pid))
	}
	var status syscall.WaitStatus
	for {
		if _, err := syscall.Wait4(pid, &status, 0, nil); err != syscall.EINTR {
			break
		}
	}
	if b.At != 0 || b.Errno != 0 {
		t.Errorf("the copy wrote into the original: %+v", b)
	}
	return status
}

func address(s *Step) uintptr { return uintptr(unsafe.Pointer(s)) }

func TestTheTableIsCarriedOut(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	text := []byte("hello")
	at := uintptr(unsafe.Pointer(&text[0]))
	steps := make([]Step, 7)
	steps[0] = Step{Nr: syscall.SYS_CLOSE, Args: [6]uintptr{^uintptr(0)}, OnError: address(&steps[2])}
	steps[1] = Step{Nr: syscall.SYS_EXIT_GROUP, Args: [6]uintptr{90}} // skipped
	steps[2] = Step{Nr: syscall.SYS_DUP, Args: [6]uintptr{w.Fd()}, Store: uintptr(unsafe.Pointer(&steps[3].Args[0]))}
	steps[3] = Step{Nr: syscall.SYS_WRITE, Args: [6]uintptr{0, at, 5}, Store: uintptr(unsafe.Pointer(&steps[4].Args[2]))}
	steps[4] = Step{Nr: syscall.SYS_WRITE, Args: [6]uintptr{w.Fd(), at, 0}}
	steps[5] = Step{Nr: syscall.SYS_EXIT_GROUP, Args: [6]uintptr{7}}
	if status := run(t, steps); status.ExitStatus() != 7 {
		t.Errorf("ended with %v", status)
	}
	w.Close()
	if b, err := io.ReadAll(r); err != nil || string(b) != "hellohello" {
		t.Errorf("wrote %q, %v", b, err)
	}
}

func TestAnErrorEndsTheProcess(t *testing.T) {
	steps := []Step{
		{Nr: syscall.SYS_CLOSE, Args: [6]uintptr{^uintptr(0)}},
		{Nr: syscall.SYS_EXIT_GROUP, Args: [6]uintptr{7}},
	}
	if status := run(t, steps); status.ExitStatus() != 127 {
		t.Errorf("ended with %v", status)
	}
}

func TestOpenFiles(t *testing.T) {
	var now syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &now); err != nil {
		t.Fatal(err)
	}
	if OpenFiles[0] == 0 || OpenFiles[0] > now.Cur || OpenFiles[1] != now.Max {
		t.Errorf("started with %v, now %+v", OpenFiles, now)
	}
}
