package ready

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/dreamlab-ai/agentinit/internal/lateclose"
	"github.com/dreamlab-ai/agentinit/internal/rate"
)

// NotifierConfig says how a Notifier works.
type NotifierConfig struct {
	// Resolve tells which run of which program the process belongs to that had the pid at the time
	// sent; another process may have it now. The time is zero if the kernel does not tell it, as an
	// emulated kernel may not. Resolve is called on the receiving goroutine, which receives no
	// messages meanwhile. So a sender must not be able to make Resolve wait long, or again and again.
	Resolve func(pid int, sent time.Time) (program string, run uint64, ok bool)
	// Dir is the directory for the socket if abstract sockets cannot be used; "" means that there
	// is none.
	Dir string
	// Deliver is called with every accepted message, in order. It must not block. It may be nil.
	Deliver func(Message)
	// Refuse is called for every message that was not accepted, with the reason. It must not block,
	// and it must bound what it reports, because a program decides how often it is called. It may be
	// nil.
	Refuse func(pid int, reason string)
}

// Notifier holds the box's sd_notify socket. One socket serves all programs: the kernel names the
// sender of a datagram (SCM_CREDENTIALS), so a program can report only about itself.
type Notifier struct {
	cfg  NotifierConfig
	conn *net.UnixConn
	addr string
	path string // removed by Close; "" for an abstract socket
	done chan struct{}
	// patience bounds Flush: programs can keep the queue of the socket full.
	patience time.Duration

	// Only the receiving goroutine uses the fields below.
	senders *rate.Callers[int]
	strays  *lateclose.Strays

	mu      sync.Mutex
	runs    map[string]*notified
	flushes map[string]chan struct{} // by the text of the message, which no program can guess
}

// notified is what the newest run of a program has reported.
type notified struct {
	run     uint64
	ready   bool
	pings   uint64
	trigger bool
	timeout time.Duration
	changed chan struct{} // closed at the next change
}

// Listen opens the socket and begins to receive. The error means that neither an abstract socket
// nor one in Dir could be made.
func Listen(cfg NotifierConfig) (*Notifier, error) {
	if cfg.Resolve == nil {
		return nil, errors.New("cannot listen for notifications: there is no way to find out which program a sender belongs to")
	}
	n := newNotifier(cfg)
	if err := n.listen(); err != nil {
		return nil, fmt.Errorf("cannot listen for notifications: %w", err)
	}
	go n.receive()
	return n, nil
}

// newNotifier makes a Notifier without a socket.
func newNotifier(cfg NotifierConfig) *Notifier {
	return &Notifier{
		cfg: cfg, done: make(chan struct{}), patience: flushPatience, senders: newSenders(), strays: lateclose.NewStrays(1),
		runs: map[string]*notified{}, flushes: map[string]chan struct{}{},
	}
}

func (n *Notifier) listen() error {
	name := "agentinit-notify-" + rand.Text()
	abstractErr := n.bind("@" + name)
	if abstractErr == nil || n.cfg.Dir == "" {
		return abstractErr
	}
	path := filepath.Join(n.cfg.Dir, name)
	if err := n.bind(path); err != nil {
		return errors.Join(abstractErr, err)
	}
	n.path = path
	// Programs of every uid may write here, because the kernel names the sender.
	if err := os.Chmod(path, 0o666); err != nil {
		return errors.Join(err, n.closeSocket())
	}
	return nil
}

func (n *Notifier) bind(addr string) error {
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: addr, Net: "unixgram"})
	if err != nil {
		return err
	}
	if err := passCredentials(conn); err != nil {
		return errors.Join(err, conn.Close())
	}
	n.conn, n.addr = conn, addr
	return nil
}

func passCredentials(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	ctlErr := raw.Control(func(fd uintptr) {
		// Without the time, a message counts for the process that has the sender's pid now.
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1)
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSCRED, 1)
	})
	return errors.Join(ctlErr, os.NewSyscallError("setsockopt SO_PASSCRED", err))
}

// newSenders limits the messages of one process to 500 a second, and 1000 at once. Its key is the pid
// from the kernel, so that the limit applies before Resolve, which is expensive.
func newSenders() *rate.Callers[int] {
	return rate.NewCallers[int](rate.Limit{PerSecond: 500, Burst: 1000}, 1024)
}

// Address is the value of NOTIFY_SOCKET for programs.
func (n *Notifier) Address() string { return n.addr }

// Close ends receiving. Probes that wait for a notification keep waiting.
func (n *Notifier) Close() error {
	err := n.closeSocket()
	<-n.done
	return err
}

func (n *Notifier) closeSocket() error {
	err := n.conn.Close()
	if n.path != "" {
		if rm := os.Remove(n.path); rm != nil && !errors.Is(rm, os.ErrNotExist) {
			err = errors.Join(err, rm)
		}
	}
	return err
}

// flushPatience is longer than a busy machine keeps the reader from running: a shorter one would take
// the end of a process for the end of a program that has just named another main process.
const flushPatience = time.Second

// Flush returns when all messages that were sent before have been taken, or when that takes too
// long. So what a process has said before its end is known before its end counts.
func (n *Notifier) Flush() {
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: n.addr, Net: "unixgram"})
	if err != nil {
		return // closed
	}
	defer conn.Close()
	mark, taken := "FLUSH="+rand.Text(), make(chan struct{})
	n.mu.Lock()
	n.flushes[mark] = taken
	n.mu.Unlock()
	defer func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.flushes, mark)
	}()
	limit := time.NewTimer(n.patience)
	defer limit.Stop()
	if conn.SetWriteDeadline(time.Now().Add(n.patience)) != nil {
		return
	}
	if _, err := conn.Write([]byte(mark)); err != nil {
		return // the queue stays full
	}
	select {
	case <-taken:
	case <-n.done:
	case <-limit.C:
	}
}

// flushMark takes the message of a Flush.
func (n *Notifier) flushMark(text []byte) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	taken, ok := n.flushes[string(text)]
	if ok {
		delete(n.flushes, string(text))
		close(taken)
	}
	return ok
}

// oobSize is enough for the time and the credentials. So no room is left for descriptors in a message,
// and the kernel closes them.
var oobSize = unix.CmsgSpace(int(unsafe.Sizeof(unix.Timespec{}))) + unix.CmsgSpace(unix.SizeofUcred)

func (n *Notifier) receive() {
	defer close(n.done)
	buf := make([]byte, maxMessage+1)
	oob := make([]byte, oobSize)
	for {
		size, flags, pid, sent, err := n.next(buf, oob)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			n.refuse(pid, err.Error())
			if !transient(err) {
				return
			}
			continue
		}
		n.handle(pid, sent, buf[:size], flags&unix.MSG_TRUNC != 0)
	}
}

// next waits for a message and reads it. The kernel closes the descriptors in it at the end of the
// read, which may wait for ever, see lateclose.Strays. A sender of BARRIER=1 waits only for that.
func (n *Notifier) next(buf, oob []byte) (size, flags, pid int, sent time.Time, err error) {
	raw, err := n.conn.SyscallConn()
	if err != nil {
		return 0, 0, 0, sent, err
	}
	waitErr := raw.Read(func(fd uintptr) bool {
		n.strays.Interrupt(func() {
			var oobn int
			// With MSG_CMSG_CLOEXEC, no program started meanwhile can inherit a received descriptor.
			size, oobn, flags, _, err = unix.Recvmsg(int(fd), buf, oob, unix.MSG_CMSG_CLOEXEC)
			var fds []int
			pid, sent, fds = takeControl(oob[:oobn])
			for _, fd := range fds { // a kernel that does not tell the time leaves room for some
				_ = unix.Close(fd) // it was never used
			}
		})
		return !errors.Is(err, unix.EAGAIN)
	})
	return max(0, size), flags, pid, sent, errors.Join(waitErr, err)
}

func transient(err error) bool {
	return errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.EINTR) ||
		errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE)
}

// takeControl returns the sender's pid, or 0 if the kernel names no process that is visible here,
// and the time at which it sent the message (SCM_TIMESTAMPNS, socket(7)). It also returns the
// descriptors in the message, which must be closed.
func takeControl(oob []byte) (pid int, sent time.Time, fds []int) {
	messages, err := syscall.ParseSocketControlMessage(oob)
	if err != nil {
		return 0, sent, nil
	}
	for i := range messages {
		m := &messages[i]
		if passed, err := syscall.ParseUnixRights(m); err == nil {
			fds = append(fds, passed...)
		} else if cred, err := syscall.ParseUnixCredentials(m); err == nil {
			pid = int(cred.Pid)
		} else if ts := (unix.Timespec{}); m.Header.Type == unix.SCM_TIMESTAMPNS && binary.Size(ts) == len(m.Data) {
			if _, err := binary.Decode(m.Data, binary.NativeEndian, &ts); err == nil {
				sent = time.Unix(ts.Unix())
			}
		}
	}
	return pid, sent, fds
}

func (n *Notifier) handle(pid int, sent time.Time, text []byte, truncated bool) {
	if pid == os.Getpid() && n.flushMark(text) {
		return
	}
	if pid <= 0 {
		n.refuse(pid, "the sender's process is not visible in this box")
		return
	}
	if _, ok := n.senders.Take(pid, time.Now()); !ok {
		n.refuse(pid, "too many messages")
		return
	}
	name, run, ok := n.cfg.Resolve(pid, sent)
	if !ok {
		n.refuse(pid, "the sender belongs to no program")
		return
	}
	if truncated {
		n.refuse(pid, fmt.Sprintf("message is longer than %d bytes", maxMessage))
		return
	}
	m, err := parseMessage(text)
	if err != nil {
		n.refuse(pid, err.Error())
		return
	}
	m.Program, m.Run, m.Sender = name, run, pid
	if m.MainPID != 0 && m.MainPID != pid {
		if owner, ownerRun, ok := n.cfg.Resolve(m.MainPID, sent); !ok || owner != name || ownerRun != run {
			n.refuse(pid, fmt.Sprintf("MAINPID %d does not belong to %s", m.MainPID, name))
			m.MainPID = 0
		}
	}
	// First what goes with it: a program that is ready has the main process that it named.
	if n.cfg.Deliver != nil {
		n.cfg.Deliver(m)
	}
	n.note(m)
}

func (n *Notifier) refuse(pid int, reason string) {
	if n.cfg.Refuse != nil {
		n.cfg.Refuse(pid, reason)
	}
}

// note stores what probes wait for.
func (n *Notifier) note(m Message) {
	n.mu.Lock()
	defer n.mu.Unlock()
	st := n.state(m.Program, m.Run)
	if st == nil {
		return
	}
	st.ready = m.Ready || st.ready && m.Withdrawn == ""
	if m.Watchdog {
		st.pings++
	}
	st.trigger = st.trigger || m.WatchdogTrigger
	if m.WatchdogTimeout > 0 {
		st.timeout = m.WatchdogTimeout
	}
	close(st.changed)
	st.changed = make(chan struct{})
}

// state returns the record of a run, or nil if a newer run is known. The caller holds mu.
func (n *Notifier) state(program string, run uint64) *notified {
	st := n.runs[program]
	switch {
	case st == nil || st.run < run:
		if st != nil {
			close(st.changed)
		}
		st = &notified{run: run, changed: make(chan struct{})}
		n.runs[program] = st
	case st.run > run:
		return nil
	}
	return st
}

// look returns what a run has reported so far, and a channel that closes when it reports more. ok
// is false if a newer run has replaced it, or if ctx, that of the watch, has ended.
func (n *Notifier) look(ctx context.Context, program string, run uint64) (st notified, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if ctx.Err() != nil {
		return notified{}, false // a record that is made after Forget would stand in the way of a new program
	}
	if p := n.state(program, run); p != nil {
		return *p, true
	}
	return notified{}, false
}

// Forget drops what is kept about a removed program.
func (n *Notifier) Forget(program string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if st := n.runs[program]; st != nil {
		close(st.changed)
		delete(n.runs, program)
	}
}
