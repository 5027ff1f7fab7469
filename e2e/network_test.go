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

// network is a router with nodes around it, each in a network namespace of its
// own, so that packets between nodes can be dropped: the sender hears nothing, as
// with a cable that was pulled out somewhere on the way.
type network struct {
	t      testing.TB
	router string
}

// node is one namespace of a network.
type node struct {
	net       *network
	name      string // of the namespace
	host      string // its name for the others, once it is named
	addr      string
	transport *http.Transport // dials from inside
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

// named gives the nodes' names to all of them. ip netns exec shows the files of
// /etc/netns/NAME in the place of those in /etc (ip-netns(8)).
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
			_ = os.Remove("/etc/netns") // it may hold what is not ours
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

// node adds one; number is 1 to 250.
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

// The router drops what comes from the node, or what goes to it: packets of a
// blackhole rule vanish without an answer (ip-rule(8)).
func (n *node) dropFrom() { n.net.ip("-n", n.net.router, "rule", "add", "from", n.addr, "blackhole") }
func (n *node) dropTo()   { n.net.ip("-n", n.net.router, "rule", "add", "to", n.addr, "blackhole") }
func (n *node) passFrom() { n.net.ip("-n", n.net.router, "rule", "del", "from", n.addr, "blackhole") }
func (n *node) passTo()   { n.net.ip("-n", n.net.router, "rule", "del", "to", n.addr, "blackhole") }

// dial connects from inside the namespace. A socket belongs to the namespace that
// the thread is in that makes it (network_namespaces(7)), and the goroutine of a
// dial to an address makes it itself.
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
		// The thread stays locked and ends with the goroutine.
		return nil, back
	}
	runtime.UnlockOSThread()
	return conn, err
}
