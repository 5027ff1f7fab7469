package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/dreamlab-ai/agentinit/telemetry/collectortest"
)

const (
	traceKey     = "0123456789abcdef0123456789abcdef"
	callerTrace  = "0af7651916cd43dd8448eb211c80319c"
	callerSpan   = "b7ad6b7169203331"
	tracePayload = "the-private-words-of-a-bead"
)

// tracedBox is a real box that sends its spans to an endpoint.
type tracedBox struct {
	t      *testing.T
	cmd    *exec.Cmd
	base   string
	output bytes.Buffer  // complete when ended is closed
	ended  chan struct{} // closed at the end of the output
}

const tracedManifest = `[bootstrap]
profile = "none"
[supervisor]
listen = "127.0.0.1:0"
metrics_listen = "off"
[observability]
otlp_endpoint = %q
[adapters]
beads = "local-sqlite"
orchestrator = "local-process-manager"
[programs.sleeper]
command = ["sleep", "1000"]
required = true
`

// bootTraced boots a traced box and returns when it is sealed and its two adapters work.
func bootTraced(t *testing.T, endpoint string) *tracedBox {
	t.Helper()
	// The path of a unix socket has at most 107 bytes (unix(7)). That of t.TempDir contains TMPDIR and the
	// name of the test.
	dir, err := os.MkdirTemp("/tmp", "box")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	file := filepath.Join(dir, "agentbox.toml")
	if err := os.WriteFile(file, fmt.Appendf(nil, tracedManifest, endpoint), 0o644); err != nil {
		t.Fatal(err)
	}
	b := &tracedBox{
		t: t, ended: make(chan struct{}), cmd: exec.Command("agentinit", "--manifest", file, "--root", dir),
	}
	b.cmd.Env = append(os.Environ(), "MANAGEMENT_API_KEY="+traceKey, "AGENTBOX_LOG_LEVEL=debug", "WORKSPACE=")
	out, err := b.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	b.cmd.Stderr = b.cmd.Stdout
	if err := b.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	booted := make(chan string, 1)
	go b.read(out, booted)
	t.Cleanup(func() {
		if b.cmd.ProcessState == nil {
			// The box is not killed: its program would become a child of this process, and tests
			// that count children would fail.
			_ = b.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
			<-b.ended
			_ = b.cmd.Wait() // the test has failed already
		}
		if t.Failed() {
			t.Logf("the box said:\n%s", b.output.String())
		}
	})
	select {
	case b.base = <-booted:
	case <-b.ended:
		t.Fatal("the box ended before it was booted")
	}
	return b
}

// listening finds the address in the event of the opened port.
var listening = regexp.MustCompile(`"event":"ListenerOpened",.*"address":"([^"]+)"`)

// read collects the output and reports the address of the booted box.
func (b *tracedBox) read(out io.Reader, booted chan<- string) {
	defer close(b.ended)
	buf := make([]byte, 32<<10)
	for told := false; ; {
		n, err := out.Read(buf)
		b.output.Write(buf[:n])
		said := b.output.Bytes()
		if !told && bytes.Contains(said, []byte("BootstrapCompleted")) && bytes.Count(said, []byte("AdapterConnected")) == 2 {
			told = true
			booted <- "http://" + string(listening.FindSubmatch(said)[1])
		}
		if err != nil {
			return
		}
	}
}

func (b *tracedBox) call(method, path, body string, want int) string {
	b.t.Helper()
	req, err := http.NewRequestWithContext(b.t.Context(), method, b.base+path, strings.NewReader(body))
	if err != nil {
		b.t.Fatal(err)
	}
	for name, value := range map[string]string{
		"Authorization": "Bearer " + traceKey, "Content-Type": "application/json",
		"Traceparent":      "00-" + callerTrace + "-" + callerSpan + "-01",
		"Agentbox-Session": "session-1", "Agentbox-Execution": "execution-1",
	} {
		req.Header.Set(name, value)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		b.t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != want {
		b.t.Fatalf("%s %s: %d, want %d; %v %s", method, path, resp.StatusCode, want, err, answer)
	}
	return string(answer)
}

// stop stops the box, which must exit with 0.
func (b *tracedBox) stop() {
	b.t.Helper()
	if err := b.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		b.t.Fatal(err)
	}
	<-b.ended // Wait closes the pipe, so the output must end first
	if err := b.cmd.Wait(); err != nil {
		b.t.Errorf("the box ended with %v", err)
	}
}

// spanNamed finds the first span with that name and those attributes.
func spanNamed(t *testing.T, spans []collectortest.Span, name string, with map[string]any) collectortest.Span {
	t.Helper()
	i := slices.IndexFunc(spans, func(s collectortest.Span) bool {
		for k, v := range with {
			if s.Attributes[k] != v {
				return false
			}
		}
		return s.Name == name
	})
	if i < 0 {
		t.Fatalf("no span %q with %v among %+v", name, with, spans)
	}
	return spans[i]
}

// TestARealBoxSendsItsSpans: there is a span of every kind, with the right parent, and no span
// contains the content of requests or commands.
func TestARealBoxSendsItsSpans(t *testing.T) {
	for _, form := range []collectortest.Form{collectortest.HTTP, collectortest.GRPC} {
		t.Run(string(form), func(t *testing.T) {
			collector := collectortest.Start(t, form)
			b := bootTraced(t, collector.Endpoint)
			b.call("POST", "/v1/beads/epics", fmt.Sprintf(`{"title":%q,"description":%q}`, tracePayload, tracePayload), 201)
			b.call("GET", "/v1/beads/no-such-"+tracePayload, "", 404)
			b.call("GET", "/"+tracePayload+"?"+tracePayload, "", 404)
			b.call("POST", "/v1/agents", fmt.Sprintf(`{"command":"sh","args":["-c","exit 3",%q]}`, tracePayload), 201)
			collector.Await(t, func(spans []collectortest.Span) bool {
				return slices.ContainsFunc(spans, func(s collectortest.Span) bool { return s.Name == "agentbox.agent" })
			})
			b.stop()
			spans := collector.Spans()
			checkBootSpans(t, spans)
			checkCallSpans(t, spans)
			for _, secret := range []string{tracePayload, traceKey} {
				if bytes.Contains(collector.Raw(), []byte(secret)) {
					t.Errorf("%q is in a span", secret)
				}
			}
		})
	}
}

func checkBootSpans(t *testing.T, spans []collectortest.Span) {
	t.Helper()
	boot := spanNamed(t, spans, "agentbox.boot", nil)
	if boot.Parent != "" || boot.Failed {
		t.Errorf("the boot: %+v", boot)
	}
	for _, phase := range []string{"load", "start", "seal"} {
		s := spanNamed(t, spans, "agentbox.boot."+phase, map[string]any{"agentbox.outcome": "ok"})
		if s.Parent != boot.ID || s.Start.Before(boot.Start) || s.End.After(boot.End) || s.Start.After(s.End) {
			t.Errorf("phase %s is not within the boot: %+v, %+v", phase, s, boot)
		}
	}
	s := spanNamed(t, spans, "agentbox.program.start", map[string]any{"agentbox.program": "sleeper", "agentbox.required": true})
	if s.Parent != boot.ID {
		t.Errorf("the program's start: %+v", s)
	}
}

func checkCallSpans(t *testing.T, spans []collectortest.Span) {
	t.Helper()
	request := spanNamed(t, spans, "POST /v1/beads/epics", map[string]any{
		"http.request.method": "POST", "http.route": "/v1/beads/epics", "http.response.status_code": int64(201),
	})
	if request.TraceID != callerTrace || request.Parent != callerSpan || request.Kind != "SERVER" {
		t.Errorf("the request is not below its caller: %+v", request)
	}
	create := spanNamed(t, spans, "agentbox.adapter.beads.createEpic", map[string]any{
		"adapter.impl": "local-sqlite", "agentbox.session_id": "session-1", "agentbox.execution_id": "execution-1",
	})
	if create.Parent != request.ID || create.TraceID != callerTrace || create.Failed {
		t.Errorf("the adapter's call is not below the request: %+v", create)
	}
	if s := spanNamed(t, spans, "agentbox.adapter.beads.show", map[string]any{"error.kind": "NOT_FOUND"}); !s.Failed {
		t.Errorf("the failed call: %+v", s)
	}
	spanNamed(t, spans, "GET /v1/beads/{id}", map[string]any{"http.response.status_code": int64(404)})
	spanNamed(t, spans, "GET", map[string]any{"http.response.status_code": int64(404)}) // without a route the span has no path
	spawn := spanNamed(t, spans, "agentbox.adapter.orchestrator.spawnAgent", nil)
	agent := spanNamed(t, spans, "agentbox.agent", map[string]any{"process.exit.code": int64(3), "agentbox.session_id": "session-1"})
	if agent.Parent != spawn.ID || !agent.Failed || agent.Start.After(agent.End) {
		t.Errorf("the agent's life: %+v", agent)
	}
}

// TestASilentCollectorStopsNothing: the collector accepts connections and never answers. The box
// boots, works and ends, and reports the lost spans.
func TestASilentCollectorStopsNothing(t *testing.T) {
	for _, form := range []collectortest.Form{collectortest.HTTP, collectortest.GRPC} {
		t.Run(string(form), func(t *testing.T) {
			l := collectortest.Listen(t, form)
			defer l.Close() // the kernel completes connections that no process accepts
			b := bootTraced(t, "http://"+l.Addr().String())
			b.call("POST", "/v1/beads/epics", `{"title":"x"}`, 201)
			if metrics := b.call("GET", "/metrics", "", 200); !strings.Contains(metrics, `agentbox_spans_dropped_total{reason="export"}`) {
				t.Error("what is lost is not among the metrics")
			}
			b.stop()
			if !strings.Contains(b.output.String(), "SpansLost") {
				t.Error("nothing was said of the spans that were lost")
			}
		})
	}
}

// TestNoCollectorNoTracing: without an endpoint there is no tracing.
func TestNoCollectorNoTracing(t *testing.T) {
	b := &box{stopped: context.Background()}
	if err := b.startTracing(""); err != nil || b.tracing != nil || b.tracer != nil || b.traceRequests() != nil {
		t.Errorf("%v, %+v, %+v", err, b.tracing, b.tracer)
	}
	b.traceBoot()
	b.endTracing()
}
