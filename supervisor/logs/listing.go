package logs

import (
	"errors"
	"io/fs"
	"path/filepath"
	"sync"

	"github.com/dreamlab-ai/agentinit/internal/rotated"
	"github.com/dreamlab-ai/agentinit/internal/safeopen"
)

// listings reads directories for the archives of a plane. If a directory is just being read, all
// callers that ask meanwhile share the next reading. So if ten thousand files rotate at once in one
// directory, it is read only a few times. The zero value is ready to use.
type listings struct {
	mu sync.Mutex
	// next has an entry for each directory that is being read: the reading for callers that ask now, nil
	// if there are none.
	next map[string]*reading
}

// reading is one reading of a directory.
type reading struct {
	rotated map[string][]string // the sorted names of rotated files, by the name of their current file
	err     error
	done    chan struct{}
}

// names returns the names of the rotated files of path, oldest first. If their directory is
// missing, there are none.
func (l *listings) names(path string) ([]string, error) {
	dir, base := filepath.Split(path)
	l.mu.Lock()
	r, running := l.next[dir]
	if r == nil {
		if l.next == nil {
			l.next = map[string]*reading{}
		}
		r = &reading{done: make(chan struct{})}
		l.next[dir] = r
	}
	if !running {
		go l.run(dir)
	}
	l.mu.Unlock()
	<-r.done
	return r.rotated[base], r.err
}

// run reads dir until no caller waits for it.
func (l *listings) run(dir string) {
	for {
		l.mu.Lock()
		r := l.next[dir]
		if r == nil {
			delete(l.next, dir)
			l.mu.Unlock()
			return
		}
		l.next[dir] = nil
		l.mu.Unlock()
		r.rotated, r.err = readRotated(dir)
		close(r.done)
	}
}

// maxRotated is the most rotated files of one directory.
const maxRotated = 100_000

func readRotated(dir string) (map[string][]string, error) {
	d, err := safeopen.OpenDirectory(filepath.Clean(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	names, err := d.Names(isRotated, maxRotated) // sorted
	err = errors.Join(err, d.Close())
	if errors.Is(err, fs.ErrNotExist) { // removed after it was opened
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	byLog := map[string][]string{}
	for _, name := range names {
		base, _ := rotated.Log(name)
		byLog[base] = append(byLog[base], name)
	}
	return byLog, nil
}

func isRotated(name string) bool {
	_, ok := rotated.Log(name)
	return ok
}
