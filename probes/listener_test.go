package probes

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dreamlab-ai/agentinit/internal/idle"
	"github.com/dreamlab-ai/agentinit/internal/pipenet"
	"github.com/dreamlab-ai/agentinit/internal/polled"
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
	// On a busy machine, a deadline may pass before the first write. So what is to be exceeded is
	// tried more than once.
	held := func(l net.Listener, tries int) (n int) {
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
		for range tries {
			if err := c.SetWriteDeadline(time.Now().Add(500 * time.Millisecond)); err != nil {
				t.Fatal(err)
			}
			written, _ := c.Write(make([]byte, 64<<20)) // until the deadline: it is never read
			if n += written; n > 4*socketBuffer {
				break
			}
		}
		return n
	}
	unbounded, bounded := held(inner, 60), held(newBoundedListener(inner, 8), 1)
	if unbounded <= 4*socketBuffer || bounded > 4*socketBuffer {
		t.Errorf("the kernel took %d bytes, %d without the bound; the bound is %d", bounded, unbounded, 4*socketBuffer)
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
		if !steady {
			ended = <-served
			_ = inner.Close()
			<-answered
			return nil, ended
		}
		if err := <-answered; err != nil {
			t.Error(err)
		}
		_ = srv.Close()
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			ended = err
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

// Where the kernel watches no more connections, requests are answered all the same.
func TestConnectionsThatCannotBeWatched(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := Steady(inner, func(error) {}).(*steadyListener)
	l.unwatched = time.Now().Add(time.Hour)
	l.polled = polled.New(inner.(polled.Socket), func(*os.File) (net.Conn, error) { return nil, syscall.ENOSPC })
	big := strings.Repeat("all of it", 1<<17)
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if host, _, err := net.SplitHostPort(r.RemoteAddr); err != nil || host != "127.0.0.1" {
			t.Errorf("asked by %q, %v", r.RemoteAddr, err)
		}
		_, _ = io.WriteString(w, big) // the peer sees whether it is whole
	})}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(newBoundedListener(l, 100)) }()
	address := "http://" + inner.Addr().String()
	// Two on one connection, and after more idle ones than there may be.
	client := http.Client{Transport: &http.Transport{}}
	ask := func() {
		t.Helper()
		resp, err := client.Get(address)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		if resp.Body.Close() != nil || err != nil || string(body) != big {
			t.Fatalf("got %d bytes of %d, %v", len(body), len(big), err)
		}
	}
	ask()
	ask()
	var kept []net.Conn
	for range 3 * polled.Most {
		c, err := net.Dial("tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		kept = append(kept, c)
	}
	if _, err := kept[0].Read(make([]byte, 1)); err == nil { // closed to make room
		t.Error("an idle connection was sent something")
	}
	client.CloseIdleConnections()
	ask()
	client.CloseIdleConnections()
	for _, c := range kept {
		_ = c.Close()
	}
	if err := srv.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		t.Error(err)
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
	server := &http.Server{ConnContext: connContext, Handler: bounded(func(*http.Request) bool { return false }, http.HandlerFunc(tooMuch), http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))}
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

// served8 serves over pipes a listener that holds 8 connections, 7 of them with a
// request at work; the returned function makes a request of its own connection. Within
// a bubble of synctest.
func served8(t *testing.T, work http.HandlerFunc) func(path string) (status int, header http.Header, err error) {
	t.Helper()
	p := pipenet.Listen()
	mux := http.NewServeMux()
	mux.HandleFunc("/work", work)
	mux.HandleFunc("/livez", func(http.ResponseWriter, *http.Request) {})
	server := &http.Server{ConnContext: connContext, Handler: bounded(func(r *http.Request) bool { return r.URL.Path == "/livez" }, http.HandlerFunc(tooMuch), mux)}
	ended := make(chan error)
	go func() { ended <- server.Serve(newBoundedListener(p, 8)) }()
	t.Cleanup(func() {
		server.Close()
		<-ended
	})
	return func(path string) (int, http.Header, error) {
		client := &http.Client{Transport: &http.Transport{DialContext: p.DialContext, DisableKeepAlives: true}}
		r, err := client.Post("http://box"+path, "text/plain", strings.NewReader("a body that nobody reads"))
		if err != nil {
			return 0, nil, err
		}
		return r.StatusCode, r.Header, r.Body.Close()
	}
}

// toldToComeBack tells whether an answer is a 503 that says when.
func toldToComeBack(status int, header http.Header) bool {
	after, err := strconv.Atoi(header.Get("Retry-After"))
	return status == http.StatusServiceUnavailable && err == nil && after >= 1 && after <= comeBack
}

// All requests beyond the bound are told to come back, probes are answered, and what
// comes when the others have ended is served.
func TestRequestsBeyondTheBoundAreToldToComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		ask := served8(t, func(http.ResponseWriter, *http.Request) { <-release })
		answers := make(chan int)
		for range 7 {
			go func() {
				status, _, err := ask("/work")
				if err != nil {
					t.Error(err)
				}
				answers <- status
			}()
		}
		synctest.Wait()
		for range 20 {
			if status, header, err := ask("/work"); err != nil || !toldToComeBack(status, header) {
				t.Errorf("the eighth request: %d %v %v", status, header, err)
			}
			if status, _, err := ask("/livez"); err != nil || status != http.StatusOK {
				t.Errorf("a probe meanwhile: %d %v", status, err)
			}
		}
		close(release)
		for range 7 {
			if status := <-answers; status != http.StatusOK {
				t.Errorf("one of the seven: %d", status)
			}
		}
		if status, _, err := ask("/work"); err != nil || status != http.StatusOK {
			t.Errorf("afterwards: %d %v", status, err)
		}
	})
}

// One agent may have an eighth of the connections at work, and all agents half of them. Callers that are
// no agents are served meanwhile, and agents again when others have been answered.
func TestAgentsLeaveConnectionsToOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, AuthBearer)
		r.auth.SetKey("operator")
		r.auth.SetTokens(func(token string) (Principal, error) { return Principal{Role: RoleAgent, ID: token}, nil })
		release := make(chan struct{})
		r.server.Mount("/v1/work", http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
		p := pipenet.Listen()
		server := &http.Server{ConnContext: connContext, Handler: r.server.public()}
		ended := make(chan error)
		go func() { ended <- server.Serve(newBoundedListener(p, 32)) }()
		defer func() {
			server.Close()
			<-ended
		}()
		client := &http.Client{Transport: &http.Transport{DialContext: p.DialContext, DisableKeepAlives: true}}
		var all sync.WaitGroup
		var mu sync.Mutex
		ask := func(key string, answers map[int]int) {
			all.Go(func() {
				q, err := http.NewRequest("GET", "http://localhost/v1/work", nil)
				if err != nil {
					t.Error(err)
					return
				}
				q.Header.Set("Authorization", "Bearer "+key)
				resp, err := client.Do(q)
				if err != nil {
					t.Error(err)
					return
				}
				resp.Body.Close()
				mu.Lock()
				defer mu.Unlock()
				answers[resp.StatusCode]++
			})
			synctest.Wait()
		}
		one, others, operator := map[int]int{}, map[int]int{}, map[int]int{}
		for range 10 {
			ask("one", one)
		}
		for i := range 20 {
			ask(fmt.Sprint("other", i/4), others)
		}
		for range 12 {
			ask("operator", operator)
		}
		if one[429] != 6 || others[429] != 8 || operator[503] != 0 {
			t.Errorf("refused at once: %v of one agent, %v of others, %v of the operator", one, others, operator)
		}
		close(release)
		all.Wait()
		ask("one", one)
		if one[200] != 5 || others[200] != 12 || operator[200] != 12 {
			t.Errorf("in the end: %v of one agent, %v of others, %v of the operator", one, others, operator)
		}
	})
}

// A herd of connections, each of which asks at once: every one has an answer.
func TestHerdIsAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ask := served8(t, func(http.ResponseWriter, *http.Request) { time.Sleep(100 * time.Millisecond) })
		var served, refused, cut atomic.Int64
		var herd sync.WaitGroup
		for range 500 {
			herd.Go(func() {
				status, header, err := ask("/work")
				switch {
				case err != nil:
					t.Log(err)
					cut.Add(1)
				case status == http.StatusOK:
					served.Add(1)
				case toldToComeBack(status, header):
					refused.Add(1)
				}
			})
		}
		herd.Wait()
		if served.Load() < 7 || served.Load()+refused.Load() != 500 {
			t.Errorf("%d served, %d told to come back, %d cut off, of 500", served.Load(), refused.Load(), cut.Load())
		}
	})
}

// A connection whose request has come stays, even if it is not read for long.
func TestUnreadRequestsStay(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer inner.Close()
	l := newBoundedListener(inner, 2)
	accept := func(sends string) (peer net.Conn, c *boundedConn) {
		peer, err := net.Dial("tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { peer.Close() })
		if _, err := io.WriteString(peer, sends); err != nil {
			t.Fatal(err)
		}
		accepted, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { accepted.Close() })
		c = accepted.(*boundedConn)
		for sends != "" && !c.Unread() {
			runtime.Gosched()
		}
		return peer, c
	}
	_, asks := accept("GET /")
	silent, _ := accept("")
	_, next := accept("")
	if n, err := silent.Read(make([]byte, 1)); err == nil {
		t.Errorf("the silent connection is still open: %d bytes", n)
	}
	if len(l.conns) != 2 || l.idle.Len() == 0 {
		t.Fatalf("%d connections", len(l.conns))
	}
	for _, c := range []*boundedConn{asks, next} {
		if _, here := l.conns[c]; !here {
			t.Errorf("closed: one that has asked %v", c.Unread())
		}
	}
}

// A connection is not silent while its reader works on what it has read.
func TestReaderIsBusyUntilItAsksForMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newBoundedListener(nil, 1)
		peer, here := net.Pipe()
		defer peer.Close()
		c := &boundedConn{Conn: here, owner: l}
		defer c.Close()
		l.admit(c)
		go io.WriteString(peer, "GET / HTTP/1.1\r\n")
		if _, err := c.Read(make([]byte, 100)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * idle.Patience) // of the bubble's clock
		if victim, ok := l.place(&boundedConn{owner: l}, false); ok {
			t.Errorf("%v was closed with a request that has not begun yet", victim)
		}
		go c.Read(make([]byte, 100))
		time.Sleep(2 * idle.Patience)
		if victim, ok := l.place(&boundedConn{owner: l}, false); !ok || victim != c {
			t.Error("a connection that waits for more stays")
		}
	})
}

// A full listener ends each connection with its answer, so that a client that has sent many requests at
// once does not keep others out.
func TestFullListenerEndsConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := pipenet.Listen()
		server := &http.Server{ConnContext: connContext, Handler: bounded(func(*http.Request) bool { return true }, http.HandlerFunc(tooMuch), http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))}
		ended := make(chan error)
		go func() { ended <- server.Serve(newBoundedListener(p, 2)) }()
		defer func() {
			server.Close()
			<-ended
		}()
		dial := func() net.Conn {
			c, err := p.DialContext(t.Context(), "", "")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			return c
		}
		one := dial()
		answers := bufio.NewReader(one)
		ask := func() (closes bool) {
			t.Helper()
			go io.WriteString(one, strings.Repeat("GET / HTTP/1.1\r\nHost: x\r\n\r\n", 2))
			for n := range 2 {
				resp, err := http.ReadResponse(answers, nil)
				if n == 1 && closes {
					if err == nil {
						t.Error("the second of two requests was answered after the end")
					}
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				closes = resp.Close
			}
			return closes
		}
		if ask() {
			t.Error("a listener with room ends a connection")
		}
		dial()
		synctest.Wait()
		if !ask() {
			t.Error("a full listener keeps a connection")
		}
	})
}

// No more connections wait in the kernel than the listener holds.
func TestQueueOfTheKernelIsShort(t *testing.T) {
	s := newRig(t, AuthBearer).server
	n, err := s.bind(t.Context(), &listener{name: "test", address: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	bounded := n.(*boundedListener)
	raw := idle.RawOf(bounded.Listener.(*steadyListener).Listener)
	var info *unix.TCPInfo
	if err := errors.Join(raw.Control(func(fd uintptr) { info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) }), err); err != nil {
		t.Fatal(err)
	}
	if int(info.Sacked) != bounded.max { // of a listener: the length of its queue
		t.Errorf("%d connections may wait, want %d", info.Sacked, bounded.max)
	}
}
