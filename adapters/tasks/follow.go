package tasks

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// Line is one line of a task's log.
type Line struct {
	Text string
	At   time.Time
	// End is the position in the log behind the line: Follow continues there.
	End int64
	// Ended is set instead of the rest after the last line of a task that has ended.
	Ended *Record
}

// Follower reads a task's log from a position on and, at its end, waits for more: what
// was written before and what comes later is one sequence. One goroutine may use it.
type Follower struct {
	m    *Manager
	id   string
	at   int64
	log  *logReader
	over bool
}

// Follow makes a Follower that begins at a byte position; NOT_FOUND without the task.
func (m *Manager) Follow(id string, at int64) (*Follower, error) {
	_, err := m.Get(id)
	return &Follower{m: m, id: id, at: at}, err
}

// Next returns the next line, then the record of the task that has ended, then
// io.EOF. The Follower is closed when it returns an error.
func (f *Follower) Next(ctx context.Context) (next Line, err error) {
	defer func() {
		if err != nil && f.log != nil {
			err = errors.Join(err, f.log.file.Close())
			f.log = nil
		}
	}()
	if f.over {
		return Line{}, io.EOF
	}
	for {
		// Asked before the file is read: what is written after wakes us.
		r, news, err := f.m.get(f.id)
		if err != nil {
			return Line{}, err
		}
		line, err := f.line()
		if err == nil {
			text, at := splitLine(line)
			return Line{Text: text, At: at, End: f.log.at}, nil
		}
		if !errors.Is(err, io.EOF) {
			return Line{}, adapters.Unavailable(err, "the log cannot be read")
		}
		if r.Status != Running {
			f.over = true
			return Line{Ended: &r}, nil
		}
		select {
		case <-news:
		case <-ctx.Done():
			return Line{}, ctx.Err()
		}
	}
}

// line is the next line, io.EOF when there is none yet.
func (f *Follower) line() (string, error) {
	if f.log == nil {
		log, err := newLogReader(f.m.logPath(f.id), f.at)
		if errors.Is(err, os.ErrNotExist) {
			return "", io.EOF
		}
		if err != nil {
			return "", err
		}
		f.log = log
	}
	return f.log.next()
}

// logReader reads whole lines from a byte position on.
type logReader struct {
	file *os.File
	buf  *bufio.Reader
	at   int64 // behind the last whole line
	part string
}

func newLogReader(path string, at int64) (*logReader, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if _, err := f.Seek(at, io.SeekStart); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &logReader{file: f, buf: bufio.NewReader(f), at: at}, nil
}

// next returns the next whole line, io.EOF when there is none yet.
func (r *logReader) next() (string, error) {
	text, err := r.buf.ReadString('\n')
	r.part += text
	if err != nil {
		return "", err
	}
	line := r.part
	r.part = ""
	r.at += int64(len(line))
	return strings.TrimSuffix(line, "\n"), nil
}
