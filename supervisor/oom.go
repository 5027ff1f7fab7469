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
)

// oomWatch tells whether a KILL that was not agentinit's was the kernel's, for want
// of memory. The counter oom_kill of agentinit's own memory cgroup says how many
// processes of the box died of that: memory.events of version 2, which counts those
// of the cgroups below as well, or memory.oom_control of version 1 (cgroups(7),
// Documentation/admin-guide/cgroup-v2.rst). Without either nothing can be told.
//
// The file of the counter stays open, because a program that was killed waits for its restart
// meanwhile.
type oomWatch struct {
	kills func() (uint64, bool)
	limit func() uint64 // 0 for none
	file  *os.File      // what kills reads; nil if there is nothing to read
	seen  uint64
	// Each kill explains one exit, soon after it.
	credit int
	until  time.Time
}

// oomWindow is how long after a count the exit it explains may be noticed.
const oomWindow = 5 * time.Second

// newOOMWatch finds the files below a root directory.
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

// verdict is why a process was killed, "" when nothing says that it was for memory.
func (w *oomWatch) verdict(now time.Time) string {
	kills, ok := w.kills()
	if !ok {
		return ""
	}
	if now.After(w.until) {
		w.credit = 0
	}
	if kills > w.seen {
		w.credit += int(kills - w.seen)
		w.seen, w.until = kills, now.Add(oomWindow)
	}
	if w.credit == 0 {
		return ""
	}
	w.credit--
	limit := w.limit()
	if limit == 0 {
		return "killed by the kernel: out of memory"
	}
	return fmt.Sprintf("killed by the kernel: out of memory (limit %s)", binarySize(limit))
}

// binarySize is a size in the largest unit of 1024 that divides it, or rounded down.
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

// memoryFiles finds the counter, nil for none, and the file of the limit.
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
			// In a container the path may be the host's, and the mount its end.
			for _, at := range []string{path.Join(root, dir, fields[2]), path.Join(root, dir)} {
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
	if err != nil && !errors.Is(err, io.EOF) { // also os.ErrInvalid of a nil file
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

// memoryLimit is 0 for "max", and for the number that version 1 has instead.
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
