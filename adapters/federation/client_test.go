package federation

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/contract"
)

// goodHost gives correct answers.
func goodHost(t *testing.T) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case RegisterPath:
			var in Registration
			if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
				t.Error(err)
			}
			reply(t, w, Grant{SessionID: "s1", Token: "t1", Nonce: in.Nonce})
		case HeartbeatPath:
			reply(t, w, BeatAnswer{NextInS: 7})
		}
	}))
	t.Cleanup(s.Close)
	return s.URL
}

func reply(t *testing.T, w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(v); err != nil {
		t.Error(err)
	}
}

// Every answer of a host becomes one of the events, within the time limit.
func TestBadHosts(t *testing.T) {
	contract.Peers(t, contract.PeerClass{Good: goodHost, Open: func(t *testing.T, url string) []contract.PeerCall {
		c, err := NewClient(ClientConfig{BaseURL: url, Auth: bearer("sesame")})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		call := func(f func(context.Context) Event) func(context.Context) error {
			return func(ctx context.Context) error {
				switch e := f(ctx).(type) {
				case Failed:
					if ctx.Err() != nil {
						return adapters.AsError(context.Cause(ctx))
					}
					return adapters.Errorf(adapters.CodeUnavailable, "%s", e.Reason)
				case Gone:
					return adapters.Errorf(adapters.CodeUnavailable, "%s", e.Reason)
				}
				return nil
			}
		}
		return []contract.PeerCall{
			{Name: "register", Answer: contract.Parsed, Call: call(func(ctx context.Context) Event { return c.Register(ctx, 1, Registration{}) })},
			{Name: "heartbeat", Answer: contract.Status, Call: call(func(ctx context.Context) Event { return c.Heartbeat(ctx, 1, Beat{}, "sesame") })},
		}
	}})
}

// hostThat answers with the given status, headers and body.
func hostThat(t *testing.T, status int, body string, headers ...string) *Client {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var in Registration
		_ = json.NewDecoder(r.Body).Decode(&in)
		for i := 0; i+1 < len(headers); i += 2 {
			w.Header().Set(headers[i], headers[i+1])
		}
		w.WriteHeader(status)
		_, _ = w.Write([]byte(strings.ReplaceAll(body, "NONCE", in.Nonce)))
	}))
	t.Cleanup(s.Close)
	c, err := NewClient(ClientConfig{BaseURL: s.URL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestAnswersToRegister(t *testing.T) {
	box := Registration{Adapters: map[string]AdapterReport{"beads": {Impl: "external", ContractVersion: "1.1"}, "memory": {Impl: "embedded-ruvector", ContractVersion: "1.1"}}}
	for name, c := range map[string]struct {
		status  int
		body    string
		headers []string
		want    Event
		reason  string // part of it
	}{
		"granted":               {201, `{"session_id":"s","token":"t","nonce":"NONCE","heartbeat_interval_s":60,"contract_ranges":{"beads":"^1"},"more":1}`, nil, Registered{ID: "s", Token: "t", Interval: time.Minute}, ""},
		"another nonce":         {200, `{"session_id":"s","nonce":"x"}`, nil, Failed{}, "another nonce"},
		"no nonce":              {200, `{"session_id":"s"}`, nil, Failed{}, "another nonce"},
		"no session":            {200, `{"nonce":"NONCE"}`, nil, Failed{}, "session_id"},
		"session with newline":  {200, `{"session_id":"s\nx","nonce":"NONCE"}`, nil, Failed{}, "session_id"},
		"garbage":               {200, "<html>", nil, Failed{}, "JSON"},
		"two objects":           {200, `{"session_id":"s","nonce":"NONCE"}{}`, nil, Failed{}, "data after"},
		"endpoint is a file":    {200, `{"session_id":"s","nonce":"NONCE","endpoints":{"beads":{"url":"file:///etc"}}}`, nil, Failed{}, "beads"},
		"relays":                {201, `{"session_id":"s","nonce":"NONCE","endpoints":{"events":{"url":"http://e","relay_urls":["wss://r.example/x","ws://10.0.0.1:7000"]}}}`, nil, Registered{ID: "s", Endpoints: Endpoints{Events: EventsEndpoint{Endpoint{URL: "http://e"}, []string{"wss://r.example/x", "ws://10.0.0.1:7000"}}}}, ""},
		"relay over http":       {201, `{"session_id":"s","nonce":"NONCE","endpoints":{"events":{"relay_urls":["wss://r","http://r"]}}}`, nil, Failed{}, "no address of a relay"},
		"relay with password":   {201, `{"session_id":"s","nonce":"NONCE","endpoints":{"events":{"relay_urls":["wss://me:secret@r"]}}}`, nil, Failed{}, "no address of a relay"},
		"relay without a host":  {201, `{"session_id":"s","nonce":"NONCE","endpoints":{"events":{"relay_urls":["wss://:443"]}}}`, nil, Failed{}, "no address of a relay"},
		"relay of great length": {201, `{"session_id":"s","nonce":"NONCE","endpoints":{"events":{"relay_urls":["wss://r/` + strings.Repeat("x", maxAddress) + `"]}}}`, nil, Failed{}, "no address of a relay"},
		"too many relays":       {201, `{"session_id":"s","nonce":"NONCE","endpoints":{"events":{"relay_urls":[` + strings.Repeat(`"wss://r",`, MaxRelays) + `"wss://r"]}}}`, nil, Failed{}, "the limit is 8"},
		"relays are a text":     {201, `{"session_id":"s","nonce":"NONCE","endpoints":{"events":{"relay_urls":"wss://r"}}}`, nil, Failed{}, "JSON"},
		"range of another":      {200, `{"session_id":"s","nonce":"NONCE","contract_ranges":{"beads":"^2"}}`, nil, Failed{Kind: Mismatch}, "beads speaks contract 1.1, wanted 2"},
		"range of its own slot": {200, `{"session_id":"s","nonce":"NONCE","contract_ranges":{"memory":"^2","nothing":"^7"}}`, nil, Registered{ID: "s"}, ""},
		"range that is none":    {200, `{"session_id":"s","nonce":"NONCE","contract_ranges":{"beads":"^\u001b[2J\r\n"}}`, nil, Failed{}, "the contract of beads"},
		"long range":            {200, `{"session_id":"s","nonce":"NONCE","contract_ranges":{"beads":"` + strings.Repeat("9", 1000) + `"}}`, nil, Failed{}, "the contract of beads"},
		"token with newline":    {200, `{"session_id":"s","nonce":"NONCE","token":"t\r\nX: y"}`, nil, Failed{}, "no token has"},
		"token with umlaut":     {200, `{"session_id":"s","nonce":"NONCE","token":"tü"}`, nil, Failed{}, "no token has"},
		"huge token":            {200, `{"session_id":"s","nonce":"NONCE","token":"` + strings.Repeat("t", 5000) + `"}`, nil, Failed{}, "4096"},
		"endpoint's bad token":  {200, `{"session_id":"s","nonce":"NONCE","endpoints":{"events":{"token":"a b"}}}`, nil, Failed{}, "endpoint of events"},
		"endpoint is too long":  {200, `{"session_id":"s","nonce":"NONCE","endpoints":{"pods":{"url":"http://h/` + strings.Repeat("x", maxAddress) + `"}}}`, nil, Failed{}, "pods"},
		"database with a file":  {200, `{"session_id":"s","nonce":"NONCE","endpoints":{"memory":{"conninfo":"host=db PassFile=/root/.pgpass"}}}`, nil, Failed{}, "passfile"},
		"database with a tab":   {200, `{"session_id":"s","nonce":"NONCE","endpoints":{"memory":{"conninfo":"host=db passfile\u000b=/root/.pgpass"}}}`, nil, Failed{}, "passfile"},
		"database with a key":   {200, `{"session_id":"s","nonce":"NONCE","endpoints":{"memory":{"conninfo":"postgres://db/x?sslkey=/etc/key"}}}`, nil, Failed{}, "sslkey"},
		"database with a code":  {200, `{"session_id":"s","nonce":"NONCE","endpoints":{"memory":{"conninfo":"postgres://db/x?ssl%6bey=/etc/key"}}}`, nil, Failed{}, "sslkey"},
		"database":              {200, `{"session_id":"s","nonce":"NONCE","endpoints":{"memory":{"conninfo":"postgres://u:p@db-service/x?sslmode=require"}}}`, nil, Registered{ID: "s", Endpoints: Endpoints{Memory: MemoryEndpoint{Conninfo: "postgres://u:p@db-service/x?sslmode=require"}}}, ""},
		"endless interval":      {200, `{"session_id":"s","nonce":"NONCE","heartbeat_interval_s":9223372036854775807}`, nil, Registered{ID: "s", Interval: -time.Second}, ""},
		"message that turns":    {401, `{"message":"a\u202eb\u0085c"}`, nil, Failed{Kind: Rejected}, "a b c"},
		"mismatch":              {409, `{"code":"CONTRACT_MISMATCH","message":"beads: host ^2, box 1.1"}`, nil, Failed{Kind: Mismatch}, "host ^2, box 1.1"},
		"conflict":              {409, `{"code":"CONFLICT"}`, nil, Failed{}, "409"},
		"bad request":           {400, `{"message":"no"}`, nil, Failed{Kind: Rejected}, "no"},
		"unauthorized":          {401, ``, nil, Failed{Kind: Rejected}, "give the box the host's AGENTBOX_FEDERATION_TOKEN"},
		"forbidden":             {403, ``, nil, Failed{Kind: Rejected}, "403"},
		"no host":               {404, ``, nil, Failed{Kind: NoHost}, "404"},
		"no host, either":       {501, ``, nil, Failed{Kind: NoHost}, "501"},
		"redirect":              {302, ``, []string{"Location", "http://127.0.0.1:1/"}, Failed{}, "302"},
		"gone":                  {410, ``, nil, Failed{}, "410"},
		"too many":              {429, ``, []string{"Retry-After", "17"}, Failed{RetryAfter: 17 * sec}, "429"},
		"unavailable until":     {503, ``, []string{"Date", "Sat, 01 Jan 2000 00:00:00 GMT", "Retry-After", "Sat, 01 Jan 2000 00:00:17 GMT"}, Failed{RetryAfter: 17 * sec}, "503"},
		"unavailable":           {503, `x`, []string{"Retry-After", "99999999"}, Failed{RetryAfter: maxRetryAfter}, "503"},
		"message of many lines": {500, `{"message":"a\nb"}`, nil, Failed{}, "a b"},
		"huge":                  {200, `"` + strings.Repeat("x", maxAnswer) + `"`, nil, Failed{}, "1 MiB"},
	} {
		got := hostThat(t, c.status, c.body, c.headers...).Register(t.Context(), 3, box)
		switch want := c.want.(type) {
		case Registered:
			want.Call = 3
			if !reflect.DeepEqual(got, Event(want)) {
				t.Errorf("%s: %+v", name, got)
			}
		case Failed:
			f, ok := got.(Failed)
			if strings.ContainsFunc(f.Reason, func(r rune) bool { return !unicode.IsPrint(r) }) || len(f.Reason) > 500 {
				t.Errorf("%s: the reason is %q", name, f.Reason)
			}
			if !ok || f.Call != 3 || f.Kind != want.Kind || f.RetryAfter != want.RetryAfter || !strings.Contains(f.Reason, c.reason) {
				t.Errorf("%s: %+v", name, got)
			}
		}
	}
}

func TestAnswersToHeartbeat(t *testing.T) {
	for name, c := range map[string]struct {
		status int
		body   string
		want   Event
	}{
		"ok":         {200, `{"next_in_s":9}`, Beaten{Call: 3, NextIn: 9 * sec}},
		"gone":       {410, `{"reason":"full","permanent":true,"retry_after_s":5}`, Gone{Call: 3, Reason: "full", Permanent: true, RetryAfter: 5 * sec}},
		"not found":  {404, `x`, Gone{Call: 3, Reason: "the host answered 404 Not Found"}},
		"replaced":   {401, `{"code":"UNAUTHENTICATED","reason":"wrong","message":"the credential is wrong"}`, Gone{Call: 3, Reason: unknownSession}},
		"empty":      {200, ``, Failed{Call: 3, Reason: "the host's answer is not valid JSON of the protocol"}},
		"no content": {204, ``, Failed{Call: 3, Reason: "the host answered 204 No Content"}},
	} {
		if got := hostThat(t, c.status, c.body).Heartbeat(t.Context(), 3, Beat{}, "t"); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestBadAddresses(t *testing.T) {
	for _, url := range []string{"", "x", "ftp://h", "http://", "http://u:p@h", "http://h?x", "http://h#x"} {
		_, err := NewClient(ClientConfig{BaseURL: url})
		if _, ok := errors.AsType[*adapters.ConfigError](err); !ok || strings.Contains(err.Error(), "u:p") {
			t.Errorf("%q: %v", url, err)
		}
	}
}

// fakeHost and fakeBox are the two sides of a Runner.
type fakeHost struct {
	mu    sync.Mutex
	beats []time.Time
	down  bool
	bye   int
}

func (h *fakeHost) Register(_ context.Context, call uint64, _ Registration) Event {
	time.Sleep(time.Second)
	return Registered{Call: call, ID: "s", Token: "t"}
}

func (h *fakeHost) Heartbeat(ctx context.Context, call uint64, b Beat, token string) Event {
	h.mu.Lock()
	defer h.mu.Unlock()
	if b.SessionID != "s" || token != "t" {
		return Gone{Call: call, Reason: "wrong session"}
	}
	h.beats = append(h.beats, time.Now())
	if h.down {
		return Failed{Call: call, Reason: "down"}
	}
	return Beaten{Call: call}
}

func (h *fakeHost) Deregister(ctx context.Context, call uint64, _ Farewell, _ string) Event {
	h.mu.Lock()
	h.bye++
	h.mu.Unlock()
	<-ctx.Done() // gives no answer
	return Deregistered{call}
}

type fakeBox struct {
	mu    sync.Mutex
	slots []string
	told  []string
	shown []string
	beats map[string]int // by outcome
}

func (b *fakeBox) add(to *[]string, s string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	*to = append(*to, s)
}
func (b *fakeBox) Registration() Registration         { return Registration{} }
func (b *fakeBox) Beat() Beat                         { return Beat{} }
func (b *fakeBox) Connect(context.Context, Endpoints) { b.add(&b.slots, "connect") }
func (b *fakeBox) Degrade(context.Context, string)    { b.add(&b.slots, "degrade") }
func (b *fakeBox) Show(s Session)                     { b.add(&b.shown, string(s.State)) }
func (b *fakeBox) Tell(name, _ string, _ Session)     { b.add(&b.told, name) }
func (b *fakeBox) Fatal(string)                       { b.add(&b.told, "fatal") }
func (b *fakeBox) Counted(outcome string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.beats[outcome]++
}

// A session runs for a day of virtual time: with heartbeats, a host that is down for an hour, and a
// deregistration without an answer.
func TestRunner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host, box := &fakeHost{}, &fakeBox{beats: map[string]int{}}
		r := NewRunner(host, box, 7)
		go r.Run(t.Context())
		<-r.Registered()
		if s := r.Session(); s.State != Active {
			t.Errorf("registered in the state %s", s.State)
		}
		time.Sleep(time.Hour)
		host.mu.Lock()
		if n := len(host.beats); n < 110 || n > 134 {
			t.Errorf("%d heartbeats in an hour", n)
		}
		host.down = true
		host.mu.Unlock()
		time.Sleep(time.Hour)
		if s := r.Session(); s.State != Lost {
			t.Errorf("after an hour without answers: %s", s.State)
		}
		host.mu.Lock()
		host.down = false
		host.mu.Unlock()
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if s := r.Session(); s.State != Active {
			t.Errorf("two minutes after the host came back: %s", s.State)
		}
		began := time.Now()
		r.Shutdown(t.Context())
		if took := time.Since(began); took != DeregisterLimit {
			t.Errorf("leaving took %v", took)
		}
		if got := strings.Join(box.slots, " "); got != "connect degrade connect" || host.bye != 1 {
			t.Errorf("slots: %s; farewells: %d", got, host.bye)
		}
		if n := box.beats["ok"] + box.beats["failed"]; n != len(host.beats) || box.beats["ok"] < 110 || box.beats["failed"] < 60 {
			t.Errorf("of %d heartbeats, counted %v", len(host.beats), box.beats)
		}
		if s := r.Session(); s.ID != "" || s.Token != "" || !s.Next.IsZero() {
			t.Errorf("after its end: %+v", s)
		}
		if got := strings.Join(box.told, " "); got != "FederationRegistered FederationSuspect FederationLost FederationRecovered FederationClosed" {
			t.Errorf("told: %s", got)
		}
		if got := strings.Join(slices.Compact(box.shown), " "); got != "registering connecting active suspect lost active deregistering closed" {
			t.Errorf("shown: %s", got)
		}
	})
}
