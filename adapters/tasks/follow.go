package tasks

import (
	"bufio"
	"context"
	"errors"
	"io"
	"math"
	"os"
	"strings"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/internal/safeopen"
)

// Line is one line of a task's log.
type Line struct {
	Text string
	At   time.Time
	// End is the position in the log after the line: Follow can continue there.
	End int64
	// Ended is set, without the other fields, after the last line of an ended task.
	Ended *Record
}

// Follower reads a task's log from a position on. At the end of the log it waits for more. It is for
// one goroutine at a time, which must close it.
type Follower struct {
	m    *Manager
	id   string
	at   int64
	log  *logReader
	over bool
}

// Follow makes a Follower that begins at a byte position. It returns NOT_FOUND if there is no such
// task.
func (m *Manager) Follow(id string, at int64) (*Follower, error) {
	_, err := m.Get(id)
	return &Follower{m: m, id: id, at: at}, err
}

// Next returns the next line. After the last line it returns the record of the ended task, then
// io.EOF.
func (f *Follower) Next(ctx context.Context) (Line, error) {
	if f.over {
		return Line{}, io.EOF
	}
	for {
		// Before the file is read, so that a later write wakes this goroutine.
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

// Close closes the log.
func (f *Follower) Close() error {
	if f.log == nil {
		return nil
	}
	return f.log.file.Close()
}

// line is the next line, or io.EOF if there is none yet.
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
	at   int64 // the position after the last whole line
	part string
}

func newLogReader(path string, at int64) (*logReader, error) {
	f, err := safeopen.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	// A position beyond the end, however far, is the end. lseek(2) refuses large ones.
	return &logReader{file: f, buf: bufio.NewReader(growing{io.NewSectionReader(f, at, math.MaxInt64-at)}), at: at}, nil
}

// growing returns an error only without bytes. Otherwise a bufio.Reader would keep an io.EOF that came
// with bytes, and report it later, when the file has more.
type growing struct{ io.Reader }

func (g growing) Read(p []byte) (int, error) {
	n, err := g.Reader.Read(p)
	if n > 0 {
		err = nil
	}
	return n, err
}

// maxRead is the most bytes of a line that are read at once. The lines of a logWriter are shorter. An
// agent can put longer lines into the file, or a hole, which reads as a line without an end.
const maxRead = maxLine + 1<<10

// next returns the next whole line, or io.EOF if there is none yet. It splits a line that is longer
// than maxRead.
func (r *logReader) next() (string, error) {
	for {
		text, err := r.buf.ReadSlice('\n')
		if err == nil || len(r.part)+len(text) >= maxRead {
			line := r.part + string(text)
			r.part = ""
			r.at += int64(len(line))
			return strings.TrimSuffix(line, "\n"), nil
		}
		r.part += string(text)
		if !errors.Is(err, bufio.ErrBufferFull) {
			return "", err
		}
	}
}
