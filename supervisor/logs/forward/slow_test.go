package forward

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/logs"
)

// A receiver that needs longer for a batch than an attempt may take gets each line once, in order.
func TestSlowSyslogReceiver(t *testing.T) {
	certificates := newRequests(t, true).TLS.Certificates
	for _, scheme := range []string{"unix", "tcp", "tls"} {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			// All lines together are more than the kernel has room for on their way.
			var batch []logs.Line
			for i := range 1000 {
				batch = append(batch, line(uint64(i+1), "web", fmt.Sprintf("%d %s", i, strings.Repeat("x", 20_000))))
			}
			r := &slowReceiver{last: batch[len(batch)-1].Text, begin: make(chan struct{})}
			receive, url := r.connections, scheme+"://"
			if scheme == "unix" {
				path := filepath.Join(t.TempDir(), "log")
				socket, err := net.ListenPacket("unixgram", path)
				if err != nil {
					t.Fatal(err)
				}
				defer socket.Close()
				r.socket, receive, url = socket, r.datagrams, url+path
			} else {
				listener, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					t.Fatal(err)
				}
				defer listener.Close()
				r.listener, url = listener, url+listener.Addr().String()
				if scheme == "tls" {
					r.listener = tls.NewListener(listener, &tls.Config{Certificates: certificates})
				}
			}
			f, err := New(Config{Name: "s", Kind: "syslog", URL: url, Timeout: 3 * time.Second})
			if err != nil {
				t.Fatal(err)
			}
			s := f.sender.(*syslog)
			if s.tls != nil {
				s.tls.InsecureSkipVerify = true
			}
			f.sender = &watched{sender: s, failed: sync.OnceFunc(func() { close(r.begin) })}
			var delivery sync.WaitGroup
			delivery.Go(func() { f.deliver(context.Background(), batch, true) })
			if err := receive(); err != nil {
				t.Error(err)
			}
			delivery.Wait()
			s.close()
			if want := texts(batch); !slices.Equal(r.texts, want) {
				i := 0
				for i < min(len(want), len(r.texts)) && r.texts[i] == want[i] {
					i++
				}
				t.Errorf("the receiver got %d lines; wrong from number %d on: %.20q", len(r.texts), i, r.texts[i])
			}
			if st := f.Stats(); st.Sent != uint64(len(batch)) || st.Dropped != 0 {
				t.Errorf("stats %+v", st)
			}
		})
	}
}

// slowReceiver reads nothing until an attempt has failed, and then everything up to the last line.
type slowReceiver struct {
	socket   net.PacketConn
	listener net.Listener
	begin    chan struct{}
	last     string
	texts    []string
}

func (r *slowReceiver) take(message []byte, before string) (end bool) {
	_, text, _ := strings.Cut(string(message), before)
	r.texts = append(r.texts, text)
	return text == r.last
}

func (r *slowReceiver) datagrams() error {
	<-r.begin
	for buf := make([]byte, 1<<17); ; {
		n, _, err := r.socket.ReadFrom(buf)
		if err != nil || r.take(buf[:n], "]: ") {
			return err
		}
	}
}

func (r *slowReceiver) connections() error {
	for {
		conn, err := r.listener.Accept()
		if err != nil {
			return err
		}
		if c, ok := conn.(*tls.Conn); ok {
			if err := c.Handshake(); err != nil { // the attempt was over before it was accepted
				_ = c.Close()
				continue
			}
		}
		<-r.begin
		end, err := r.frames(bufio.NewReader(conn))
		if err := errors.Join(err, conn.Close()); err != nil || end {
			return err
		}
	}
}

// frames reads until the connection breaks off, maybe within a message.
func (r *slowReceiver) frames(in *bufio.Reader) (end bool, err error) {
	for {
		message, err := frame(in)
		if _, ok := errors.AsType[*strconv.NumError](err); ok {
			return false, err
		}
		if err != nil {
			return false, nil
		}
		if r.take(message, " stdout - ") {
			return true, nil
		}
	}
}

// watched calls failed after each attempt that has failed.
type watched struct {
	sender
	failed func()
}

func (s *watched) send(ctx context.Context, batch []logs.Line) error {
	err := s.sender.send(ctx, batch)
	if err != nil {
		s.failed()
	}
	return err
}

// What was written before an error is not sent again, unless the error says that it may be lost.
func TestSyslogProgress(t *testing.T) {
	late := &net.OpError{Op: "write", Err: os.ErrDeadlineExceeded}
	for _, c := range []struct {
		network string
		err     error
		want    int // lines that are not sent again
	}{
		{"unixgram", late, 3},
		{"unixgram", syscall.ECONNREFUSED, 3}, // the answer to this message
		{"udp", syscall.EPERM, 3},
		{"udp", syscall.ECONNREFUSED, 0}, // the answer to an earlier message
		{"tcp", late, 3},                 // close sends what the kernel has
		{"tcp", syscall.ECONNRESET, 0},   // what the kernel had is lost
	} {
		s := &syslog{network: c.network, conn: &breaking{room: 160_000, err: c.err}}
		// The first three lines fit. Of the fourth, which is two messages, one does: it does not count.
		var batch []logs.Line
		for i := range 5 {
			batch = append(batch, line(uint64(i+1), "web", strings.Repeat("x", 30_000+i/3*50_000)))
		}
		err := s.send(t.Context(), batch)
		got := 0
		if progress, ok := errors.AsType[*progressError](err); ok {
			got = progress.sent
		}
		if got != c.want || !errors.Is(err, c.err) || s.conn != nil {
			t.Errorf("%s, %v: %d lines, %v", c.network, c.err, got, err)
		}
	}
}

// A batch is written in parts: the time of an attempt must be enough for the first one.
func TestSyslogWritesInParts(t *testing.T) {
	var batch []logs.Line
	for i := range 100 {
		batch = append(batch, line(uint64(i+1), "web", strings.Repeat("x", 20_000)))
	}
	conn := &breaking{room: 1 << 30}
	s := &syslog{network: "tcp", conn: conn}
	if err := s.send(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	if written := 1<<30 - conn.room; written < 100*20_000 || conn.longest > chunk+30_000 {
		t.Errorf("%d bytes, at most %d at once", written, conn.longest)
	}
}

// breaking is a connection that fails when some bytes are written.
type breaking struct {
	net.Conn
	room    int
	err     error
	longest int // bytes of one write
}

func (c *breaking) Read([]byte) (int, error)         { return 0, os.ErrDeadlineExceeded }
func (c *breaking) SetReadDeadline(time.Time) error  { return nil }
func (c *breaking) SetWriteDeadline(time.Time) error { return nil }
func (c *breaking) Close() error                     { return nil }
func (c *breaking) Write(b []byte) (int, error) {
	c.longest = max(c.longest, len(b))
	if n := c.room; n < len(b) {
		c.room = 0
		return n, c.err
	}
	c.room -= len(b)
	return len(b), nil
}
