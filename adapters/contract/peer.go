package contract

import (
	"bytes"
	"compress/gzip"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"
)

// A Peer is a reverse proxy in front of a good server. After Misbehave, it sends bad answers instead.
type Peer struct {
	URL string

	mu    sync.Mutex
	mode  *Misbehaviour
	until chan struct{} // closed when the mode ends
	hits  int           // bad answers of this mode
	hit   chan struct{} // closed at the first bad answer

	wrong []string // violations that the other origin has seen
	other *httptest.Server
	way   string // the start of the paths at other to which this peer redirects
}

// Part says which part of an answer is bad.
type Part int

// The parts, in order.
const (
	Head    Part = iota // the client gets no successful status and headers
	Whole               // the status and headers are those of a success; the body is never complete
	Content             // the answer is a complete success; its content is wrong
)

// Misbehaviour is one way to answer a request.
type Misbehaviour struct {
	Name string
	Part Part
	// Late means that the answer takes longer than any caller waits.
	Late bool
	// Heavy means that the client needs much CPU time for the answer. On a loaded machine, its
	// deadline may pass before it finds the error.
	Heavy  bool
	answer script
}

// script answers one request. It must return when a write fails: after until is closed, the
// connection is closed too.
type script func(conn *net.TCPConn, r *http.Request, p *Peer, until <-chan struct{})

// NewPeer starts a peer in front of the server at good.
func NewPeer(t testing.TB, good string) *Peer {
	t.Helper()
	u, err := url.Parse(good)
	if err != nil {
		t.Fatal(err)
	}
	p := &Peer{until: make(chan struct{}), way: "/" + rand.Text()}
	transport := &http.Transport{DisableCompression: true}
	forward := httputil.NewSingleHostReverseProxy(u)
	forward.FlushInterval, forward.Transport = -1, transport
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if mode, until := p.current(); mode != nil {
			p.misanswer(w, r, mode, until)
			return
		}
		forward.ServeHTTP(w, r)
	}))
	p.URL = srv.URL
	p.other = httptest.NewServer(http.HandlerFunc(p.elsewhere))
	t.Cleanup(func() {
		p.Heal()
		srv.CloseClientConnections() // otherwise Close would wait for open streams
		srv.Close()
		p.other.Close()
		transport.CloseIdleConnections()
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, w := range p.wrong {
			t.Error(w)
		}
	})
	return p
}

// Misbehave makes the peer misbehave from the next request on. The returned channel is closed at the
// first bad answer.
func (p *Peer) Misbehave(m Misbehaviour) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mode, p.hits, p.hit = &m, 0, make(chan struct{})
	return p.hit
}

// Heal ends the misbehaviour and closes the connections of bad answers.
func (p *Peer) Heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mode = nil
	close(p.until)
	p.until = make(chan struct{})
}

func (p *Peer) current() (*Misbehaviour, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mode, p.until
}

func (p *Peer) misanswer(w http.ResponseWriter, r *http.Request, m *Misbehaviour, until <-chan struct{}) {
	// If unread data remained, the close would become a reset. The error is ignored: the client may
	// have disconnected.
	_, _ = io.Copy(io.Discard, r.Body)
	conn, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	p.mu.Lock()
	if p.hits++; p.hits == 1 {
		close(p.hit)
	}
	p.mu.Unlock()
	defer conn.Close()
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		select {
		case <-until:
			conn.Close()
		case <-ended:
		}
	}()
	m.answer(conn.(*net.TCPConn), r, p, until)
}

// elsewhere serves another origin. A client may follow a redirect to it for a read, but must not send
// its credentials or agentinit's headers there. Requests that no redirect has sent are of clients of
// other tests: their server had this port before.
func (p *Peer) elsewhere(w http.ResponseWriter, r *http.Request) {
	if !strings.HasPrefix(r.URL.Path, p.way) {
		http.NotFound(w, r)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.Method != http.MethodGet && r.Method != http.MethodHead && r.Method != http.MethodOptions {
		p.wrong = append(p.wrong, "a "+r.Method+" went to another origin")
	}
	for name := range r.Header {
		if name == "Authorization" || name == "Cookie" || name == "Idempotency-Key" || strings.HasPrefix(name, "Agentbox-") {
			p.wrong = append(p.wrong, name+" went to another origin")
		}
	}
	w.WriteHeader(http.StatusServiceUnavailable)
}

// jsonHead is the start of a good answer. It says Connection: close because the peer closes the
// connection: otherwise, a client could send its next request on it and lose that request.
const jsonHead = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: application/json\r\n"

// Misbehaviours returns all misbehaviours.
func Misbehaviours() []Misbehaviour {
	list := []Misbehaviour{
		{Name: "slow first byte", Part: Head, Late: true, answer: hold("")},
		{Name: "slow body", Part: Whole, Late: true, answer: hold(jsonHead + "Content-Length: 999\r\n\r\n{")},
		{Name: "slow chunks", Part: Whole, Late: true, answer: hold(jsonHead + "Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n")},
		{Name: "slow head", Part: Head, Late: true, answer: drip("HTTP/1.1 200 OK\r\n", "X: y\r\n")},
		{Name: "half-closed", Part: Whole, answer: halfClose},
		{Name: "reset", Part: Whole, answer: rst},
		{Name: "endless headers", Part: Head, answer: flood("HTTP/1.1 200 OK\r\n", "X-More: "+long(1000)+"\r\n")},
		{Name: "one endless header", Part: Head, answer: flood("HTTP/1.1 200 OK\r\nX: ", long(1000))},
		{Name: "a flood of 1xx", Part: Head, answer: flood("", "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n")},
		{Name: "an endless error", Part: Head, answer: flood("HTTP/1.1 500 No\r\nConnection: close\r\nContent-Type: application/problem+json\r\n\r\n{\"code\":\"", long(4000))},
		{Name: "an endless line of chunks", Part: Whole, answer: flood(jsonHead+"Transfer-Encoding: chunked\r\n\r\n", "0")},
		{Name: "a huge body", Part: Whole, Heavy: true, answer: flood(jsonHead+"Content-Length: 99999999999\r\n\r\n[", strings.Repeat(" ", 64<<10))},
		{Name: "endless trailers", Part: Whole, answer: flood(jsonHead+"Transfer-Encoding: chunked\r\nTrailer: X\r\n\r\n1\r\n{\r\n0\r\n", "X: "+long(1000)+"\r\n")},
		{Name: "away by 302", Part: Head, answer: away(http.StatusFound)},
		{Name: "away by 307", Part: Head, answer: away(http.StatusTemporaryRedirect)},
		{Name: "in circles", Part: Head, answer: circle(http.StatusFound)},
		{Name: "in circles by 308", Part: Head, answer: circle(http.StatusPermanentRedirect)},
		{Name: "a gzip bomb", Part: Content, Heavy: true, answer: bomb()},
		{Name: "a truncated gzip", Part: Whole, answer: say(jsonHead + "Content-Encoding: gzip\r\n\r\n" + string(zipped(long(999))[:20]))},
		{Name: "no gzip", Part: Whole, answer: say(jsonHead + "Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}")},
	}
	for name, text := range map[string]string{
		"nothing at all": "", "garbage": "\x00\x01\x02 garbage\r\n\r\n", "half a head": "HTTP/1.1 200 OK\r\nContent-", "TLS": "\x15\x03\x01\x00\x02\x02\x50",
		"another protocol": "SSH-2.0-OpenSSH_9.2\r\n", "no status": "HTTP/1.1 OK\r\n\r\n", "a status of letters": "HTTP/1.1 abc OK\r\n\r\n",
		"two lengths":       jsonHead + "Content-Length: 2\r\nContent-Length: 3\r\n\r\n{} ",
		"a negative length": jsonHead + "Content-Length: -2\r\n\r\n{}", "an unknown encoding": jsonHead + "Transfer-Encoding: soup\r\n\r\n{}",
		"to nowhere": "HTTP/1.1 302 Found\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", "to no URL": "HTTP/1.1 307 No\r\nConnection: close\r\nLocation: ://\r\nContent-Length: 0\r\n\r\n",
		"to a file": "HTTP/1.1 302 Found\r\nConnection: close\r\nLocation: file:///etc/passwd\r\nContent-Length: 0\r\n\r\n",
	} {
		list = append(list, Misbehaviour{Name: name, Part: Head, answer: say(text)})
	}
	for name, text := range map[string]string{
		"shorter than said": "Content-Length: 999\r\n\r\n{}", "unfinished chunks": "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n",
		"a chunk of nonsense": "Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n", "a chunk beyond numbers": "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n{}\r\n",
	} {
		list = append(list, Misbehaviour{Name: name, Part: Whole, answer: say(jsonHead + text)})
	}
	for name, body := range map[string]string{
		"longer than said": "", "a number": "123", "a string": `"x"`, "an array of numbers": "[1,2]", "another shape": `{"id":{},"items":{},"data":{},"created":{}}`,
		"no JSON": "<html>", "half of JSON": `{"id":"x`, "empty": "", "not UTF-8": "{\"id\":\"\xff", "deep": strings.Repeat("[", 100_000), "deep within": `{"x":` + strings.Repeat(`{"x":`, 100_000),
	} {
		text := fmt.Sprintf("%sContent-Length: %d\r\n\r\n%s", jsonHead, len(body), body)
		if name == "longer than said" {
			text = jsonHead + "Content-Length: 5\r\n\r\n" + `{"id":"whole"}`
		}
		list = append(list, Misbehaviour{Name: name, Part: Content, answer: say(text)})
	}
	for _, mt := range []string{"text/html", "", "application/octet-stream", "application/json-no", "/"} {
		text := "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: " + mt + "\r\nContent-Length: 2\r\n\r\n{}"
		list = append(list, Misbehaviour{Name: fmt.Sprintf("type %q", mt), Part: Content, answer: say(text)})
	}
	return list
}

func send(conn net.Conn, text string) bool {
	_, err := io.WriteString(conn, text)
	return err == nil
}

func say(text string) script {
	return func(conn *net.TCPConn, _ *http.Request, _ *Peer, _ <-chan struct{}) { send(conn, text) }
}

// hold sends text and keeps the connection open.
func hold(text string) script {
	return func(conn *net.TCPConn, _ *http.Request, _ *Peer, until <-chan struct{}) {
		if send(conn, text) {
			<-until
		}
	}
}

// drip sends begin, and then little again and again, slowly.
func drip(begin, little string) script {
	return func(conn *net.TCPConn, _ *http.Request, _ *Peer, until <-chan struct{}) {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for ok := send(conn, begin); ok; ok = send(conn, little) {
			select {
			case <-tick.C:
			case <-until:
				return
			}
		}
	}
}

// flood sends begin, and then more until the client disconnects.
func flood(begin, more string) script {
	return func(conn *net.TCPConn, _ *http.Request, _ *Peer, _ <-chan struct{}) {
		for ok := send(conn, begin); ok; ok = send(conn, more) {
		}
	}
}

func halfClose(conn *net.TCPConn, _ *http.Request, _ *Peer, until <-chan struct{}) {
	if send(conn, jsonHead+"Content-Length: 999\r\n\r\n{") && conn.CloseWrite() == nil {
		<-until
	}
}

func rst(conn *net.TCPConn, _ *http.Request, _ *Peer, _ <-chan struct{}) {
	send(conn, jsonHead+"Content-Length: 999\r\n\r\n{")
	_ = conn.SetLinger(0) // makes the close a reset; an orderly close is another case
}

func redirect(conn net.Conn, status int, to string) {
	send(conn, fmt.Sprintf("HTTP/1.1 %d Elsewhere\r\nLocation: %s\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", status, to))
}

func away(status int) script {
	return func(conn *net.TCPConn, r *http.Request, p *Peer, _ <-chan struct{}) {
		redirect(conn, status, p.other.URL+p.way+r.URL.Path)
	}
}

func circle(status int) script {
	return func(conn *net.TCPConn, r *http.Request, _ *Peer, _ <-chan struct{}) {
		redirect(conn, status, r.URL.String())
	}
}

func zipped(text string) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	// A bytes.Buffer does not fail.
	_, _ = io.WriteString(z, text)
	_ = z.Close()
	return b.Bytes()
}

// bomb answers with 32 MiB of spaces, compressed to 32 KiB.
func bomb() script {
	body := bytes.Repeat(zipped(strings.Repeat(" ", 1<<20)), 32) // RFC 1952, 2.2: a file may have several members
	return say(fmt.Sprintf("%sContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%s", jsonHead, len(body), body))
}
