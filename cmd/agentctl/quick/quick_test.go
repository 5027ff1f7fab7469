package quick

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
)

func TestParse(t *testing.T) {
	for _, c := range []struct {
		args string
		env  string
		want place
	}{
		{"status", "", place{path: defaultSocket}},
		{"status", "/tmp/s", place{path: "/tmp/s"}},
		{"--socket /tmp/s status", "", place{"/tmp/s", true}},
		{"--socket s status", "/tmp/other", place{"s", true}},
		{"--socket status status", "", place{"status", true}},
		// All others are left to main.
		{args: ""},
		{args: "top"},
		{args: "status web"},
		{args: "status --json"},
		{args: "status -o wide"},
		{args: "status -w"},
		{args: "status --help"},
		{args: "--json status"},
		{args: "--url http://x status"},
		{args: "--socket s"},
		{args: "--socket status"},
		{args: "--socket s status web"},
		{args: "--socket s top"},
		{args: "--socket=s status"},
		{args: "--socket @s status"},
		{args: "status", env: "@s"},
		{args: "help status"},
		{args: "__complete status"},
		{args: "-test.v"},
	} {
		asked := ""
		got, ok := parse(strings.Fields(c.args), func(name string) string { asked += name; return c.env })
		if ok != (c.want.path != "") || ok && got != c.want {
			t.Errorf("%q with %q: %+v, %v", c.args, c.env, got, ok)
		}
		if asked != "" && asked != api.EnvSocket {
			t.Errorf("%q: it read %s", c.args, asked)
		}
	}
	// An empty --socket means the environment or the default; main finds out which.
	if p, ok := parse([]string{"--socket", "", "status"}, func(string) string { return "" }); ok {
		t.Errorf("an empty socket: %+v", p)
	}
}

func TestValuesOfTheAPI(t *testing.T) {
	if defaultSocket != api.DefaultSocket || envSocket != api.EnvSocket || headerAllRunning != api.HeaderAllRunning {
		t.Errorf("%s, %s, %s", defaultSocket, envSocket, headerAllRunning)
	}
}

func TestIsTerminal(t *testing.T) {
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if isTerminal(int(null.Fd())) || isTerminal(-1) {
		t.Error("/dev/null or a closed descriptor is taken for a terminal")
	}
	ptmx, tty, err := pty.Open()
	if err != nil {
		t.Skipf("needs a pseudo-terminal: %v", err)
	}
	defer ptmx.Close()
	defer tty.Close()
	if !isTerminal(int(tty.Fd())) {
		t.Error("a terminal is not seen")
	}
}

const head = "HTTP/1.1 200 OK\r\nAgentinit-All-Running: true\r\nContent-Length: 6\r\nContent-Type: text/plain; charset=utf-8\r\nDate: today\r\n\r\n"

func TestDecode(t *testing.T) {
	replaced := func(old, new string) string { return strings.Replace(head, old, new, 1) + "table\n" }
	for text, want := range map[string]verdict{
		head + "table\n":                                      complete,
		replaced(": true", ": false"):                         complete,
		replaced("Length: 6", "Length: 7"):                    partial,
		replaced("Length: 6", "Length: 5"):                    unusable,
		replaced("Length: 6", "Length: -1"):                   unusable,
		replaced("Length: 6", "Length: six"):                  unusable,
		replaced("Content-Length: 6\r\n", ""):                 unusable,
		replaced("text/plain", "application/json"):            unusable,
		replaced(": true", ": perhaps"):                       unusable,
		replaced("Agentinit-All-Running: true\r\n", ""):       unusable,
		replaced("Date: today", "Transfer-Encoding: chunked"): unusable,
		replaced("200 OK", "400 Bad Request"):                 unusable,
		replaced("HTTP/1.1", "HTTP/1.0"):                      unusable,
		"SSH-2.0-OpenSSH\r\n":                                 unusable,
		"":                                                    partial,
	} {
		got, is := decode([]byte(text))
		if is != want || is == complete && (string(got.text) != "table\n" || got.allRunning == strings.Contains(text, "false")) {
			t.Errorf("%q: %+v, verdict %d", text, got, is)
		}
	}
	// Every beginning of a good answer is partial.
	for n := range len(head) + len("table") {
		if _, is := decode([]byte(head + "table\n")[:n]); is != partial {
			t.Errorf("the first %d bytes: verdict %d", n, is)
		}
	}
}

// listen serves one connection; the channel then gets what the client had sent.
func listen(t *testing.T, serve func(net.Conn)) (socket string, sent <-chan string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "quick")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	done := make(chan string, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		got := make([]byte, len(request))
		n, _ := io.ReadFull(conn, got)
		serve(conn)
		done <- string(got[:n])
	}()
	return l.Addr().String(), done
}

// write sends the parts, one after the other. A client that has gone away is no failure.
func write(parts ...string) func(net.Conn) {
	return func(conn net.Conn) {
		for _, p := range parts {
			if _, err := io.WriteString(conn, p); err != nil {
				return
			}
		}
	}
}

// TestAsk: an answer that is not a complete success is left to main, without waiting for ever.
func TestAsk(t *testing.T) {
	long := strings.Repeat("a line of the table\n", 5000)
	longHead := strings.Replace(head, "Length: 6", "Length: 100000", 1)
	untilClosed := func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) }
	for name, c := range map[string]struct {
		serve    func(net.Conn)
		patience time.Duration
		want     string
	}{
		"at once":           {write(head + "table\n"), time.Minute, "table\n"},
		"in parts":          {write(append(strings.SplitAfter(head, "\n"), "ta", "ble\n")...), time.Minute, "table\n"},
		"kept open":         {func(c net.Conn) { write(head + "table\n")(c); untilClosed(c) }, time.Minute, "table\n"},
		"long":              {write(longHead, long), time.Minute, long},
		"an error":          {write("HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\n\r\n{}"), time.Minute, ""},
		"garbage":           {write("\x00\xff garbage"), time.Minute, ""},
		"garbage kept open": {func(c net.Conn) { write("garbage")(c); untilClosed(c) }, time.Minute, ""},
		"half a head":       {write(head[:40]), time.Minute, ""},
		"half a table":      {write(head + "tab"), time.Minute, ""},
		"too much":          {write(head + "table\nand more"), time.Minute, ""},
		"nothing":           {func(net.Conn) {}, time.Minute, ""},
		"an endless head":   {write(append([]string{head[:40]}, slices.Repeat([]string{long}, 20)...)...), time.Minute, ""},
		"a table without end": {
			write(append([]string{strings.Replace(head, "Length: 6", "Length: 2000000", 1)}, slices.Repeat([]string{long}, 20)...)...), time.Minute, "",
		},
		"silence":                {untilClosed, 20 * time.Millisecond, ""},
		"silence after the head": {func(c net.Conn) { write(head)(c); untilClosed(c) }, 20 * time.Millisecond, ""},
		"a byte at a time": {func(c net.Conn) {
			for write("HTTP/1.1 200 OK\r\n")(c); ; {
				if _, err := c.Write([]byte("x")); err != nil {
					return
				}
			}
		}, 20 * time.Millisecond, ""},
	} {
		t.Run(name, func(t *testing.T) {
			socket, sent := listen(t, c.serve)
			got, ok := ask(place{socket, true}, c.patience)
			if string(got.text) != c.want || ok != (c.want != "") {
				t.Errorf("%v, %.100q", ok, got.text)
			}
			if s := <-sent; s != request {
				t.Errorf("the server got %q", s)
			}
		})
	}
}

// TestOnlyInitIsAsked: a listener that is not PID 1 gets no request, unless the user named its socket.
func TestOnlyInitIsAsked(t *testing.T) {
	socket, sent := listen(t, write(head+"table\n"))
	if got, ok := ask(place{socket, false}, time.Minute); ok {
		t.Errorf("%q was accepted", got.text)
	}
	if s := <-sent; s != "" {
		t.Errorf("the server got %q", s)
	}
}

func TestNoSocket(t *testing.T) {
	for _, path := range []string{filepath.Join(t.TempDir(), "none"), "/dev/null", strings.Repeat("long", 100)} {
		if _, ok := ask(place{path, true}, time.Minute); ok {
			t.Errorf("%s answered", path)
		}
	}
}

// TestFullQueue: a listener that accepts no connection does not hold agentctl up for ever.
func TestFullQueue(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	open := func() int {
		t.Helper()
		fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { syscall.Close(fd) })
		return fd
	}
	listener, address := open(), &syscall.SockaddrUnix{Name: path}
	if err := errors.Join(syscall.Bind(listener, address), syscall.Listen(listener, 0)); err != nil {
		t.Fatal(err)
	}
	for syscall.Connect(open(), address) == nil { // until EAGAIN: the queue is full
	}
	if _, ok := ask(place{path, true}, 20*time.Millisecond); ok {
		t.Error("an answer without a server")
	}
}
