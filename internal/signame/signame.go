// Package signame knows the names of the signals of Linux (signal(7)). It is the only such place, so
// that a name means the same signal in a manifest, a request and a report. It must never send a signal.
package signame

import (
	"fmt"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Last is the highest signal of Linux.
const Last syscall.Signal = 64

// firstRealtime is what a program calls SIGRTMIN. For the kernel that is 32, but glibc and musl use
// the first two or three real-time signals themselves.
const firstRealtime syscall.Signal = 34

// other has the further names of signals in signal(7), which package unix does not have.
func other(name string) string {
	switch name {
	case "CLD":
		return "CHLD"
	case "IOT":
		return "ABRT"
	case "POLL":
		return "IO"
	case "RTMIN":
		return "RTMIN+0"
	case "RTMAX":
		return "RTMAX-0"
	}
	return name
}

// Parse reads a number from 1 to 64, or a name in upper or lower case, with or without SIG: "TERM",
// "SIGTERM", "RTMIN+3", "RTMAX-1".
func Parse(s string) (syscall.Signal, error) {
	name := other(strings.TrimPrefix(strings.ToUpper(s), "SIG"))
	if sig := unix.SignalNum("SIG" + name); sig != 0 {
		return sig, nil
	}
	if n, ok := number(name, Last); ok && n > 0 {
		return n, nil
	}
	if above, ok := strings.CutPrefix(name, "RTMIN+"); ok {
		if n, ok := number(above, Last-firstRealtime); ok {
			return firstRealtime + n, nil
		}
	}
	if below, ok := strings.CutPrefix(name, "RTMAX-"); ok {
		if n, ok := number(below, Last-firstRealtime); ok {
			return Last - n, nil
		}
	}
	return 0, fmt.Errorf("unknown signal %q", s)
}

func number(digits string, most syscall.Signal) (syscall.Signal, bool) {
	n, err := strconv.ParseUint(digits, 10, 8)
	return syscall.Signal(n), err == nil && syscall.Signal(n) <= most
}

// Of is the name without SIG; a real-time signal is "RTMIN" or "RTMIN+n". A number without a name is
// returned as it is.
func Of(sig syscall.Signal) string {
	if name := unix.SignalName(sig); name != "" {
		return strings.TrimPrefix(name, "SIG")
	}
	switch {
	case sig == firstRealtime:
		return "RTMIN"
	case sig > firstRealtime && sig <= Last:
		return fmt.Sprintf("RTMIN+%d", sig-firstRealtime)
	}
	return strconv.Itoa(int(sig))
}

// All lists the names without SIG, for suggestions. Of the real-time signals it has only RTMIN and RTMAX.
func All() []string {
	names := []string{"CLD", "IOT", "POLL", "RTMIN", "RTMAX"}
	for sig := syscall.Signal(1); sig < 32; sig++ {
		names = append(names, Of(sig))
	}
	return names
}
