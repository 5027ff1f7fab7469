package main

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// busyLimit is the maximum share of processor time that other processes may use. Above it, the
// report calls the machine not quiet.
const busyLimit = 0.03

// Machine describes where a run took place.
type Machine struct {
	Processors int     `json:"processors"`
	Arch       string  `json:"arch"`
	Kernel     string  `json:"kernel"`
	Busy       float64 `json:"busy"` // share of the processors' time used in the second before the run
	Quiet      bool    `json:"quiet"`
}

func lookAtMachine() (Machine, error) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return Machine{}, err
	}
	busy, err := busyShare(time.Second)
	if err != nil {
		return Machine{}, err
	}
	return Machine{
		Processors: runtime.NumCPU(), Arch: runtime.GOARCH, Kernel: unix.ByteSliceToString(name.Release[:]),
		Busy: busy, Quiet: busy <= busyLimit,
	}, nil
}

func (m Machine) print(out io.Writer) {
	fmt.Fprintf(out, "%d processors, %s, Linux %s\n", m.Processors, m.Arch, m.Kernel)
	if !m.Quiet {
		fmt.Fprintf(out, "This machine is not quiet: others used %.0f %% of its processors in the last second. Compare ratios, not times.\n", 100*m.Busy)
	}
}

// busyShare is the share of all processors' time that was not idle during the pause. It includes
// stolen time.
func busyShare(pause time.Duration) (float64, error) {
	total, idle, err := cpuTimes()
	if err != nil {
		return 0, err
	}
	time.Sleep(pause)
	total2, idle2, err := cpuTimes()
	if err != nil || total2 == total {
		return 0, err
	}
	return 1 - float64(idle2-idle)/float64(total2-total), nil
}

// cpuTimes reads the first line of /proc/stat, proc_stat(5).
func cpuTimes() (total, idle uint64, err error) {
	data, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0, err
	}
	line, _, _ := strings.Cut(string(data), "\n")
	for i, word := range strings.Fields(line)[1:] {
		n, err := strconv.ParseUint(word, 10, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("/proc/stat: %w", err)
		}
		total += n
		if i == 3 || i == 4 { // idle, iowait
			idle += n
		}
	}
	return total, idle, nil
}
