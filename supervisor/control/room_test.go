package control_test

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/control"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/control/controltest"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
)

// A connection whose request has arrived stays, even if it has been idle longest and its request was
// not read yet.
func TestUnreadRequestsStay(t *testing.T) {
	path := controltest.SocketPath(t)
	l := control.Admit(listen(t, path), func(err error) {
		if err != nil {
			t.Error(err)
		}
	}, func(err error) { t.Error(err) })
	defer l.Close()
	connect := func(sends string) (peer, accepted net.Conn) {
		peer, err := net.Dial("unix", path)
		must(t, err)
		t.Cleanup(func() { peer.Close() })
		_, err = io.WriteString(peer, sends)
		must(t, err)
		accepted, err = l.Accept()
		must(t, err)
		t.Cleanup(func() { accepted.Close() })
		return peer, accepted
	}
	_, asks := connect("GET")
	silent, _ := connect("")
	connect("") // it takes the place of one of the two
	request := make([]byte, 3)
	if _, err := io.ReadFull(asks, request); err != nil || string(request) != "GET" {
		t.Fatalf("the request: %q, %v", request, err)
	}
	if _, err := silent.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the silent connection: %v", err)
	}
}

// Connections without a complete request are closed when other clients need their places. A
// connection that is being served is not closed.
func TestHalfRequestsMakeRoom(t *testing.T) {
	b := controltest.New(controltest.Program("web"))
	cfg := b.Own()
	cfg.Limits = control.Limits{Connections: 4, Header: time.Hour, Body: time.Hour, Idle: time.Hour}
	path := controltest.Serve(t, cfg)
	c := api.NewClient(path)
	seen := make(chan string, 2)
	go func() {
		_ = c.Events(t.Context(), 0, true, func(e api.Event) error {
			seen <- e.Name
			return nil
		})
	}()
	b.Bus.Publish(event.Event{Name: "Before"})
	equal(t, <-seen, "Before")

	// The last two kinds have had one answer, or have sent the headers of a request.
	for _, bytes := range []string{
		"", "G", "GET /v1/status HTTP/1.1\r\n", "GET /v1/version HTTP/1.1\r\nHost: x\r\n\r\n",
		"POST /v1/stop HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n",
	} {
		for range 3 {
			conn, err := net.Dial("unix", path)
			must(t, err)
			defer conn.Close()
			_, err = io.WriteString(conn, bytes)
			must(t, err)
		}
	}
	for range 2 {
		_, err := c.Status(t.Context())
		must(t, err)
	}
	b.Bus.Publish(event.Event{Name: "After"})
	equal(t, <-seen, "After")
}
