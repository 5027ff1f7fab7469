package logs

import (
	"cmp"
	"errors"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/dreamlab-ai/agentinit/internal/rotated"
)

// This file reads the lines that only the log files have: those of an earlier agentinit, and those
// that the rings have forgotten. A part of a file that no ring refers to is called a gap. So each
// byte of a file is returned once.

// span is a part of a file that some ring refers to or has as text, or a place without text
// (generation.marks).
type span struct {
	off, end int64
	seq      uint64 // of the first line
	time     int64
	ring     *ring // for text in a ring: that ring
}

// forgotten tells whether the ring has no longer all of the text.
func (s span) forgotten() bool { return s.ring != nil && s.seq <= s.ring.forgot.Load() }

// logFile is one file of a sink, as it was when a reader began.
type logFile struct {
	path  string      // without the suffix of compression
	gen   *generation // nil if no ring knows the file
	ended time.Time
	size  int64 // how many bytes of it to read
	spans []span
	alone bool // no ring refers to the file, so that only the reader of gaps can tell that it cannot be read
}

// gapSource yields the lines of one sink's files that no ring has.
type gapSource struct {
	reader  *reader
	program string
	kind    Stream
	log     string    // its path
	files   []logFile // oldest first
	limit   uint64    // the Line.Seq of every line is less, because the rings forget the oldest first

	file  *generationReader // nil until something of files[0] is read
	off   int64             // in files[0]
	ended bool              // files[0] has been read
	final bool              // what frame holds does not go on after text
	text  []byte            // read, but not in lines yet
	frame framer
	lines block // what is left of the newest block
	place rank  // of the gap, and of all lines in it
	lost  error // why lines are missing before the next one; nil if none are
}

// gaps returns one source for each sink of the programs and streams asked for.
func (r *reader) gaps() []*gapSource {
	if r.query.Run != 0 || r.query.Runs != nil || r.query.After != 0 {
		return nil // lines in files have no run and no sequence number
	}
	r.plane.mu.Lock()
	sinks := make([]*fileSink, 0, len(r.plane.files))
	for _, f := range r.plane.files {
		if r.query.wantsProgram(f.options.Load().Program) && r.query.wantsStream(f.kind) {
			sinks = append(sinks, f)
		}
	}
	r.plane.mu.Unlock()
	if len(sinks) == 0 {
		return nil
	}
	listed, failed := make([][]archived, len(sinks)), make([]error, len(sinks))
	for i, f := range sinks {
		listed[i], failed[i] = f.archive.listForReader(f.options.Load())
	}
	known, current := r.plane.covered()
	forgot := r.plane.forgotten()
	var all []*gapSource
	for i, f := range sinks {
		files := f.logFiles(listed[i], known[f.path], current[f], &r.query)
		for i := range files {
			files[i].alone = !slices.ContainsFunc(files[i].spans, func(s span) bool { return s.end > s.off })
		}
		o := f.options.Load()
		all = append(all, &gapSource{reader: r, program: o.Program, kind: f.kind, log: f.path, files: files, limit: forgot[o.Program] + 1, lost: failed[i], frame: framer{max: o.MaxLine}})
	}
	return all
}

// forgotten returns, by program, the Line.Seq of the newest line that its rings have forgotten.
func (p *Plane) forgotten() map[string]uint64 {
	all := map[string]uint64{}
	for _, pl := range p.list(nil) {
		all[pl.name] = max(pl.rings[0].forgot.Load(), pl.rings[1].forgot.Load())
	}
	return all
}

// covered lists the parts of a file that need not be read from it.
type covered struct {
	gen   *generation
	path  string
	spans []span
	limit int64 // the offset from which on the bytes are newer than those in the rings
}

// covered collects, by the path of the log, what all rings have of its files. That is the text that the
// rings refer to in a file, and the text that was written to the file from memory and is still in
// memory. current are the current files before that.
func (p *Plane) covered() (known map[string][]*covered, current map[*fileSink]*generation) {
	// First, because the rings then have all lines up to there, except those that they have forgotten.
	limits := map[*generation]int64{}
	byGeneration := map[*generation][]span{}
	current = map[*fileSink]*generation{}
	p.mu.Lock()
	newest := p.born.Load()
	for _, f := range p.files {
		for _, gen := range f.queued {
			byGeneration[gen] = nil
		}
		for _, gen := range f.past {
			byGeneration[gen] = nil
		}
		current[f] = f.current.Load()
		for _, gen := range append(f.fresh[:len(f.fresh):len(f.fresh)], current[f]) {
			if gen != nil {
				limits[gen], byGeneration[gen] = max(gen.inherited, gen.recorded.Load()), nil
			}
		}
	}
	p.mu.Unlock()
	for _, pl := range p.list(nil) {
		for i := range pl.rings {
			pl.mu.Lock()
			chunks := pl.rings[i].chunks(0)
			pl.mu.Unlock()
			for _, c := range chunks {
				if c.file != nil {
					byGeneration[c.file] = append(byGeneration[c.file], span{off: c.off, end: c.off + int64(c.n), seq: c.seq, time: c.time})
				}
			}
		}
	}
	known = map[string][]*covered{}
	for gen, spans := range byGeneration {
		c := gen.covered(spans)
		log, isOld := rotated.Log(c.path)
		limit, limited := limits[gen]
		switch {
		case limited:
			c.limit = limit
		case isOld && gen.number <= newest:
			c.limit = math.MaxInt64
		default: // it has become the current file just now, and may be rotated already
			for _, s := range c.spans {
				c.limit = max(c.limit, s.end)
			}
		}
		known[log] = append(known[log], c)
	}
	return known, current
}

// covered adds to spans, which the rings refer to in the file, its text that is still in memory.
func (g *generation) covered(spans []span) *covered {
	g.mu.RLock()
	defer g.mu.RUnlock()
	for _, s := range g.queued {
		if !s.forgotten() {
			spans = append(spans, s)
		}
	}
	spans = append(spans, g.marks...)
	slices.SortFunc(spans, func(a, b span) int { return cmp.Compare(a.off, b.off) })
	return &covered{gen: g, path: g.path, spans: spans}
}

// hasText tells whether a ring has text of the file. If none has, and the file is not in its directory, it has
// been removed.
func (c *covered) hasText() bool {
	return slices.ContainsFunc(c.spans, func(s span) bool { return s.end > s.off })
}

// logFiles lists the files of a sink, oldest first. It begins with the first file that may have
// lines since the times of the query. listed are the rotated files that the directory had before known
// was collected; current was the current file then.
func (f *fileSink) logFiles(listed []archived, known []*covered, current *generation, q *Query) []logFile {
	first := f.archive.first.Load()
	byPath := map[string]*covered{}
	for _, c := range known {
		byPath[c.path] = c
	}
	there := map[string]bool{}
	for _, a := range listed {
		there[uncompressed(a.path)] = true
	}
	for path, c := range byPath { // those that were rotated after the directory was read
		if ended, ok := endedAt(strings.TrimPrefix(path, f.path+".")); ok && !there[path] && c.hasText() {
			listed = append(listed, archived{path: path, ended: ended})
		}
	}
	slices.SortStableFunc(listed, func(a, b archived) int { return a.ended.Compare(b.ended) })
	var files []logFile
	for _, a := range listed {
		path := uncompressed(a.path)
		if n := len(files); n > 0 && files[n-1].path == path {
			continue // it is in both lists of listForReader, perhaps in two forms
		}
		c := byPath[path]
		ours := c != nil || first != nil && !a.ended.Before(*first)
		if ours && f.options.Load().Backups == 0 {
			continue // it is about to be removed, and the rings have its text
		}
		if !a.ended.Before(q.Since) && (ours || !a.ended.Before(q.Resume)) {
			file := logFile{path: path, ended: a.ended, size: math.MaxInt64}
			if c != nil {
				file.gen, file.size, file.spans = c.gen, c.limit, c.spans
			}
			files = append(files, file)
		}
	}
	last, ok := f.lastFile(byPath[f.path], current)
	grown := last.gen != nil && last.size > last.gen.inherited
	if ok && (grown || len(files) > 0 || !last.ended.Before(q.Resume)) {
		files = append(files, last)
	}
	return files
}

// lastFile is the file at the path of the sink, if it is one to read. known is what the rings have of
// it, nil if they have nothing; current was the current file before known was collected.
func (f *fileSink) lastFile(known *covered, current *generation) (file logFile, ok bool) {
	info, err := os.Lstat(f.path)
	switch {
	case known != nil:
		file = logFile{path: f.path, gen: known.gen, ended: time.Now(), size: known.limit, spans: known.spans}
		if err == nil {
			file.ended = info.ModTime()
		}
		return file, true
	case err == nil && info.Mode().IsRegular() && f.isForeign(info, current):
		return logFile{path: f.path, ended: info.ModTime(), size: info.Size()}, true
	}
	return logFile{}, false
}

// isForeign tells whether the file at the sink's path, which covered did not find there, is of an earlier
// agentinit or of a tool. It may also be the file that was current then and is about to be renamed, or one
// that the sink has begun since, whose text is newer than all that the reader has of the rings.
func (f *fileSink) isForeign(info os.FileInfo, current *generation) bool {
	return f.current.Load() == current && (current == nil || current.ino != inode(info))
}

// open opens the file where it is now: the current file may have been rotated since the reader began,
// and then another file has its path.
func (f *logFile) open() (*generationReader, error) {
	if f.gen != nil {
		if r, err := f.gen.reader(); err == nil || !f.gen.isAt(f.path) {
			return r, err
		}
		// A tool has replaced the file, which no program writes to.
	}
	return openLog(f.path, 0)
}

// gapRead is how much of a file is read at once.
const gapRead = 64 << 10

func (s *gapSource) due() (rank, bool) {
	if !s.reading() {
		s.seek()
	}
	return s.place, s.reading() || s.lost != nil || len(s.files) > 0
}

// reading tells whether the source has text of the gap at place.
func (s *gapSource) reading() bool { return len(s.lines.text) > 0 || len(s.text) > 0 || s.final }

// seek moves to the next part of a file that no ring has, if the query wants lines of its time.
func (s *gapSource) seek() {
	for len(s.files) > 0 && (s.lost == nil || s.file != nil) { // the mark of a loss comes first
		f := &s.files[0]
		for len(f.spans) > 0 && f.spans[0].off <= s.off {
			s.off = max(s.off, f.spans[0].end)
			f.spans = f.spans[1:]
		}
		if !s.ended && s.off < f.size {
			s.place = rank{time: unixNano(f.ended)}
			if len(f.spans) > 0 {
				s.place.order, s.place.time = min(f.spans[0].seq, s.limit), f.spans[0].time
			}
			if s.reader.query.inTime(s.place.time) {
				return
			}
			if len(f.spans) > 0 {
				s.off = f.spans[0].off
				continue
			}
		}
		s.leave()
	}
}

// leave moves to the next file.
func (s *gapSource) leave() {
	if s.file != nil {
		s.file.close()
	}
	s.file, s.files, s.off, s.ended = nil, s.files[1:], 0, false
}

func (s *gapSource) next() (Line, bool) {
	if ln, ok := s.lines.line(); ok {
		if q := &s.reader.query; q.Grep == nil || q.Grep.Match(ln.display()) {
			line := Line{Time: time.Unix(0, s.place.time), Program: s.program, Stream: s.kind}
			line.Text, line.Truncated = q.text(ln)
			return line, true
		}
		return Line{}, false
	}
	switch {
	case len(s.text) > 0:
		if s.lines, s.text, _ = s.frame.next(s.text, gapRead); len(s.text) == 0 {
			s.text = nil // as in block.line
		}
	case s.final:
		s.lines, _ = s.frame.last()
		var further bool
		s.lines.cut, further = s.goesOn()
		s.final, s.frame = false, framer{max: s.frame.max, cont: s.lines.cut && further}
	case s.lost != nil && s.file == nil:
		mark := lost(s.program, s.kind, 1, "or more lost: "+s.lost.Error())
		s.lost = nil
		return mark, true
	case len(s.files) > 0:
		s.read()
	}
	return Line{}, false
}

// read reads the next piece of the part that seek has found.
func (s *gapSource) read() {
	f := &s.files[0]
	if s.file == nil {
		var err error
		if s.file, err = f.open(); err != nil {
			s.fail(f, err)
			s.leave()
			return
		}
	}
	want := min(gapRead, f.size-s.off)
	if len(f.spans) > 0 {
		want = min(want, f.spans[0].off-s.off)
	}
	var err error
	s.reader.unpack(s.file)
	if s.text, err = s.file.read(s.off, int(want)); err != nil {
		s.fail(f, err) // the file counts as ended
	}
	if len(s.text) > 0 {
		s.reader.show(s.log)
	}
	s.off += int64(len(s.text))
	s.ended = int64(len(s.text)) < want
	s.final = s.ended || s.off == f.size || len(f.spans) > 0 && s.off == f.spans[0].off
}

// goesOn tells whether a line that the gap leaves unfinished goes on after it: in text that a ring has, or, if the
// line is longer than max_line, in the next file. further says that the source reads on there.
func (s *gapSource) goesOn() (cut, further bool) {
	if len(s.lines.text) == 0 {
		return false, false
	}
	if f := &s.files[0]; len(f.spans) > 0 && f.spans[0].off == s.off {
		return true, false
	}
	if !s.ended || len(s.files) == 1 {
		return false, false
	}
	next := &s.files[1]
	return true, len(next.spans) == 0 || next.spans[0].off > 0
}

// unpackPerReader bounds how many compressed files a reader of gaps unpacks at once.
const unpackPerReader = 4

// unpack makes room for a file that is about to be read. Every source has its next file open, and a
// program that owns its directory can replace the file by one that takes the most memory to unpack. So
// the memory must not grow with the number of log files. The lines of a file mostly come one after the
// other, so that few files are unpacked from the start again.
func (r *reader) unpack(file *generationReader) {
	if file.compressor == nil {
		return
	}
	if i := slices.Index(r.unpacking, file); i >= 0 {
		r.unpacking = slices.Delete(r.unpacking, i, i+1)
	} else if len(r.unpacking) == unpackPerReader {
		r.unpacking[0].rest()
		r.unpacking = slices.Delete(r.unpacking, 0, 1)
	}
	r.unpacking = append(r.unpacking, file)
}

// fail remembers why a file cannot be read. That the oldest files are removed is usual, but not that one
// is missing after those that were read.
func (s *gapSource) fail(f *logFile, err error) {
	if gone := errors.Is(err, errGone); gone && s.reader.shown[s.log] || !gone && f.alone {
		s.lost = err
		delete(s.reader.shown, s.log) // the next file may be gone too, and one mark is enough
	}
}

// closeFiles closes the files of sources that were not read to their end.
func closeFiles(all []source) {
	for _, s := range all {
		if g, ok := s.(*gapSource); ok && g.file != nil {
			g.file.close()
		}
	}
}
