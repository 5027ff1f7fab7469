package ready

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/dreamlab-ai/agentinit/internal/lateclose/lingertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type heard struct {
	messages chan Message
	refused  chan string
}

func listen(t *testing.T, dir string, resolve func(int, time.Time) (string, uint64, bool)) (*Notifier, heard) {
	t.Helper()
	h := heard{make(chan Message, 100), make(chan string, 100)}
	n, err := Listen(NotifierConfig{
		Resolve: resolve, Dir: dir,
		Deliver: func(m Message) { h.messages <- m },
		Refuse:  func(_ int, reason string) { h.refused <- reason },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return n, h
}

// self knows only this test's process.
func self(pid int, _ time.Time) (string, uint64, bool) { return "web", 7, pid == os.Getpid() }

// send sends one datagram, as a program does with sd_notify(3).
func send(t *testing.T, address, text string, oob []byte) {
	t.Helper()
	if err := trySend(address, text, oob); err != nil {
		t.Fatal(err)
	}
}

func trySend(address, text string, oob []byte) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Sendmsg(fd, []byte(text), oob, &unix.SockaddrUnix{Name: address}, 0)
}

func TestNotifierDelivers(t *testing.T) {
	n, h := listen(t, "", self)
	if !strings.HasPrefix(n.Address(), "@") {
		t.Errorf("address %q is not abstract", n.Address())
	}
	send(t, n.Address(), "READY=1\nSTATUS=serving \x1b[31mred\nX_OTHER=1\nWATCHDOG=1\nEXTEND_TIMEOUT_USEC=5000000\n", nil)
	m := <-h.messages
	if m.Program != "web" || m.Run != 7 || m.Sender != os.Getpid() || !m.Ready || !m.Watchdog || m.Extend != 5*time.Second {
		t.Errorf("got %+v", m)
	}
	if m.Status == nil || *m.Status != "serving  [31mred" {
		t.Errorf("status = %v", m.Status)
	}
	// A message is delivered before it is noted. With the next one, it is noted for certain.
	send(t, n.Address(), "STATUS=", nil)
	<-h.messages
	if st, ok := n.look(t.Context(), "web", 7); !ok || !st.ready || st.pings != 1 {
		t.Errorf("state = %+v", st)
	}
	if _, ok := n.look(t.Context(), "web", 6); ok {
		t.Error("an older run is still known")
	}
}

// The kernel tells when a message was sent: until it is read, another process may have the sender's
// pid.
func TestNotifierKnowsWhenItWasSent(t *testing.T) {
	sent := make(chan time.Time, 1)
	n, h := listen(t, "", func(_ int, at time.Time) (string, uint64, bool) { sent <- at; return "web", 7, true })
	before := time.Now()
	send(t, n.Address(), "READY=1", nil)
	<-h.messages
	if at := <-sent; at.Before(before.Round(0)) || at.After(time.Now().Round(0)) {
		t.Errorf("sent at %v, not after %v", at, before)
	}
}

// The negative test: the sender decides whether a message counts, not the text.
func TestNotifierRefuses(t *testing.T) {
	const mine, foreign = 111, 222
	resolve := func(pid int, _ time.Time) (string, uint64, bool) {
		switch pid {
		case mine, os.Getpid():
			return "web", 7, true
		case foreign:
			return "db", 1, true
		}
		return "", 0, false
	}
	t.Run("spoofed sender", func(t *testing.T) {
		n, h := listen(t, "", func(int, time.Time) (string, uint64, bool) { return "", 0, false })
		send(t, n.Address(), "READY=1", nil)
		if got := <-h.refused; got != "the sender belongs to no program" {
			t.Errorf("reason = %q", got)
		}
		if len(h.messages) != 0 {
			t.Error("it was delivered")
		}
	})
	t.Run("forged credentials", func(t *testing.T) {
		n, h := listen(t, "", func(pid int, _ time.Time) (string, uint64, bool) { return "web", 7, pid == os.Getpid() })
		forged := unix.UnixCredentials(&unix.Ucred{Pid: int32(os.Getppid()), Uid: uint32(os.Getuid()), Gid: uint32(os.Getgid())})
		if err := trySend(n.Address(), "READY=1", forged); err != nil {
			return // without CAP_SYS_ADMIN, the kernel refuses it already
		}
		if got := <-h.refused; got != "the sender belongs to no program" {
			t.Errorf("reason = %q", got)
		}
	})
	t.Run("main pid of another program", func(t *testing.T) {
		n, h := listen(t, "", resolve)
		send(t, n.Address(), "MAINPID=222\nREADY=1", nil)
		if m := <-h.messages; m.MainPID != 0 || !m.Ready {
			t.Errorf("got %+v", m)
		}
		if got := <-h.refused; !strings.Contains(got, "222 does not belong to web") {
			t.Errorf("reason = %q", got)
		}
		send(t, n.Address(), "MAINPID=111", nil)
		if m := <-h.messages; m.MainPID != 111 {
			t.Errorf("got %+v", m)
		}
	})
	t.Run("too long", func(t *testing.T) {
		n, h := listen(t, "", resolve)
		send(t, n.Address(), "READY=1\nSTATUS="+strings.Repeat("x", maxMessage), nil)
		if got := <-h.refused; !strings.Contains(got, "longer than 4096") {
			t.Errorf("reason = %q", got)
		}
	})
	t.Run("nonsense", func(t *testing.T) {
		n, h := listen(t, "", resolve)
		send(t, n.Address(), "READY=1\nMAINPID=-4", nil)
		if got := <-h.refused; !strings.Contains(got, "MAINPID") {
			t.Errorf("reason = %q", got)
		}
		if st, _ := n.look(t.Context(), "web", 7); st.ready {
			t.Error("half of a bad message counted")
		}
	})
}

// With BARRIER=1 a program sends the write end of a pipe and waits for end of file.
func TestBarrierIsAnswered(t *testing.T) {
	n, _ := listen(t, "", self)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	send(t, n.Address(), "BARRIER=1", unix.UnixRights(int(w.Fd())))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if k, err := r.Read(make([]byte, 1)); k != 0 || err == nil {
		t.Errorf("read = %d, %v; want the end of the file", k, err)
	}
}

// A program passes descriptors whose close waits. The messages of other programs are still heard, also
// if this process can open no further descriptor, so that the kernel closes what is passed.
func TestLingeringDescriptorsHoldNothingUp(t *testing.T) {
	for name, prepare := range map[string]func(testing.TB){"room": func(testing.TB) {}, "full table": lingertest.Full} {
		t.Run(name, func(t *testing.T) { testLingering(t, prepare) })
	}
}

func testLingering(t *testing.T, prepare func(testing.TB)) {
	asked, answer := make(chan bool), make(chan bool)
	n, h := listen(t, "", func(int, time.Time) (string, uint64, bool) { asked <- true; <-answer; return "web", 7, true })
	send(t, n.Address(), "STATUS=first", nil)
	<-asked // nothing is received meanwhile, so the next descriptors can be closed here first
	var fds []int
	for range 20 {
		fd, _ := lingertest.Lingering(t)
		fds = append(fds, fd)
	}
	send(t, n.Address(), "STATUS=second", unix.UnixRights(fds...))
	for _, fd := range fds {
		if err := unix.Close(fd); err != nil {
			t.Fatal(err)
		}
	}
	send(t, n.Address(), "READY=1", nil)
	prepare(t)
	answer <- true
	for range 2 {
		<-asked
		answer <- true
	}
	for m := range h.messages {
		if m.Ready {
			break
		}
	}
}

func TestSenderBucket(t *testing.T) {
	s := newSenders()
	now := time.Unix(1000, 0)
	count := func() (n int) {
		for range 5000 {
			if _, ok := s.Take(1, now); ok {
				n++
			}
		}
		return n
	}
	if n := count(); n != 1000 {
		t.Errorf("burst = %d, want 1000", n)
	}
	now = now.Add(time.Second)
	if n := count(); n != 500 {
		t.Errorf("after a second: %d, want 500", n)
	}
	if _, ok := s.Take(2, now); !ok {
		t.Error("another sender suffers")
	}
}

func TestPathSocket(t *testing.T) {
	dir := t.TempDir()
	n := newNotifier(NotifierConfig{Resolve: self})
	path := filepath.Join(dir, "notify")
	if err := n.bind(path); err != nil {
		t.Fatal(err)
	}
	n.path = path
	go n.receive()
	send(t, path, "READY=1", nil)
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("the socket is still there: %v", err)
	}
}

func TestParseMessage(t *testing.T) {
	tests := []struct {
		in   string
		want func(Message) bool
		bad  bool
	}{
		{in: "READY=1", want: func(m Message) bool { return m.Ready }},
		{in: "READY=1\x00", want: func(m Message) bool { return m.Ready }},
		{in: "READY=0", want: func(m Message) bool { return !m.Ready }},
		{in: "ready=1\nREADY", want: func(m Message) bool { return !m.Ready }},
		{in: "STOPPING=1\nRELOADING=1\nERRNO=2\nREADY=1", want: func(m Message) bool { return m == Message{Ready: true} }},
		{in: "READY=1\nRELOADING=1", want: func(m Message) bool { return !m.Ready && strings.Contains(m.Withdrawn, "RELOADING=1") }},
		{in: "RELOADING=1\nSTOPPING=1", want: func(m Message) bool { return strings.Contains(m.Withdrawn, "STOPPING=1") }},
		{in: "RELOADING=0\nSTOPPING=yes\nREADY=", want: func(m Message) bool { return m == Message{} }},
		{in: "STATUS=a=b", want: func(m Message) bool { return *m.Status == "a=b" }},
		{in: "STATUS=", want: func(m Message) bool { return *m.Status == "" }},
		{in: "WATCHDOG=trigger\nWATCHDOG_USEC=20", want: func(m Message) bool { return m.WatchdogTrigger && m.WatchdogTimeout == 20*time.Microsecond }},
		{in: "WATCHDOG=2", bad: true},
		{in: "MAINPID=1x", bad: true},
		{in: "EXTEND_TIMEOUT_USEC=99999999999999999999", bad: true},
		{in: "READY=1\x00STATUS=x", bad: true},
	}
	for _, tt := range tests {
		m, err := parseMessage([]byte(tt.in))
		if (err != nil) != tt.bad || (err == nil && !tt.want(m)) {
			t.Errorf("%q: got %+v, %v", tt.in, m, err)
		}
	}
}

func FuzzParseMessage(f *testing.F) {
	for _, s := range []string{"READY=1\nSTATUS=x", "MAINPID=1\x00", "WATCHDOG=trigger", "EXTEND_TIMEOUT_USEC=1\n\n="} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := parseMessage(b)
		if err != nil {
			return
		}
		if m.Extend < 0 || m.WatchdogTimeout < 0 || m.MainPID < 0 {
			t.Errorf("%q: negative value in %+v", b, m)
		}
		if m.Status != nil && (len(*m.Status) > maxStatus || strings.ContainsAny(*m.Status, "\x00\x1b\n\r\x7f\u0085\u202e")) {
			t.Errorf("%q: status %q", b, *m.Status)
		}
	})
}

// When Flush returns, all messages sent before it have been delivered, even if many goroutines call
// Flush at once. The message that Flush sends itself counts for no program.
func TestFlush(t *testing.T) {
	n, h := listen(t, "", self)
	n.patience = time.Hour // on a busy machine, the messages of 50 goroutines may take long
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			send(t, n.Address(), "STATUS=x", nil)
			n.Flush()
			select {
			case <-h.messages:
			default:
				t.Error("the message is not delivered yet")
			}
		})
	}
	all.Wait()
	if len(h.messages) != 0 || len(h.refused) != 0 {
		t.Errorf("%d messages and %d refusals more", len(h.messages), len(h.refused))
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.flushes) != 0 {
		t.Errorf("%d are kept", len(n.flushes))
	}
}

// A watch that wakes up late must not leave a record of a removed program: the runs of a new program of
// that name count from 1 again.
func TestForgottenProgramStaysForgotten(t *testing.T) {
	n := newNotifier(NotifierConfig{})
	ctx, cancel := context.WithCancel(t.Context())
	if _, ok := n.look(ctx, "web", 7); !ok {
		t.Fatal("the run is not known")
	}
	cancel()
	n.Forget("web")
	if _, ok := n.look(ctx, "web", 7); ok {
		t.Error("a watch that has ended sees the removed program")
	}
	if _, ok := n.look(t.Context(), "web", 1); !ok {
		t.Error("the first run of the new program counts as an older one")
	}
}
