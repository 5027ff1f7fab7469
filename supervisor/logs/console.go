package logs

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/dreamlab-ai/agentinit/internal/plural"
)

// Format is how lines look on the console.
type Format string

// The formats. json and console write all lines to stdout; raw keeps stdout and stderr apart.
const (
	FormatAuto    Format = "auto" // console on a terminal, else json
	FormatJSON    Format = "json"
	FormatConsole Format = "console"
	FormatRaw     Format = "raw"
)

// sink is where lines go in addition to the ring.
type sink interface {
	// admit tells whether s may deliver a batch now. If not, s is resumed later.
	admit(s *stream) bool
	// encode appends the lines of a block to b.out.
	encode(b *batch, s *stream, blk block) []byte
	// put delivers a batch of encoded lines and reports whether it was taken. raw is how many bytes
	// the program wrote for the batch. Bytes that are lost later are counted.
	put(s *stream, batch []byte, raw int) bool
}

// console is the sink of the inherited stdout and stderr.
type console struct {
	format Format
	color  bool
	out    *queue
	err    *queue // the same as out, except for raw with two different files
	width  atomic.Int32
}

// consoleHold is how long a full console may hold a program: a reader that takes a megabyte in that
// time is fast enough.
const consoleHold = 250 * time.Millisecond

func newConsole(cfg Config) *console {
	terminal := term.IsTerminal(fileno(cfg.Stdout))
	c := &console{format: cfg.Format, color: cfg.Color && terminal}
	if c.format == FormatAuto || c.format == "" {
		c.format = FormatJSON
		if terminal {
			c.format = FormatConsole
		}
	}
	c.out = c.queue(cfg.Stdout, cfg.OnTrouble)
	c.err = c.out
	if c.format == FormatRaw && cfg.Stderr != nil && !sameFile(cfg.Stdout, cfg.Stderr) {
		c.err = c.queue(cfg.Stderr, cfg.OnTrouble)
	}
	return c
}

func (c *console) queue(f *os.File, trouble func(string, error)) *queue {
	w := &fdWriter{file: f, trouble: trouble, mark: c.mark}
	return &queue{limit: queueLimit, hold: consoleHold, write: w.write, mark: func(dropped uint64) []byte {
		return c.mark(dropped, "the reader of this stream is too slow")
	}}
}

// sameFile tells whether two descriptors lead to the same file, pipe or terminal. Then one queue
// must write to both, or their batches would mix.
func sameFile(a, b *os.File) bool {
	var sa, sb unix.Stat_t
	if a == nil || b == nil || unix.Fstat(fileno(a), &sa) != nil || unix.Fstat(fileno(b), &sb) != nil {
		return a == b
	}
	return sa.Dev == sb.Dev && sa.Ino == sb.Ino
}

// fileno reads a descriptor's number without File.Fd. File.Fd would make an inherited non-blocking
// file blocking for every process that shares it.
func fileno(f *os.File) (fd int) {
	if f == nil {
		return -1
	}
	raw, err := f.SyscallConn()
	if err != nil {
		return -1
	}
	if err := raw.Control(func(p uintptr) { fd = int(p) }); err != nil {
		return -1
	}
	return fd
}

func (c *console) to(kind Stream) *queue {
	if kind == Stderr {
		return c.err
	}
	return c.out
}

func (c *console) admit(s *stream) bool { return c.to(s.kind).admit(s) }
func (c *console) put(s *stream, out []byte, raw int) bool {
	return c.to(s.kind).put(s, out, raw)
}

func (c *console) encode(b *batch, s *stream, blk block) []byte {
	blk.eachLine(func(ln rawLine) bool {
		switch c.format {
		case FormatRaw:
			b.out = append(append(b.out, ln.text...), '\n')
		case FormatConsole:
			b.out = c.appendConsole(b, s.program.name, s.kind, ln.display())
		default:
			b.out = appendJSON(b, s.program.name, s.kind, s.pid, ln.display(), ln.cut)
		}
		return true
	})
	return b.out
}

// mark is the line that reports lost bytes.
func (c *console) mark(dropped uint64, why string) []byte {
	msg := plural.Of(dropped, "byte") + " of output dropped: " + why
	b := &batch{now: time.Now()}
	switch c.format {
	case FormatRaw:
		return []byte("agentinit: " + msg + "\n")
	case FormatConsole:
		return c.appendConsole(b, selfName, Stderr, []byte(msg))
	}
	return fmt.Appendf(nil, `{"time":"%s","level":"warn","dropped_bytes":%d,"message":"%s"}`+"\n",
		b.timestamp(time.RFC3339Nano, true), dropped, msg)
}

// fdWriter writes to an inherited descriptor.
type fdWriter struct {
	file    *os.File
	trouble func(string, error)
	mark    func(lost uint64, why string) []byte
	failing bool
	lost    uint64 // bytes not written since it began to fail
	midLine bool   // the last byte that was written does not end a line
}

// write is called by the queue. Bytes that a failing descriptor does not take are lost, because the
// descriptor may never work again.
func (w *fdWriter) write(b []byte) (lost, kept int) {
	if len(b) == 0 || w.file == nil {
		return 0, 0
	}
	rest, err := w.deliver(b)
	w.lost += uint64(len(rest))
	if err != nil && !w.failing {
		w.trouble("", fmt.Errorf("cannot write to %s: %w", w.file.Name(), err))
	} else if err == nil && w.failing {
		w.trouble("", nil)
	}
	w.failing = err != nil
	return len(rest), 0
}

// deliver first reports what was lost before, then writes b.
func (w *fdWriter) deliver(b []byte) (rest []byte, err error) {
	if w.lost > 0 {
		mark := w.mark(w.lost, "writing to this stream failed")
		if w.midLine {
			mark = append([]byte{'\n'}, mark...)
		}
		if _, err := w.writeAll(mark); err != nil {
			return b, err
		}
		w.lost = 0
	}
	return w.writeAll(b)
}

// writeAll does not use File.Write: for descriptors 1 and 2, File.Write turns EPIPE into a SIGPIPE
// that kills the process. writeAll does not change the descriptor's blocking mode, because other
// processes share it.
func (w *fdWriter) writeAll(b []byte) (rest []byte, err error) {
	raw, err := w.file.SyscallConn()
	for err == nil && len(b) > 0 {
		var n int
		n, err = writeSome(raw, b)
		if n > 0 {
			w.midLine = b[n-1] != '\n'
		}
		b = b[n:]
	}
	return b, err
}

func writeSome(raw syscall.RawConn, b []byte) (n int, err error) {
	ctlErr := raw.Control(func(fd uintptr) {
		for {
			n, err = unix.Write(int(fd), b)
			switch err {
			case unix.EINTR:
				continue
			case unix.EAGAIN:
				_, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, -1)
				if err == nil || err == unix.EINTR {
					continue
				}
			}
			return
		}
	})
	if ctlErr != nil {
		return 0, ctlErr
	}
	return max(n, 0), err
}

const selfName = "agentinit"

// Writer takes agentinit's own log lines, one or more whole lines in each Write, and puts them
// among the programs' lines. Write never blocks and never fails. Lines that a stuck console cannot
// take are dropped, and a later line gives their number of bytes. The console format turns a JSON
// line with a "message" into readable text.
func (p *Plane) Writer() io.Writer { return ownWriter{p.console, &p.secrets} }

type ownWriter struct {
	c       *console
	secrets *atomic.Pointer[redactor]
}

func (w ownWriter) Write(b []byte) (int, error) {
	n := len(b)
	if secrets := w.secrets.Load(); secrets != nil {
		b = bytes.Clone(b) // b belongs to the caller
		secrets.mask(b)
	}
	for line := range bytes.Lines(b) {
		text := bytes.TrimRight(line, "\r\n")
		switch {
		case len(text) == 0:
			continue
		case w.c.format == FormatConsole:
			line = w.c.appendConsole(&batch{now: time.Now()}, selfName, Stdout, readable(text))
		case len(line) != len(text)+1: // it does not end with one newline alone
			line = append(bytes.Clone(text), '\n')
		}
		w.c.out.put(nil, line, 0)
	}
	return n, nil
}

// readable turns a structured log line into "LEVEL message key=value …".
func readable(line []byte) []byte {
	var fields map[string]json.RawMessage
	if json.Unmarshal(line, &fields) != nil {
		return line
	}
	msg, ok := unquoted(fields["message"])
	if !ok {
		return line
	}
	level, _ := unquoted(fields["level"])
	out := fmt.Appendf(nil, "%-5s %s", level, msg)
	keys := make([]string, 0, len(fields))
	for k := range fields {
		if k != "message" && k != "level" && k != "time" {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	for _, k := range keys {
		text, ok := unquoted(fields[k])
		if !ok {
			text = string(fields[k]) // numbers, lists and tables stay as in JSON
		}
		out = fmt.Appendf(out, " %s=%s", k, text)
	}
	return out
}

// unquoted is the text of a JSON string; ok is false for other values.
func unquoted(value json.RawMessage) (text string, ok bool) {
	if len(value) == 0 || value[0] != '"' {
		return "", false
	}
	err := json.Unmarshal(value, &text)
	return text, err == nil
}
