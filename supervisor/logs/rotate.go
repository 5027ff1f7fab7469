package logs

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// rotationCut says how many bytes of b go into the current file when room bytes
// are left in it: as many whole lines as fit. 0 means rotate first. A line is
// never cut: one that fits no file has one to itself.
func rotationCut(b []byte, room int64, lineStart, empty bool) int {
	if int64(len(b)) <= room {
		return len(b)
	}
	if room > 0 {
		if cut := bytes.LastIndexByte(b[:room], '\n') + 1; cut > 0 {
			return cut
		}
	}
	if lineStart && !empty {
		return 0
	}
	if i := bytes.IndexByte(b, '\n'); i >= 0 {
		return i + 1
	}
	return len(b)
}

// archive keeps the rotated files of one path: PATH.20060102T150405.000000000Z,
// with .gz when compressed. The names sort by age and never change, so rotation
// costs one rename however many there are, and a slow compressor is in nobody's
// way.
type archive struct {
	path   string
	report func(error)
	newest string // queue's goroutine: the last suffix given out

	failing bool // run's goroutine: the last cleaning failed

	mu      sync.Mutex
	running bool
	again   bool
	options *Options
	size    int64         // of the current file
	idle    chan struct{} // closed when the goroutine has ended
}

const archiveLayout = "20060102T150405.000000000Z"

var archiveSuffix = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^\.\d{8}T\d{6}\.\d{9}Z(\.gz)?$`)
})

const partSuffix = ".gz.part"

// shift gives the current file its archive name.
func (a *archive) shift() error {
	suffix := time.Now().UTC().Format(archiveLayout)
	for suffix <= a.newest { // the clock was set back, or is coarse
		t, err := time.Parse(archiveLayout, a.newest)
		if err != nil {
			return fmt.Errorf("cannot name a rotated log file: %w", err)
		}
		suffix = t.Add(1).Format(archiveLayout)
	}
	a.newest = suffix
	err := os.Rename(a.path, a.path+"."+suffix)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // somebody moved it away; that is a rotation as well
	}
	if err != nil {
		return fmt.Errorf("cannot rotate log file: %w", err)
	}
	return nil
}

// tidy compresses and removes rotated files in the background, one goroutine a
// path and only while there is work.
func (a *archive) tidy(o *Options, size int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.options, a.size, a.again = o, size, true
	if !a.running {
		a.running, a.idle = true, make(chan struct{})
		go a.run()
	}
}

func (a *archive) run() {
	for {
		a.mu.Lock()
		if !a.again {
			a.running = false
			close(a.idle)
			a.mu.Unlock()
			return
		}
		a.again = false
		options, size := a.options, a.size
		a.mu.Unlock()
		err := a.clean(options, size, time.Now())
		if err != nil && !a.failing {
			a.report(fmt.Errorf("cannot tidy rotated log files: %w", err))
		}
		a.failing = err != nil
	}
}

// atRest tells whether nothing is being tidied.
func (a *archive) atRest() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return !a.running
}

// wait returns when nothing is being tidied, or when ctx ends.
func (a *archive) wait(ctx context.Context) error {
	a.mu.Lock()
	idle, running := a.idle, a.running
	a.mu.Unlock()
	if !running {
		return nil
	}
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

type archived struct {
	path    string
	size    int64
	modTime time.Time
}

// clean first removes what is too much, so that nothing is compressed in vain,
// then compresses, then looks at the total once more.
func (a *archive) clean(o *Options, size int64, now time.Time) error {
	files, err := a.list()
	if err != nil {
		return err
	}
	files, err = prune(files, o, size, now)
	if err != nil || !o.Compress {
		return err
	}
	var errs []error
	for _, f := range files {
		if !strings.HasSuffix(f.path, ".gz") {
			errs = append(errs, compress(f.path))
		}
	}
	return errors.Join(errs...)
}

// list returns the rotated files, oldest first. Only names that shift has made
// count: nobody else's file is ever touched.
func (a *archive) list() ([]archived, error) {
	entries, err := os.ReadDir(filepath.Dir(a.path)) // sorted by name
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var files []archived
	for _, e := range entries {
		suffix, ok := strings.CutPrefix(e.Name(), filepath.Base(a.path))
		if !ok || !e.Type().IsRegular() || !archiveSuffix().MatchString(suffix) {
			continue
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		files = append(files, archived{filepath.Join(filepath.Dir(a.path), e.Name()), info.Size(), info.ModTime()})
	}
	return files, nil
}

// prune removes the oldest files that backups, age or total size do not allow.
func prune(files []archived, o *Options, size int64, now time.Time) (kept []archived, err error) {
	// The current file may yet grow to its limit.
	total := max(size, o.MaxBytes)
	for _, f := range files {
		total += f.size
	}
	var errs []error
	for i, f := range files {
		tooMany := o.Backups > 0 && len(files)-i > o.Backups
		tooOld := o.MaxAge > 0 && now.Sub(f.modTime) > o.MaxAge
		tooBig := o.TotalBytes > 0 && total > o.TotalBytes
		if !tooMany && !tooOld && !tooBig {
			kept = append(kept, f)
			continue
		}
		total -= f.size
		if err := os.Remove(f.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return kept, errors.Join(errs...)
}

// compress replaces path by path.gz. A crash in between leaves the original and a
// part that the next try overwrites.
func compress(path string) error {
	part := path + partSuffix
	if err := os.Remove(part); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := gzipTo(part, path); err != nil {
		return errors.Join(err, removeIfThere(part))
	}
	if err := os.Rename(part, path+".gz"); err != nil {
		return errors.Join(err, removeIfThere(part))
	}
	return removeIfThere(path)
}

func gzipTo(dst, src string) (err error) {
	in, err := os.OpenFile(src, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer in.Close() // only read
	out, err := os.OpenFile(dst, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o640)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	zip, err := gzip.NewWriterLevel(out, gzip.BestSpeed)
	if err != nil {
		return err
	}
	if _, err := io.Copy(zip, in); err != nil {
		return err
	}
	return zip.Close()
}

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
