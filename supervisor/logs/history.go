package logs

import (
	"cmp"
	"math"
	"os"
	"slices"
	"time"
)

// This file reads the lines that only the log files have: those of an earlier agentinit, and those
// that the rings have forgotten. A part of a file that no ring refers to is called a gap. So each
// byte of a file is returned once.

// span is a part of a file that some ring refers to or has as text.
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
	path  string // without the suffix of compression
	ended time.Time
	size  int64 // how many bytes of it to read
	spans []span
}

// gapSource yields the lines of one sink's files that no ring has. Like a chunkSource, it makes each
// Line only when the reader takes it.
type gapSource struct {
	reader  *reader
	program string
	kind    Stream
	maxLine int
	files   []logFile // oldest first
	limit   uint64    // the Line.Seq of every line is less, because the rings forget the oldest first

	file  *generationReader
	off   int64
	ended bool   // the file has been read
	final bool   // what frame holds does not go on after text
	text  []byte // read, but not in lines yet
	frame framer
	lines block // what is left of the newest block
	like  item  // what all its lines have in common
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
	known := r.plane.spans()
	forgot := r.plane.forgotten()
	var all []*gapSource
	for _, f := range sinks {
		files, err := f.logFiles(known, &r.query)
		if err != nil {
			continue // a directory that cannot be read yields no lines
		}
		o := f.options.Load()
		all = append(all, &gapSource{reader: r, program: o.Program, kind: f.kind, maxLine: o.MaxLine, files: files, limit: forgot[o.Program] + 1})
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
	spans []span
	// limit is the offset from which on the bytes are newer than those in the rings.
	limit     int64
	inherited int64 // see generation
}

// spans collects, by the path of each file, what all rings have. That is the text that the rings
// refer to in the file, and the text that was written to the file from memory and is still in
// memory.
func (p *Plane) spans() map[string]*covered {
	byGeneration := map[*generation][]span{}
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
	p.mu.Lock()
	for _, f := range p.files {
		for _, gen := range append(f.queued[:len(f.queued):len(f.queued)], f.current.Load()) {
			if gen != nil && byGeneration[gen] == nil {
				byGeneration[gen] = []span{}
			}
		}
	}
	p.mu.Unlock()
	all := map[string]*covered{}
	for gen, spans := range byGeneration {
		gen.mu.RLock()
		limit := gen.inherited
		for _, s := range spans {
			limit = max(limit, s.end)
		}
		for _, s := range gen.queued {
			limit = max(limit, s.end)
			if !s.forgotten() {
				spans = append(spans, s)
			}
		}
		slices.SortFunc(spans, func(a, b span) int { return cmp.Compare(a.off, b.off) })
		all[gen.path] = &covered{spans, limit, gen.inherited}
		gen.mu.RUnlock()
	}
	return all
}

// logFiles lists the files of a sink, oldest first. It begins with the first file that may have
// lines since the times of the query.
func (f *fileSink) logFiles(known map[string]*covered, q *Query) ([]logFile, error) {
	archives, err := f.archive.list()
	if err != nil {
		return nil, err
	}
	first := f.archive.first.Load()
	var files []logFile
	for _, a := range archives {
		path := uncompressed(a.path)
		if n := len(files); n > 0 && files[n-1].path == path {
			continue // a crash, or just now the compressor, has left both forms
		}
		ours := known[path] != nil || first != nil && !a.ended.Before(*first)
		if !a.ended.Before(q.Since) && (ours || !a.ended.Before(q.Resume)) {
			file := logFile{path: path, ended: a.ended, size: math.MaxInt64}
			if c := known[path]; c != nil {
				file.spans = c.spans
			}
			files = append(files, file)
		}
	}
	if info, err := os.Lstat(f.path); err == nil && info.Mode().IsRegular() {
		file := logFile{path: f.path, ended: info.ModTime(), size: info.Size()}
		c := known[f.path]
		ours := c != nil && file.size > c.inherited
		if c != nil {
			file.spans, file.size = c.spans, min(file.size, c.limit)
		}
		if ours || len(files) > 0 || !file.ended.Before(q.Resume) {
			files = append(files, file)
		}
	}
	return files, nil
}

// gapRead is how much of a file is read at once.
const gapRead = 64 << 10

func (s *gapSource) next() (item, bool) {
	q := &s.reader.query
	for {
		for ln, ok := s.lines.line(); ok; ln, ok = s.lines.line() {
			if q.Grep == nil || q.Grep.Match(ln.display()) {
				it := s.like
				it.Text, it.Truncated = q.text(ln)
				return it, true
			}
		}
		// A file of terabytes may have no line that the query wants, and the caller may be gone.
		if len(s.files) == 0 || s.reader.ctx.Err() != nil {
			return item{}, false
		}
		s.load()
	}
}

// load goes on by one step: it opens the next block of the text, or reads more text, or goes to the
// next file.
func (s *gapSource) load() {
	switch {
	case len(s.text) > 0:
		blk, rest, ok := s.frame.next(s.text, gapRead)
		if s.text = rest; ok {
			s.take(blk)
		}
	case s.final:
		s.final = false
		if blk, ok := s.frame.last(); ok {
			s.take(blk)
		}
	case s.ended:
		s.file.close()
		s.file, s.files, s.ended = nil, s.files[1:], false
	default:
		s.read()
	}
}

// read reads the next piece of a file that no ring has.
func (s *gapSource) read() {
	f := &s.files[0]
	if s.file == nil {
		var err error
		if s.file, err = openLog(f.path, 0); err != nil {
			s.files = s.files[1:] // the file was removed meanwhile
			return
		}
		s.off, s.frame = 0, framer{max: s.maxLine}
	}
	for len(f.spans) > 0 && f.spans[0].off <= s.off {
		s.off = max(s.off, f.spans[0].end)
		f.spans = f.spans[1:]
	}
	want := min(gapRead, f.size-s.off)
	if len(f.spans) > 0 {
		want = min(want, f.spans[0].off-s.off)
	}
	if want > 0 {
		s.text, _ = s.file.read(s.off, int(want)) // if reading fails, the file counts as ended
	}
	s.off += int64(len(s.text))
	s.ended = want <= 0 || int64(len(s.text)) < want
	s.final = s.ended || len(f.spans) > 0 && s.off == f.spans[0].off
}

// closeFiles closes the files of sources that were not read to their end.
func closeFiles(all []source) {
	for _, s := range all {
		if g, ok := s.(*gapSource); ok && g.file != nil {
			g.file.close()
		}
	}
}

// take begins with the lines of a block, if the query wants lines of its time.
func (s *gapSource) take(blk block) {
	f := &s.files[0]
	s.like = item{Line: Line{Time: f.ended, Program: s.program, Stream: s.kind}, gap: true}
	if len(f.spans) > 0 {
		s.like.order, s.like.Time = min(f.spans[0].seq, s.limit), time.Unix(0, f.spans[0].time)
	}
	if s.reader.query.inTime(unixNano(s.like.Time)) {
		s.lines = blk
	}
}
