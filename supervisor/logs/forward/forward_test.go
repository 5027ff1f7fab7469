package forward

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	collector "go.opentelemetry.io/proto/otlp/logs/v1"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/dreamlab-ai/agentinit/internal/otlp"
	"github.com/dreamlab-ai/agentinit/supervisor/logs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var noon = time.Date(2026, 1, 2, 12, 0, 0, 123456000, time.UTC)

func line(seq uint64, program, text string) logs.Line {
	return logs.Line{Seq: seq, Time: noon, Program: program, Stream: logs.Stdout, PID: 7, Run: 1, Text: text}
}

// source is a log plane that delivers its lines and waits for more.
type source struct {
	mu    sync.Mutex
	lines []logs.Line
	more  chan struct{}
}

func newSource(lines ...logs.Line) *source {
	return &source{lines: lines, more: make(chan struct{}, 1)}
}

func (s *source) add(lines ...logs.Line) {
	s.mu.Lock()
	s.lines = append(s.lines, lines...)
	s.mu.Unlock()
	select {
	case s.more <- struct{}{}:
	default:
	}
}

func (s *source) Read(ctx context.Context, q logs.Query) iter.Seq[logs.Line] {
	return func(yield func(logs.Line) bool) {
		for i := 0; ; {
			s.mu.Lock()
			lines := s.lines[i:]
			s.mu.Unlock()
			i += len(lines)
			for _, l := range lines {
				if (l.Seq > q.After || l.Dropped > 0 && q.After == 0) && (ctx.Err() != nil || !yield(l)) {
					return
				}
			}
			if !q.Follow {
				return
			}
			select {
			case <-s.more:
			case <-ctx.Done():
				return
			}
		}
	}
}

func start(t *testing.T, cfg Config, s *source) *Forwarder {
	t.Helper()
	f, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	f.Start(s)
	return f
}

func finish(t *testing.T, f *Forwarder, s *source) {
	t.Helper()
	f.Close(t.Context(), s)
}

// requests is a collector over HTTP that gives the listed answers and then 204.
type requests struct {
	*httptest.Server
	bodies chan []byte
	header chan http.Header
}

func newRequests(t *testing.T, tlsToo bool, answers ...int) *requests {
	t.Helper()
	r := &requests{bodies: make(chan []byte, 100), header: make(chan http.Header, 100)}
	var mu sync.Mutex
	handler := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return // the client closed the connection
		}
		mu.Lock()
		status := http.StatusNoContent
		if len(answers) > 0 {
			status, answers = answers[0], answers[1:]
		}
		mu.Unlock()
		req.Header.Set("Path", req.URL.Path)
		if status/100 == 2 {
			r.bodies <- body
			r.header <- req.Header
		}
		w.Header().Set("Location", "http://127.0.0.1:1/")
		w.WriteHeader(status)
	})
	r.Server = httptest.NewUnstartedServer(handler)
	if tlsToo {
		r.StartTLS()
	} else {
		r.Start()
	}
	t.Cleanup(r.Close)
	return r
}

func TestLokiPush(t *testing.T) {
	r := newRequests(t, true)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: r.Certificate().Raw})
	if err := os.WriteFile(ca, cert, 0o600); err != nil {
		t.Fatal(err)
	}
	s := newSource(line(1, "web", "one"), line(2, "db", "two \xff"), line(3, "web", "three"), line(4, "other", "not wanted"))
	f := start(t, Config{
		Name: "l", Kind: "loki", URL: r.URL, Token: "t0ken", Headers: map[string]string{"X-Scope-OrgID": "me"}, CAFile: ca,
		Host: "box", Programs: []string{"web", "d*"}, BatchLines: 3,
	}, s)
	body, header := <-r.bodies, <-r.header
	finish(t, f, s)
	var got struct {
		Streams []struct {
			Stream map[string]string
			Values [][2]string
		}
	}
	if err := json.Unmarshal(body, &got); err != nil {
		t.Fatal(err)
	}
	at := strconv.FormatInt(noon.UnixNano(), 10)
	want := `[{map[host:box program:web stream:stdout] [[` + at + ` one] [` + at + ` three]]} {map[host:box program:db stream:stdout] [[` + at + " two \ufffd]]}]"
	if fmt.Sprint(got.Streams) != want {
		t.Errorf("got  %v\nwant %s", got.Streams, want)
	}
	if header.Get("Path") != "/loki/api/v1/push" || header.Get("Authorization") != "Bearer t0ken" || header.Get("X-Scope-OrgID") != "me" ||
		header.Get("User-Agent") != "agentinit" {
		t.Errorf("header %v", header)
	}
	if st := f.Stats(); st.Sent != 3 || st.Dropped != 0 {
		t.Errorf("stats %+v", st)
	}
}

// Loki drops an entry that has the time and the text of another one in its stream. A program prints the
// same line several times at once: the braces of a JSON document, empty lines, the frames of a recursion.
func TestLokiKeepsEqualLines(t *testing.T) {
	r := newRequests(t, false)
	var lines []logs.Line
	for i := range 7 {
		lines = append(lines, line(uint64(i+1), "web", "}"))
	}
	s := newSource(lines...)
	f := start(t, Config{Name: "l", Kind: "loki", URL: r.URL, BatchLines: 3, BatchWait: time.Hour}, s)
	first := <-r.bodies
	finish(t, f, s) // sends again what was under way
	r.Close()
	r.bodies <- first
	close(r.bodies)
	seen := map[string]bool{}
	for body := range r.bodies {
		var got struct {
			Streams []struct{ Values [][2]string }
		}
		if err := json.Unmarshal(body, &got); err != nil {
			t.Fatal(err)
		}
		for _, v := range got.Streams[0].Values {
			at, err := strconv.ParseInt(v[0], 10, 64)
			if later := time.Unix(0, at).Sub(noon); err != nil || later < 0 || later > time.Microsecond {
				t.Errorf("time %q is %v after the line was read", v[0], later)
			}
			seen[v[0]] = true
		}
	}
	if len(seen) != len(lines) {
		t.Errorf("%d equal lines have %d different times", len(lines), len(seen))
	}
}

// Loki refuses entries of more than 256 KiB, so a longer line comes in several, of different times.
func TestLokiCutsLongLines(t *testing.T) {
	body, err := lokiStreams("box", []logs.Line{line(1, "web", strings.Repeat("ü", 300_000)+"\xff"), line(2, "web", "")})
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Streams []struct{ Values [][2]string }
	}
	if err := json.Unmarshal(body, &got); err != nil {
		t.Fatal(err)
	}
	var whole strings.Builder
	times := map[string]bool{}
	values := got.Streams[0].Values
	for _, v := range values[:len(values)-1] {
		if len(v[1]) > 256<<10 || times[v[0]] {
			t.Errorf("an entry of %d bytes at %s", len(v[1]), v[0])
		}
		times[v[0]] = true
		whole.WriteString(v[1])
	}
	if whole.String() != strings.Repeat("ü", 300_000)+"\ufffd" || len(values) != 4 || values[3][1] != "" {
		t.Errorf("%d entries, %d bytes", len(values), whole.Len())
	}
}

// The OpenTelemetry library decodes the body to the printed lines.
func TestOTLP(t *testing.T) {
	r := newRequests(t, false)
	bad := line(2, "web", "bad")
	bad.Stream = logs.Stderr
	s := newSource(line(1, "web", "good"), bad, line(3, "db", "x"))
	f := start(t, Config{Name: "o", Kind: "otlp", URL: r.URL + "/custom/logs", Host: "box", BatchLines: 3}, s)
	body, header := <-r.bodies, <-r.header
	finish(t, f, s)
	var got collector.LogsData
	if err := proto.Unmarshal(body, &got); err != nil {
		t.Fatalf("%v: %q", err, body)
	}
	if header.Get("Path") != "/custom/logs" || header.Get("User-Agent") != otlp.UserAgent || len(got.ResourceLogs) != 2 {
		t.Fatalf("%v: %v", header, &got)
	}
	records := got.ResourceLogs[0].ScopeLogs[0].LogRecords
	if len(records) != 2 || records[0].Body.GetStringValue() != "good" || records[1].SeverityNumber != collector.SeverityNumber_SEVERITY_NUMBER_ERROR ||
		records[0].TimeUnixNano != uint64(noon.UnixNano()) || records[0].Attributes[1].Value.GetIntValue() != 7 ||
		got.ResourceLogs[0].Resource.Attributes[0].Value.GetStringValue() != "web" {
		t.Errorf("got %v", &got)
	}
}

func TestHTTPLines(t *testing.T) {
	r := newRequests(t, false)
	s := newSource(line(1, "web", `{"a":1}`), line(2, "web", "b"))
	f := start(t, Config{Name: "h", Kind: "http", URL: r.URL, BatchLines: 2}, s)
	body := <-r.bodies
	finish(t, f, s)
	var texts []string
	for l := range strings.Lines(string(body)) {
		var v struct{ Msg, Program string }
		if err := json.Unmarshal([]byte(l), &v); err != nil || v.Program != "web" {
			t.Errorf("%q: %v", l, err)
		}
		texts = append(texts, v.Msg)
	}
	if !slices.Equal(texts, []string{`{"a":1}`, "b"}) {
		t.Errorf("got %q", texts)
	}
}

// failing is a collector that returns the listed errors.
type failing struct {
	errs []error
	got  []logs.Line
	at   []time.Duration
	from time.Time
}

func (s *failing) send(_ context.Context, batch []logs.Line) error {
	s.at = append(s.at, time.Since(s.from))
	if len(s.errs) > 0 {
		err := s.errs[0]
		s.errs = s.errs[1:]
		if err != nil {
			return err
		}
	}
	s.got = append(s.got, batch...)
	return nil
}

func (s *failing) close() {}

// Sends to a failing collector are repeated after growing pauses. Lines that it refuses for good
// are counted. Only the first failure and the recovery are reported.
func TestRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		away := errors.New("away")
		sink := &failing{from: time.Now(), errs: []error{away, away, away, &laterError{away, time.Minute}, nil, errRefused}}
		var said []error
		f, err := New(Config{Name: "x", Kind: "http", URL: "http://x", BatchLines: 2, OnTrouble: func(err error) { said = append(said, err) }})
		if err != nil {
			t.Fatal(err)
		}
		f.sender = sink
		missed := line(0, "web", "7 lines dropped")
		missed.Dropped = 7
		s := newSource(missed, line(1, "web", "a"), line(2, "web", "b"), line(3, "web", "c"), line(4, "web", "d"), line(5, "web", "e"))
		f.Start(s)
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if len(sink.got) != 3 || sink.got[0].Text != "a" || sink.got[2].Text != "e" {
			t.Errorf("got %v", sink.got)
		}
		if st := f.Stats(); st != (Stats{Sent: 3, Dropped: 9, Retries: 4}) {
			t.Errorf("stats %+v", st)
		}
		for i, least := range []time.Duration{0, 400 * time.Millisecond, 800 * time.Millisecond, 1600 * time.Millisecond, time.Minute} {
			if i > 0 && sink.at[i]-sink.at[i-1] < least {
				t.Errorf("attempt %d after %v", i, sink.at[i]-sink.at[i-1])
			}
		}
		if len(said) != 4 || said[0] == nil || said[1] != nil || said[2] == nil || said[3] != nil {
			t.Errorf("said %v", said)
		}
		f.Close(t.Context(), s)
	})
}

// A collector that was away and then refuses lines is reported twice: lines wait first, and then they are
// lost for another reason.
func TestTroubleThatChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		away := errors.New("away")
		wrongToken, badLine := fmt.Errorf("%w: 401", errRefused), &partError{errors.New("rejected records: 1"), 1}
		var said []error
		f, err := New(Config{Name: "x", Kind: "http", URL: "http://x", BatchLines: 1, OnTrouble: func(err error) { said = append(said, err) }})
		if err != nil {
			t.Fatal(err)
		}
		f.sender = &failing{from: time.Now(), errs: []error{away, away, wrongToken, badLine, away, nil}}
		s := newSource(line(1, "web", "a"), line(2, "web", "b"), line(3, "web", "c"))
		f.Start(s)
		time.Sleep(time.Minute)
		synctest.Wait()
		want := []error{away, wrongToken, away, nil}
		if !slices.EqualFunc(said, want, errors.Is) {
			t.Errorf("said %q, want %q", said, want)
		}
		f.Close(t.Context(), s)
	})
}

// A collector that takes a part of a batch in each attempt gets the rest after the shortest pause, and
// is no trouble.
func TestProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		away := errors.New("away")
		sink := &failing{from: time.Now(), errs: []error{away, away, away, &progressError{away, 1}, &progressError{away, 2}, nil}}
		var said []error
		f, err := New(Config{Name: "x", Kind: "http", URL: "http://x", OnTrouble: func(err error) { said = append(said, err) }})
		if err != nil {
			t.Fatal(err)
		}
		f.sender = sink
		f.deliver(t.Context(), []logs.Line{line(1, "web", "a"), line(2, "web", "b"), line(3, "web", "c"), line(4, "web", "d"), line(5, "web", "e")}, true)
		if got := texts(sink.got); !slices.Equal(got, []string{"d", "e"}) {
			t.Errorf("the last attempt had %q", got)
		}
		if st := f.Stats(); st != (Stats{Sent: 5, Retries: 5}) {
			t.Errorf("stats %+v", st)
		}
		for i, most := range map[int]time.Duration{3: 3 * time.Second, 4: time.Second, 5: time.Second} {
			if pause := sink.at[i] - sink.at[i-1]; pause > most {
				t.Errorf("attempt %d after %v", i, pause)
			}
		}
		if len(said) != 2 || !errors.Is(said[0], away) || said[1] != nil {
			t.Errorf("said %v", said)
		}
	})
}

// Close sends the lines once that the collector has not taken, and the lines after them.
func TestCloseSendsTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := &failing{from: time.Now(), errs: []error{nil, errors.New("away"), errors.New("away")}}
		f, err := New(Config{Name: "x", Kind: "http", URL: "http://x", BatchLines: 1})
		if err != nil {
			t.Fatal(err)
		}
		f.sender = sink
		s := newSource(line(1, "web", "a"), line(2, "web", "b"), line(3, "web", "c"))
		f.Start(s)
		time.Sleep(600 * time.Millisecond) // a is sent, b has failed twice
		s.add(line(4, "web", "d"))
		f.Close(t.Context(), s)
		var got []string
		for _, l := range sink.got {
			got = append(got, l.Text)
		}
		if !slices.Equal(got, []string{"a", "b", "c", "d"}) {
			t.Errorf("got %q", got)
		}
	})
}

// An answer that is on its way when agentinit begins to stop is awaited: a collector that is only slow
// gets no line twice. One that never answers does not use up the time that the other lines have.
func TestCloseAwaitsTheAnswer(t *testing.T) {
	for name, c := range map[string]struct {
		answer time.Duration // when the collector answers its first request
		want   []string      // texts of the requests
	}{
		"slow": {4 * time.Second, []string{"a", "b"}},
		"mute": {time.Hour, []string{"a", "a", "b"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, err := New(Config{Name: "x", Kind: "http", URL: "http://x", BatchLines: 1, Timeout: time.Hour})
				if err != nil {
					t.Fatal(err)
				}
				sink := &slowAtFirst{answer: c.answer}
				f.sender = sink
				s := newSource(line(1, "web", "a"), line(2, "web", "b"))
				f.Start(s)
				synctest.Wait()
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				missed := f.Close(ctx, s)
				if st := f.Stats(); !slices.Equal(sink.got, c.want) || missed != 0 || st.Sent != 2 || st.Dropped != 0 {
					t.Errorf("got %q, missed %d, stats %+v", sink.got, missed, st)
				}
			})
		})
	}
}

// slowAtFirst takes every batch at once and answers the first request late.
type slowAtFirst struct {
	answer time.Duration
	got    []string
}

func (s *slowAtFirst) send(ctx context.Context, batch []logs.Line) error {
	first := len(s.got) == 0
	s.got = append(s.got, texts(batch)...)
	if first {
		select {
		case <-time.After(s.answer):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (s *slowAtFirst) close() {}

// A refusal is reported even if agentinit begins to stop while the answer is on its way. That the
// attempt ended with agentinit is no trouble.
func TestRefusedWhileStopping(t *testing.T) {
	for answer, want := range map[error]int{context.Canceled: 0, errRefused: 1, &partError{errors.New("some rejected"), 1}: 1} {
		said := 0
		f, err := New(Config{Name: "x", Kind: "http", URL: "http://x", OnTrouble: func(error) { said++ }})
		if err != nil {
			t.Fatal(err)
		}
		f.sender = &failing{from: time.Now(), errs: []error{answer}}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := f.attempt(ctx, []logs.Line{line(1, "web", "a"), line(2, "web", "b")}); !errors.Is(err, answer) || said != want {
			t.Errorf("%v: said %d times, %v", answer, said, err)
		}
	}
}

func TestRefusedAnswersAreFinal(t *testing.T) {
	r := newRequests(t, false, 400, 302, 503, 204)
	s := newSource(line(1, "web", "a"), line(2, "web", "b"), line(3, "web", "c"))
	f := start(t, Config{Name: "h", Kind: "http", URL: r.URL, BatchLines: 1, Token: "t0ken", OnTrouble: func(err error) {
		if err != nil && strings.Contains(err.Error(), "t0ken") {
			t.Errorf("the token is in %v", err)
		}
	}}, s)
	if body := <-r.bodies; !strings.Contains(string(body), `"msg":"c"`) {
		t.Errorf("got %s", body)
	}
	finish(t, f, s)
	if st := f.Stats(); st != (Stats{Sent: 1, Dropped: 2, Retries: 1}) {
		t.Errorf("stats %+v", st)
	}
}

// frame reads a message with the octet counting of RFC 6587. A number that is none is a
// *strconv.NumError.
func frame(in *bufio.Reader) ([]byte, error) {
	size, err := in.ReadString(' ')
	if err != nil {
		return nil, err
	}
	n, err := strconv.Atoi(strings.TrimSpace(size))
	if err != nil {
		return nil, err
	}
	message := make([]byte, n)
	_, err = io.ReadFull(in, message)
	return message, err
}

func frames(t *testing.T, conn net.Conn, n int) (out []string) {
	t.Helper()
	in := bufio.NewReader(conn)
	for range n {
		message, err := frame(in)
		if err != nil {
			t.Error(err)
			return out
		}
		out = append(out, string(message))
	}
	return out
}

// TestSeverities: the stream tells the severity of a program's line, and the level that of an event.
func TestSeverities(t *testing.T) {
	for _, c := range []struct {
		stream       logs.Stream
		level        string
		syslog, otlp int
	}{
		{logs.Stdout, "", 6, 9}, {logs.Stderr, "", 3, 17},
		{logs.Stdout, "debug", 7, 5}, {logs.Stdout, "info", 6, 9}, {logs.Stderr, "warn", 4, 13}, {logs.Stderr, "error", 3, 17},
	} {
		l := line(1, "agentinit", "x")
		l.Stream, l.Level = c.stream, c.level
		if got, want := string(new(syslog).message(l, "x")), fmt.Sprintf("<%d>1 ", 8+c.syslog); !strings.HasPrefix(got, want) {
			t.Errorf("%v %q: %s, want %s", c.stream, c.level, got, want)
		}
		body, err := otlpLogs("box", []logs.Line{l})
		var got collector.LogsData
		if err := errors.Join(err, proto.Unmarshal(body, &got)); err != nil {
			t.Fatal(err)
		}
		if n := int(got.ResourceLogs[0].ScopeLogs[0].LogRecords[0].SeverityNumber); n != c.otlp {
			t.Errorf("%v %q: OTLP severity %d, want %d", c.stream, c.level, n, c.otlp)
		}
	}
}

const wantMessage = "<14>1 2026-01-02T12:00:00.123456Z box web 7 stdout - "

func TestSyslogOverStreams(t *testing.T) {
	web := newRequests(t, true)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: web.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, scheme := range []string{"tcp", "tls"} {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		if scheme == "tls" {
			listener = tls.NewListener(listener, &tls.Config{Certificates: web.TLS.Certificates})
		}
		s := newSource(line(1, "web", "one\ttwo \xff"), line(2, "web", ""))
		f := start(t, Config{Name: "s", Kind: "syslog", URL: scheme + "://" + listener.Addr().String(), CAFile: ca, Host: "box", BatchLines: 2}, s)
		conn, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if got := frames(t, conn, 2); !slices.Equal(got, []string{wantMessage + "one\ttwo \xff", wantMessage}) {
			t.Errorf("%s: %q", scheme, got)
		}
		// If the receiver closes the connection, the next batch goes over a new one.
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		s.add(line(3, "web", "three"), line(4, "web", "four"))
		if conn, err = listener.Accept(); err != nil {
			t.Fatal(err)
		}
		if got := frames(t, conn, 2); len(got) != 2 || got[1] != wantMessage+"four" {
			t.Errorf("%s, again: %q", scheme, got)
		}
		finish(t, f, s)
		if err := errors.Join(conn.Close(), listener.Close()); err != nil {
			t.Error(err)
		}
	}
}

// A shutdown does not wait for a receiver that reads nothing, not even until the attempt's time is up.
func TestSyslogReceiverThatDoesNotRead(t *testing.T) {
	web := newRequests(t, true)
	for _, scheme := range []string{"tcp", "tls", "unix"} {
		synctest.Test(t, func(t *testing.T) {
			s, err := newSyslog(Config{URL: scheme + "://127.0.0.1/dev/log"})
			if err != nil {
				t.Fatal(err)
			}
			ours, theirs := net.Pipe() // a write waits until it is read
			s.conn = ours
			if scheme == "tls" {
				server := tls.Server(theirs, &tls.Config{Certificates: web.TLS.Certificates, SessionTicketsDisabled: true})
				client := tls.Client(ours, &tls.Config{InsecureSkipVerify: true})
				go func() { _ = server.Handshake() }() // the client sees the same error
				if err := client.Handshake(); err != nil {
					t.Fatal(err)
				}
				s.conn = client
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			ended := make(chan error)
			go func() { ended <- s.send(ctx, []logs.Line{line(1, "web", "a")}) }()
			time.Sleep(time.Minute) // it is writing
			synctest.Wait()
			stopped := time.Now()
			cancel()
			if err := <-ended; err == nil || time.Since(stopped) > 0 {
				t.Errorf("%s: after %v: %v", scheme, time.Since(stopped), err)
			}
			if s.conn != nil {
				t.Errorf("%s: the connection is kept, with half a message on its way", scheme)
			}
			_ = theirs.Close()
		})
	}
}

func TestSyslogOverDatagrams(t *testing.T) {
	for _, network := range []string{"udp", "unixgram"} {
		address, url := "127.0.0.1:0", ""
		if network == "unixgram" {
			address = filepath.Join(t.TempDir(), "log")
			url = "unix://" + address
		}
		conn, err := net.ListenPacket(network, address)
		if err != nil {
			t.Fatal(err)
		}
		if url == "" {
			url = "udp://" + conn.LocalAddr().String()
		}
		long := strings.Repeat("€", 30_000)
		s := newSource(line(1, "we b\n", "hi"), line(2, "web", long))
		f := start(t, Config{Name: "s", Kind: "syslog", URL: url, Host: "box", BatchLines: 2}, s)
		buf := make([]byte, 1<<17)
		first, head := "<14>1 2026-01-02T12:00:00.123456Z box we_b_ 7 stdout - hi", wantMessage
		if network == "unixgram" {
			stamp := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC).Local().Format(time.Stamp)
			first, head = "<14>"+stamp+" we_b_[7]: hi", "<14>"+stamp+" web[7]: "
		}
		for _, want := range []string{first, head + long[:63_999], head + long[63_999:]} {
			n, _, err := conn.ReadFrom(buf)
			if err != nil {
				t.Fatal(err)
			}
			if string(buf[:n]) != want {
				t.Errorf("%s: %d bytes: %.80q", network, n, buf[:n])
			}
		}
		finish(t, f, s)
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}
}

// rsyslog starts rsyslogd with an input, and returns the file of its messages.
func rsyslog(t *testing.T, dir, input string) string {
	t.Helper()
	rsyslogd, err := exec.LookPath("rsyslogd")
	if err != nil {
		rsyslogd = "/usr/sbin/rsyslogd"
	}
	if _, err := os.Stat(rsyslogd); err != nil {
		t.Skip("needs root once: Debian's rsyslog is not installed (.ci/deps e2e installs it)")
	}
	out, conf := filepath.Join(dir, "out"), filepath.Join(dir, "conf")
	if err := os.WriteFile(conf, fmt.Appendf(nil, `global(workDirectory=%[1]q maxMessageSize="1m")
%[2]s
template(name="t" type="string" string="%%app-name%%|%%procid%%|%%msgid%%|%%syslogseverity-text%%|%%timereported:::date-rfc3339%%|%%msg%%\n")
action(type="omfile" file=%[3]q template="t")
`, dir, input, out), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(rsyslogd, "-n", "-f", conf, "-i", filepath.Join(dir, "pid"))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cmd.Process.Kill(); err != nil {
			t.Error(err)
		}
		_ = cmd.Wait() // killed
	})
	return out
}

// contains waits until a file is what is wanted, and returns what it is at the end.
func contains(t *testing.T, file, want string) string {
	t.Helper()
	got := ""
	waitUntil(func() bool {
		data, err := os.ReadFile(file)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		got = strings.ReplaceAll(string(data), "Z|", "+00:00|")
		return got == want
	})
	return got
}

// waitUntil polls, because rsyslog does not report that it has written. It gives up after 30 seconds.
func waitUntil(ok func() bool) {
	for end := time.Now().Add(30 * time.Second); !ok() && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
}

// rsyslog reads the program, its pid and the text from its local socket as it is installed.
func TestRsyslogOverItsSocket(t *testing.T) {
	dir, err := os.MkdirTemp("", "rsyslog") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	socket := filepath.Join(dir, "log")
	out := rsyslog(t, dir, fmt.Sprintf(`module(load="imuxsock" SysSock.Use="off")
input(type="imuxsock" Socket=%q UseSysTimeStamp="off" IgnoreTimestamp="off")`, socket))
	bad := line(2, "worker:1", "second: [x]")
	bad.Stream = logs.Stderr
	s := newSource(line(1, "web", "first line"), bad)
	f := start(t, Config{Name: "s", Kind: "syslog", URL: "unix://" + socket, Host: "box", Programs: []string{"web", "worker"}, BatchLines: 2}, s)
	var want strings.Builder
	for _, message := range []struct{ head, text string }{{"web|7|-|info|", " first line"}, {"worker.1|7|-|err|", " second: [x]"}} {
		// The format has no year: rsyslog takes the present one.
		at := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC).Local()
		at = time.Date(time.Now().Year(), at.Month(), at.Day(), at.Hour(), at.Minute(), at.Second(), 0, time.Local)
		fmt.Fprintf(&want, "%s%s|%s\n", message.head, strings.ReplaceAll(at.Format(time.RFC3339), "Z", "+00:00"), message.text)
	}
	got := contains(t, out, want.String())
	finish(t, f, s)
	if got != want.String() {
		t.Errorf("got\n%swant\n%s", got, want.String())
	}
}

// rsyslog, the most common receiver, understands the messages, also after a line that is longer
// than it takes at once.
func TestRsyslog(t *testing.T) {
	dir := t.TempDir()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := listener.Addr().(*net.TCPAddr).Port
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	out := rsyslog(t, dir, fmt.Sprintf(`module(load="imtcp")
input(type="imtcp" port="%d" address="127.0.0.1")`, port))
	bad := line(2, "web", "second")
	bad.Stream = logs.Stderr
	long := strings.Repeat("x", 250_000)
	s := newSource(line(1, "web", "first line"), bad, line(3, "long", long), line(4, "web", "last line"))
	// The forwarder itself waits for the receiver to come up.
	f := start(t, Config{Name: "s", Kind: "syslog", URL: fmt.Sprintf("tcp://127.0.0.1:%d", port), Host: "box", BatchLines: 4}, s)
	const when = "2026-01-02T12:00:00.123456+00:00|"
	want := "web|7|stdout|info|" + when + "first line\nweb|7|stderr|err|" + when + "second\n"
	for piece := range slices.Chunk([]byte(long), maxText) {
		want += "long|7|stdout|info|" + when + string(piece) + "\n"
	}
	want += "web|7|stdout|info|" + when + "last line\n"
	got := contains(t, out, want)
	finish(t, f, s)
	if got != want {
		t.Errorf("rsyslog wrote %d bytes: %.300q", len(got), got)
	}
}

func TestBadConfigurations(t *testing.T) {
	for _, c := range []Config{
		{Kind: "syslog", URL: "http://x"}, {Kind: "syslog", URL: "tcp://"}, {Kind: "syslog", URL: "unix://"}, {Kind: "loki", URL: "tcp://x:1"},
		{Kind: "http", URL: "://"}, {Kind: "carrier pigeon", URL: "http://x"}, {Kind: "http", URL: "http://x", Programs: []string{"["}},
		{Kind: "http", URL: "https://x", CAFile: "/nowhere"}, {Kind: "syslog", URL: "tls://x", CAFile: os.DevNull},
	} {
		if _, err := New(c); err == nil {
			t.Errorf("%+v is accepted", c)
		}
	}
}

// net/http sends the Host of a request from another place than its header.
func TestHostHeader(t *testing.T) {
	hosts := make(chan string, 1)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { hosts <- r.Host }))
	defer server.Close()
	s := newSource(line(1, "web", "one"))
	f := start(t, Config{Name: "h", Kind: "http", URL: server.URL, Headers: map[string]string{"host": "logs.internal"}, BatchLines: 1}, s)
	if got := <-hosts; got != "logs.internal" {
		t.Errorf("host %q", got)
	}
	finish(t, f, s)
}
