package forward

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"iter"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/dreamlab-ai/agentinit/internal/hostname"
	"github.com/dreamlab-ai/agentinit/internal/sysroots"
	"github.com/dreamlab-ai/agentinit/supervisor/logs"
)

// syslog sends messages of RFC 5424. Over udp, one datagram holds one message (RFC 5426). Over tcp
// (RFC 6587, 3.4.1) and tls (RFC 5425), the length comes before each message. Over unix, a datagram
// has the form that syslog(3) writes to /dev/log: rsyslog, systemd-journald, syslog-ng and busybox
// read no other there, unless they are configured to.
type syslog struct {
	network, address string
	host             string
	tls              *tls.Config // nil if tls is not used
	roots            readRoots   // nil if tls needs none, or has them
	conn             net.Conn
}

const facilityUser = 1 << 3

// syslogSeverity is the severity of a level by RFC 5424, 6.2.1.
func syslogSeverity(level string) int {
	switch level {
	case "error":
		return 3
	case "warn":
		return 4
	case "debug":
		return 7
	}
	return 6 // info
}

// maxText is how much of a line one message has; a longer line becomes several. With its header, a
// message fits a UDP datagram over IPv4 and the 64 KiB that syslog-ng accepts. To a longer message,
// rsyslog loses the framing of the connection, and with it the lines of all programs (beyond
// maxFrameSize, 200,000 bytes).
const maxText = 64_000

func newSyslog(cfg Config) (*syslog, error) {
	u, err := url.Parse(cfg.URL)
	if err != nil {
		return nil, errors.New("the url cannot be parsed")
	}
	s := &syslog{network: u.Scheme, address: u.Host, host: printable(cfg.Host, 255)}
	switch u.Scheme {
	case "unix":
		s.network, s.address = "unixgram", u.Path
		if u.Path == "" {
			return nil, errors.New("the url has no path: write unix:///dev/log")
		}
		return s, nil
	case "udp", "tcp":
		s.address = withPort(u, "514")
	case "tls":
		s.network, s.address = "tcp", withPort(u, "6514")
		s.tls = &tls.Config{ServerName: u.Hostname(), MinVersion: tls.VersionTLS12}
		if s.tls.RootCAs, err = trusted(cfg.CAFile); err != nil {
			return nil, err
		}
		if s.tls.RootCAs == nil {
			s.roots = sysroots.Pool
		}
	default:
		return nil, fmt.Errorf("syslog over %q is not known: write unix://, udp://, tcp:// or tls://", u.Scheme)
	}
	if u.Hostname() == "" {
		return nil, errors.New("the url names no host")
	}
	return s, nil
}

func withPort(u *url.URL, port string) string {
	if u.Port() != "" {
		return u.Host
	}
	return net.JoinHostPort(u.Hostname(), port)
}

// readRoots returns the certificates of the system. crypto/tls would read their files in the middle of the
// first handshake, which then waits with no end if their file system is dead: the forwarder would never end,
// and so agentinit would not.
type readRoots func(ctx context.Context) (*x509.CertPool, error)

// trusted reads certificates; nil means those of the system (readRoots). A program may be able to put a FIFO or a
// device in the file's place: trusted waits for none and reads no more than sysroots.MaxFile.
func trusted(file string) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil
	}
	pem, err := sysroots.ReadFile(file, sysroots.MaxFile)
	if errors.Is(err, sysroots.ErrNotTaken) {
		return nil, fmt.Errorf("ca_file %s is no regular file of at most %d MiB", file, sysroots.MaxFile>>20)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read ca_file: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("ca_file %s holds no certificate", file)
	}
	return pool, nil
}

func (s *syslog) send(ctx context.Context, batch []logs.Line) error {
	if s.conn != nil && s.network == "tcp" && s.hungUp() {
		s.abort()
	}
	if s.conn == nil {
		if err := s.dial(ctx); err != nil {
			return err
		}
	}
	// ctx ends when the time is up, or when agentinit stops: a receiver that does not read must not
	// delay that until the time is up.
	conn := s.conn
	stop := context.AfterFunc(ctx, func() { _ = conn.SetWriteDeadline(time.Now()) }) // the write then fails
	whole, err := s.write(batch)
	if !stop() || err != nil {
		s.abort()
	}
	if whole > 0 && err != nil && s.arrives(err) {
		return &progressError{err, whole}
	}
	return err
}

// arrives tells whether the receiver gets what was written before an error. If it does not, a line
// that comes twice is better than a line that never comes.
func (s *syslog) arrives(err error) bool {
	switch s.network {
	case "udp": // the receiver's host has refused an earlier message
		return !errors.Is(err, syscall.ECONNREFUSED)
	case "tcp": // the kernel still sends what it has, unless the connection is broken
		return errors.Is(err, os.ErrDeadlineExceeded)
	}
	return true
}

// hungUp tells whether the other side has closed the connection. Data written after that would be
// lost without an error.
func (s *syslog) hungUp() bool {
	if s.conn.SetReadDeadline(time.Now().Add(time.Millisecond)) != nil {
		return true
	}
	_, err := s.conn.Read(make([]byte, 1))
	return err != nil && !errors.Is(err, os.ErrDeadlineExceeded)
}

func (s *syslog) dial(ctx context.Context) (err error) {
	if s.roots != nil {
		if s.tls.RootCAs, err = s.roots(ctx); err != nil {
			return err
		}
		s.roots = nil
	}
	conn, err := hostname.Dial(&net.Dialer{})(ctx, s.network, s.address)
	if err != nil {
		return err
	}
	if s.tls != nil {
		over := tls.Client(conn, s.tls)
		if err := over.HandshakeContext(ctx); err != nil {
			_ = conn.Close()
			return err
		}
		conn = over
	}
	s.conn = conn
	return nil
}

// chunk is how many bytes of messages are collected for one write to a stream. If a whole batch were, an
// attempt whose time is up before they are collected would write nothing, and each further one as well.
const chunk = 64 << 10

// write returns how many lines it has written whole, from the first on.
func (s *syslog) write(batch []logs.Line) (whole int, err error) {
	if s.network == "tcp" {
		return s.writeStream(batch)
	}
	for _, line := range batch {
		for m := range s.messages(line) {
			if _, err := s.conn.Write(m); err != nil {
				return whole, err
			}
		}
		whole++
	}
	return whole, nil
}

// writeStream is write for TCP and TLS, where the length comes before each message.
func (s *syslog) writeStream(batch []logs.Line) (whole int, err error) {
	var out []byte
	var ends []int // of the lines in out
	flush := func() error {
		if len(out) == 0 {
			return nil
		}
		n, err := s.conn.Write(out)
		for _, end := range ends {
			if end <= n {
				whole++
			}
		}
		out, ends = out[:0], ends[:0]
		return err
	}
	for _, line := range batch {
		for m := range s.messages(line) {
			out = append(strconv.AppendInt(out, int64(len(m)), 10), ' ')
			out = append(out, m...)
		}
		ends = append(ends, len(out))
		if len(out) < chunk {
			continue
		}
		if err := flush(); err != nil {
			return whole, err
		}
	}
	return whole, flush()
}

// messages makes the messages of a line.
func (s *syslog) messages(line logs.Line) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for text := range pieces(line.Text, maxText) {
			if !yield(s.message(line, text)) {
				return
			}
		}
	}
}

// pieces are the parts of a text that is too long for one message: each has at most so many bytes, and
// none begins within a character. A text without bytes has one part.
func pieces(text string, most int) iter.Seq[string] {
	return func(yield func(string) bool) {
		for {
			n := len(text)
			if n > most {
				n = most
				for n > most-utf8.UTFMax && !utf8.RuneStart(text[n]) {
					n--
				}
			}
			if !yield(text[:n]) {
				return
			}
			if text = text[n:]; text == "" {
				return
			}
		}
	}
}

// message makes one message of a text of the line.
func (s *syslog) message(line logs.Line, text string) []byte {
	priority := facilityUser | syslogSeverity(levelOf(line))
	if s.network == "unixgram" {
		// A tag ends at its colon (RFC 3164, 4.1.3), so that of an instance has none.
		tag := strings.ReplaceAll(printable(line.Program, 48), ":", ".")
		return fmt.Appendf(nil, "<%d>%s %s[%d]: %s", priority, line.Time.Local().Format(time.Stamp), tag, line.PID, text)
	}
	return fmt.Appendf(nil, "<%d>1 %s %s %s %d %s - %s", priority,
		line.Time.UTC().Format("2006-01-02T15:04:05.000000Z07:00"), s.host, printable(line.Program, 48), line.PID, line.Stream, text)
}

// printable makes a header field of RFC 5424: at most n characters of printable ASCII without
// spaces, "-" if there are none.
func printable(text string, n int) string {
	out := []byte(text[:min(len(text), n)])
	for i, c := range out {
		if c <= ' ' || c > '~' {
			out[i] = '_'
		}
	}
	if len(out) == 0 {
		return "-"
	}
	return string(out)
}

// abort closes a connection that has failed. Close of TLS would wait for up to 5 s to take leave of a
// receiver that does not read.
func (s *syslog) abort() {
	if c, ok := s.conn.(*tls.Conn); ok {
		s.conn = c.NetConn()
	}
	s.close()
}

func (s *syslog) close() {
	if s.conn != nil {
		_ = s.conn.Close() // messages that were not sent are sent again, or counted
		s.conn = nil
	}
}
