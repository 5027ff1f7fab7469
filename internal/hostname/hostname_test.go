package hostname

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/dreamlab-ai/agentinit/internal/leased/leasetest"
	"github.com/dreamlab-ai/agentinit/internal/slowcall"
)

// listen accepts connections on one address, and returns its port.
func listen(t *testing.T, address string) string {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Skipf("needs %s: %v", address, err)
	}
	t.Cleanup(func() { l.Close() })
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// newResolver is a resolver that looks at these files.
func newResolver(files ...string) *resolver {
	return &resolver{slowcall.New(func() (struct{}, error) { return look(files...) })}
}

// hostile is a resolver of a file that makes every lookup fail.
func hostile(t *testing.T) *resolver {
	t.Helper()
	file := filepath.Join(t.TempDir(), "hosts")
	if err := syscall.Mkfifo(file, 0o644); err != nil {
		t.Fatal(err)
	}
	return newResolver(file)
}

// A connection to this machine needs no file, whatever a program has put in their place.
func TestLocalhostNeedsNoFile(t *testing.T) {
	v4, v6 := listen(t, "127.0.0.1:0"), listen(t, "[::1]:0")
	r := hostile(t)
	for _, c := range []struct {
		network, address string
		works            bool
	}{
		{"tcp", "localhost:" + v4, true},
		{"tcp", "localhost:" + v6, true},
		{"tcp", "LOCALHOST.:" + v4, true},
		{"tcp", "web.localhost:" + v4, true},
		{"tcp4", "localhost:" + v4, true},
		{"tcp4", "localhost:" + v6, false},
		{"tcp6", "localhost:" + v6, true},
		{"tcp6", "localhost:" + v4, false},
		{"tcp", "127.0.0.1:" + v4, true},
		{"tcp", "[::1]:" + v6, true},
		{"tcp", "notlocalhost:" + v4, false},
		{"tcp", "localhost:http", false},
		{"tcp", "127.0.0.1:http", false},
	} {
		conn, err := r.dial(t.Context(), &net.Dialer{}, c.network, c.address)
		if (err == nil) != c.works {
			t.Errorf("%s %s: %v", c.network, c.address, err)
		}
		if err == nil {
			conn.Close()
		}
	}
}

func TestUnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conn, err := hostile(t).dial(t.Context(), &net.Dialer{}, "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
}

// A lookup does not begin while a file is hostile, and works when the file is right again.
func TestHostileFiles(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "hosts")
	r := newResolver(filepath.Join(dir, "absent"), file)
	for name, c := range map[string]struct {
		make func() error
		want string
	}{
		"a FIFO":     {func() error { return syscall.Mkfifo(file, 0o644) }, "is no regular file"},
		"a device":   {func() error { return os.Symlink("/dev/zero", file) }, "is no regular file"},
		"too long":   {func() error { return errors.Join(os.WriteFile(file, nil, 0o644), os.Truncate(file, maxFile+1)) }, "of at most 4 MiB"},
		"a cycle":    {func() error { return os.Symlink(file, file) }, "too many levels"},
		"as it was":  {func() error { return os.WriteFile(file, nil, 0o644) }, ""},
		"not at all": {func() error { return nil }, ""},
	} {
		if err := c.make(); err != nil {
			t.Fatal(err)
		}
		err := r.check(t.Context())
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if c.want != "" {
			if _, err := r.dial(t.Context(), &net.Dialer{}, "tcp", "db.example:5432"); err == nil || !strings.Contains(err.Error(), "cannot look up db.example:5432: ") {
				t.Errorf("%s: %v", name, err)
			}
		}
		if err := os.RemoveAll(file); err != nil {
			t.Fatal(err)
		}
	}
}

// A program of root can hold up each open of a file of the system by a lease, also where the file system is
// mounted read-only.
func TestALeaseIsNotWaitedFor(t *testing.T) {
	file := filepath.Join(t.TempDir(), "hosts")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	release := leasetest.Hold(t, file)
	r := newResolver(file)
	if err := r.check(t.Context()); !errors.Is(err, syscall.EWOULDBLOCK) || !strings.Contains(err.Error(), "has a lease on "+file) {
		t.Error(err)
	}
	release()
	if err := r.check(t.Context()); err != nil {
		t.Errorf("without the lease: %v", err)
	}
}

// A file system that does not answer holds up a caller until its own context ends.
func TestLookThatDoesNotEnd(t *testing.T) {
	r := &resolver{slowcall.New(func() (struct{}, error) { select {} })}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.dial(ctx, &net.Dialer{}, "tcp", "db.example:5432"); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
