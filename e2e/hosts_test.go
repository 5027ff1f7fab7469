package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/internal/foreign"
)

// address is one TCP address in front of several hosts, like a load balancer or a Kubernetes
// Service. A connection goes to the first host that accepts it.
type address struct {
	port     int
	mu       sync.Mutex
	backends []int // ports; the next connection tries the first one first
}

func newAddress(t testing.TB, backends ...int) *address {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a := &address{port: l.Addr().(*net.TCPAddr).Port, backends: backends}
	var conns sync.WaitGroup
	ctx, stop := context.WithCancel(context.Background())
	conns.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // closed below
			}
			conns.Go(func() { a.serve(ctx, c) })
		}
	})
	t.Cleanup(func() {
		stop()
		l.Close()
		conns.Wait()
	})
	return a
}

// next returns the hosts in the order to try. The order rotates with each call.
func (a *address) next() []int {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.backends = append(a.backends[1:], a.backends[0])
	return append([]int(nil), a.backends...)
}

func (a *address) serve(ctx context.Context, from net.Conn) {
	defer from.Close()
	for _, port := range a.next() {
		to, err := new(net.Dialer).DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue
		}
		defer to.Close()
		defer context.AfterFunc(ctx, func() {
			from.Close()
			to.Close()
		})()
		var back sync.WaitGroup
		back.Go(func() {
			// When one direction ends, the proxy closes both.
			_, _ = io.Copy(from, to)
			from.Close()
		})
		_, _ = io.Copy(to, from)
		to.Close()
		back.Wait()
		return
	}
}

// Two hosts share a registry in PostgreSQL behind one address. When one host is killed, all boxes
// keep their sessions. The other host registers and evicts boxes, and the restarted host knows all
// of them.
func TestTwoHostsOneRegistry(t *testing.T) {
	t.Parallel()
	needsRoot(t)
	pg, err := foreign.PostgreSQL(t.Context())
	foreign.SkipOrFail(t, err)
	t.Cleanup(pg.Stop)
	manifest := header + `
[federation]
mode = "host"
heartbeat = "5s"
[adapters]
`
	// Started one after the other, so that each host holds its port before the next port is chosen.
	var hosts []*box
	for range 2 {
		h := bootWith(t, asPID1, append([]string{"AGENTBOX_FEDERATION_REGISTRY=" + pg.Address}, meshKeys...), manifest)
		waitFor(t, "a host has its registry", func() bool {
			status, err := h.call("GET", "/v1/federation/boxes", nil, nil)
			return err == nil && status == 200
		})
		hosts = append(hosts, h)
	}
	shared := newAddress(t, hosts[0].port, hosts[1].port)
	member := header + fmt.Sprintf(`
[federation]
mode = "client"
external_url = "http://127.0.0.1:%d"
[adapters]
`, shared.port)
	step := timeline(t)
	var boxes []*box
	var before []session
	for range 4 {
		b := bootWith(t, asPID1, meshKeys, member)
		boxes, before = append(boxes, b), append(before, b.inState("active"))
	}
	for _, h := range hosts {
		if n := len(boxesOf(h)); n != len(boxes) {
			t.Errorf("a host knows %d boxes", n)
		}
	}
	step("%d boxes are registered, and both hosts know them", len(boxes))

	hosts[0].kill()
	killed := time.Now().UTC().Format("2006-01-02T15:04:05.000Z")
	for i, b := range boxes {
		waitFor(t, "the other host answers", func() bool { return b.beats() > killed })
		if s := b.inState("active"); s.SessionID != before[i].SessionID || s.Evictions != 0 {
			t.Errorf("box %d was %+v and is %+v", i, before[i], s)
		}
	}
	step("one host was killed, and all go on")

	late := bootWith(t, asPID1, meshKeys, member)
	late.inState("active")
	hosts[1].mustCtl("federation", "evict", boxOf(hosts[1], before[0].SessionID))
	waitFor(t, "the evicted box has a new session", func() bool {
		s := boxes[0].session()
		return s.State == "active" && s.SessionID != before[0].SessionID && s.Evictions == 1
	})
	step("the survivor registers and evicts")

	hosts[0] = hosts[0].again()
	waitFor(t, "the host that was killed knows every box", func() bool {
		var page struct{ Items []struct{} }
		status, err := hosts[0].call("GET", "/v1/federation/boxes", nil, &page)
		return err == nil && status == 200 && len(page.Items) == len(boxes)+1
	})
	hosts[1].kill()
	for _, b := range append(boxes, late) {
		last := b.beats()
		waitFor(t, "the first host answers", func() bool { return b.beats() > last })
	}
	step("the other host was killed, and all go on with the first")
}
