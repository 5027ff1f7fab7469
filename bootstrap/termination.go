package bootstrap

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sort"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/dreamlab-ai/agentinit/internal/safeopen"
)

// MaxTerminationReport is the maximum size of a termination log that the kubelet keeps.
const MaxTerminationReport = 4096

// ProgramEnd is the state of one program when the box ended.
type ProgramEnd struct {
	Name   string `json:"name"`
	State  string `json:"state"`
	Exit   string `json:"exit,omitempty"` // for example "exit 3", "signal KILL", "killed by the kernel: out of memory"
	Reason string `json:"reason,omitempty"`
	// Stderr is the last lines of the program's stderr, the newest last.
	Stderr []string `json:"stderr,omitempty"`
}

// TerminationReport says why the box ended.
type TerminationReport struct {
	// Cause is the first cause as text. Program is the program that it is about.
	Cause string `json:"cause"`
	// Logged is Cause for the log, without the findings of a manifest, because the log contains
	// them already. If it is empty, the log gets Cause.
	Logged   string       `json:"-"`
	Program  string       `json:"program,omitempty"`
	Phase    string       `json:"phase,omitempty"`
	Code     int          `json:"exit_code"`
	At       time.Time    `json:"time"`
	UptimeMS int64        `json:"uptime_ms"`
	Version  string       `json:"version,omitempty"`
	Programs []ProgramEnd `json:"programs,omitempty"` // the program of the cause first
	Omitted  int          `json:"programs_omitted,omitempty"`
}

// Line is the report on one line, for human readers.
func (r TerminationReport) Line() string {
	line := fmt.Sprintf("agentinit: exit %d: %s", r.Code, r.Cause)
	if r.Phase != "" {
		line += " (boot phase " + r.Phase + ")"
	}
	return oneLine(line)
}

// The steps by which Fit shortens a report. A step limits the lines of stderr of the first program,
// which is the important one, the lines of each other program, and the bytes of each text. The cause
// keeps a tenth of the report in any case.
var shortenings = []struct{ first, others, text int }{
	{10, 10, 400}, {10, 5, 300}, {10, 3, 200}, {10, 1, 160}, {10, 0, 160}, {5, 0, 120}, {3, 0, 60},
}

// Fit shortens the report so that Render needs at most limit bytes. limit must be at least 256. Fit
// first removes old lines of stderr, then shortens long texts, then removes programs from the end.
func (r TerminationReport) Fit(limit int) TerminationReport {
	if most := r.Most(limit); len(r.Programs) > most {
		r.Omitted += len(r.Programs) - most
		r.Programs = r.Programs[:most]
	}
	// Each step makes the report shorter than the step before. Use the first step that is enough.
	step := func(i int) TerminationReport {
		s := shortenings[i]
		return r.shortened(s.first, s.others, s.text, limit/10)
	}
	last := len(shortenings) - 1
	enough := sort.Search(last, func(i int) bool { return step(i).size() <= limit })
	short := step(enough)
	if enough < last || short.size() <= limit {
		return short
	}
	all := short.Programs
	with := func(keep int) TerminationReport {
		cut := short
		cut.Programs, cut.Omitted = all[:keep], r.Omitted+len(all)-keep
		return cut
	}
	// Keep as many programs as fit. The size depends only on their number.
	return with(sort.Search(len(all), func(n int) bool { return with(n+1).size() > limit }))
}

// Most is an upper limit for the number of programs that Fit keeps. The caller need not look up the
// output of the others.
func (r TerminationReport) Most(limit int) int {
	// A text can be cut to this length, or to one rune less.
	shortest := shortenings[len(shortenings)-1].text - utf8.UTFMax - len("…")
	least := func(frame, text string) int {
		if !utf8.ValidString(text) {
			return len(frame) // truncate removes bytes from it
		}
		return len(frame) + min(len(text), shortest)
	}
	for i, p := range r.Programs {
		limit -= least(`{"name":""`, p.Name) + least(`,"state":""}`, p.State)
		if p.Exit != "" {
			limit -= least(`,"exit":""`, p.Exit)
		}
		if p.Reason != "" {
			limit -= least(`,"reason":""`, p.Reason)
		}
		if limit < 0 {
			return i
		}
	}
	return len(r.Programs)
}

// Render writes one readable line and then the report as one JSON object, in at most limit bytes.
// limit must be at least 256. The text is valid UTF-8. The JSON object is complete or, if it does
// not fit, left out.
func (r TerminationReport) Render(limit int) []byte {
	r = r.Fit(limit)
	if out := r.bytes(); len(out) <= limit {
		return out
	}
	return []byte(truncate(r.Line(), limit-1) + "\n")
}

func (r TerminationReport) bytes() []byte {
	var b bytes.Buffer
	r.write(&b)
	return b.Bytes()
}

// size is the length of bytes. Fit asks for it about ten times, and needs no copy of the text.
func (r TerminationReport) size() int {
	var n counter
	r.write(&n)
	return int(n)
}

// write cannot fail: strings, numbers and a time can always be encoded.
func (r TerminationReport) write(w io.Writer) {
	_, _ = io.WriteString(w, r.Line()+"\n")
	_ = json.NewEncoder(w).Encode(r)
}

// counter counts the bytes that are written to it.
type counter int

func (c *counter) Write(b []byte) (int, error) {
	*c += counter(len(b))
	return len(b), nil
}

func (r TerminationReport) shortened(first, others, text, cause int) TerminationReport {
	r.Cause, r.Phase, r.Program = truncate(oneLine(r.Cause), max(2*text, cause)), truncate(r.Phase, text), truncate(r.Program, text)
	r.Version = truncate(r.Version, text)
	programs := make([]ProgramEnd, len(r.Programs))
	for i, p := range r.Programs {
		p.Name, p.State = truncate(p.Name, text), truncate(p.State, text)
		p.Exit, p.Reason = truncate(p.Exit, text), truncate(p.Reason, text)
		lines := others
		if i == 0 {
			lines = first
		}
		kept := p.Stderr[max(0, len(p.Stderr)-lines):]
		p.Stderr = nil
		for _, l := range kept {
			p.Stderr = append(p.Stderr, truncate(l, text))
		}
		programs[i] = p
	}
	r.Programs = programs
	return r
}

// oneLine replaces the control characters of s by spaces.
func oneLine(s string) string {
	return strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f {
			return ' '
		}
		return c
	}, s)
}

// truncate shortens s to at most n bytes of valid UTF-8. It marks the cut if there is room for the
// mark.
func truncate(s string, n int) string {
	// Text far behind the cut need not be validated.
	far := len(s) > 4*n+8
	if far {
		s = s[:4*n+8]
	}
	s = strings.ToValidUTF8(s, "�")
	if len(s) <= n && !far {
		return s
	}
	const mark = "…"
	if n <= len(mark) {
		return s[:runeBorder(s, n)]
	}
	return s[:runeBorder(s, n-len(mark))] + mark
}

// runeBorder is the start of a rune of s, or the end of s: the last one at or before n.
func runeBorder(s string, n int) int {
	n = min(n, len(s))
	for n > 0 && n < len(s) && !utf8.RuneStart(s[n]) {
		n--
	}
	return n
}

// WriteTerminationReport writes the result of render to path if that file exists and is writable.
// It never creates the file. written is false if there is no file that it can write to. It does not
// wait for a pipe that has no reader or is full, because this is one of the last actions of PID 1.
// A symbolic link that another user made is an error, because root would overwrite its target.
func WriteTerminationReport(path string, render func() []byte) (written bool, err error) {
	f, err := safeopen.OpenAny(path, os.O_WRONLY)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) || errors.Is(err, syscall.ENXIO) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("cannot write the termination report: %w", err)
	}
	err = f.Truncate(0)
	if errors.Is(err, syscall.EINVAL) { // a FIFO or a device cannot be truncated
		err = nil
	}
	if err = errors.Join(err, writeNow(f, render()), f.Close()); err != nil {
		return false, fmt.Errorf("cannot write the termination report: %w", err)
	}
	return true, nil
}

// writeNow writes without waiting, and fails if not all data could be written. File.Write would
// wait in the runtime's poller until a pipe is writable, even with O_NONBLOCK.
func writeNow(f *os.File, data []byte) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var writeErr error
	err = raw.Write(func(fd uintptr) bool {
		for len(data) > 0 && writeErr == nil {
			var n int
			switch n, writeErr = syscall.Write(int(fd), data); {
			case n > 0:
				data = data[n:]
			case writeErr == syscall.EINTR:
				writeErr = nil
			case writeErr == nil:
				writeErr = io.ErrShortWrite
			}
		}
		return true // end the loop of raw.Write even after EAGAIN
	})
	return errors.Join(err, os.NewSyscallError("write", writeErr))
}
