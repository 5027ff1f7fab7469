package supervisor

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/proc"
)

// oomWatch tells whether the kernel sent a KILL because memory was short. agentinit reads the
// counter oom_kill of its own memory cgroup, which counts the processes of the box that were killed
// for that reason. In version 2 it is in memory.events, which includes the cgroups below; in
// version 1 it is in memory.oom_control (cgroups(7), Documentation/admin-guide/cgroup-v2.rst).
// Without these files, the cause stays unknown.
//
// The file of the counter stays open, because the restart of a killed program waits while it is
// read.
type oomWatch struct {
	kills func() (uint64, bool)
	limit func() uint64 // 0 means none
	file  *os.File      // the file that kills reads; nil if there is none
	seen  uint64
	// Each counted kill explains one exit soon after it.
	credit int
	until  time.Time
}

// oomWindow is how long after a change of the counter an exit may be explained by it.
const oomWindow = 5 * time.Second

// newOOMWatch finds the files below the root directory.
func newOOMWatch(root string) *oomWatch {
	events, most := memoryFiles(root)
	w := &oomWatch{
		kills: func() (uint64, bool) { return killsIn(events) },
		limit: func() uint64 { return memoryLimit(most) },
		file:  events,
	}
	w.seen, _ = w.kills()
	return w
}

func (w *oomWatch) close() {
	if w.file != nil {
		_ = w.file.Close() // it was only read
	}
}

// look counts the kills since it last looked. It is called whenever a program ends or is measured: the
// kernel also kills processes with whose end no program ends, and such a kill must not explain a KILL
// much later.
func (w *oomWatch) look(now time.Time) {
	kills, ok := w.kills()
	if now.After(w.until) {
		w.credit = 0
	}
	if ok && kills > w.seen {
		w.credit += int(kills - w.seen)
		w.seen, w.until = kills, now.Add(oomWindow)
	}
}

// verdict says why a process was killed, or "" if there is no sign that memory was short. own is the
// limit that its program has reached; 0 means that it was not the program's own limit. Where the kernel
// has no counter for the box, as in the root cgroup of a virtual machine, the program's own one is the sign.
func (w *oomWatch) verdict(now time.Time, own uint64) string {
	w.look(now)
	switch _, counted := w.kills(); {
	case w.credit > 0:
		w.credit--
	case counted || own == 0:
		return ""
	}
	limit := own
	if limit == 0 {
		limit = w.limit()
	}
	if limit == 0 {
		return "killed by the kernel: out of memory"
	}
	return fmt.Sprintf("killed by the kernel: out of memory (limit %s)", binarySize(limit))
}

// binarySize writes a size in the largest unit of 1024 that divides it, or rounded down.
func binarySize(n uint64) string {
	for _, u := range []struct {
		name  string
		shift uint
	}{{"GiB", 30}, {"MiB", 20}, {"KiB", 10}} {
		if n >= 1<<u.shift && (n%(1<<u.shift) == 0 || u.shift == 20) {
			return fmt.Sprintf("%d %s", n>>u.shift, u.name)
		}
	}
	return fmt.Sprintf("%d bytes", n)
}

// memoryFiles finds the counter, or nil if there is none, and the file of the limit.
func memoryFiles(root string) (events *os.File, most string) {
	text, err := os.ReadFile(path.Join(root, "proc/self/cgroup"))
	if err != nil {
		return nil, ""
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) != 3 {
			continue
		}
		dirs, counter, most := []string{}, "memory.events", "memory.max"
		switch {
		case fields[0] == "0":
			dirs = []string{"sys/fs/cgroup", "sys/fs/cgroup/unified"}
		case fields[1] == "memory":
			dirs, counter, most = []string{"sys/fs/cgroup/memory"}, "memory.oom_control", "memory.limit_in_bytes"
		}
		for _, dir := range dirs {
			own := fields[2]
			if path.Base(own) == proc.SelfCgroup {
				own = path.Dir(own) // PID 1 has moved itself out of the cgroup of the box
			}
			// In a container, the path may be that of the host, while the mount shows only its end.
			for _, at := range []string{path.Join(root, dir, own), path.Join(root, dir)} {
				file, err := os.Open(path.Join(at, counter))
				if err != nil {
					continue
				}
				if _, ok := killsIn(file); ok {
					return file, path.Join(at, most)
				}
				_ = file.Close() // it was only read
			}
		}
	}
	return nil, ""
}

// killsIn reads the line "oom_kill N".
func killsIn(file *os.File) (uint64, bool) {
	var buf [1024]byte // the longest of these files has a dozen short lines
	n, err := file.ReadAt(buf[:], 0)
	if err != nil && !errors.Is(err, io.EOF) { // this includes os.ErrInvalid of a nil file
		return 0, false
	}
	for line := range bytes.Lines(buf[:n]) {
		if value, found := bytes.CutPrefix(line, []byte("oom_kill ")); found {
			n, err := strconv.ParseUint(string(bytes.TrimSpace(value)), 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}

// memoryLimit is 0 for "max", and for the number that version 1 uses instead.
func memoryLimit(file string) uint64 {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	if err != nil || n >= 1<<62 {
		return 0
	}
	return n
}

// MemoryLimit is the limit of the box's memory cgroup in bytes; 0 means that it has none.
func (s *System) MemoryLimit() uint64 { return s.oom.limit() }
