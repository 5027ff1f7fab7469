package logs

import (
	"errors"
	"io/fs"
	"path/filepath"
	"sync"

	"github.com/dreamlab-ai/agentinit/internal/safeopen"
)

// listings reads directories for the archives of a plane. Whoever asks for a directory
// while it is being read gets what the next reading finds, together with all others who
// ask meanwhile: ten thousand files that rotate at once in one directory cost a few
// readings, not ten thousand. The zero value is ready.
type listings struct {
	mu   sync.Mutex
	dirs map[string]*listing // those being read
}

type listing struct {
	next *reading // for those who ask now; nil while there are none
}

// reading is one look at a directory.
type reading struct {
	rotated map[string][]string // names of rotated files by that of their current file, sorted
	err     error
	done    chan struct{}
}

// names returns the names of the rotated files of path, oldest first. Their directory
// may be missing: then there are none.
func (l *listings) names(path string) ([]string, error) {
	dir, base := filepath.Split(path)
	l.mu.Lock()
	d := l.dirs[dir]
	if d == nil {
		if l.dirs == nil {
			l.dirs = map[string]*listing{}
		}
		d = &listing{}
		l.dirs[dir] = d
		go l.run(dir, d)
	}
	if d.next == nil {
		d.next = &reading{done: make(chan struct{})}
	}
	r := d.next
	l.mu.Unlock()
	<-r.done
	return r.rotated[base], r.err
}

// run reads dir until no caller waits for it.
func (l *listings) run(dir string, d *listing) {
	for {
		l.mu.Lock()
		r := d.next
		d.next = nil
		if r == nil {
			delete(l.dirs, dir)
			l.mu.Unlock()
			return
		}
		l.mu.Unlock()
		r.rotated, r.err = readRotated(dir)
		close(r.done)
	}
}

func readRotated(dir string) (map[string][]string, error) {
	d, err := safeopen.OpenDirectory(filepath.Clean(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	names, err := d.Names() // sorted
	err = errors.Join(err, d.Close())
	if errors.Is(err, fs.ErrNotExist) { // removed after it was opened
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	rotated := map[string][]string{}
	for _, name := range names {
		if suffix := archiveSuffix().FindString(name); suffix != "" {
			base := name[:len(name)-len(suffix)]
			rotated[base] = append(rotated[base], name)
		}
	}
	return rotated, nil
}
