package proc

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// NotifyAll relays every signal that can be caught to c, like signal.Notify
// without a list. Nothing is ignored in the sense of signal(7), so programs
// started later have default dispositions. The Go runtime leaves signals 32 to 34
// alone, which C libraries use inside; programs know the last one as SIGRTMIN. It
// does nothing to a PID 1 and ends any other process. SIGPROF is the runtime's too.
func NotifyAll(c chan<- os.Signal) { signal.Notify(c) }

// IgnoreTerminalStops makes terminal access from the background fail or succeed
// instead of stopping us (SIGTTIN, SIGTTOU). An ignored signal is inherited
// by programs, so this is for a process that has started all it will ever start.
func IgnoreTerminalStops() { signal.Ignore(syscall.SIGTTIN, syscall.SIGTTOU) }

// ForegroundTerminal tells whether fd is our controlling terminal and we are in
// its foreground group: only then it is ours to hand over.
func ForegroundTerminal(fd int) bool {
	pgrp, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
	return err == nil && pgrp == unix.Getpgrp()
}

// StopSelf stops the calling process until SIGCONT, as the terminal's stop key
// would. PID 1 is immune to it.
func StopSelf() error { return unix.Kill(os.Getpid(), unix.SIGSTOP) }
