package logs

import (
	"maps"
	"os"
	"path/filepath"
	"weak"
)

// openFile returns the sink of a path. If programs share a path, the options of the newest run
// apply. A sink stays known after its file was closed, so that a path never has two writers, and so
// that the files of a program that has ended can be read.
func (p *Plane) openFile(o Options, kind Stream) *fileSink {
	path := filepath.Clean(o.Path)
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.files[path]
	if f == nil {
		if len(p.files) >= p.sweepAt { // to check every file at each open would take too long
			p.sweep()
			p.sweepAt = max(2*len(p.files), leastSweep)
		}
		f = &fileSink{plane: p, path: path, lineStart: true}
		f.report = func(err error) { p.cfg.OnTrouble(f.options.Load().Program, err) }
		f.archive = &archive{path: path, report: f.report, listings: &p.listings, more: make(chan struct{}, 1)}
		f.queue = &queue{limit: queueLimit, hold: p.fileHold, write: f.write, pump: f.pump, mark: fileMark}
		p.files[path] = f
	}
	if pl := p.programs[o.Program]; pl != nil {
		pl.files[kind-1] = f
	}
	f.refs++
	f.kind = kind
	f.options.Store(&o)
	f.wantClose.Store(false)
	f.queue.kick()
	return f
}

// leastSweep is how many sinks are known at least before some are forgotten.
const leastSweep = 64

// sweep forgets the sinks that no program uses or has used last, that have no work left or planned, and
// that have no trouble to report to a program that comes back. The caller holds mu, so nothing can give
// them new work.
func (p *Plane) sweep() {
	last := map[*fileSink]bool{}
	for _, pl := range p.programs {
		for _, f := range pl.files {
			last[f] = true
		}
	}
	maps.DeleteFunc(p.swept, func(_ string, gen weak.Pointer[generation]) bool { return gen.Value() == nil })
	maps.DeleteFunc(p.files, func(path string, f *fileSink) bool {
		if last[f] || f.refs > 0 || !f.queue.atRest() || f.failure.Load() != nil || !f.archive.atRest() {
			return false
		}
		if f.gen != nil {
			p.swept[path] = weak.Make(f.gen)
		}
		return true
	})
}

// release gives up one use of a sink; the last user closes the file.
func (p *Plane) release(f *fileSink) {
	if f == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if f.refs--; f.refs == 0 {
		f.wantClose.Store(true)
		f.queue.kick()
	}
}

// remembered finds the generation of a path whose sink was forgotten meanwhile; nil if no ring refers to
// it. Rotation must go on to record in it where the file is. Another program may use the path now.
func (p *Plane) remembered(path string, info os.FileInfo) *generation {
	p.mu.Lock()
	gen := p.swept[path].Value()
	delete(p.swept, path)
	p.mu.Unlock()
	// A shorter file is another file that got the same inode number.
	if gen == nil || gen.ino != inode(info) || info.Size() < max(gen.inherited, gen.recorded.Load()) || !gen.isAt(path) {
		return nil
	}
	return gen
}
