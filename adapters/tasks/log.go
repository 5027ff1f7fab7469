package tasks

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/internal/safeopen"
)

// Bounds of a task's log.
const (
	maxLog    = 64 << 20 // bytes; later output is counted, not kept
	maxLine   = 64 << 10 // bytes; a longer line is split
	tailLines = 50
	tailBytes = 256 << 10
)

// logWriter writes an agent's output as lines, each with its time before it. One goroutine uses it.
// A nil logWriter accepts all output and keeps none.
type logWriter struct {
	file    *os.File
	size    int64
	lost    int64
	partial map[string][]byte // unfinished lines by stream
	failing bool              // the latest event could not be written
}

func openLog(path string) (*logWriter, error) {
	f, err := safeopen.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, fileMode)
	if err != nil {
		return nil, fmt.Errorf("cannot keep the task's log: %w", err)
	}
	return &logWriter{file: f, partial: make(map[string][]byte)}, nil
}

// write takes one event of the agent. Of failures in a row, it returns the first: the agent decides how
// often it prints, and each error becomes an event of the box.
func (l *logWriter) write(e adapters.AgentEvent) error {
	if l == nil {
		return nil
	}
	told, err := l.failing, l.add(e)
	if l.failing = err != nil; told {
		return nil
	}
	return err
}

func (l *logWriter) add(e adapters.AgentEvent) error {
	switch e.Kind {
	case adapters.AgentEventStdout, adapters.AgentEventStderr:
		var p struct {
			Data, Encoding string
		}
		if err := json.Unmarshal(e.Payload, &p); err != nil {
			return err
		}
		data := []byte(p.Data)
		if p.Encoding == "base64" {
			raw, err := base64.StdEncoding.DecodeString(p.Data)
			if err != nil {
				return err
			}
			data = raw
		}
		return l.output(e.Kind, e.TS, data)
	case adapters.AgentEventLagged, adapters.AgentEventError:
		return l.line(e.TS, fmt.Appendf(nil, "[%s: %s]", e.Kind, e.Payload))
	}
	return nil
}

// output goes on after a line that could not be written: what is left must not precede the next line.
func (l *logWriter) output(stream string, at adapters.Time, data []byte) (failed error) {
	rest := append(l.partial[stream], data...)
	for {
		i := bytes.IndexByte(rest, '\n')
		if i < 0 && len(rest) <= maxLine {
			l.partial[stream] = bytes.Clone(rest)
			return failed
		}
		skip := 1
		if i < 0 || i > maxLine {
			i, skip = maxLine, 0
		}
		if err := l.line(at, rest[:i]); failed == nil {
			failed = err
		}
		rest = rest[i+skip:]
	}
}

func (l *logWriter) line(at adapters.Time, text []byte) error {
	if at.IsZero() {
		at = adapters.At(time.Now())
	}
	text = bytes.TrimSuffix(text, []byte("\r"))
	if !utf8.Valid(text) {
		text = bytes.ToValidUTF8(text, []byte("\uFFFD"))
	}
	if l.size+int64(len(text)) > maxLog {
		l.lost += int64(len(text))
		return nil
	}
	n, err := fmt.Fprintf(l.file, "%s %s\n", at, text)
	l.size += int64(n)
	return err
}

// close writes the unfinished lines, and how much was lost.
func (l *logWriter) close() error {
	if l == nil {
		return nil
	}
	var errs []error
	for _, stream := range []string{adapters.AgentEventStdout, adapters.AgentEventStderr} {
		if rest := l.partial[stream]; len(rest) > 0 {
			errs = append(errs, l.line(adapters.Time{}, rest))
		}
	}
	if l.lost > 0 {
		_, err := fmt.Fprintf(l.file, "%s [%d bytes of output were not kept]\n", adapters.At(time.Now()), l.lost)
		errs = append(errs, err)
	}
	return errors.Join(append(errs, l.file.Close())...)
}

// splitLine splits a line of the log into its parts.
func splitLine(line string) (text string, at time.Time) {
	stamp, text, ok := strings.Cut(line, " ")
	at, err := time.Parse(adapters.TimeFormat, stamp)
	if !ok || err != nil {
		return line, time.Time{}
	}
	return text, at
}

// Tail returns the last lines of a task's log, without their times.
func (m *Manager) Tail(id string) ([]string, error) {
	lines, err := tail(m.logPath(id))
	if err != nil {
		return nil, adapters.Unavailable(err, "the log cannot be read")
	}
	return lines, nil
}

// tail returns no lines if there is no log.
func tail(path string) ([]string, error) {
	f, err := safeopen.OpenFile(path, os.O_RDONLY, 0)
	if errors.Is(err, os.ErrNotExist) {
		return []string{}, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, err
	}
	from := max(0, size-tailBytes)
	raw := make([]byte, size-from)
	if _, err := f.ReadAt(raw, from); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	lines := strings.Split(strings.TrimSuffix(string(raw), "\n"), "\n")
	if from > 0 {
		lines = lines[1:] // the first line is incomplete
	}
	lines = lines[max(0, len(lines)-tailLines):]
	out := []string{}
	for _, l := range lines {
		if text, _ := splitLine(l); l != "" {
			out = append(out, text)
		}
	}
	return out, nil
}
