package e2e

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// network is a router with nodes around it, each in its own network namespace. The router can drop
// packets between nodes; as with an unplugged cable, the sender gets no error.
type network struct {
	t      testing.TB
	router string
}

// node is one host of a network, in its own namespace.
type node struct {
	net       *network
	name      string // of the namespace
	host      string // its host name for the other nodes, after named
	addr      string
	transport *http.Transport // dials from inside the namespace
}

func newNetwork(t testing.TB) *network {
	t.Helper()
	needsRoot(t)
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("needs iproute2")
	}
	n := &network{t: t, router: fmt.Sprintf("e2e%d-router", os.Getpid())}
	if out, err := exec.Command("ip", "netns", "add", n.router).CombinedOutput(); err != nil {
		t.Skipf("needs root that may make network namespaces: %v: %s", err, out)
	}
	t.Cleanup(func() { n.ip("netns", "del", n.router) })
	n.ip("netns", "exec", n.router, "sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward")
	return n
}

// named makes the names of all nodes known to each node. ip netns exec shows the files of
// /etc/netns/NAME in place of those in /etc (ip-netns(8)).
func (n *network) named(nodes ...*node) {
	n.t.Helper()
	hosts := "127.0.0.1 localhost\n"
	for _, one := range nodes {
		hosts += one.addr + " " + one.host + "\n"
	}
	for _, one := range nodes {
		dir := filepath.Join("/etc/netns", one.name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			n.t.Fatal(err)
		}
		n.t.Cleanup(func() {
			if err := os.RemoveAll(dir); err != nil {
				n.t.Error(err)
			}
			_ = os.Remove("/etc/netns") // it may hold files of others
		})
		if err := os.WriteFile(filepath.Join(dir, "hosts"), []byte(hosts), 0o644); err != nil {
			n.t.Fatal(err)
		}
	}
}

func (n *network) ip(args ...string) {
	n.t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		n.t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
	}
}

// node adds a node; number is 1 to 250.
func (n *network) node(name string, number int) *node {
	n.t.Helper()
	one := &node{net: n, host: name, name: strings.TrimSuffix(n.router, "router") + name, addr: fmt.Sprintf("10.77.%d.2", number)}
	gateway, link := fmt.Sprintf("10.77.%d.1", number), "to-"+name
	n.ip("netns", "add", one.name)
	n.t.Cleanup(func() { n.ip("netns", "del", one.name) })
	n.ip("-n", n.router, "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", one.name)
	n.ip("-n", n.router, "address", "add", gateway+"/24", "dev", link)
	n.ip("-n", n.router, "link", "set", link, "up")
	n.ip("-n", one.name, "address", "add", one.addr+"/24", "dev", "eth0")
	n.ip("-n", one.name, "link", "set", "eth0", "up")
	n.ip("-n", one.name, "link", "set", "lo", "up")
	n.ip("-n", one.name, "route", "add", "default", "via", gateway)
	one.transport = &http.Transport{DialContext: one.dial}
	n.t.Cleanup(one.transport.CloseIdleConnections)
	return one
}

// dropFrom and dropTo let the router drop the packets from or to the node. Packets that match a
// blackhole rule vanish without an answer (ip-rule(8)).
func (n *node) dropFrom() { n.net.ip("-n", n.net.router, "rule", "add", "from", n.addr, "blackhole") }
func (n *node) dropTo()   { n.net.ip("-n", n.net.router, "rule", "add", "to", n.addr, "blackhole") }
func (n *node) passFrom() { n.net.ip("-n", n.net.router, "rule", "del", "from", n.addr, "blackhole") }
func (n *node) passTo()   { n.net.ip("-n", n.net.router, "rule", "del", "to", n.addr, "blackhole") }

// dial connects from inside the namespace. A socket belongs to the namespace of the thread that
// creates it (network_namespaces(7)). When the address is numeric, the dialing goroutine creates
// the socket itself.
func (n *node) dial(ctx context.Context, network, address string) (net.Conn, error) {
	own, err := os.Open("/proc/self/ns/net")
	if err != nil {
		return nil, err
	}
	defer own.Close()
	there, err := os.Open("/run/netns/" + n.name)
	if err != nil {
		return nil, err
	}
	defer there.Close()
	runtime.LockOSThread()
	if err := unix.Setns(int(there.Fd()), unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return nil, err
	}
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if back := unix.Setns(int(own.Fd()), unix.CLONE_NEWNET); back != nil {
		// The thread stays locked, so the runtime ends it with the goroutine.
		return nil, back
	}
	runtime.UnlockOSThread()
	return conn, err
}
