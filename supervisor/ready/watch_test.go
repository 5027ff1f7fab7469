package ready

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/logs"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// script is an exec probe that returns one status per attempt, and repeats the last.
type script struct {
	statuses []int
	times    []time.Time
}

func (s *script) exec(_ context.Context, _ Target, _ []string) (int, []byte, error) {
	s.times = append(s.times, time.Now())
	return s.statuses[min(len(s.times), len(s.statuses))-1], nil, nil
}

var web = Target{Program: "web", Run: 3}

func watch(ctx context.Context, w *Watcher, t Target, r program.Readiness) (results []Result) {
	w.Watch(ctx, t, r, func(res Result) { results = append(results, res) })
	return results
}

func TestWatchAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{statuses: []int{1, 1, 0, 1, 0, 0}}
		w := New(Config{Exec: s.exec})
		began := time.Now()
		probe := program.Probe{Dialect: "exec", Argv: []string{"sh", "-c", "check db; exit 1"}, Interval: 2 * time.Second, Successes: 2}
		results := watch(t.Context(), w, web, program.Readiness{Probes: []program.Probe{probe}})
		last := results[len(results)-1]
		if !last.Ready || !last.Final || time.Since(began) != 10*time.Second {
			t.Errorf("after %s: %+v", time.Since(began), last)
		}
		first := results[0]
		if first.Reason != "exec sh -c 'check db; exit 1': exit status 1 (attempt 1)" || first.Ready || first.Final {
			t.Errorf("first = %+v", first)
		}
		if third := results[2]; third.Reason != "exec sh -c 'check db; exit 1': ok (1 of 2 in a row)" || third.Ready {
			t.Errorf("third = %+v", third)
		}
	})
}

func TestExecProbeQuotesTheLastLine(t *testing.T) {
	for output, want := range map[string]string{
		"":                             "exec check: exit status 3 (attempt 1)",
		"\n \n":                        "exec check: exit status 3 (attempt 1)",
		"refused":                      "exec check: exit status 3: refused (attempt 1)",
		"Traceback:\n  x\r\nE: y \n\n": "exec check: exit status 3: E: y (attempt 1)",
		"a\x1b[31m\xff\x00b":           "exec check: exit status 3: a [31m  b (attempt 1)",
		strings.Repeat("é", 1000):      "exec check: exit status 3: " + strings.Repeat("é", 247) + "… (attempt 1)",
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			exec := func(context.Context, Target, []string) (int, []byte, error) { return 3, []byte(output), nil }
			results := watch(ctx, New(Config{Exec: exec}), web, program.Readiness{Probes: []program.Probe{{Dialect: "exec", Argv: []string{"check"}}}})
			if len(results) != 1 || results[0].Reason != want {
				t.Errorf("%q: %+v, want %q", output, results, want)
			}
		})
	}
}

// Without an interval, the first attempts are close together and the later ones a second apart.
func TestWatchDefaultInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{statuses: []int{1, 1, 1, 1, 1, 1, 1, 0}}
		w := New(Config{Exec: s.exec})
		watch(t.Context(), w, web, program.Readiness{Probes: []program.Probe{{Dialect: "exec", Argv: []string{"x"}}}})
		var gaps []time.Duration
		for i := 1; i < len(s.times); i++ {
			gaps = append(gaps, s.times[i].Sub(s.times[i-1]))
		}
		if got := fmt.Sprint(gaps); got != "[50ms 100ms 200ms 400ms 800ms 1s 1s]" {
			t.Errorf("gaps = %s", got)
		}
	})
}

// The machine keeps the deadline, because it moves the deadline when the program asks for more
// time. A READY after the deadline counts if the watch has not been cancelled.
func TestWatchLeavesTheDeadlineToTheMachine(t *testing.T) {
	for _, ended := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			n := newNotifier(NotifierConfig{})
			done := make(chan []Result)
			go func() {
				done <- watch(ctx, New(Config{Notifier: n}), web,
					program.Readiness{Deadline: 2 * time.Second, Probes: []program.Probe{{Dialect: "notify"}}})
			}()
			n.note(Message{Program: "web", Run: 3, Extend: 8 * time.Second})
			time.Sleep(3500 * time.Millisecond)
			if ended {
				cancel()
				synctest.Wait()
			}
			n.note(Message{Program: "web", Run: 3, Ready: true})
			r := <-done
			if ready := len(r) == 1 && r[0].Ready && r[0].Final; ready == ended {
				t.Errorf("ended %v: %+v", ended, r)
			}
		})
	}
}

func TestWatchTimeoutOfOneAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		w := New(Config{Exec: func(ctx context.Context, _ Target, _ []string) (int, []byte, error) {
			if n++; n > 1 {
				return 0, nil, nil
			}
			<-ctx.Done()
			return 0, nil, ctx.Err()
		}})
		results := watch(t.Context(), w, web, program.Readiness{Probes: []program.Probe{{Dialect: "exec", Argv: []string{"x"}, Timeout: 7 * time.Second}}})
		if results[0].Reason != "exec x: no answer within 7s (attempt 1)" || !results[len(results)-1].Ready {
			t.Errorf("results = %+v", results)
		}
	})
}

func TestWatchAllAndAny(t *testing.T) {
	probes := []program.Probe{{Dialect: "exec", Argv: []string{"good"}}, {Dialect: "exec", Argv: []string{"bad"}}}
	exec := func(_ context.Context, _ Target, argv []string) (int, []byte, error) {
		if argv[0] == "good" {
			return 0, nil, nil
		}
		return 1, nil, nil
	}
	for _, anyOne := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			results := watch(ctx, New(Config{Exec: exec}), web, program.Readiness{Probes: probes, Any: anyOne})
			last := results[len(results)-1]
			if last.Ready != anyOne || last.Final != anyOne {
				t.Errorf("any = %v: %+v", anyOne, last)
			}
			if !anyOne && !strings.Contains(last.Reason, "exec bad") {
				t.Errorf("reason %q does not name the probe that failed", last.Reason)
			}
		})
	}
}

// A condition that holds is no reason for not being ready.
func TestWatchNamesWhatIsMissing(t *testing.T) {
	good := program.Probe{Dialect: "exec", Argv: []string{"good"}}
	exec := func(ctx context.Context, _ Target, argv []string) (int, []byte, error) {
		if argv[0] == "good" {
			return 0, nil, nil
		}
		<-ctx.Done()
		return 0, nil, ctx.Err()
	}
	for want, missing := range map[string]program.Probe{
		"notify: not yet":     {Dialect: "notify"},
		"exec hangs: not yet": {Dialect: "exec", Argv: []string{"hangs"}, Timeout: time.Hour},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			w := New(Config{Exec: exec, Notifier: newNotifier(NotifierConfig{})})
			results := watch(ctx, w, web, program.Readiness{Probes: []program.Probe{good, missing}})
			if len(results) != 1 || results[0].Reason != want || results[0].Ready {
				t.Errorf("%+v, want %q", results, want)
			}
		})
	}
}

func TestWatchEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		s := &script{statuses: []int{1}}
		for _, r := range watch(ctx, New(Config{Exec: s.exec}), web, program.Readiness{Probes: []program.Probe{{Dialect: "exec", Argv: []string{"x"}}}}) {
			if r.Final {
				t.Errorf("a cancelled watch reported %+v", r)
			}
		}
	})
}

func TestWatchWithoutProbesOrMeans(t *testing.T) {
	w := New(Config{})
	if r := watch(t.Context(), w, web, program.Readiness{}); len(r) != 1 || !r[0].Ready || !r[0].Final {
		t.Errorf("no probes: %+v", r)
	}
	for _, p := range []program.Probe{{Dialect: "notify"}, {Dialect: "log", Target: "x"}, {Dialect: "fd", Target: "3"}, {Dialect: "log", Target: "("}, {}} {
		r := watch(t.Context(), w, web, program.Readiness{Probes: []program.Probe{p}})
		if last := r[len(r)-1]; last.Ready || !last.Final || last.Reason == "" {
			t.Errorf("%+v: %+v", p, last)
		}
	}
}

func TestNotifyAndWatchdog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNotifier(NotifierConfig{})
		w := New(Config{Notifier: n})
		done := make(chan []Result)
		go func() {
			done <- watch(t.Context(), w, web, program.Readiness{Probes: []program.Probe{{Dialect: "notify"}}})
		}()
		synctest.Wait()
		n.note(Message{Program: "web", Run: 2, Ready: true}) // of an older run
		n.note(Message{Program: "db", Run: 3, Ready: true})
		synctest.Wait()
		n.note(Message{Program: "web", Run: 3, Ready: true})
		if r := <-done; len(r) != 1 || !r[0].Ready {
			t.Errorf("results = %+v", r)
		}

		ctx, cancel := context.WithCancel(t.Context())
		results := make(chan Result, 10)
		checked := make(chan struct{})
		go func() {
			defer close(checked)
			w.Check(ctx, web, program.Health{Watchdog: 10 * time.Second}, func(r Result) { results <- r })
		}()
		for range 5 {
			time.Sleep(9 * time.Second)
			n.note(Message{Program: "web", Run: 3, Watchdog: true})
		}
		synctest.Wait()
		if len(results) != 0 {
			t.Errorf("fed watchdog reported %+v", <-results)
		}
		began := time.Now()
		if r := <-results; r.Ready || r.Reason != "watchdog: no WATCHDOG=1 within 10s" || time.Since(began) != 10*time.Second {
			t.Errorf("starved watchdog, after %s: %+v", time.Since(began), r)
		}
		n.note(Message{Program: "web", Run: 3, Watchdog: true})
		if r := <-results; !r.Ready {
			t.Errorf("fed again: %+v", r)
		}
		n.note(Message{Program: "web", Run: 3, WatchdogTrigger: true})
		if r := <-results; r.Ready {
			t.Errorf("triggered: %+v", r)
		}
		cancel()
		<-checked
	})
}

func TestCheckCountsFailuresInARow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{statuses: []int{0, 1, 1, 0, 1, 1, 1, 0}}
		ctx, cancel := context.WithTimeout(t.Context(), 85*time.Second)
		defer cancel()
		var got []string
		began := time.Now()
		New(Config{Exec: s.exec}).Check(ctx, web, program.Health{
			Probes: []program.Probe{{Dialect: "exec", Argv: []string{"x"}, Interval: 10 * time.Second}}, Failures: 3,
		}, func(r Result) { got = append(got, fmt.Sprint(time.Since(began), " ", r.Ready)) })
		if fmt.Sprint(got) != "[10s true 1m10s false 1m20s true]" {
			t.Errorf("got %v", got)
		}
	})
}

// While a program is unhealthy, the reason is that of a probe that fails now.
func TestCheckTellsTheReasonThatHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 33*time.Second)
		defer cancel()
		began := time.Now()
		fails := map[string][2]time.Duration{"a": {0, 15 * time.Second}, "b": {10 * time.Second, 25 * time.Second}}
		exec := func(_ context.Context, _ Target, argv []string) (int, []byte, error) {
			if at, f := time.Since(began), fails[argv[0]]; f[0] < at && at < f[1] {
				return 1, nil, nil
			}
			return 0, nil, nil
		}
		probe := func(name string, every time.Duration) program.Probe {
			return program.Probe{Dialect: "exec", Argv: []string{name}, Interval: every}
		}
		var got []string
		New(Config{Exec: exec}).Check(ctx, web, program.Health{
			Probes: []program.Probe{probe("a", 10*time.Second), probe("b", 7*time.Second)}, Failures: 1,
		}, func(r Result) { got = append(got, fmt.Sprint(time.Since(began), " ", r.Ready, " ", r.Reason)) })
		want := []string{
			"7s true exec b: ok", "10s false exec a: exit status 1 (attempt 1)",
			"20s false exec b: exit status 1 (attempt 2)", "28s true exec b: ok",
		}
		if !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

func readiness(p program.Probe) program.Readiness {
	p.Interval = 20 * time.Millisecond
	return program.Readiness{Probes: []program.Probe{p}}
}

// once makes one attempt.
func once(t *testing.T, w *Watcher, tg Target, p program.Probe) error {
	t.Helper()
	return try(t.Context(), w.dialect(tg, p), p)
}

func TestHTTP(t *testing.T) {
	elsewhere := false
	mux := http.NewServeMux()
	mux.HandleFunc("/ok", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	mux.HandleFunc("/moved", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", http.StatusFound) })
	mux.HandleFunc("/elsewhere", func(http.ResponseWriter, *http.Request) { elsewhere = true })
	mux.HandleFunc("/bad", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, strings.Repeat("no db ", 1e5), http.StatusServiceUnavailable)
	})
	srv := httptest.NewServer(mux)
	defer srv.Close()
	w := New(Config{})
	t.Setenv("HTTP_PROXY", "http://127.0.0.1:1")
	for _, path := range []string{"/ok", "/moved"} {
		if err := once(t, w, web, program.Probe{Dialect: "http", Target: srv.URL + path}); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
	if elsewhere {
		t.Error("a redirect was followed")
	}
	if err := httpGet(t.Context(), srv.URL+"/bad"); err == nil || err.Error() != "status 503 Service Unavailable" {
		t.Errorf("bad: %v", err)
	}
	tlsSrv := httptest.NewTLSServer(mux)
	defer tlsSrv.Close()
	if err := once(t, w, web, program.Probe{Dialect: "http", Target: tlsSrv.URL + "/ok"}); err != nil {
		t.Errorf("https: %v", err)
	}
	srv.Close()
	ctx, cancel := context.WithCancel(t.Context())
	probe := program.Probe{Dialect: "http", Target: strings.Replace(srv.URL, "http://", "http://user:secret@", 1) + "/ok"}
	w.Watch(ctx, web, readiness(probe), func(r Result) {
		if !strings.HasSuffix(r.Reason, ": connection refused (attempt 1)") || strings.Contains(r.Reason, "secret") {
			t.Errorf("reason = %q", r.Reason)
		}
		cancel()
	})
}

func TestTCPAndUnix(t *testing.T) {
	dir := t.TempDir()
	w := New(Config{})
	tg := Target{Program: "web", Dir: dir}
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	stream, err := net.Listen("unix", filepath.Join(dir, "stream"))
	if err != nil {
		t.Fatal(err)
	}
	dgram, err := net.ListenPacket("unixgram", filepath.Join(dir, "dgram"))
	if err != nil {
		t.Fatal(err)
	}
	good := []program.Probe{{Dialect: "tcp", Target: tcp.Addr().String()}, {Dialect: "unix", Target: "stream"}, {Dialect: "unix", Target: filepath.Join(dir, "dgram")}}
	for _, p := range good {
		if err := once(t, w, tg, p); err != nil {
			t.Errorf("%+v: %v", p, err)
		}
	}
	for _, c := range []interface{ Close() error }{tcp, stream, dgram} {
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range good {
		if err := once(t, w, tg, p); err == nil {
			t.Errorf("%+v succeeds with nobody there", p)
		}
	}
}

func TestFile(t *testing.T) {
	dir := t.TempDir()
	w := New(Config{})
	p, tg := program.Probe{Dialect: "file", Target: "up"}, Target{Program: "web", Dir: dir}
	if err := once(t, w, tg, p); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing file: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "up"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := once(t, w, tg, p); err != nil {
		t.Error(err)
	}
}

func TestFD(t *testing.T) {
	for text, want := range map[string]bool{"starting…\n": true, "no end": false} {
		r, wr, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := wr.WriteString(text); err != nil {
			t.Fatal(err)
		}
		if err := wr.Close(); err != nil {
			t.Fatal(err)
		}
		results := watch(t.Context(), New(Config{}), Target{Program: "web", ReadyFD: r}, readiness(program.Probe{Dialect: "fd", Target: "3"}))
		if last := results[len(results)-1]; last.Ready != want || !last.Final {
			t.Errorf("%q: %+v", text, last)
		}
	}
	// What a program writes without a newline is not read without end.
	r, wr, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer wr.Close()
	if _, err := wr.WriteString(strings.Repeat("x", fdMost)); err != nil { // as much as a pipe holds
		t.Fatal(err)
	}
	results := watch(t.Context(), New(Config{}), Target{Program: "web", ReadyFD: r}, readiness(program.Probe{Dialect: "fd", Target: "3"}))
	if last := results[len(results)-1]; last.Ready || !last.Final || !strings.Contains(last.Reason, "no newline in the first 64 KiB") {
		t.Errorf("without a newline: %+v", last)
	}
	// A program that never reports does not keep Watch from ending.
	r, wr, err = os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer wr.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if results := watch(ctx, New(Config{}), Target{Program: "web", ReadyFD: r}, readiness(program.Probe{Dialect: "fd", Target: "3"})); len(results) > 0 {
		t.Errorf("silent: %+v", results)
	}
}

func TestLog(t *testing.T) {
	plane := logs.New(logs.Config{})
	defer plane.Close(context.Background())
	c, err := plane.Open(logs.Options{Program: "web", Run: 3, To: logs.ToNone})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Stdout.WriteString("booting\nlistening on :80\n"); err != nil {
		t.Fatal(err)
	}
	c.Started(1)
	results := watch(t.Context(), New(Config{Logs: plane}), web, readiness(program.Probe{Dialect: "log", Target: `^listening on :\d+$`}))
	if last := results[len(results)-1]; !last.Ready {
		t.Errorf("got %+v", last)
	}
}

func healthServer(t *testing.T, status uint64, grpcStatus string) string {
	t.Helper()
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 2 || r.URL.Path != "/grpc.health.v1.Health/Check" || r.Header.Get("Content-Type") != "application/grpc" {
			http.Error(w, "not gRPC", http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Trailer", "Grpc-Status")
		msg := binary.AppendUvarint([]byte{8}, status)
		w.Write(append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(msg))), msg...))
		w.Header().Set("Grpc-Status", grpcStatus)
	}))
	srv.Config.Protocols = new(http.Protocols)
	srv.Config.Protocols.SetUnencryptedHTTP2(true)
	srv.Start()
	t.Cleanup(srv.Close)
	return srv.Listener.Addr().String()
}

func TestGRPC(t *testing.T) {
	w := New(Config{})
	tests := []struct {
		status uint64
		code   string
		want   string
	}{{1, "0", ""}, {2, "0", "NOT_SERVING"}, {0, "0", "UNKNOWN"}, {1, "5", "grpc status 5"}, {9, "0", "serving status 9"}}
	for _, tt := range tests {
		err := once(t, w, web, program.Probe{Dialect: "grpc", Target: healthServer(t, tt.status, tt.code) + "/my.Service"})
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || strings.TrimSpace(err.Error()) != tt.want) {
			t.Errorf("status %d, code %s: %v", tt.status, tt.code, err)
		}
	}
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	if err := once(t, w, web, program.Probe{Dialect: "grpc", Target: plain.Listener.Addr().String()}); err == nil {
		t.Error("an HTTP/1 server passed for gRPC")
	}
}

func FuzzServingStatus(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 2, 8, 1})
	f.Add([]byte{0, 0, 0, 0, 4, 18, 255, 255, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		if servingStatus(b) == nil && len(b) < 7 {
			t.Errorf("%x passed for SERVING", b)
		}
	})
}

// A server that speaks before it is asked gets a plain reason, and nothing of it reaches the standard
// logger, which is no part of agentinit's log.
func TestAServerThatSpeaksFirst(t *testing.T) {
	var logged bytes.Buffer
	log.SetOutput(&logged)
	defer log.SetOutput(os.Stderr)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte("SSH-2.0-x\r\n"))
			go func() { _, _ = io.Copy(io.Discard, conn); conn.Close() }()
		}
	}()
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
		// Whether net/http reads before it has asked is a race, which this type decides.
		if _, ok := info.Conn.(*asking); !ok {
			t.Errorf("the probe asks over a %T", info.Conn)
		}
	}})
	for range 20 {
		err := httpGet(ctx, "http://"+l.Addr().String()+"/")
		if err == nil || !strings.Contains(err.Error(), `malformed HTTP response "SSH-2.0-x"`) {
			t.Fatalf("got %v", err)
		}
	}
	if logged.Len() > 0 {
		t.Errorf("logged %q", logged.String())
	}
}

func TestNothingIsReadBeforeItIsAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		conn := &asking{Conn: near, asked: make(chan struct{})}
		read := make(chan string)
		go func() {
			buf := make([]byte, 8)
			n, _ := conn.Read(buf)
			read <- string(buf[:n])
		}()
		go func() { _, _ = far.Write([]byte("early")) }()
		synctest.Wait()
		select {
		case text := <-read:
			t.Fatalf("read %q before anything was asked", text)
		default:
		}
		go func() { _, _ = io.ReadFull(far, make([]byte, 3)) }()
		if _, err := conn.Write([]byte("ask")); err != nil {
			t.Fatal(err)
		}
		if text := <-read; text != "early" {
			t.Errorf("read %q", text)
		}
		conn.Close()
		// A connection that is closed unasked lets its reader go.
		near, far2 := net.Pipe()
		defer far2.Close()
		conn = &asking{Conn: near, asked: make(chan struct{})}
		go func() {
			_, err := conn.Read(make([]byte, 8))
			read <- fmt.Sprint(err)
		}()
		synctest.Wait()
		conn.Close()
		if text := <-read; text == "<nil>" {
			t.Error("a closed connection was read")
		}
	})
}
