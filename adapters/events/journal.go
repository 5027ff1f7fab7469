package events

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/internal/safeopen"
)

const (
	maxLine    = 1 << 20   // bytes; a payload is at most 64 KiB
	indexEvery = 256 << 10 // bytes of a segment between two entries of the index
	syncWithin = time.Second
	// maxSegments is the most segments of a journal. Programs can put files into its directory.
	maxSegments = 100_000
	dayFormat   = "2006-01-02"
	suffix      = ".jsonl"
)

// journal is a directory of numbered events: one segment for each UTC day, or several for a large
// day. Each line is appended with one write, so a crash can tear only the last line. A torn line is
// ended, skipped and counted. All methods may be called from any goroutine.
type journal struct {
	dir    string
	always bool  // fsync before append returns
	split  int64 // bytes after which a new segment begins

	mu       sync.Mutex
	segments []*segment // oldest first; the last one is written to
	file     *os.File   // of the last segment, nil before the first append
	seq      uint64     // of the newest event
	torn     uint64     // number of skipped lines
	failed   error      // of the last append or sync, nil if it succeeded
	dirty    bool       // there are writes since the last sync
	timer    *time.Timer
	closed   bool

	syncMu sync.Mutex // held during fsync; lock it before mu
}

// segment is one file. The first size bytes of it are whole lines.
type segment struct {
	day   string
	n     int // 0 for the first segment of its day
	first uint64
	size  int64
	index []mark // offsets in it, in order
}

// mark says that the line of event seq begins at offset.
type mark struct {
	seq    uint64
	offset int64
}

func (s *segment) name() string {
	if s.n == 0 {
		return s.day + suffix
	}
	return fmt.Sprintf("%s.%03d%s", s.day, s.n, suffix)
}

// parseName is the inverse of segment.name.
func parseName(name string) (*segment, bool) {
	base, ok := strings.CutSuffix(name, suffix)
	if !ok {
		return nil, false
	}
	day, number, split := strings.Cut(base, ".")
	if _, err := time.Parse(dayFormat, day); err != nil {
		return nil, false
	}
	s := &segment{day: day}
	if split {
		n, err := strconv.ParseUint(number, 10, 31)
		if err != nil || n == 0 {
			return nil, false
		}
		s.n = int(n)
	}
	return s, true
}

// openJournal reads what exists: the newest number, the first numbers of the segments, and a torn
// tail, which it ends. each, if not nil, gets every event in the segments of the last two days.
func openJournal(ctx context.Context, dir string, always bool, split int64, each func(adapters.Event)) (*journal, error) {
	made, err := safeopen.MakeDirectory(dir, 0o750)
	if err != nil {
		return nil, adapters.Unavailable(err, "cannot make the directory")
	}
	defer made.Close()
	j := &journal{dir: dir, always: always, split: split}
	names, err := made.Names(func(name string) bool { _, ok := parseName(name); return ok }, maxSegments)
	if err != nil {
		return nil, adapters.Unavailable(err, "cannot read the directory")
	}
	for _, name := range names {
		e, err := made.Stat(name)
		if s, ok := parseName(name); ok && err == nil && e.Regular {
			j.segments = append(j.segments, s)
		}
	}
	slices.SortFunc(j.segments, func(a, b *segment) int {
		return cmp.Or(cmp.Compare(a.day, b.day), a.n-b.n)
	})
	if err := j.recover(ctx, each); err != nil {
		return nil, err
	}
	if err := j.reopen(); err != nil {
		return nil, adapters.Unavailable(err, "cannot open the journal for writing")
	}
	return j, nil
}

// recover finds sizes, first numbers and the newest number.
func (j *journal) recover(ctx context.Context, each func(adapters.Event)) error {
	recent := time.Now().UTC().AddDate(0, 0, -1).Format(dayFormat)
	var kept []*segment
	var unread *segment // the newest with events, when only its first was read
	for i, s := range j.segments {
		if err := ctx.Err(); err != nil {
			return adapters.AsError(err)
		}
		if err := j.endTornLine(s); err != nil {
			return err
		}
		last := i == len(j.segments)-1
		firstOnly := !last && s.day < recent
		if err := j.scanSegment(ctx, s, firstOnly, each); err != nil {
			return err
		}
		if s.first != 0 {
			unread = nil
			if firstOnly {
				unread = s
			}
		}
		if s.first == 0 && !last {
			continue // no line of it can be read: leave the file and ignore it
		}
		kept = append(kept, s)
	}
	j.segments = kept
	if unread != nil {
		return j.scanSegment(ctx, unread, false, nil)
	}
	return nil
}

// scanSegment finds the first number of s. Unless firstOnly is set, it also reads the rest.
func (j *journal) scanSegment(ctx context.Context, s *segment, firstOnly bool, each func(adapters.Event)) error {
	f, err := safeopen.OpenFile(filepath.Join(j.dir, s.name()), os.O_RDONLY, 0)
	if err != nil {
		return adapters.Unavailable(err, "cannot read the journal")
	}
	defer f.Close()
	lines := newLines(ctx, io.LimitReader(f, s.size))
	for lines.next() {
		if err := ctx.Err(); err != nil {
			return adapters.AsError(err)
		}
		e, err := parseEvent(lines.bytes)
		if err != nil {
			j.torn++
			continue
		}
		s.first = cmp.Or(s.first, e.Seq)
		j.seq = max(j.seq, e.Seq)
		if firstOnly {
			return nil
		}
		s.mark(e.Seq, lines.offset)
		if each != nil {
			each(e)
		}
	}
	if lines.err != nil {
		return adapters.Unavailable(lines.err, "cannot read the journal")
	}
	return nil
}

// endTornLine makes sure that a segment ends with a line end, so that the next
// line does not become part of a torn one, and learns its size.
func (j *journal) endTornLine(s *segment) error {
	f, err := safeopen.OpenFile(filepath.Join(j.dir, s.name()), os.O_RDWR|os.O_APPEND, 0)
	if err != nil {
		return adapters.Unavailable(err, "cannot open the journal")
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return adapters.Unavailable(err, "cannot read the journal")
	}
	s.size = info.Size()
	if s.size == 0 {
		return nil
	}
	var last [1]byte
	if _, err := f.ReadAt(last[:], s.size-1); err != nil {
		return adapters.Unavailable(err, "cannot read the journal")
	}
	if last[0] == '\n' {
		return nil
	}
	if _, err := f.Write([]byte("\n")); err != nil {
		return adapters.Unavailable(err, "cannot end a torn line")
	}
	s.size++
	return nil
}

func (s *segment) mark(seq uint64, offset int64) {
	if n := len(s.index); n == 0 || offset-s.index[n-1].offset >= indexEvery {
		s.index = append(s.index, mark{seq, offset})
	}
}

// reopen opens the last segment for appending. The caller holds mu, or no other goroutine uses the
// journal yet.
func (j *journal) reopen() error {
	if len(j.segments) == 0 {
		// If the directory is not writable, fail now and not at the first event.
		return j.roll(time.Now().UTC().Format(dayFormat))
	}
	s := j.segments[len(j.segments)-1]
	f, err := safeopen.OpenFile(filepath.Join(j.dir, s.name()), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o640)
	if err != nil {
		return err
	}
	j.file = f
	return nil
}

// roll begins a new segment. The caller holds mu. After an error it can be called again.
func (j *journal) roll(day string) error {
	if j.file != nil {
		// The old segment must be on disk before its file is closed here for good.
		if err := j.file.Sync(); err != nil {
			return err
		}
	}
	s := &segment{day: day}
	if n := len(j.segments); n > 0 && j.segments[n-1].day == day {
		s.n = j.segments[n-1].n + 1
	}
	f, err := j.create(s)
	if err != nil {
		return err
	}
	if err := safeopen.SyncDirectory(j.dir); err != nil {
		return errors.Join(err, f.Close(), os.Remove(filepath.Join(j.dir, s.name())))
	}
	if j.file != nil {
		_ = j.file.Close() // all of it is on disk
	}
	j.file = f
	j.segments = append(j.segments, s)
	return nil
}

// create makes the file of a new segment. A program may have put a file in its place: then the segment
// gets the next number that is free.
func (j *journal) create(s *segment) (*os.File, error) {
	for {
		f, err := safeopen.OpenFile(filepath.Join(j.dir, s.name()), os.O_WRONLY|os.O_APPEND|os.O_CREATE|os.O_EXCL, 0o640)
		if !errors.Is(err, fs.ErrExist) || s.n >= maxSegments {
			return f, err
		}
		s.n++
	}
}

// append numbers e, writes its line and passes it to live, under the lock that orders all events.
// live gets the event even if the write failed; the error tells the caller. The number is used in
// both cases.
func (j *journal) append(e adapters.Event, live func(adapters.Event)) (adapters.Event, error) {
	j.mu.Lock()
	if j.closed {
		j.mu.Unlock()
		return e, adapters.Closed(adapters.SlotEvents)
	}
	j.seq++
	e.Seq, e.TS = j.seq, adapters.At(time.Now())
	err := j.write(e)
	j.failed = err
	if live != nil {
		live(e)
	}
	j.mu.Unlock()
	if err != nil {
		return e, adapters.Unavailable(err, "cannot append the event")
	}
	return e, nil
}

// settle makes the appended events as durable as promised. It is separate from append, so that many
// dispatches share one fsync.
func (j *journal) settle() error {
	if !j.always {
		return nil
	}
	if err := j.sync(); err != nil {
		return adapters.Unavailable(err, "cannot bring the event to disk")
	}
	return nil
}

func (j *journal) write(e adapters.Event) error {
	line, err := eventLine(e)
	if err != nil {
		return err
	}
	s := j.segments[len(j.segments)-1]
	day := max(e.TS.Format(dayFormat), s.day) // if the clock was set back, the day does not go back
	if day != s.day || s.size > 0 && s.size+int64(len(line)) > j.split {
		if err := j.roll(day); err != nil {
			return err
		}
		s = j.segments[len(j.segments)-1]
	}
	if n, err := j.file.Write(line); err != nil {
		return errors.Join(err, j.unwrite(s, n))
	}
	s.first = cmp.Or(s.first, e.Seq)
	s.mark(e.Seq, s.size)
	s.size += int64(len(line))
	if !j.dirty {
		j.syncSoon()
	}
	j.dirty = true
	return nil
}

// syncSoon has the events synced in the background after syncWithin, unless each append does that itself. The
// caller holds mu.
func (j *journal) syncSoon() {
	if !j.always && !j.closed {
		j.timer = time.AfterFunc(syncWithin, j.background)
	}
}

// unwrite removes the part of a line that was written before the disk was full. If even that fails,
// the next write ends the part like any torn line.
func (j *journal) unwrite(s *segment, n int) error {
	if n == 0 {
		return nil
	}
	if err := j.file.Truncate(s.size); err == nil {
		return nil
	}
	if err := j.roll(s.day); err != nil {
		return fmt.Errorf("cannot take back half a line: %w", err)
	}
	return nil
}

func eventLine(e adapters.Event) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b) // ends the line
	enc.SetEscapeHTML(false)
	if err := enc.Encode(e); err != nil {
		return nil, err
	}
	if b.Len() > maxLine {
		return nil, adapters.TooLarge("event", maxLine, int64(b.Len()))
	}
	return b.Bytes(), nil
}

// maxSeq is the largest number of an event that is read. With the largest uint64, which a program can
// write into the file, the numbers would begin at 0 again.
const maxSeq = 1 << 62

func parseEvent(line []byte) (adapters.Event, error) {
	var e adapters.Event
	if err := json.Unmarshal(line, &e); err != nil {
		return e, err
	}
	if e.Seq == 0 || e.Seq > maxSeq {
		return e, errors.New("not an event")
	}
	return e, adapters.CheckKind(e.Kind)
}

func (j *journal) background() {
	// An error is kept in failed, where Health finds it.
	_ = j.sync()
}

// sync writes all events appended before the call to disk. Concurrent calls share one fsync if
// possible.
func (j *journal) sync() error {
	j.syncMu.Lock()
	defer j.syncMu.Unlock()
	j.mu.Lock()
	f, dirty := j.file, j.dirty
	j.dirty = false
	j.mu.Unlock()
	if !dirty || f == nil {
		return nil
	}
	err := f.Sync()
	if errors.Is(err, os.ErrClosed) {
		return nil // roll synced it
	}
	if err != nil {
		j.mu.Lock()
		j.failed = err
		j.dirty = true
		j.syncSoon() // the next append would not
		j.mu.Unlock()
	}
	return err
}

// status returns the newest number, the number of skipped lines and the last failure.
func (j *journal) status() (seq, torn uint64, failed error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.seq, j.torn, j.failed
}

// probe checks whether the directory is writable again. If so, it clears the last failure.
func (j *journal) probe() error {
	f, err := safeopen.OpenFile(filepath.Join(j.dir, ".probe-"+rand.Text()), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, werr := f.Write(make([]byte, 2*adapters.MaxEventPayload)) // room for any line
	err = errors.Join(werr, f.Sync(), f.Close(), os.Remove(f.Name()))
	j.mu.Lock()
	defer j.mu.Unlock()
	if err == nil {
		j.failed = nil
	}
	return err
}

// size is the bytes of all segments.
func (j *journal) size() (total int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.sizeLocked()
}

// sizeLocked is size for a caller that holds mu.
func (j *journal) sizeLocked() (total int64) {
	for _, s := range j.segments {
		total += s.size
	}
	return total
}

// drop removes the oldest segments as long as unwanted returns true. The newest segment stays,
// because it contains the last number.
func (j *journal) drop(unwanted func(s segmentInfo) bool) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	total := j.sizeLocked()
	dropped := false
	for len(j.segments) > 1 {
		s := j.segments[0]
		if !unwanted(segmentInfo{day: s.day, last: j.segments[1].first - 1, total: total}) {
			break
		}
		if err := os.Remove(filepath.Join(j.dir, s.name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return adapters.Unavailable(err, "cannot remove an old segment")
		}
		total -= s.size
		j.segments = j.segments[1:]
		dropped = true
	}
	if !dropped {
		return nil
	}
	return safeopen.SyncDirectory(j.dir)
}

// segmentInfo describes the oldest segment for drop's function.
type segmentInfo struct {
	day   string
	last  uint64 // number of its last event; huge when the next is empty yet
	total int64  // bytes of all segments
}

// close syncs and closes. Appends fail afterwards.
func (j *journal) close() error {
	j.mu.Lock()
	j.closed = true
	if j.timer != nil {
		j.timer.Stop()
	}
	j.mu.Unlock()
	err := j.sync()
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.file == nil {
		return err
	}
	err = errors.Join(err, j.file.Close())
	j.file = nil
	return err
}
