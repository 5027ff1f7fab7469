package rest_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/rest"
	"github.com/dreamlab-ai/agentinit/internal/pipenet"
)

// silentEvents is an events slot without events.
type silentEvents struct{ slot }

func (silentEvents) Dispatch(context.Context, adapters.Event) (adapters.Receipt, error) {
	return adapters.Receipt{}, nil
}

func (silentEvents) Subscribe(context.Context, adapters.EventFilter, adapters.From) (adapters.Subscription, error) {
	return silence{}, nil
}

func (silentEvents) Unsubscribe(context.Context, string) error { return nil }

func (silentEvents) History(context.Context, adapters.EventFilter, adapters.PageOpt) (adapters.Page[adapters.Event], error) {
	return adapters.Page[adapters.Event]{}, nil
}

type silence struct{}

func (silence) ID() string   { return "s" }
func (silence) Close() error { return nil }
func (silence) Next(ctx context.Context) (adapters.Event, error) {
	<-ctx.Done()
	return adapters.Event{}, ctx.Err()
}

// quiet is a box that is served over in-memory pipes, for tests with synctest.
type quiet struct {
	t      *testing.T
	pipes  *pipenet.Listener
	client *http.Client
}

func newQuiet(t *testing.T) *quiet {
	t.Helper()
	set := newSet(t, map[adapters.Slot]adapters.Adapter{adapters.SlotEvents: silentEvents{slot{adapters.SlotEvents, "local-jsonl"}}})
	server := must(rest.New(rest.Config{Slots: set, Principal: func(context.Context) (rest.Principal, bool) {
		return rest.Principal{Role: rest.RoleAdmin, ID: "management-key"}, true
	}}))(t)
	q := &quiet{t: t, pipes: pipenet.Listen()}
	transport := &http.Transport{DialContext: q.pipes.DialContext}
	q.client = &http.Client{Transport: transport}
	srv := &http.Server{Handler: server.Handler()}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(q.pipes) }()
	t.Cleanup(func() {
		server.Close()
		transport.CloseIdleConnections()
		srv.Close()
		<-served
	})
	return q
}

func (q *quiet) send(method, path, body string) *http.Response {
	q.t.Helper()
	req, err := http.NewRequestWithContext(q.t.Context(), method, "http://box"+path, strings.NewReader(body))
	if err != nil {
		q.t.Fatal(err)
	}
	req.Header.Set("Accept", "text/event-stream")
	res, err := q.client.Do(req)
	if err != nil {
		q.t.Fatal(err)
	}
	return res
}

// connections returns how many streams of actions are open, as the box reports it.
func (q *quiet) connections() (n int) {
	q.t.Helper()
	res := q.send("GET", "/v1/agent-events/status", "")
	defer res.Body.Close()
	line, err := bufio.NewReader(res.Body).ReadString('\n')
	if err != nil {
		q.t.Fatal(err)
	}
	_, after, _ := strings.Cut(line, `"connections":`)
	if _, err := fmt.Sscan(strings.TrimSuffix(after, "}\n"), &n); err != nil {
		q.t.Fatalf("%v: %s", err, line)
	}
	return n
}

func TestEventStreamHasAHeartbeat(t *testing.T) {
	for _, path := range []string{"/v1/agent-events/stream", "/v1/events/stream"} {
		synctest.Test(t, func(t *testing.T) {
			q := newQuiet(t)
			begin := time.Now()
			res := q.send("GET", path, "")
			defer res.Body.Close()
			in := bufio.NewReader(res.Body)
			piece := func() string {
				text, err := in.ReadString('\n')
				if err != nil {
					t.Fatal(err)
				}
				if blank, err := in.ReadString('\n'); err != nil || blank != "\n" {
					t.Fatalf("%q goes on with %q %v", text, blank, err)
				}
				return text
			}
			if text := piece(); text != "retry: 2000\n" || time.Since(begin) != 0 {
				t.Errorf("%q after %s", text, time.Since(begin))
			}
			for n := range 3 {
				if text := piece(); text != ": \n" || time.Since(begin) != time.Duration(n+1)*15*time.Second {
					t.Errorf("heartbeat %d: %q after %s", n, text, time.Since(begin))
				}
			}
		})
	}
}

// The box disconnects a reader that does not read, after the time limit for one message.
func TestEventStreamDropsWhoDoesNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQuiet(t)
		res := q.send("GET", "/v1/agent-events/stream", "")
		defer res.Body.Close()
		// Fill the read buffers of the transport first.
		for range 40 {
			one := `{"source_agent_id":1,"action_type":0,"metadata":{"fill":"` + strings.Repeat("x", 1000) + `"}}`
			q.send("POST", "/v1/agent-events/emit", one).Body.Close()
		}
		synctest.Wait()
		if n := q.connections(); n != 1 {
			t.Fatalf("%d streams at the start", n)
		}
		time.Sleep(10*time.Second - 1)
		synctest.Wait()
		if n := q.connections(); n != 1 {
			t.Errorf("cut off before its time: %d streams", n)
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if n := q.connections(); n != 0 {
			t.Errorf("%d streams are open yet", n)
		}
	})
}

func TestWebSocketIsPinged(t *testing.T) {
	for _, path := range []string{"/v1/agent-events/stream", "/v1/events/stream"} {
		for _, answers := range []bool{true, false} {
			t.Run(fmt.Sprint(path, answers), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					q := newQuiet(t)
					begin := time.Now()
					var pings []time.Duration
					c, _, err := websocket.Dial(t.Context(), "ws://box"+path, &websocket.DialOptions{
						HTTPClient: q.client, OnPingReceived: func(context.Context, []byte) bool {
							pings = append(pings, time.Since(begin))
							return answers
						},
					})
					if err != nil {
						t.Fatal(err)
					}
					defer c.CloseNow()
					ended := make(chan error, 1)
					go func() {
						for {
							if _, _, err := c.Read(context.Background()); err != nil {
								ended <- err
								return
							}
						}
					}()
					time.Sleep(65 * time.Second)
					synctest.Wait()
					if len(pings) == 0 || pings[0] != 20*time.Second {
						t.Fatalf("pings after %v", pings)
					}
					select {
					case err := <-ended:
						if answers {
							t.Errorf("cut off although it answers: %v", err)
						}
					default:
						if !answers {
							t.Error("a peer that does not answer is kept")
						}
					}
					if answers && len(pings) != 3 {
						t.Errorf("pings after %v", pings)
					}
				})
			})
		}
	}
}

// A malformed handshake gets a problem document, with a code and status of the table, like any other
// refused request.
func TestMalformedHandshake(t *testing.T) {
	b := newBox(t)
	good := http.Header{
		"Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Version": {"13"}, "Sec-Websocket-Key": {"dGhlIHNhbXBsZSBub25jZQ=="},
	}
	for name, change := range map[string]func(http.Header){
		"no connection":  func(h http.Header) { h.Del("Connection") },
		"no key":         func(h http.Header) { h.Del("Sec-WebSocket-Key") },
		"two keys":       func(h http.Header) { h.Add("Sec-WebSocket-Key", "x") },
		"a short key":    func(h http.Header) { h.Set("Sec-WebSocket-Key", "eA==") },
		"a key too long": func(h http.Header) { h.Set("Sec-WebSocket-Key", strings.Repeat("\xff", 4000)) },
		"an old version": func(h http.Header) { h.Set("Sec-WebSocket-Version", "8") },
		"no version":     func(h http.Header) { h.Del("Sec-WebSocket-Version") },
		"none of these":  nil,
	} {
		for _, path := range []string{"/v1/agent-events/stream", "/v1/events/stream"} {
			req := must(http.NewRequestWithContext(t.Context(), "GET", b.url+path, nil))(t)
			req.Header = good.Clone()
			req.Header.Set("Authorization", "Bearer admin")
			if change != nil {
				change(req.Header)
			}
			resp := must(http.DefaultClient.Do(req))(t)
			if change == nil {
				if resp.StatusCode != http.StatusSwitchingProtocols {
					t.Errorf("a good handshake at %s: %s", path, resp.Status)
				}
				resp.Body.Close()
				continue
			}
			body := must(io.ReadAll(resp.Body))(t)
			resp.Body.Close()
			e := adapters.FromProblem(resp.StatusCode, resp.Header, body)
			if resp.StatusCode != 400 || e.Code != adapters.CodeValidation || resp.Header.Get("Content-Type") != adapters.ProblemType || len(body) > 2000 {
				t.Errorf("%s at %s: %s %v %s", name, path, resp.Status, resp.Header, body)
			}
			if version := resp.Header.Get("Sec-WebSocket-Version"); (version == "13") != strings.Contains(name, "version") {
				t.Errorf("%s: Sec-WebSocket-Version %q", name, version)
			}
		}
	}
	w := httptest.NewRecorder() // does not support hijacking
	req := httptest.NewRequest("GET", "/v1/events/stream", nil)
	req.Header = good
	req.Header.Set("Authorization", "Bearer admin")
	b.authenticate(b.server.Handler()).ServeHTTP(w, req)
	if e := adapters.FromProblem(w.Code, w.Header(), w.Body.Bytes()); w.Code != 501 || e.Code != adapters.CodeUnsupported {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// A frame larger than the limit closes the socket with status 1009 (message too big).
func TestWebSocketFramesAreBounded(t *testing.T) {
	for size, tooBig := range map[int]bool{1<<20 - 1: false, 1 << 20: false, 1<<20 + 1: true} {
		b := newBox(t)
		c, _, err := b.dial("/v1/agent-events/stream", b.ticket(), nil)
		if err != nil {
			t.Fatal(err)
		}
		frame := `{"type":"ping"}` + strings.Repeat(" ", size-len(`{"type":"ping"}`))
		for range 2 { // greetings
			if _, _, err := c.Read(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.Write(t.Context(), websocket.MessageText, []byte(frame)); err != nil {
			t.Fatal(err)
		}
		_, data, err := c.Read(t.Context())
		if tooBig && websocket.CloseStatus(err) != websocket.StatusMessageTooBig {
			t.Errorf("%d bytes: %s %v", size, data, err)
		}
		if !tooBig && (err != nil || !strings.Contains(string(data), "pong")) {
			t.Errorf("%d bytes: %s %v", size, data, err)
		}
		c.CloseNow()
	}
}

// The bytes of a message that has begun count as those of bodies do, until it has been answered.
func TestWebSocketMessagesAreHeldWithBodies(t *testing.T) {
	b := newBox(t, func(c *rest.Config) { c.HeldBodies = 10_000 })
	c, _, err := b.dial("/v1/agent-events/stream", b.ticket(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	for range 2 { // greetings
		if _, _, err := c.Read(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for range 10 {
		if err := c.Write(t.Context(), websocket.MessageText, []byte(`{"type":"ping"}`+strings.Repeat(" ", 5000))); err != nil {
			t.Fatal(err)
		}
		if _, data, err := c.Read(t.Context()); err != nil || !strings.Contains(string(data), "pong") {
			t.Fatalf("%s %v", data, err)
		}
	}
	w, err := c.Writer(t.Context(), websocket.MessageText)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(w, strings.Repeat(" ", 20_000)); err != nil { // without an end
		t.Fatal(err)
	}
	if _, data, err := c.Read(t.Context()); websocket.CloseStatus(err) != websocket.StatusTryAgainLater {
		t.Errorf("%s %v", data, err)
	}
}

// A peer that has begun a message must end it within ten seconds, even if it answers pings.
func TestWebSocketMessageHasTenSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQuiet(t)
		c, _, err := websocket.Dial(t.Context(), "ws://box/v1/agent-events/stream", &websocket.DialOptions{HTTPClient: q.client})
		if err != nil {
			t.Fatal(err)
		}
		defer c.CloseNow()
		for range 2 { // greetings
			if _, _, err := c.Read(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		w, err := c.Writer(t.Context(), websocket.MessageText)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, strings.Repeat(" ", 8<<10)); err != nil { // more than the client keeps back
			t.Fatal(err)
		}
		begin := time.Now()
		if _, data, err := c.Read(t.Context()); err == nil || time.Since(begin) != 10*time.Second {
			t.Errorf("%q after %s, %v", data, time.Since(begin), err)
		}
	})
}

// A caller that sends its body too slowly gets 400 after ten seconds.
func TestBodyHasTenSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQuiet(t)
		for body, status := range map[string]string{`{"kind":"x"}`: "202", `{"kind`: "400"} {
			c, err := q.pipes.DialContext(t.Context(), "", "")
			if err != nil {
				t.Fatal(err)
			}
			begin := time.Now()
			fmt.Fprintf(c, "POST /v1/events HTTP/1.1\r\nHost: box\r\nContent-Length: 12\r\n\r\n%s", body)
			line, err := bufio.NewReader(c).ReadString('\n')
			took := time.Since(begin)
			if err != nil || !strings.Contains(line, " "+status+" ") || (status == "400") != (took == 10*time.Second) {
				t.Errorf("%s: %q after %s, %v", body, line, took, err)
			}
			c.Close()
		}
	})
}

// The size limits of bodies are exact.
func TestBodyLimits(t *testing.T) {
	b := newBox(t)
	for _, c := range []struct {
		method, path, body string
		limit, status      int
	}{
		{"POST", "/v1/agent-events/emit", `{"source_agent_id":1,"action_type":0}`, 1 << 20, 202},
		{"POST", "/v1/beads/epics", `{"title":"t"}`, 1 << 20, 201},
		{"POST", "/v1/agents/agent-1/input", `{"data":""}`, 1 << 20, 204},
		{"POST", "/v1/events", `{"kind":"k"}`, 8 << 20, 202},
		{"POST", "/v1/agents", `{"command":"c"}`, 8 << 20, 201},
		{"POST", "/v1/memory/ns/search", `{"query":"q"}`, 8 << 20, 200},
	} {
		if c.path == "/v1/agents/agent-1/input" {
			b.do("admin", "POST", "/v1/agents", `{"command":"c"}`).is(201)
		}
		for _, n := range []int{c.limit - 1, c.limit, c.limit + 1} {
			a := b.do("admin", c.method, c.path, c.body+strings.Repeat(" ", n-len(c.body)))
			if n <= c.limit {
				a.is(c.status)
				continue
			}
			if doc := a.is(413).problem(adapters.CodePayloadTooLarge); doc["limit"] != float64(c.limit) {
				t.Errorf("%s: %v", c.path, doc)
			}
		}
	}
}
