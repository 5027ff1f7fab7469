package logs

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"sync"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/dreamlab-ai/agentinit/internal/safeopen"
)

// Compression is the format into which rotated files are compressed.
type Compression string

// The compressions. CompressNone leaves rotated files as they are.
const (
	CompressNone Compression = ""
	CompressGzip Compression = "gzip"
	CompressZstd Compression = "zstd"
)

// compressor writes and reads one format.
type compressor struct {
	name   Compression
	suffix string
	writer func(io.Writer) (io.WriteCloser, error)
	reader func(io.Reader) (io.ReadCloser, error)
}

var compressors = []*compressor{
	{CompressZstd, ".zst", zstdWriter, zstdReader},
	{CompressGzip, ".gz", gzipWriter, func(r io.Reader) (io.ReadCloser, error) { return gzip.NewReader(r) }},
}

func gzipWriter(w io.Writer) (io.WriteCloser, error) { return gzip.NewWriterLevel(w, gzip.BestSpeed) }

// zstdWindow is small, because agentinit must stay small. A log compresses well enough with it.
const zstdWindow = 1 << 20

// zstdWriter uses one thread, because it runs in the background of a supervisor.
func zstdWriter(w io.Writer) (io.WriteCloser, error) {
	return zstd.NewWriter(w, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithWindowSize(zstdWindow))
}

func zstdReader(r io.Reader) (io.ReadCloser, error) {
	d, ok := zstdDecoders.Get().(*zstd.Decoder)
	if !ok {
		var err error
		// A program may have written the file itself, and ask for a larger window than agentinit does.
		d, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(zstdWindow), zstd.WithDecoderLowmem(true))
		if err != nil {
			return nil, err
		}
	}
	if err := d.Reset(r); err != nil {
		return nil, err
	}
	return pooledDecoder{d}, nil
}

// zstdDecoders holds decoders that are not in use. A decoder has up to 2 MiB of buffers, and a reader of
// many logs needs one after the other.
var zstdDecoders sync.Pool

type pooledDecoder struct{ *zstd.Decoder }

func (d pooledDecoder) Close() error {
	err := d.Reset(nil) // it must not keep the file
	zstdDecoders.Put(d.Decoder)
	return err
}

func compressorOf(name Compression) *compressor {
	for _, c := range compressors {
		if c.name == name {
			return c
		}
	}
	return nil
}

// uncompressed is the name of a compressed file before its compression.
func uncompressed(path string) string {
	for _, c := range compressors {
		path = strings.TrimSuffix(path, c.suffix)
	}
	return path
}

// partOf is the name of the compressed form of a file while it is being written.
func (c *compressor) partOf(name string) string { return name + c.suffix + ".part" }

// errNoTurn says that a file was not compressed because another one still is.
var errNoTurn = errors.New("another file is being compressed")

// compress replaces path by its compressed form. After a crash in between, the original is still
// there, and the next attempt overwrites the unfinished part. If enough has a value before it is the
// file's turn, the error is errNoTurn.
func (c *compressor) compress(path string, enough <-chan struct{}) error {
	result := make(chan error, 1)
	select {
	case lowPriority() <- func() { result <- inDirectory(path, c.replace) }:
		return <-result
	case <-enough:
		return errNoTurn
	}
}

func (c *compressor) replace(d *safeopen.Directory, name string) error {
	part := c.partOf(name)
	if err := removeIfThere(d, part); err != nil {
		return err
	}
	if err := c.pack(d, part, name); err != nil {
		return errors.Join(err, removeIfThere(d, part))
	}
	if err := d.Rename(part, name+c.suffix); err != nil {
		return errors.Join(err, removeIfThere(d, part))
	}
	return removeIfThere(d, name)
}

func (c *compressor) pack(d *safeopen.Directory, dst, src string) (err error) {
	in, err := d.OpenFile(src, os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer in.Close() // the file was only read
	size, err := written(in)
	if err != nil {
		return fmt.Errorf("cannot compress %s: %w", src, err)
	}
	out, err := d.OpenFile(dst, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o640)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	w, err := c.writer(out)
	if err != nil {
		return err
	}
	if _, err := io.Copy(w, io.LimitReader(in, size)); err != nil {
		return errors.Join(err, w.Close())
	}
	if err := w.Close(); err != nil {
		return fmt.Errorf("cannot compress %s: %w", src, err)
	}
	// Without this, the disk may have the removal of the original earlier than these bytes.
	return out.Sync()
}

// errHoles says that a program has made or changed a rotated file, because agentinit only appends. On
// a file system that stores zeros as holes, a program may also have printed them.
var errHoles = errors.New("it has holes: another process has changed it, or the file system stores zeros so; it stays uncompressed")

// written returns the size of a file without holes. A program can make a file with holes of any
// size that takes no space on the disk: to compress it takes days, and no other file has its turn.
func written(f *os.File) (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	hole, err := f.Seek(0, unix.SEEK_HOLE)
	if err == nil && hole < info.Size() {
		return 0, errHoles
	}
	// A file system that does not know its holes returns the end of the file, or an error.
	_, err = f.Seek(0, io.SeekStart)
	return info.Size(), err
}

// lowPriority is a thread with the lowest priority, nice 19 and the idle I/O class, which runs the
// functions sent to it, one at a time: ten thousand rotated files must not start ten thousand
// compressors. setpriority(2) and ioprio_set(2) change one thread. To raise the priority again needs
// CAP_SYS_NICE, so no other goroutine may use the thread. It stays, because a thread that ends is
// missing among those that agentinit has in reserve.
var lowPriority = sync.OnceValue(func() chan<- func() {
	work := make(chan func())
	go lowly(work)
	return work
})

func lowly(work <-chan func()) {
	runtime.LockOSThread()
	tid := unix.Gettid()
	// Some sandboxes refuse this; then the work runs at the usual priority.
	_ = unix.Setpriority(unix.PRIO_PROCESS, tid, 19)
	_, _, _ = unix.Syscall(unix.SYS_IOPRIO_SET, ioprioWhoProcess, uintptr(tid), ioprioClassIdle)
	for f := range work {
		f()
	}
}

const (
	ioprioWhoProcess = 1       // IOPRIO_WHO_PROCESS of linux/ioprio.h
	ioprioClassIdle  = 3 << 13 // IOPRIO_CLASS_IDLE << IOPRIO_CLASS_SHIFT
)
