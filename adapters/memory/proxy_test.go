package memory

import (
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// misbehaviour is what a proxy does with a piece of the server's answer instead of passing it on.
// If it returns false, the connection is closed.
type misbehaviour func(p *proxy, client *net.TCPConn, piece []byte) bool

// proxy stands between the adapter and a real server. It passes all data on until it is told to
// misbehave.
type proxy struct {
	t      testing.TB
	listen net.Listener
	server string // the socket of the real server

	mu      sync.Mutex
	mode    misbehaviour
	until   chan struct{}             // closed when the mode ends
	tainted map[*net.TCPConn]struct{} // connections that have seen the mode
	open    map[*net.TCPConn]net.Conn
	closed  bool
	all     sync.WaitGroup
}

// newProxy makes a proxy for the server whose socket conninfo names.
func newProxy(t testing.TB, conninfo string) *proxy {
	t.Helper()
	cfg, err := pgx.ParseConfig(conninfo)
	if err != nil {
		t.Fatal(err)
	}
	_, socket := pgconn.NetworkAddress(cfg.Host, cfg.Port)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{t: t, listen: l, server: socket, until: make(chan struct{}),
		tainted: make(map[*net.TCPConn]struct{}), open: make(map[*net.TCPConn]net.Conn)}
	p.all.Go(p.accept)
	t.Cleanup(func() {
		p.heal()
		l.Close()
		p.mu.Lock()
		p.closed = true
		for client, server := range p.open {
			client.Close()
			server.Close()
		}
		p.mu.Unlock()
		p.all.Wait()
	})
	return p
}

// conninfo returns the direct conninfo with the address of the proxy.
func (p *proxy) conninfo(direct string) string {
	_, rest, _ := strings.Cut(direct, " ")
	return fmt.Sprintf("host=127.0.0.1 port=%d sslmode=disable %s", p.listen.Addr().(*net.TCPAddr).Port, rest)
}

// misbehave takes effect at the next answer, also on open connections.
func (p *proxy) misbehave(m misbehaviour) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mode = m
}

// heal ends the mode and closes the connections that have seen it.
func (p *proxy) heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mode = nil
	close(p.until)
	p.until = make(chan struct{})
	for client := range p.tainted {
		client.Close()
	}
	clear(p.tainted)
}

// answer returns the mode for a piece of data to the client, and a channel that closes when the
// mode ends.
func (p *proxy) answer(client *net.TCPConn) (misbehaviour, chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mode != nil {
		p.tainted[client] = struct{}{}
	}
	return p.mode, p.until
}

func (p *proxy) accept() {
	for {
		c, err := p.listen.Accept()
		if err != nil {
			return
		}
		client := c.(*net.TCPConn)
		server, err := net.Dial("unix", p.server)
		if err != nil { // the server is down, so the proxy refuses the client
			client.Close()
			continue
		}
		p.mu.Lock()
		if p.closed {
			client.Close()
			server.Close()
		}
		p.open[client] = server
		p.mu.Unlock()
		p.all.Go(func() {
			// When one side closes, both are closed.
			_, _ = io.Copy(server, client)
			server.Close()
		})
		p.all.Go(func() { p.answers(client, server) })
	}
}

func (p *proxy) answers(client *net.TCPConn, server net.Conn) {
	defer func() {
		client.Close()
		server.Close()
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.open, client)
		delete(p.tainted, client)
	}()
	buf := make([]byte, 64<<10)
	for {
		n, err := server.Read(buf)
		if err != nil {
			return
		}
		mode, _ := p.answer(client)
		if mode != nil {
			if !mode(p, client, buf[:n]) {
				return
			}
			continue
		}
		if _, err := client.Write(buf[:n]); err != nil {
			return
		}
	}
}

// pause waits and reports whether the mode is still on.
func (p *proxy) pause(client *net.TCPConn, d time.Duration) bool {
	mode, until := p.answer(client)
	if mode == nil {
		return false
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-until:
		return false
	}
}

// say writes to the client and reports whether that worked.
func say(client *net.TCPConn, b []byte) bool {
	_, err := client.Write(b)
	return err == nil
}

func silent(*proxy, *net.TCPConn, []byte) bool { return true }

// slow sends one byte per second, which is slower than any call of these tests may be.
func slow(p *proxy, client *net.TCPConn, piece []byte) bool {
	for i := range piece {
		if !p.pause(client, time.Second) || !say(client, piece[i:i+1]) {
			return false
		}
	}
	return true
}

func halfClosed(_ *proxy, client *net.TCPConn, _ []byte) bool { return client.CloseWrite() == nil }

func cutOff(_ *proxy, client *net.TCPConn, piece []byte) bool {
	say(client, piece[:len(piece)/2])
	return false
}

func reset(_ *proxy, client *net.TCPConn, piece []byte) bool {
	say(client, piece[:1])
	// With SO_LINGER 0 the client gets RST instead of FIN, and unread data is lost.
	_ = client.SetLinger(0)
	return false
}

func says(b []byte) misbehaviour {
	return func(_ *proxy, client *net.TCPConn, _ []byte) bool { return say(client, b) }
}

// endless sends one message of the server again and again.
func endless(_ *proxy, client *net.TCPConn, piece []byte) bool {
	if len(piece) < 5 {
		return false
	}
	first := piece[:min(len(piece), 1+int(uint32(piece[1])<<24|uint32(piece[2])<<16|uint32(piece[3])<<8|uint32(piece[4])))]
	for say(client, first) {
	}
	return false
}

// forever sends b and then zeros without end.
func forever(b []byte) misbehaviour {
	return func(_ *proxy, client *net.TCPConn, _ []byte) bool {
		for ok := say(client, b); ok; ok = say(client, make([]byte, 64<<10)) {
		}
		return false
	}
}
