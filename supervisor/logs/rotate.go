package logs

import (
	"bytes"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// rotationCut tells how many bytes of b go into the current file, which has room for room more
// bytes: as many whole lines as fit. 0 means that the file must be rotated first, which is possible
// only at a line start. Lines are not cut: a line larger than a file gets a file for itself.
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

// schedule sets the next rotation by time of a file that was begun at that time. An empty file gets
// none, so that a silent program causes no wake-up. The timer is for a program that prints nothing
// when the rotation is due. A clock that jumps cannot prevent a rotation. An age is measured with
// the monotonic clock (time.Time), and a start in the future counts as now. After a jump ahead, the
// next output causes the rotation.
func (f *fileSink) schedule(begun time.Time) {
	disarm(&f.timer)
	f.planned = f.options.Load()
	if f.size == 0 {
		f.due = time.Time{}
		return
	}
	if now := time.Now(); begun.After(now) {
		begun = now
	}
	f.begun, f.due = begun, nextRotation(f.planned, begun)
	if f.due.IsZero() {
		return
	}
	if f.due.Before(f.retryAt) {
		f.due = f.retryAt
	}
	expired := new(atomic.Bool)
	f.expired = expired
	f.timer = time.AfterFunc(max(time.Until(f.due), time.Millisecond), func() {
		expired.Store(true)
		f.queue.kick()
	})
}

// begun is when the file was created, as far as the file system knows (statx(2)).
func begun(f *os.File, info os.FileInfo) time.Time {
	var st unix.Statx_t
	err := unix.Statx(fileno(f), "", unix.AT_EMPTY_PATH, unix.STATX_BTIME, &st)
	if err == nil && st.Mask&unix.STATX_BTIME != 0 {
		return time.Unix(st.Btime.Sec, int64(st.Btime.Nsec))
	}
	return info.ModTime()
}

// maxBytes is the size above which the file is rotated; 0 is no limit.
func (f *fileSink) maxBytes() int64 {
	if time.Now().Before(f.retryAt) {
		return 0
	}
	return f.options.Load().rotateAbove()
}

// rotateAbove is the largest size of the current file. If MaxBytes would let it grow above
// TotalBytes, it is half of TotalBytes, so that an older file has room too.
func (o *Options) rotateAbove() int64 {
	if o.TotalBytes > 0 && (o.MaxBytes == 0 || o.MaxBytes > o.TotalBytes) {
		return max(o.TotalBytes/2, 1)
	}
	return o.MaxBytes
}

// rotate gives the file its archive name and begins the next file. A file that cannot be renamed
// (its directory is not writable, or it is a mount point) grows on, because its lines must not be
// lost for that.
func (f *fileSink) rotate() error {
	name, err := f.archive.shift(f.gen.leave)
	if err != nil {
		f.gen.leave(f.path)
		if f.retryAt.IsZero() {
			f.report(err)
		}
		f.retryAt = time.Now().Add(retryMost)
		f.schedule(f.begun)
		return nil
	}
	f.retryAt = time.Time{}
	if name == "" || f.options.Load().Backups == 0 {
		f.abandon()
	} else {
		f.gen.retire(name)
		f.remember(f.gen)
		f.gen = nil
		f.closeFile()
	}
	return f.open()
}

// pastFiles is of how many rotated files a sink remembers when their text came, after the rings have
// forgotten the text.
const pastFiles = 16

// remember keeps a rotated file for the readers that ask for lines by their time. Without it, all lines of a
// file that the rings have forgotten would be as new as its rotation.
func (f *fileSink) remember(gen *generation) {
	gen.shrink()
	most := pastFiles
	if backups := f.options.Load().Backups; backups > 0 {
		most = min(most, backups)
	}
	f.plane.mu.Lock()
	defer f.plane.mu.Unlock()
	f.past = append(slices.Delete(f.past, 0, max(len(f.past)-most+1, 0)), gen)
}

// nextRotation tells when a file with that begin must be rotated, by its age or the time of day;
// the zero time means never. An invalid time of day means never.
func nextRotation(o *Options, begun time.Time) (due time.Time) {
	if at, err := time.Parse("15:04", o.At); err == nil {
		due = nextTimeOfDay(begun, at.Hour(), at.Minute())
	}
	if o.Every > 0 {
		if aged := begun.Add(o.Every); due.IsZero() || aged.Before(due) {
			due = aged
		}
	}
	return due
}

// nextTimeOfDay returns the first such moment after t, in t's zone. If the clock skips that moment on a day, it is
// as much later as the clock is put forward. So time.Date may compute it, or the moment as much earlier, which
// can be over before that day begins: in some zones the clock skips midnight.
func nextTimeOfDay(t time.Time, hour, minute int) time.Time {
	for year, month, day := t.Date(); ; day++ {
		due := time.Date(year, month, day, hour, minute, 0, 0, t.Location())
		const most = 12 * 60 // minutes
		if early := (hour*60 + minute - due.Hour()*60 - due.Minute() + 24*60) % (24 * 60); early < most {
			due = due.Add(time.Duration(early) * time.Minute)
		}
		if due.After(t) {
			return due
		}
	}
}
