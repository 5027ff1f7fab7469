// Package audit owns the record of who asked for what: one JSON line for each
// request that changes something, or was refused, each with the hash of the line
// before.
//
// The newest lines are in memory, all of them in a file where there is one. The
// package must never hold up who is recorded: a disk that takes nothing costs the
// file lines, which Check then misses, and costs its callers no time. It decides
// nothing about rights.
package audit

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/dreamlab-ai/agentinit/internal/safeopen"
)

// Bounds of the record.
const (
	keptLines   = 2048     // in memory
	pendingMost = 4096     // lines that wait for a disk that takes nothing
	fileMost    = 8 << 20  // bytes of a file; then it becomes NAME.1, of which there is one
	lineMost    = 64 << 10 // bytes of a line, for readers
)

// Entry is one request. Empty fields are left out.
type Entry struct {
	Seq  uint64    `json:"seq"`
	Time time.Time `json:"time"` // UTC
	Via  string    `json:"via"`  // socket, http, signal
	// Action is what was asked for: stop, apply, signal TERM, POST /v1/agents.
	Action string `json:"action"`
	// Outcome is refused, or of an HTTP request its status; else empty.
	Outcome string `json:"outcome,omitempty"`
	// Principal is who it was by key or token, Remote from where, over HTTP.
	Principal string `json:"principal,omitempty"`
	Remote    string `json:"remote,omitempty"`
	// Peer is the process, on the control socket or of a signal.
	Peer *Peer `json:"peer,omitempty"`
	// Details are the request's own: the programs, the reason.
	Details map[string]any `json:"details,omitempty"`
	// Prev is the hash of the line before, "" for the first one ever.
	Prev string `json:"prev"`
}

// Peer is a process as the kernel told of it.
type Peer struct {
	PID     int    `json:"pid"` // 0: of another pid namespace
	UID     uint32 `json:"uid"`
	Exe     string `json:"exe,omitempty"`
	Program string `json:"program,omitempty"` // the supervised one it belongs to
}

// Log is the record of one box. Its methods may be called from any goroutine.
type Log struct {
	path   string
	report func(error)

	mu      sync.Mutex
	head    string // hash of the newest line
	seq     uint64
	lines   [][]byte // the newest, a ring that begins at seq % keptLines when full
	pending [][]byte // not in the file yet
	lost    bool     // more than pendingMost waited
	writing bool
	idle    *sync.Cond
	failed  bool
}

// Open returns the record that goes on in the file at path; "" is in memory alone. A
// file that cannot be read or written is reported, once until it works again.
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
			// The chain begins anew, and Check will say where it is broken.
			report(fmt.Errorf("the audit record %s ends in the middle: %w", path, err))
			break
		}
		l.seq, l.head = e.Seq, hash
	}
	return l
}

// Append records an entry; it sets Seq, Time and Prev. It waits for no disk.
func (l *Log) Append(e Entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e.Seq, e.Time, e.Prev = l.seq+1, time.Now().UTC(), l.head
	body, err := json.Marshal(e)
	if err != nil { // a detail that JSON has no form for
		e.Details = map[string]any{"error": err.Error()}
		if body, err = json.Marshal(e); err != nil {
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
	if newer := l.seq - min(since, l.seq); newer < uint64(n) {
		return append([][]byte(nil), l.lines[n-int(newer):]...)
	}
	return append([][]byte(nil), l.lines...)
}

// write is the one goroutine that touches the file, while there is something to do.
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
		l.mu.Unlock()
		written, err := appendTo(l.path, batch)
		l.mu.Lock()
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

// Flush waits until what was recorded is in the file, or cannot be written.
func (l *Log) Flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.writing {
		l.idle.Wait()
	}
}

// appendTo appends whole lines; after an error none is cut off.
func appendTo(path string, lines [][]byte) (written int, err error) {
	dir, err := safeopen.MakeDirectory(filepath.Dir(path), 0o755)
	if err != nil {
		return 0, err
	}
	defer dir.Close()
	name := filepath.Base(path)
	f, err := dir.OpenFile(name, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	size := info.Size()
	if size > fileMost {
		if err := dir.Rename(name, name+".1"); err != nil {
			return 0, err
		}
		next, err := dir.OpenFile(name, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
		if err != nil {
			return 0, err
		}
		f.Close() // nothing was written to it
		f, size = next, 0
	}
	for _, line := range lines {
		if _, err := f.Write(append(line[:len(line):len(line)], '\n')); err != nil {
			return written, errors.Join(err, f.Truncate(size))
		}
		size += int64(len(line)) + 1
		written++
	}
	return written, nil
}

const hashMember = `,"hash":"`

// parse checks a line against its own hash.
func parse(line []byte) (Entry, string, error) {
	var e Entry
	i := bytes.LastIndex(line, []byte(hashMember))
	if i < 0 || !bytes.HasSuffix(line, []byte(`"}`)) {
		return e, "", errors.New("the line has no hash")
	}
	body := append(line[:i:i], '}')
	hash := string(line[i+len(hashMember) : len(line)-2])
	if sum := sha256.Sum256(body); hex.EncodeToString(sum[:]) != hash {
		return e, "", errors.New("the line was changed: its hash is another")
	}
	if err := json.Unmarshal(body, &e); err != nil {
		return e, "", fmt.Errorf("the line is not an entry: %w", err)
	}
	return e, hash, nil
}

// Report is what Verify has found.
type Report struct {
	Lines int    `json:"lines"`
	First uint64 `json:"first"` // numbers of the first and the last entry; 0 without any
	Last  uint64 `json:"last"`
	Head  string `json:"head"` // hash of the last line
	// Problem says which line is not as it was written, or is missing; "" is none.
	Problem string `json:"problem,omitempty"`
}

// Verify checks the chain of what it reads. The first line's predecessor is not there
// to be checked. The error is that of reading.
func Verify(readers ...io.Reader) (Report, error) {
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
			if r.First == 0 {
				r.First = e.Seq
			}
			r.Last, r.Head = e.Seq, hash
		}
		if err := lines.Err(); err != nil {
			return r, err
		}
	}
	return r, nil
}

// Check verifies the file against itself and against what agentinit remembers: who can
// write the file can write a whole chain, but not that one.
func (l *Log) Check() (Report, error) {
	l.Flush()
	l.mu.Lock()
	head, seq, waiting, lost := l.head, l.seq, len(l.pending), l.lost
	l.mu.Unlock()
	if l.path == "" {
		return Report{Lines: len(l.Lines(0)), Last: seq, Head: head}, nil
	}
	r, err := verifyFiles(l.path)
	switch {
	case err != nil || r.Problem != "":
	case lost:
		r.Problem = "the disk took no lines for so long that some are only in memory, or lost"
	case waiting == 0 && r.Head != head:
		r.Problem = fmt.Sprintf("the file ends with entry %d, and agentinit has recorded %d: it was cut off, removed or written anew", r.Last, seq)
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
	return Verify(readers...)
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
	from := max(0, info.Size()-lineMost)
	tail, err := io.ReadAll(io.NewSectionReader(f, from, lineMost))
	if err != nil {
		return nil, err
	}
	tail = bytes.TrimRight(tail, "\n")
	if len(tail) == 0 {
		return nil, nil
	}
	return tail[bytes.LastIndexByte(tail, '\n')+1:], nil
}
