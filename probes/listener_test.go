package probes

import (
	"errors"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestConnectionsLeaveDescriptorsForPrograms(t *testing.T) {
	for descriptors, want := range map[uint64]int{1: 1, 256: 32, 1024: 128, 4096: 512, 1 << 20: 512} {
		if got := connectionLimit(descriptors); got != want {
			t.Errorf("%d descriptors: %d connections, want %d", descriptors, got, want)
		}
	}
	if descriptors() == 0 {
		t.Error("no descriptors at all")
	}
}

// A peer that never reads makes the kernel hold little for it.
func TestUnreadAnswersAreBounded(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer inner.Close()
	held := func(l net.Listener) (n int) {
		peer, err := net.Dial("tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer peer.Close()
		if err := peer.(*net.TCPConn).SetReadBuffer(4096); err != nil {
			t.Fatal(err)
		}
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err := c.SetWriteDeadline(time.Now().Add(500 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		n, _ = c.Write(make([]byte, 64<<20)) // until the deadline: it is never read
		return n
	}
	unbounded, bounded := held(inner), held(newBoundedListener(inner, 8))
	if bounded >= unbounded || bounded > 4*socketBuffer {
		t.Errorf("the kernel took %d bytes, %d without the bound", bounded, unbounded)
	}
}

// failing is a listener whose kernel has no room to watch some connections.
type failing struct {
	net.Listener
	left int
}

func (f *failing) Accept() (net.Conn, error) {
	if f.left > 0 {
		f.left--
		return nil, &net.OpError{Op: "accept", Net: "tcp", Err: syscall.ENOSPC}
	}
	return f.Listener.Accept()
}

// What net/http would close a listener for, a steady one outlives.
func TestSteadyListener(t *testing.T) {
	serve := func(steady bool) (told []error, ended error) {
		inner, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		var l net.Listener = &failing{Listener: inner, left: 3}
		if steady {
			l = Steady(l, func(err error) { told = append(told, err) })
		}
		served, answered := make(chan error, 1), make(chan error, 1)
		srv := &http.Server{Handler: http.NotFoundHandler()}
		go func() { served <- srv.Serve(l) }()
		go func() {
			resp, err := http.Get("http://" + inner.Addr().String())
			if err == nil {
				err = resp.Body.Close()
			}
			answered <- err
		}()
		select {
		case ended = <-served:
			_ = inner.Close()
			<-answered
		case err := <-answered:
			if err != nil {
				t.Error(err)
			}
			_ = srv.Close()
			<-served
		}
		return told, ended
	}
	if told, err := serve(true); err != nil || len(told) != 1 || !errors.Is(told[0], syscall.ENOSPC) {
		t.Errorf("ended with %v, told %v", err, told)
	}
	// The twin: net/http gives up.
	if _, err := serve(false); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("ended with %v", err)
	}
}

// A burst of more connections than the listener holds, on one processor: the
// connections that were accepted get to send their requests before they are closed to
// make room.
func TestBurstIsServed(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	const limit, burst = 8, 200
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{ConnContext: connContext, Handler: markBusy(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {}))}
	// All of them have sent their requests before the first is accepted.
	conns := make([]net.Conn, burst)
	for i := range conns {
		c, err := net.Dial("tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		conns[i] = c
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(newBoundedListener(inner, limit)) }()
	answered := 0
	for _, c := range conns {
		if answer, err := io.ReadAll(c); err == nil && strings.HasPrefix(string(answer), "HTTP/1.1 200") {
			answered++
		}
	}
	if answered < burst/2 {
		t.Errorf("%d of %d connections were answered", answered, burst)
	}
	if err := server.Close(); err != nil {
		t.Error(err)
	}
	<-served
}
