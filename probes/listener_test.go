package probes

import (
	"net"
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
