package proc

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

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
