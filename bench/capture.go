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
	logKeep    = 60       // rotated files: none goes
	// clockTick is what /proc/PID/stat counts in: USER_HZ, 100 a second on
	// every Linux that Go runs on.
	clockTick = 10 * time.Millisecond
)

// captureIdle is how long nothing may come before the rest counts as lost.
const captureIdle = 10 * time.Second

// captureLimit is how long a capture may take: some peers are slow.
const captureLimit = 2 * time.Minute

// capture has n programs print size bytes each into rotated files.
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

// logsOf is below which each peer keeps what the programs print.
func logsOf(dir string) string { return filepath.Join(dir, "logs") }

// captured waits until all has arrived, or until what is missing comes no more. It
// returns megabytes a second and the processor time of the init and its loggers.
func (b *box) captured(n, size int) (speed float64, cpu time.Duration, err error) {
	if err := b.expect('B', 1); err != nil {
		return 0, 0, err
	}
	begun := time.Now()
	want := int64(n) * int64(size)
	have, grown := int64(0), begun
	// Twice in a row: a file that is renamed during a look may count twice.
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
		// A look at 200 directories takes a while itself.
		time.Sleep(time.Duration(n/10+1) * time.Millisecond)
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
			return nil // renamed under our eyes, or not there yet
		}
		return err
	})
	return n, err
}

// keepsLines leaves out what svlogd and s6-log have beside their logs.
func keepsLines(name string) bool { return name != "config" && name != "lock" && name != "state" }

// cpuTime is what an init and its helpers have used, the programs excepted.
func cpuTime(pid int, program string) (time.Duration, error) {
	programs := map[int]bool{}
	for _, p := range victims(pid, program) {
		programs[p] = true
	}
	ticks := 0
	for _, p := range append(descendants(pid), pid) {
		if programs[p] {
			continue
		}
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p))
		if err != nil {
			continue // it has ended
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

// inspect reads the files and counts the lines that are not whole and those that
// are nowhere.
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

// readLines marks the lines of a file in have and returns how many are not as
// they were printed.
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

// number reads the number of a whole line.
func number(line []byte, limit int) (int, bool) {
	if len(line) != lineLength || line[lineLength-1] != '\n' {
		return 0, false
	}
	i, err := strconv.Atoi(string(line[:16]))
	return i, err == nil && i < limit
}
