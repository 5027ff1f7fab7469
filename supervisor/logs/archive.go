package logs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dreamlab-ai/agentinit/internal/rotated"
	"github.com/dreamlab-ai/agentinit/internal/safeopen"
)

// archive keeps the rotated files of one path. The names (see internal/rotated) sort by age and
// never change. So a rotation takes one rename, however many files there are, and it does not wait
// for a slow compressor.
type archive struct {
	path     string
	report   func(error)
	listings *listings
	newest   string                    // the last suffix used; only the queue's goroutine uses it
	first    atomic.Pointer[time.Time] // the first time that this agentinit has put into a name; nil if there is none

	failing bool // the last cleaning failed; only run's goroutine uses it

	mu      sync.Mutex
	running bool
	again   bool
	more    chan struct{} // has room for one value, which says that again was set
	options *Options
	size    int64         // of the current file
	idle    chan struct{} // closed when the goroutine has ended
	aging   *time.Timer   // until a rotated file is above MaxAge; nil if none will be
}

// agingStep is the shortest time between two checks of the ages: a box whose programs print nothing
// must stay at rest.
const agingStep = time.Hour

// shift gives the current file its archive name and returns that name. It calls announce with the name
// first. It returns "" if another process has moved the file away, which counts as a rotation too.
func (a *archive) shift(announce func(name string)) (name string, err error) {
	if a.newest == "" {
		a.newest = a.last()
	}
	ended := time.Now().UTC()
	suffix := ended.Format(rotated.Layout)
	if suffix <= a.newest { // the clock was set back, or its resolution is coarse
		t, err := time.Parse(rotated.Layout, a.newest)
		if err != nil {
			return "", fmt.Errorf("cannot rotate log file %s: %w", a.path, err)
		}
		ended = t.Add(1)
		suffix = ended.Format(rotated.Layout)
	}
	a.newest = suffix
	name = a.path + "." + suffix
	announce(name)
	err = inDirectory(a.path, func(d *safeopen.Directory, base string) error {
		return d.Rename(base, filepath.Base(name))
	})
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("cannot rotate log file %s: %w", a.path, err)
	}
	a.first.CompareAndSwap(nil, &ended)
	return name, nil
}

// last is the suffix of the newest rotated file, because the clock may have been set back since an
// earlier agentinit rotated. It is "0" if there is none, or if the directory cannot be read.
func (a *archive) last() string {
	names, _ := a.listings.names(a.path) // tidy reports the error
	for _, name := range slices.Backward(names) {
		suffix := uncompressed(name)[len(filepath.Base(a.path))+1:]
		if _, ok := endedAt(suffix); ok {
			return suffix
		}
	}
	return "0" // sorts before every real suffix
}

// endedAt reads the time in the name of a rotated file. The last time that a name can have does not
// count: a program may have made such a file, and no later one could get a name.
func endedAt(suffix string) (t time.Time, ok bool) {
	t, err := time.Parse(rotated.Layout, suffix)
	return t, err == nil && t.Add(1).Year() <= 9999
}

// tidy compresses and removes rotated files in the background. One goroutine for each path does
// that, only while there is work.
func (a *archive) tidy(o *Options, size int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.begin(o, size)
}

// begin is tidy for a caller that holds mu.
func (a *archive) begin(o *Options, size int64) {
	a.options, a.size, a.again = o, size, true
	select {
	case a.more <- struct{}{}:
	default:
	}
	disarm(&a.aging)
	if !a.running {
		a.running, a.idle = true, make(chan struct{})
		go a.run()
	}
}

// ageAgain checks the ages again, with the options of the latest tidying.
func (a *archive) ageAgain() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.aging != nil { // else a tidying has begun meanwhile
		a.begin(a.options, a.size)
	}
}

func (a *archive) run() {
	var old time.Time // when the first rotated file that is left is above MaxAge; zero: never
	for {
		a.mu.Lock()
		if !a.again {
			a.running = false
			close(a.idle)
			if !old.IsZero() {
				a.aging = time.AfterFunc(max(time.Until(old), agingStep), a.ageAgain)
			}
			a.mu.Unlock()
			return
		}
		a.again = false
		select {
		case <-a.more:
		default:
		}
		options, size := a.options, a.size
		a.mu.Unlock()
		var err error
		old, err = a.clean(options, size, time.Now())
		if err != nil && !a.failing {
			a.report(fmt.Errorf("cannot tidy the rotated files of %s: %w", a.path, err))
		}
		a.failing = err != nil
		if a.failing && options.MaxAge > 0 {
			old = time.Now() // what is left is not known, so it is tried again
		}
	}
}

// atRest tells whether no tidying is under way or planned.
func (a *archive) atRest() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return !a.running && a.aging == nil
}

// wait returns when no tidying is under way, or when ctx ends.
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

// inDirectory opens the directory of path for f. A program may own a part of the path, so its links
// are not followed (safeopen).
func inDirectory(path string, f func(d *safeopen.Directory, base string) error) error {
	d, err := safeopen.OpenDirectory(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(f(d, filepath.Base(path)), d.Close())
}

// archived is a rotated file.
type archived struct {
	path     string
	size     int64
	ended    time.Time // when it was rotated, as its name says: a compression makes a new file
	modified time.Time
}

// since is when the age of the file begins. After a clock that was ahead for one rotation, all names have a
// time to come (archive.shift), so the age of the file itself counts.
func (f *archived) since(now time.Time) time.Time {
	if f.ended.After(now) && f.modified.Before(f.ended) {
		return f.modified
	}
	return f.ended
}

// clean first removes the files above the limits, so that they are not compressed in vain. Then it
// compresses. Another file may be compressed for a long time meanwhile; so clean gives up when it
// is needed again, because the files above the limits must go. old is when the first of the files
// that are left is above the limit for the age. Of many files that fail alike, err names the first.
func (a *archive) clean(o *Options, size int64, now time.Time) (old time.Time, err error) {
	files, err := a.list()
	if err != nil {
		return old, err
	}
	files, err = prune(files, o, size, now)
	for _, f := range files {
		if due := f.since(now).Add(o.MaxAge); o.MaxAge > 0 && (old.IsZero() || due.Before(old)) {
			old = due
		}
	}
	pack := compressorOf(o.Compress)
	if err != nil || pack == nil {
		return old, err
	}
	for _, f := range files {
		if uncompressed(f.path) == f.path {
			packErr := pack.compress(f.path, a.more)
			if errors.Is(packErr, errNoTurn) {
				break
			}
			err = cmp.Or(err, packErr)
		}
	}
	return old, err
}

// list returns the rotated files, oldest first. Only names that shift makes are included, so other
// files are never changed.
func (a *archive) list() ([]archived, error) {
	names, err := a.listings.names(a.path)
	if err != nil || len(names) == 0 {
		return nil, err
	}
	var files []archived
	err = inDirectory(a.path, func(d *safeopen.Directory, base string) error {
		for _, name := range names {
			ended, ok := endedAt(strings.TrimPrefix(uncompressed(name), base+"."))
			if !ok {
				continue
			}
			e, err := d.Stat(name)
			if errors.Is(err, fs.ErrNotExist) || err == nil && !e.Regular {
				continue
			}
			if err != nil {
				return err
			}
			path := filepath.Join(filepath.Dir(a.path), name)
			if n := len(files); n > 0 && uncompressed(files[n-1].path) == uncompressed(path) {
				// A crash has left both forms, or the compressor is about to remove the first one.
				files[n-1].size += min(e.Size, math.MaxInt64-files[n-1].size)
				continue
			}
			files = append(files, archived{path, e.Size, ended, e.Modified})
		}
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return files, err
}

// listForReader is list while files are being compressed: one that gets its new name meanwhile can be
// missing in a list under both names, but not in the next list too. Others may be there twice.
func (a *archive) listForReader(o *Options) ([]archived, error) {
	files, err := a.list()
	if o.Compress != CompressNone {
		again, failed := a.list()
		files, err = append(files, again...), cmp.Or(err, failed)
	}
	return files, err
}

// prune removes the oldest files that the limits for number, age or total size do not allow.
func prune(files []archived, o *Options, size int64, now time.Time) (kept []archived, err error) {
	// The current file may still grow to its limit. What is left for the rotated files goes to the newest
	// ones. It is counted down, because sizes may have a sum above int64: a program can make huge files
	// that take no space.
	room, fits := o.TotalBytes-max(size, o.rotateAbove()), len(files)
	for fits > 0 && files[fits-1].size <= room {
		fits--
		room -= files[fits].size
	}
	for i, f := range files {
		tooMany := o.Backups >= 0 && len(files)-i > o.Backups
		tooOld := o.MaxAge > 0 && now.Sub(f.since(now)) >= o.MaxAge
		tooBig := o.TotalBytes > 0 && i < fits
		if !tooMany && !tooOld && !tooBig {
			kept = append(kept, f)
			continue
		}
		err = cmp.Or(err, inDirectory(f.path, removeRotated))
	}
	return kept, err
}

// removeRotated removes a rotated file in all its forms, also what a compression has left that a crash
// interrupted.
func removeRotated(d *safeopen.Directory, name string) error {
	name = uncompressed(name)
	errs := []error{removeIfThere(d, name)}
	for _, c := range compressors {
		errs = append(errs, removeIfThere(d, name+c.suffix), removeIfThere(d, c.partOf(name)))
	}
	return errors.Join(errs...)
}

func removeIfThere(d *safeopen.Directory, name string) error {
	if err := d.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
