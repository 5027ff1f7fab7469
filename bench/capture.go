package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

const (
	lineLength = 100
	logMax     = 50 << 20 // bytes of a file before it is rotated
	logKeep    = 60       // rotated files to keep: so many that none is deleted
	// clockTick is the unit of times in /proc/PID/stat: USER_HZ, which is 100 a second on every
	// Linux that Go runs on.
	clockTick = 10 * time.Millisecond
)

// captureIdle: if no output arrives for this long, the missing output counts as lost.
const captureIdle = 10 * time.Second

// captureLimit bounds one capture, because some peers are slow.
const captureLimit = 2 * time.Minute

// capture measures n programs that each print size bytes into rotated files.
func capture(ctx context.Context, l *lab, p peer, n, size int) ([]float64, error) {
	size -= size % lineLength
	b, err := l.open(ctx, peer{name: p.name, setup: p.capture}, n, []string{l.path("lines"), strconv.Itoa(size)})
	if err != nil {
		return nil, err
	}
	speed, cpu, err := b.captured(n, size)
	err = errors.Join(err, b.kill())
	var cut, lost int
	if err == nil {
		cut, lost, err = inspect(logsOf(b.dir), n, size/lineLength)
	}
	return []float64{speed, cpu.Seconds(), float64(cut), float64(lost)}, errors.Join(err, os.RemoveAll(b.dir))
}

// logsOf is the directory below which each peer keeps the programs' output.
func logsOf(dir string) string { return filepath.Join(dir, "logs") }

// captured waits until all output has arrived, or until no more arrives. It returns megabytes a
// second and the processor time of the init and its loggers.
func (b *box) captured(n, size int) (speed float64, cpu time.Duration, err error) {
	if err := b.expect('B', 1); err != nil {
		return 0, 0, err
	}
	begun := time.Now()
	want := int64(n) * int64(size)
	have, grown := int64(0), begun
	// The full size must be seen twice in a row: a file that is renamed during one count may be
	// counted twice.
	for full := 0; full < 2 && time.Since(grown) < captureIdle && time.Since(begun) < captureLimit; {
		now, err := totalSize(logsOf(b.dir))
		if err != nil {
			return 0, 0, err
		}
		if now == want {
			full++
		} else {
			full = 0
		}
		if now != have {
			have, grown = now, time.Now()
		}
		// The count takes a processor from what is measured, and longer for 200 directories.
		time.Sleep(time.Duration(n/10+10) * time.Millisecond)
	}
	cpu, err = cpuTime(b.pid(), "lines")
	return float64(have) / 1e6 / grown.Sub(begun).Seconds(), cpu, err
}

func totalSize(dir string) (n int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() && keepsLines(e.Name()) {
			var info fs.FileInfo
			if info, err = e.Info(); err == nil {
				n += info.Size()
			}
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil // the file was renamed meanwhile, or does not exist yet
		}
		return err
	})
	return n, err
}

// keepsLines excludes the other files that svlogd and s6-log keep beside their logs.
func keepsLines(name string) bool { return name != "config" && name != "lock" && name != "state" }

// cpuTime is the processor time of an init and its helpers. The programs are left out.
func cpuTime(pid int, program string) (time.Duration, error) {
	ticks := 0
	for _, p := range helpers(pid, program) {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p))
		if err != nil {
			continue // the process has ended
		}
		_, rest, _ := strings.Cut(string(data), ") ")
		fields := strings.Fields(rest)
		if len(fields) < 13 {
			return 0, fmt.Errorf("stat of %d: %q", p, data)
		}
		for _, f := range fields[11:13] { // utime and stime
			t, err := strconv.Atoi(f)
			if err != nil {
				return 0, err
			}
			ticks += t
		}
	}
	return time.Duration(ticks) * clockTick, nil
}

// inspect reads the files. It counts the lines that are not complete, and the lines that are in no
// file.
func inspect(dir string, n, lines int) (cut, lost int, err error) {
	whole := 0
	seen := map[string][]bool{}
	err = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() || !keepsLines(e.Name()) {
			return err
		}
		of := filepath.Dir(path)
		if seen[of] == nil {
			seen[of] = make([]bool, lines)
		}
		c, err := readLines(path, seen[of])
		cut += c
		return err
	})
	for _, have := range seen {
		for _, s := range have {
			if s {
				whole++
			}
		}
	}
	return cut, n*lines - whole, err
}

// readLines marks in have each complete line of a file. It returns the number of lines that differ
// from what was printed.
func readLines(path string, have []bool) (cut int, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	in := bufio.NewReaderSize(f, 1<<20)
	for {
		line, err := in.ReadSlice('\n')
		if len(line) > 0 {
			i, ok := number(line, len(have))
			if ok {
				have[i] = true
			} else {
				cut++
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return cut, nil
		case err != nil && !errors.Is(err, bufio.ErrBufferFull):
			return cut, err
		}
	}
}

// number returns the number in a complete line.
func number(line []byte, limit int) (int, bool) {
	if len(line) != lineLength || line[lineLength-1] != '\n' {
		return 0, false
	}
	i, err := strconv.Atoi(string(line[:16]))
	return i, err == nil && i < limit
}
