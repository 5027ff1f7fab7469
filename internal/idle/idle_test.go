package idle

import (
	"io"
	"net"
	"path/filepath"
	"runtime"
	"testing"
	"testing/synctest"
)

type conn struct {
	net.Conn
	Place
	name string
}

// waited makes c idle for as long as Patience before now.
func waited(o *Order[*conn], c *conn) {
	o.Rest(c)
	c.since = c.since.Add(-Patience)
}

func TestOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // for its clock
		var o Order[*conn]
		a, b, c := &conn{name: "a"}, &conn{name: "b"}, &conn{name: "c"}
		waited(&o, a)
		waited(&o, b)
		o.Rest(b) // no effect
		if !o.Work(a) || o.Work(a) || o.Len() != 1 {
			t.Errorf("a works; %d are idle", o.Len())
		}
		waited(&o, a)
		o.Rest(c)
		for _, want := range []*conn{b, a} {
			if got, ok := o.Silent(); got != want || !ok {
				t.Fatalf("closed: %v, want %s", got, want.name)
			}
		}
		if got, ok := o.Silent(); ok {
			t.Errorf("%s was idle for a moment only", got.name)
		}
		if got, ok := o.Oldest(); got != c || !ok {
			t.Errorf("the last one is %v", got)
		}
		o.Rest(a)
		o.Leave(a)
		o.Rest(a)
		if got, ok := o.Oldest(); ok {
			t.Errorf("%s has left", got.name)
		}
	})
}

// A connection whose bytes its reader works on is not silent, however long that takes.
func TestBusy(t *testing.T) {
	var o Order[*conn]
	c := &conn{name: "c"}
	c.Busy(true)
	waited(&o, c)
	if _, ok := o.Silent(); ok {
		t.Error("a busy connection was taken for silent")
	}
	c.Busy(false)
	o.Work(c)
	waited(&o, c)
	if got, ok := o.Silent(); got != c || !ok {
		t.Error("a connection that is busy no more stays")
	}
}

// A connection whose request has arrived is not closed, and is then the newest.
func TestUnread(t *testing.T) {
	for _, network := range []string{"tcp", "unix"} {
		address := "127.0.0.1:0"
		if network == "unix" {
			address = filepath.Join(t.TempDir(), "s")
		}
		l, err := net.Listen(network, address)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		accept := func(sends string) *conn {
			peer, err := net.Dial(network, l.Addr().String())
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
			c := &conn{Conn: accepted, Place: Place{Raw: RawOf(accepted)}, name: network}
			for sends != "" && !c.Unread() {
				runtime.Gosched()
			}
			return c
		}
		var o Order[*conn]
		asks, silent := accept("GET"), accept("")
		waited(&o, asks)
		waited(&o, silent)
		begun := asks.since
		if got, ok := o.Silent(); got != silent || !ok {
			t.Errorf("%s: the silent connection stays", network)
		}
		if _, ok := o.Silent(); ok || o.Len() != 1 || !asks.since.After(begun) {
			t.Errorf("%s: the request is lost", network)
		}
		asks.Close()
		if asks.Unread() {
			t.Errorf("%s: a closed connection has a request", network)
		}
	}
}
