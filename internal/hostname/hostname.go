// Package hostname owns how agentinit connects to a host by its name.
//
// Package net reads /etc/hosts, /etc/resolv.conf, /etc/nsswitch.conf and /etc/services for that, with a plain open and
// without a bound. A program of root could put a FIFO there: the lookup under way would hold net's lock for
// ever, also after the FIFO is gone, and all later lookups would fail. With a lease on the file (fcntl(2)) it
// could hold up each open for 45 seconds. A long file would fill agentinit's memory.
package hostname

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/dreamlab-ai/agentinit/internal/leased"
	"github.com/dreamlab-ai/agentinit/internal/slowcall"
)

// maxFile bounds each of the files, in bytes. Package net keeps all of /etc/hosts in memory.
const maxFile = 4 << 20

// system is shared, as the lock of package net is.
var system = &resolver{slowcall.New(lookAtSystem)}

// lookAtSystem is no closure, so that the package needs no initialisation at the start of a box.
func lookAtSystem() (struct{}, error) {
	return look("/etc/hosts", "/etc/resolv.conf", "/etc/nsswitch.conf", "/etc/services")
}

// Dial returns d.DialContext, but a connection to localhost needs no file, and one to another name fails if
// a file that package net would read is not regular or too long.
func Dial(d *net.Dialer) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		return system.dial(ctx, d, network, address)
	}
}

// resolver looks at the files before package net reads them.
type resolver struct {
	files *slowcall.Call[struct{}]
}

func (r *resolver) dial(ctx context.Context, d *net.Dialer, network, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil || !strings.HasPrefix(network, "tcp") && !strings.HasPrefix(network, "udp") {
		return d.DialContext(ctx, network, address)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err == nil { // a name of a port is in /etc/services
		if _, err := netip.ParseAddr(host); err == nil || host == "" {
			return d.DialContext(ctx, network, address)
		}
		if Local(host) {
			return dialLoopback(ctx, d, network, port)
		}
	}
	if err := r.check(ctx); err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Err: &FilesError{address, err}}
	}
	return d.DialContext(ctx, network, address)
}

// LookupHost is that of net.DefaultResolver, for names that Dial would look up.
func LookupHost(ctx context.Context, host string) ([]string, error) {
	if Local(host) {
		return loopback, nil
	}
	if err := system.check(ctx); err != nil {
		return nil, &FilesError{host, err}
	}
	return net.DefaultResolver.LookupHost(ctx, host)
}

// Local tells whether a name always means this machine (RFC 6761, section 6.3).
func Local(host string) bool {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	return host == "localhost" || strings.HasSuffix(host, ".localhost")
}

var loopback = []string{"127.0.0.1", "::1"}

// dialLoopback tries both addresses of the machine. The error is that of the first.
func dialLoopback(ctx context.Context, d *net.Dialer, network, port string) (net.Conn, error) {
	hosts := loopback
	switch network[len(network)-1] {
	case '4':
		hosts = hosts[:1]
	case '6':
		hosts = hosts[1:]
	}
	var first error
	for _, host := range hosts {
		conn, err := d.DialContext(ctx, network, net.JoinHostPort(host, port))
		if err == nil {
			return conn, nil
		}
		first = cmp.Or(first, err)
	}
	return nil, first
}

// FilesError says that a name was not looked up because of a file that package net would have read.
type FilesError struct {
	Name string
	Err  error
}

func (e *FilesError) Error() string { return "cannot look up " + e.Name + ": " + e.Err.Error() }

func (e *FilesError) Unwrap() error { return e.Err }

// check looks at the files, and returns when ctx ends if their file system does not answer. A program that
// replaces a file between the look and the read by package net gets past it.
func (r *resolver) check(ctx context.Context) error {
	_, err := r.files.Wait(ctx)
	return err
}

// look fails if a file exists and package net should not read it. It has no other result.
func look(files ...string) (none struct{}, err error) {
	for _, file := range files {
		info, err := os.Stat(file)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return none, err
		case !info.Mode().IsRegular() || info.Size() > maxFile:
			return none, fmt.Errorf("%s is no regular file of at most %d MiB", file, maxFile>>20)
		default:
			if err := leased.Check(file); err != nil {
				return none, fmt.Errorf("another process has a lease on %s: %w", file, err)
			}
		}
	}
	return none, nil
}
