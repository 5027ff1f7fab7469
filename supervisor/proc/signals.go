package proc

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// IgnoreTerminalStops makes terminal access from the background succeed or fail instead of stopping
// agentinit (SIGTTIN, SIGTTOU). Programs inherit an ignored signal. So it must be called only after
// the last start.
func IgnoreTerminalStops() { signal.Ignore(syscall.SIGTTIN, syscall.SIGTTOU) }

// ForegroundTerminal tells whether fd is the controlling terminal and agentinit is in its
// foreground group. Only then may agentinit hand the terminal over.
func ForegroundTerminal(fd int) bool {
	pgrp, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
	return err == nil && pgrp == unix.Getpgrp()
}

// StopSelf stops the calling process until SIGCONT, as the terminal's stop key would. It has no
// effect on PID 1.
func StopSelf() error { return unix.Kill(os.Getpid(), unix.SIGSTOP) }
