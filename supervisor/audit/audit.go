// Package audit keeps the record of who requested what. The record has one JSON line for each
// request that changes something or was refused. Each line has the hash of the line before.
//
// The newest lines are in memory; if there is a file, it has all lines. The package must never
// delay its callers: if the disk takes no data, lines are missing in the file, and Check reports
// that. It decides nothing about rights.
package audit

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/dreamlab-ai/agentinit/internal/safeopen"
)

// The limits of the record.
const (
	keptLines   = 2048           // in memory
	pendingMost = 4096           // lines that wait while the disk takes no data
	fileMost    = 8 << 20        // bytes of a file; then it is renamed to NAME.1, and only one such file is kept
	lineMost    = 64 << 10       // bytes of a line, for readers
	bodyMost    = lineMost - 128 // bytes of a line without its hash
)

// Entry is one request. Empty fields are left out.
type Entry struct {
	Seq  uint64    `json:"seq"`
	Time time.Time `json:"time"` // UTC
	Via  string    `json:"via"`  // socket, http, signal
	// Action is what was requested: stop, apply, signal TERM, POST /v1/agents.
	Action string `json:"action"`
	// Outcome is refused, or the status of an HTTP request; otherwise it is empty.
	Outcome string `json:"outcome,omitempty"`
	// Over HTTP, Principal is the holder of the key or token, and Remote the address.
	Principal string `json:"principal,omitempty"`
	Remote    string `json:"remote,omitempty"`
	// Peer is the process that used the control socket or sent the signal.
	Peer *Peer `json:"peer,omitempty"`
	// Details are fields of the request, such as the programs and the reason.
	Details map[string]any `json:"details,omitempty"`
	// Prev is the hash of the line before; "" for the first line.
	Prev string `json:"prev"`

	encoded json.RawMessage // Details as JSON, if that was made already
}

// MarshalJSON writes what encoding/json would write without it. To look at the type takes that package half a
// millisecond of processor time, at the first entry of a box, and that is often the record of its TERM.
func (e Entry) MarshalJSON() ([]byte, error) {
	var details any = e.Details
	if e.encoded != nil {
		details = e.encoded
	}
	out := []byte{'{'}
	for _, m := range []struct {
		name    string
		value   any
		present bool
	}{
		{"seq", e.Seq, true},
		{"time", e.Time, true},
		{"via", e.Via, true},
		{"action", e.Action, true},
		{"outcome", e.Outcome, e.Outcome != ""},
		{"principal", e.Principal, e.Principal != ""},
		{"remote", e.Remote, e.Remote != ""},
		{"peer", e.Peer, e.Peer != nil},
		{"details", details, len(e.Details) > 0},
		{"prev", e.Prev, true},
	} {
		if !m.present {
			continue
		}
		value, err := json.Marshal(m.value)
		if err != nil {
			return nil, err
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(append(append(append(out, '"'), m.name...), `":`...), value...)
	}
	return append(out, '}'), nil
}

// Peer is a process as the kernel reported it.
type Peer struct {
	PID     int    `json:"pid"` // 0: a process of another pid namespace
	UID     uint32 `json:"uid"`
	Exe     string `json:"exe,omitempty"`
	Program string `json:"program,omitempty"` // the supervised program that it belongs to
}

// Log is the record of one box. Its methods may be called from any goroutine.
type Log struct {
	path   string
	report func(error)
	mask   func(string) string // nil: no text is masked

	mu      sync.Mutex
	head    string // hash of the newest line
	seq     uint64
	lines   [][]byte // the newest lines; a ring that begins at seq % keptLines when full
	pending [][]byte // lines that are not in the file yet
	lost    bool     // more than pendingMost lines waited, and some were dropped
	writing bool
	idle    *sync.Cond
	failed  bool
	// The next three say what agentinit has left in the files. A program that may write the files can have
	// changed them since.
	first uint64 // the oldest entry of both files; 0 if that is not known
	start uint64 // the oldest entry of the newer file
	size  int64  // bytes of the newer file
}

// Open returns the record that continues the file at path; "" keeps it in memory only. If the file
// cannot be read or written, report is called once until it works again.
func Open(path string, report func(error)) *Log {
	l := &Log{path: path, report: report}
	l.idle = sync.NewCond(&l.mu)
	if path == "" {
		return l
	}
	last, err := lastLine(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		report(fmt.Errorf("cannot read the audit record %s: %w", path, err))
	case last != nil:
		e, hash, err := parse(last)
		if err != nil {
			// The chain begins again here, and Check will report the break.
			report(fmt.Errorf("the audit record %s ends in the middle: %w", path, err))
			break
		}
		l.seq, l.head = e.Seq, hash
	}
	l.first, l.start = 1, 1
	if n, size := firstEntry(path); size > 0 {
		l.first, l.start, l.size = n, n, size
	}
	if n, size := firstEntry(path + ".1"); size > 0 {
		l.first = n
	}
	return l
}

// SetMask passes the action and the details of every entry through mask: what a caller asks for, such as a
// command, may hold a secret. It must be called before the first Append.
func (l *Log) SetMask(mask func(string) string) { l.mask = mask }

// masked returns the entry without secrets. It does not change the given details.
func (l *Log) masked(e Entry) Entry {
	if l.mask == nil {
		return e
	}
	e.Action = l.mask(e.Action)
	if len(e.Details) == 0 {
		return e
	}
	data, err := json.Marshal(e.Details)
	if err != nil {
		return e
	}
	text := l.mask(string(data))
	if text == string(data) {
		e.encoded = data
		return e
	}
	e.Details = nil
	if err := json.Unmarshal([]byte(text), &e.Details); err != nil { // a part of an escape is masked too
		e.Details = map[string]any{"masked": text}
	}
	return e
}

// Append records an entry; it sets Seq, Time and Prev. It does not wait for a disk.
func (l *Log) Append(e Entry) {
	e = l.masked(e)
	l.mu.Lock()
	defer l.mu.Unlock()
	e.Seq, e.Time, e.Prev = l.seq+1, time.Now().UTC(), l.head
	body, err := e.MarshalJSON()
	if err == nil && len(body) > bodyMost {
		err = fmt.Errorf("the details are too long: the entry has %d bytes", len(body))
	}
	if err != nil { // also if JSON cannot encode one of the details
		e.Details, e.encoded = map[string]any{"error": err.Error()}, nil
		if body, err = e.MarshalJSON(); err != nil {
			return
		}
	}
	sum := sha256.Sum256(body)
	l.seq, l.head = e.Seq, hex.EncodeToString(sum[:])
	line := append(append(append(body[:len(body)-1:len(body)-1], hashMember...), l.head...), `"}`...)
	if len(l.lines) < keptLines {
		l.lines = append(l.lines, line)
	} else {
		copy(l.lines, l.lines[1:])
		l.lines[keptLines-1] = line
	}
	if l.path == "" {
		return
	}
	if len(l.pending) >= pendingMost {
		l.pending, l.lost = l.pending[1:], true
	}
	l.pending = append(l.pending, line)
	if !l.writing {
		l.writing = true
		go l.write()
	}
}

// Lines returns the lines in memory after seq, oldest first.
func (l *Log) Lines(since uint64) [][]byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := len(l.lines)
	newer := min(l.seq-min(since, l.seq), uint64(n))
	return slices.Clone(l.lines[n-int(newer):])
}

// write runs in the only goroutine that uses the file, while there are lines to write.
func (l *Log) write() {
	for {
		l.mu.Lock()
		batch := l.pending
		l.pending = nil
		if len(batch) == 0 {
			l.writing = false
			l.idle.Broadcast()
			l.mu.Unlock()
			return
		}
		full := l.size > fileMost
		l.mu.Unlock()
		written, renamed, err := appendTo(l.path, batch, full)
		l.mu.Lock()
		if renamed {
			e, _, _ := parse(batch[0]) // we made the line
			l.first, l.start, l.size = l.start, e.Seq, 0
		}
		for _, line := range batch[:written] {
			l.size += int64(len(line)) + 1
		}
		if err != nil {
			// The next entry tries again.
			l.pending = append(batch[written:], l.pending...)
			if n := len(l.pending) - pendingMost; n > 0 {
				l.pending, l.lost = l.pending[n:], true
			}
			l.writing = false
			l.idle.Broadcast()
		}
		tell := err != nil && !l.failed
		l.failed = err != nil
		l.mu.Unlock()
		if tell {
			l.report(fmt.Errorf("cannot write the audit record: %w", err))
		}
		if err != nil {
			return
		}
	}
}

// Flush waits until all recorded lines are in the file, or cannot be written.
func (l *Log) Flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waitIdle()
}

// waitIdle waits until nothing is being written. The caller holds mu.
func (l *Log) waitIdle() {
	for l.writing {
		l.idle.Wait()
	}
}

// appendTo appends whole lines; even after an error the file holds no part of a line. If the file is
// full, it is renamed first.
func appendTo(path string, lines [][]byte, full bool) (written int, renamed bool, err error) {
	dir, err := safeopen.MakeDirectory(filepath.Dir(path), 0o755)
	if err != nil {
		return 0, false, err
	}
	defer dir.Close()
	name := filepath.Base(path)
	f, err := dir.OpenFile(name, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return 0, false, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return 0, false, err
	}
	size := info.Size()
	if full {
		if err := dir.Rename(name, name+".1"); err != nil {
			return 0, false, err
		}
		renamed = true
		next, err := dir.OpenFile(name, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
		if err != nil {
			return 0, true, err
		}
		f.Close() // no data was written to it
		f, size = next, 0
	}
	for _, line := range lines {
		if _, err := f.Write(append(line[:len(line):len(line)], '\n')); err != nil {
			return written, renamed, errors.Join(err, f.Truncate(size))
		}
		size += int64(len(line)) + 1
		written++
	}
	return written, renamed, nil
}

const hashMember = `,"hash":"`

// parse checks a line against its own hash.
func parse(line []byte) (Entry, string, error) {
	var e Entry
	text, closed := bytes.CutSuffix(line, []byte(`"}`))
	i := bytes.LastIndex(text, []byte(hashMember))
	if i < 0 || !closed {
		return e, "", errors.New("the line has no hash")
	}
	hash := string(text[i+len(hashMember):])
	body := append(line[:i:i], '}')
	if sum := sha256.Sum256(body); hex.EncodeToString(sum[:]) != hash {
		return e, "", errors.New("the line was changed: its hash differs")
	}
	if err := json.Unmarshal(body, &e); err != nil {
		return e, "", fmt.Errorf("the line is not an entry: %w", err)
	}
	return e, hash, nil
}

// Report is the result of Log.Check.
type Report struct {
	Lines int    `json:"lines"`
	First uint64 `json:"first"` // numbers of the first and the last entry; 0 if there are none
	Last  uint64 `json:"last"`
	Head  string `json:"head"` // hash of the last line
	// Problem says which line was changed or is missing; "" means none.
	Problem string `json:"problem,omitempty"`
}

// verify checks the chain of the lines that it reads. The predecessor of the first line is missing,
// so that link is not checked. The error says that reading failed.
func verify(readers ...io.Reader) (Report, error) {
	var r Report
	for _, one := range readers {
		lines := bufio.NewScanner(one)
		lines.Buffer(nil, lineMost)
		for lines.Scan() {
			r.Lines++
			e, hash, err := parse(lines.Bytes())
			switch {
			case err != nil:
				r.Problem = fmt.Sprintf("line %d: %v", r.Lines, err)
			case r.Head != "" && (e.Prev != r.Head || e.Seq != r.Last+1):
				r.Problem = fmt.Sprintf("line %d: entry %d does not follow entry %d: lines were removed, added or moved", r.Lines, e.Seq, r.Last)
			}
			if r.Problem != "" {
				return r, nil
			}
			r.First = cmp.Or(r.First, e.Seq)
			r.Last, r.Head = e.Seq, hash
		}
		if err := lines.Err(); err != nil {
			return r, err
		}
	}
	return r, nil
}

// Check verifies the file itself, and compares it with what agentinit has in memory. A process that
// can write the file can write a whole new chain, but it cannot change the memory.
func (l *Log) Check() (Report, error) {
	l.mu.Lock()
	l.waitIdle()
	if len(l.pending) > 0 { // the last write failed; by now the disk may take the lines
		l.writing = true
		l.mu.Unlock()
		l.write()
		l.mu.Lock()
		l.waitIdle()
	}
	l.writing = l.path != "" // so that no entry is written to the files while they are read
	head, seq, first, lost, waiting := l.head, l.seq, l.first, l.lost, len(l.pending) > 0
	if waiting {
		e, _, _ := parse(l.pending[0]) // we made the line
		head = e.Prev
	}
	l.mu.Unlock()
	if l.path == "" {
		return Report{Lines: len(l.Lines(0)), Last: seq, Head: head}, nil
	}
	r, err := verifyFiles(l.path)
	go l.write() // what has arrived meanwhile
	switch {
	case err != nil || r.Problem != "":
	case lost:
		r.Problem = "the disk took no lines for so long that some are only in memory, or lost"
	case r.Head != head:
		r.Problem = fmt.Sprintf("the file ends with entry %d, and agentinit has recorded %d: it was truncated, removed or rewritten", r.Last, seq)
	case waiting:
		r.Problem = fmt.Sprintf("the disk does not take entries: the file ends with entry %d, and agentinit has recorded %d", r.Last, seq)
	case first > 0 && r.First > first:
		r.Problem = fmt.Sprintf("the file begins with entry %d, and agentinit has recorded all from %d: it was truncated, removed or rewritten", r.First, first)
	}
	return r, err
}

func verifyFiles(path string) (Report, error) {
	var readers []io.Reader
	for _, name := range []string{path + ".1", path} {
		f, err := safeopen.OpenFile(name, os.O_RDONLY, 0)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return Report{}, err
		}
		defer f.Close()
		readers = append(readers, f)
	}
	return verify(readers...)
}

// firstEntry returns the number of the first entry of a file, or 0 if it is not an entry, and the
// size of the file. If the file cannot be read, both are 0.
func firstEntry(path string) (uint64, int64) {
	f, err := safeopen.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		return 0, 0
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return 0, 0
	}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, lineMost)
	if !lines.Scan() {
		return 0, info.Size()
	}
	e, _, err := parse(lines.Bytes())
	if err != nil {
		return 0, info.Size()
	}
	return e.Seq, info.Size()
}

// lastLine is nil for an empty file.
func lastLine(path string) ([]byte, error) {
	f, err := safeopen.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	var tail []byte
	// Nearly all lines are short, and the boot waits for this.
	for _, most := range []int64{4 << 10, lineMost} {
		tail = make([]byte, min(info.Size(), most))
		if _, err := f.ReadAt(tail, info.Size()-int64(len(tail))); err != nil {
			return nil, err
		}
		tail = bytes.TrimRight(tail, "\n")
		if at := bytes.LastIndexByte(tail, '\n'); at >= 0 {
			return tail[at+1:], nil
		}
	}
	if len(tail) == 0 {
		return nil, nil
	}
	return tail, nil
}
