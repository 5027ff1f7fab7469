package proc

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dreamlab-ai/agentinit/internal/lateclose"
)

// Result is how a one-shot command ended.
type Result struct {
	Exit      Exit
	Output    []byte // standard output and error in the order they came, at most maxOutput bytes
	Truncated bool   // the command wrote more
}

// Run runs a command to its end and returns what it printed, up to maxOutput bytes; more is read
// and dropped. Descriptors 1 and 2 are not captured if Files sets them. If ctx ends first, the
// whole tree is killed and the error is the context's. Processes that the command leaves running in
// its scope are killed too: otherwise a probe that forgets a child would leave one more with each
// run. A child that cannot be killed and holds the pipe does not delay Run.
//
// The error says that the command could not be started or was cut short. If the command ended by
// itself, Result.Exit says how.
func (o *Owner) Run(ctx context.Context, c Command, maxOutput int) (Result, error) {
	if err := ctx.Err(); err != nil {
		return Result{}, err
	}
	out, err := newCapture(&c, maxOutput)
	if err != nil {
		return Result{}, err
	}
	defer out.close()
	notices := make(chan Exit, 2) // room for Exited and Emptied, so that the reaper never waits
	p, err := o.start(c, func(e Exit) { notices <- e }, true)
	out.started()
	if err != nil {
		return Result{}, err
	}
	if p.Stdin != nil {
		p.Stdin.Close()
	}
	if p.TTY != nil {
		defer p.TTY.Close()
		defer p.Slave.Close()
	}
	res, err := o.await(ctx, p, notices)
	res.Output, res.Truncated = out.finish()
	return res, err
}

func (o *Owner) await(ctx context.Context, p Process, notices <-chan Exit) (Result, error) {
	var res Result
	var cut error
	done := ctx.Done()
	kill := func() {
		// ErrNoProcess: the tree is empty already, and its notice comes.
		if err := o.Kill(p.ID); err != nil && !errors.Is(err, ErrNoProcess) {
			cut = errors.Join(cut, err)
		}
	}
	for {
		select {
		case <-done:
			done = nil
			cut = context.Cause(ctx)
			kill()
		case <-o.stop:
			return res, errors.Join(cut, ErrClosed)
		case e := <-notices:
			if e.Kind == Emptied {
				return res, cut
			}
			done = nil // it has ended in time
			res.Exit = e
			kill()
		}
	}
}

// capture reads a command's output from a pipe.
type capture struct {
	r, w *os.File
	max  int

	done chan struct{} // closed when the reading goroutine has ended

	mu   sync.Mutex
	buf  []byte
	more bool
}

func newCapture(c *Command, maxOutput int) (*capture, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, &StartError{Op: "output", Err: err}
	}
	k := &capture{r: r, w: w, max: max(0, maxOutput), done: make(chan struct{})}
	files := make([]*os.File, max(3, len(c.Files)))
	copy(files, c.Files)
	if !c.TTY {
		for i := 1; i <= 2; i++ {
			if files[i] == nil {
				files[i] = w
			}
		}
	}
	c.Files = files
	return k, nil
}

// started closes agentinit's copy of the write end and begins to read.
func (k *capture) started() {
	_ = lateclose.Pipe{File: k.w}.Close()
	go func() {
		defer close(k.done)
		// The error is the end of the pipe or the deadline set in finish: neither matters.
		_, _ = io.Copy(k, lateclose.Pipe{File: k.r})
	}()
}

// Write keeps as much as fits.
func (k *capture) Write(b []byte) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	room := min(len(b), k.max-len(k.buf))
	k.buf = append(k.buf, b[:room]...)
	if room < len(b) {
		k.more = true
	}
	return len(b), nil
}

// finish reads what is in the pipe and no more. When the command is dead, the pipe holds everything
// it wrote. But a leaked child may write for ever.
func (k *capture) finish() ([]byte, bool) {
	if k.r.SetReadDeadline(time.Now()) == nil {
		<-k.done
		k.takeRest()
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.buf, k.more
}

// pipeMost is the largest capacity that an unprivileged process can give a pipe
// (/proc/sys/fs/pipe-max-size). A dead writer cannot have left more than that.
const pipeMost = 1 << 20

func (k *capture) takeRest() {
	if err := k.r.SetReadDeadline(time.Time{}); err != nil {
		return
	}
	rc, err := k.r.SyscallConn()
	if err != nil {
		return
	}
	buf := make([]byte, 32<<10)
	// The error repeats that of the last read, which ends the loop.
	_ = rc.Read(func(fd uintptr) bool {
		for total := 0; total < pipeMost; {
			var n int
			var err error
			lateclose.Masked(func() { n, err = unix.Read(int(fd), buf) })
			if n <= 0 || err != nil {
				break
			}
			total += n
			_, _ = k.Write(buf[:n]) // never fails
		}
		return true
	})
}

func (k *capture) close() { _ = lateclose.Pipe{File: k.r}.Close() }
