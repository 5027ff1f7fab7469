package pool

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nbd-wtf/go-nostr"

	"github.com/dreamlab-ai/agentinit/bootstrap/identity"
	"github.com/dreamlab-ai/agentinit/mesh/nip01"
	"github.com/dreamlab-ai/agentinit/mesh/relay"
	"github.com/dreamlab-ai/agentinit/mesh/relay/relaytest"
)

func note(t testing.TB, k *identity.Key, content string) *nostr.Event {
	t.Helper()
	e := &nostr.Event{Kind: 1, CreatedAt: 1_700_000_000, Content: content}
	if err := k.Sign(e); err != nil {
		t.Fatal(err)
	}
	return e
}

var notes = []nip01.Filter{{Kinds: []int{1}}}

// fake is a connection to a relay that the test plays.
type fake struct {
	to, from chan []byte // messages to and from the pool
	closed   chan struct{}
	once     sync.Once
	deaf     bool // does not answer pings
}

func newFake() *fake {
	return &fake{to: make(chan []byte, 64), from: make(chan []byte, 64), closed: make(chan struct{})}
}

func (f *fake) Read(ctx context.Context) ([]byte, error) {
	select {
	case raw := <-f.to:
		return raw, nil
	case <-f.closed:
		return nil, errors.New("closed")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (f *fake) Write(ctx context.Context, raw []byte) error {
	select {
	case f.from <- raw:
		return nil
	case <-f.closed:
		return errors.New("closed")
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (f *fake) Ping(ctx context.Context) error {
	if !f.deaf {
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}

func (f *fake) Close() error { f.once.Do(func() { close(f.closed) }); return nil }

// heard returns the next message from the pool, its verb and its second element.
func (f *fake) heard(t testing.TB) (verb, second string, whole []json.RawMessage) {
	t.Helper()
	if err := json.Unmarshal(<-f.from, &whole); err != nil {
		t.Fatal(err)
	}
	_ = json.Unmarshal(whole[0], &verb)
	_ = json.Unmarshal(whole[1], &second) // fails for an event, which is not a string
	return verb, second, whole
}

// dialled returns a Dial that returns one fake after the other, an error for a nil fake and after the
// last one. The second function returns the number of calls.
func dialled(fakes ...*fake) (func(context.Context, string) (Conn, error), func() int) {
	var mu sync.Mutex
	n := 0
	return func(context.Context, string) (Conn, error) {
			mu.Lock()
			defer mu.Unlock()
			n++
			if n > len(fakes) || fakes[n-1] == nil {
				return nil, errors.New("refused")
			}
			return fakes[n-1], nil
		}, func() int {
			mu.Lock()
			defer mu.Unlock()
			return n
		}
}

func start(t *testing.T, c Config) *Pool {
	t.Helper()
	if c.URLs == nil {
		c.URLs = []string{"ws://relay"}
	}
	p, err := Start(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func TestSubscriptionOutlivesAConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second := newFake(), newFake()
		dial, _ := dialled(first, nil, second)
		p := start(t, Config{Dial: dial})
		k := relaytest.NewKey(t)
		s, err := p.Subscribe(notes, 4)
		if err != nil {
			t.Fatal(err)
		}
		verb, id, _ := first.heard(t)
		if verb != nip01.VerbReq {
			t.Fatalf("the relay hears %s first", verb)
		}
		a, b := note(t, k, "a"), note(t, k, "b")
		first.to <- nip01.Message(nip01.VerbEvent, id, a)
		if got, err := s.Next(t.Context()); err != nil || got.ID != a.ID || got.Relay != "ws://relay" {
			t.Fatal(got, err)
		}
		first.Close()
		verb, id, _ = second.heard(t)
		if verb != nip01.VerbReq {
			t.Fatalf("the next connection hears %s first", verb)
		}
		second.to <- nip01.Message(nip01.VerbEvent, id, a) // a second time: passed on once
		second.to <- nip01.Message(nip01.VerbEvent, id, b)
		if got, err := s.Next(t.Context()); err != nil || got.ID != b.ID {
			t.Fatal(got, err)
		}
		s.Close()
		if verb, _, _ := second.heard(t); verb != nip01.VerbClose {
			t.Errorf("the relay hears %s, not CLOSE", verb)
		}
		if _, err := s.Next(t.Context()); !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
		p.Close()
	})
}

// A reader of Watch that reads nothing holds up no other reader. It gets ErrBehind as soon as too much
// waits for it; one that reads gets every event.
func TestSlowWatcher(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFake()
		dial, _ := dialled(r)
		p := start(t, Config{Dial: dial})
		synctest.Wait() // a subscription made while the pool connects can be sent twice
		k := relaytest.NewKey(t)
		open := func(ask func() (*Subscription, error)) (*Subscription, string) {
			s, err := ask()
			if err != nil {
				t.Fatal(err)
			}
			_, id, _ := r.heard(t)
			return s, id
		}
		mail, mailID := open(func() (*Subscription, error) { return p.Subscribe(notes, 1) })
		slow, slowID := open(func() (*Subscription, error) { return p.Watch(notes, 2000) })
		quick, quickID := open(func() (*Subscription, error) { return p.Watch(notes, 2000) })
		for i := range 10 {
			e := note(t, k, fmt.Sprint(i, strings.Repeat("x", 500)))
			for _, id := range []string{slowID, quickID, mailID} {
				r.to <- nip01.Message(nip01.VerbEvent, id, e)
			}
			for _, s := range []*Subscription{mail, quick} {
				if got, err := s.Next(t.Context()); err != nil || got.ID != e.ID {
					t.Fatal(got, err)
				}
			}
		}
		read := 0
		for err := error(nil); err == nil; read++ {
			if _, err = slow.Next(t.Context()); err != nil && !errors.Is(err, ErrBehind) {
				t.Error(err)
			}
		}
		if read > 2 {
			t.Errorf("%d events waited for the slow reader", read-1)
		}
		if n := quick.waiting.Load(); n != 0 {
			t.Errorf("%d bytes wait for a reader that has read everything", n)
		}
		slow.Close()
		if verb, id, _ := r.heard(t); verb != nip01.VerbClose || id != slowID {
			t.Errorf("the relay hears %s of %s", verb, id)
		}
		p.Close()
	})
}

// A single event may be larger than what may wait.
func TestWatchOfALargeEvent(t *testing.T) {
	s := &Subscription{events: make(chan Event, maxWatched), most: 10, done: make(chan struct{})}
	e := Event{Event: &nostr.Event{Content: strings.Repeat("x", 100), Tags: nostr.Tags{{"p", "y"}}}}
	if s.offer(t.Context(), e) {
		t.Error("it is too much")
	}
	if !s.offer(t.Context(), e) {
		t.Error("a second one is not")
	}
}

// The pool ignores the forged events of a relay, and disconnects after too many.
func TestLyingRelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		liar := newFake()
		dial, dials := dialled(liar)
		p := start(t, Config{Dial: dial})
		k := relaytest.NewKey(t)
		s, err := p.Subscribe(notes, 4)
		if err != nil {
			t.Fatal(err)
		}
		_, id, _ := liar.heard(t)
		forged, other := note(t, k, "true"), note(t, k, "x")
		forged.Content = "false"
		other.Kind = 7
		if err := k.Sign(other); err != nil {
			t.Fatal(err)
		}
		unsigned := note(t, k, "true")
		unsigned.Sig = strings.Repeat("0", 128)
		for _, raw := range [][]byte{nip01.Message(nip01.VerbEvent, id, forged), nip01.Message(nip01.VerbEvent, id, other), nip01.Message(nip01.VerbEvent, id, unsigned), []byte("nonsense")} {
			liar.to <- raw
		}
		// A forged event does not hide the real event with the same id.
		liar.to <- nip01.Message(nip01.VerbEvent, id, note(t, k, "true"))
		if got, err := s.Next(t.Context()); err != nil || got.Content != "true" {
			t.Fatal(got, err)
		}
		for range badLimit {
			liar.to <- []byte(`["EVENT"]`)
		}
		synctest.Wait()
		status := p.Status()[0]
		if status.State != Waiting || !strings.Contains(status.Error, "not honest") || status.Refused != badLimit {
			t.Errorf("%+v", status)
		}
		if dials() != 1 {
			t.Errorf("dialled %d times at once", dials())
		}
		p.Close()
	})
}

// The reason of a relay becomes part of messages, so it must be one line without control characters.
func TestReasonOfARelayIsOneLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		dial, _ := dialled(f)
		p := start(t, Config{Dial: dial})
		synctest.Wait()
		e := note(t, relaytest.NewKey(t), "x")
		f.to <- nip01.Message(nip01.VerbOK, strings.Repeat("0", 64), true, "an answer to another event")
		f.to <- nip01.Message(nip01.VerbOK, e.ID, false, "an answer before the question")
		synctest.Wait()
		go func() {
			f.heard(t)
			f.to <- nip01.Message(nip01.VerbOK, e.ID, false, "error: a\nb\x1b[2J\u202e")
		}()
		results, err := p.Publish(t.Context(), e)
		if err != nil || len(results) != 1 || results[0].Reason != "error: a b [2J" || !results[0].Answered {
			t.Errorf("%+v, %v", results, err)
		}
	})
}

func TestStallingRelayIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stalled := newFake()
		stalled.deaf = true
		dial, _ := dialled(stalled)
		p := start(t, Config{Dial: dial})
		synctest.Wait()
		began := time.Now()
		results, err := p.Publish(t.Context(), note(t, relaytest.NewKey(t), "x"))
		if err != nil || len(results) != 1 || results[0].Accepted || results[0].Reason != "no answer in time" {
			t.Errorf("%+v, %v", results, err)
		}
		if took := time.Since(began); took != answerLimit {
			t.Errorf("Publish took %s", took)
		}
		time.Sleep(pingEvery + sendLimit - answerLimit + backoffFirst/2)
		if status := p.Status()[0]; status.State != Waiting || !strings.Contains(status.Error, "ping") {
			t.Errorf("%+v", status)
		}
		if _, err := p.Publish(t.Context(), note(t, relaytest.NewKey(t), "y")); !errors.Is(err, ErrNoRelay) {
			t.Error(err)
		}
		p.Close()
	})
}

// The pool reads from a flooding relay at a limited rate.
func TestFloodingRelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		flood := newFake()
		dial, _ := dialled(flood)
		p := start(t, Config{Dial: dial})
		synctest.Wait()
		began := time.Now()
		const messages = 3 * eventsPerSecond
		for range messages {
			flood.to <- nip01.Message(nip01.VerbNotice, "spam")
		}
		if took := time.Since(began); took < time.Second {
			t.Errorf("%d messages were read in %s", messages, took)
		}
		p.Close()
	})
}

func TestBackoff(t *testing.T) {
	for n, want := range map[int]time.Duration{1: time.Second, 2: 2 * time.Second, 6: 32 * time.Second, 7: time.Minute, 1000: time.Minute} {
		if low, high := backoff(n, 0), backoff(n, 1); low != want*8/10 || high != want*12/10 {
			t.Errorf("try %d waits %s to %s, want %s by 20%%", n, low, high, want)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		dial, dials := dialled()
		p := start(t, Config{Dial: dial})
		time.Sleep(10 * time.Minute)
		if n := dials(); n < 10 || n > 20 {
			t.Errorf("dialled %d times in ten minutes", n)
		}
		p.Close()
	})
}

// The pool dials a relay that closes each connection immediately as rarely as one that refuses
// connections. It soon dials again if a connection lasted for a while.
func TestReconnectStorm(t *testing.T) {
	for name, c := range map[string]struct {
		lasts       time.Duration
		least, most int // dials in ten minutes
	}{
		"at once":        {0, 10, 20},
		"after a moment": {steadyAfter - time.Second, 10, 20},
		"after a while":  {steadyAfter, int(10*time.Minute/(steadyAfter+2*time.Second)) - 1, int(10 * time.Minute / steadyAfter)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var dials atomic.Int64
				p := start(t, Config{Dial: func(context.Context, string) (Conn, error) {
					dials.Add(1)
					f := newFake()
					time.AfterFunc(c.lasts, func() { _ = f.Close() })
					return f, nil
				}})
				time.Sleep(10 * time.Minute)
				if n := int(dials.Load()); n < c.least || n > c.most {
					t.Errorf("dialled %d times in ten minutes, want %d to %d", n, c.least, c.most)
				}
				p.Close()
			})
		})
	}
}

func TestBadAddresses(t *testing.T) {
	for _, urls := range [][]string{{"http://x"}, {"://"}} {
		if p, err := Start(Config{URLs: urls}); err == nil {
			p.Close()
			t.Errorf("%q was taken", urls)
		}
	}
	var many []string
	for i := range MaxRelays + 1 {
		many = append(many, fmt.Sprintf("ws://r%d", i))
	}
	if p, err := Start(Config{URLs: many}); err == nil {
		p.Close()
		t.Error("too many relays were taken")
	}
}

// The box's own relay requires a login. Publish and Subscribe log in without help from the caller.
func TestWithTheBoxesRelay(t *testing.T) {
	k := relaytest.NewKey(t)
	url := relaytest.Serve(t, k, relay.Allowlist, 1, 1059)
	connected := make(chan struct{}, 8)
	p := start(t, Config{URLs: []string{url}, Signer: k, Notice: func(s Status) {
		if s.State == Connected {
			connected <- struct{}{}
		}
	}})
	defer p.Close()
	<-connected
	wrap := &nostr.Event{Kind: nip01.KindGiftWrap, CreatedAt: nostr.Now(), Tags: nostr.Tags{{"p", string(k.Public())}}, Content: "x"}
	if err := relaytest.NewKey(t).Sign(wrap); err != nil {
		t.Fatal(err)
	}
	s, err := p.Subscribe([]nip01.Filter{{Kinds: []int{nip01.KindGiftWrap}, Tags: map[string][]string{"p": {string(k.Public())}}}}, 4)
	if err != nil {
		t.Fatal(err)
	}
	results, err := p.Publish(t.Context(), wrap)
	if err != nil || len(results) != 1 || !results[0].Accepted {
		t.Fatalf("%+v, %v", results, err)
	}
	if e, err := s.Next(t.Context()); err != nil || e.ID != wrap.ID {
		t.Fatal(e, err)
	}
	// The pool sends its subscriptions again after the login. If the login comes between the publishing
	// and the first answer, the event arrives twice.
	if status := p.Status()[0]; !status.LoggedIn || status.Published != 1 || status.Events < 1 {
		t.Errorf("%+v", status)
	}
}

// An event goes only to relays for publishing, a REQ only to relays for subscribing.
func TestDirections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in, out := newFake(), newFake()
		p := start(t, Config{
			URLs:       []string{"ws://in", "ws://out"},
			Publishes:  func(url string) bool { return url == "ws://out" },
			Subscribes: func(url string) bool { return url == "ws://in" },
			Dial: func(_ context.Context, url string) (Conn, error) {
				return map[string]*fake{"ws://in": in, "ws://out": out}[url], nil
			},
		})
		synctest.Wait()
		s, err := p.Subscribe(notes, 1)
		if err != nil {
			t.Fatal(err)
		}
		s.Close()
		results, err := p.Publish(t.Context(), note(t, relaytest.NewKey(t), "x"))
		if err != nil || len(results) != 1 || results[0].URL != "ws://out" {
			t.Errorf("%+v, %v", results, err)
		}
		for _, want := range []string{nip01.VerbReq, nip01.VerbClose} {
			if verb, _, _ := in.heard(t); verb != want {
				t.Errorf("the relay to subscribe at hears %s, not %s", verb, want)
			}
		}
		if verb, _, _ := out.heard(t); verb != nip01.VerbEvent || len(in.from)+len(out.from) != 0 {
			t.Errorf("the relay to publish at hears %s, and %d more are said", verb, len(in.from)+len(out.from))
		}
		p.Close()
	})
}

// The pool does not send a message that is larger than the relay's document allows.
func TestDocumentLimitsWhatIsSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFake()
		dial, _ := dialled(r)
		p := start(t, Config{Dial: dial, Document: func(context.Context, string) (Document, error) {
			return Document{Name: "small", MaxMessage: 400}, nil
		}})
		synctest.Wait()
		results, err := p.Publish(t.Context(), note(t, relaytest.NewKey(t), strings.Repeat("x", 400)))
		if err != nil || !strings.HasPrefix(results[0].Reason, "payload-too-large") || len(r.from) != 0 {
			t.Errorf("%+v, %v", results, err)
		}
		if _, refused := Verdict(results); !refused {
			t.Error("it would be tried for ever")
		}
		if got := p.Status()[0].Document.Name; got != "small" {
			t.Errorf("the relay's name is %q", got)
		}
		p.Close()
	})
}

func TestParseDocument(t *testing.T) {
	long := strings.Repeat("\u20ac", 60)
	for text, want := range map[string]Document{
		`{}`: {},
		`{"name":"n","supported_nips":[1,42],"limitation":{"max_message_length":10,"auth_required":true},"x":1}`: {Name: "n", NIPs: []int{1, 42}, MaxMessage: 10, LoginRequired: true},
		`{"limitation":{"max_message_length":-1}}`:                                                               {},
		`{"name":"` + long + `"}`: {Name: long[:96] + "…"},
	} {
		got, err := parseDocument([]byte(text))
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%.60s: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{``, `[]`, `{"name":1}`, `{"supported_nips":"all"}`, `{"limitation":{"max_message_length":1e99}}`} {
		if got, err := parseDocument([]byte(text)); err == nil {
			t.Errorf("%s: %+v", text, got)
		}
	}
}

func FuzzParseDocument(f *testing.F) {
	f.Add([]byte(`{"name":"n","supported_nips":[1],"limitation":{"max_message_length":10}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		d, err := parseDocument(raw)
		if err == nil && (len(d.Name) > 100 || len(d.NIPs) > 100 || d.MaxMessage < 0) {
			t.Fatalf("%+v", d)
		}
	})
}

func TestFetchDocument(t *testing.T) {
	answers := map[string]func(http.ResponseWriter){
		"/redirect": func(w http.ResponseWriter) { w.Header().Set("Location", "/"); w.WriteHeader(302) },
		"/page":     func(w http.ResponseWriter) { _, _ = w.Write([]byte("<html>")) },
		"/large": func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", documentType)
			_, _ = w.Write([]byte(strings.Repeat(" ", maxDocument) + "{}"))
		},
		"/": func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", documentType+"; charset=utf-8")
			_, _ = w.Write([]byte(`{"name":"here"}`))
		},
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept") != documentType {
			w.WriteHeader(http.StatusUpgradeRequired)
			return
		}
		answers[r.URL.Path](w)
	}))
	defer server.Close()
	base := "ws" + strings.TrimPrefix(server.URL, "http")
	if d, err := FetchDocument(t.Context(), base+"/"); err != nil || d.Name != "here" {
		t.Errorf("%+v, %v", d, err)
	}
	for _, path := range []string{"/redirect", "/page", "/large"} {
		if d, err := FetchDocument(t.Context(), base+path); err == nil {
			t.Errorf("%s: %+v", path, d)
		}
	}
}

// The error of a connection is shown to everyone who may read the status, so it must not hold the
// token of the address, and no more than a line of what the relay has written.
func TestDialErrors(t *testing.T) {
	for name, answer := range map[string]string{
		"status":   "HTTP/1.1 500 \x1b[31m\u202e" + strings.Repeat("A", 10_000) + "\r\n\r\n",
		"head":     "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("A", maxHeader) + "\r\n\r\n",
		"not HTTP": strings.Repeat("A", 10_000) + "\r\n\r\n",
		"none":     "",
	} {
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			var relay sync.WaitGroup
			defer relay.Wait()
			relay.Go(func() {
				c, err := l.Accept()
				if err != nil {
					return
				}
				defer c.Close()
				_, _ = http.ReadRequest(bufio.NewReader(c))
				_, _ = io.WriteString(c, answer)
			})
			_, err = Dial(t.Context(), "ws://"+l.Addr().String()+"/?token=secret")
			if err == nil || len(err.Error()) > maxReason || strings.Contains(err.Error(), "secret") || strings.ContainsAny(err.Error(), "\x1b\u202e") {
				t.Errorf("%v", err)
			}
		})
	}
}

// Results and events are written to files that programs can read.
func TestTokenOfAddressIsNotShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		relay := newFake()
		relays := &byURL{fakes: map[string]*fake{"ws://me:secret@r/x?token=secret": relay}}
		p := start(t, Config{URLs: []string{"ws://me:secret@r/x?token=secret"}, Dial: relays.dial})
		synctest.Wait()
		s, err := p.Subscribe(notes, 4)
		if err != nil {
			t.Fatal(err)
		}
		_, id, _ := relay.heard(t)
		e := note(t, relaytest.NewKey(t), "a")
		relay.to <- nip01.Message(nip01.VerbEvent, id, e)
		if got, err := s.Next(t.Context()); err != nil || got.Relay != "ws://r/x" {
			t.Errorf("%v %v", got, err)
		}
		relay.to <- nip01.Message(nip01.VerbClosed, id, "no \x1b[31m"+strings.Repeat("A", 1000))
		synctest.Wait()
		if got := p.Status()[0].Error; !strings.HasPrefix(got, "refused a subscription: no ") || len(got) > 2*maxReason || strings.Contains(got, "\x1b") {
			t.Errorf("%q", got)
		}
		if results, err := p.Publish(t.Context(), e); err != nil || results[0].URL != "ws://r/x" {
			t.Errorf("%+v %v", results, err)
		}
		p.Close()
	})
}

func TestReconnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second := newFake(), newFake()
		dial, dials := dialled(first, second)
		p := start(t, Config{Dial: dial})
		synctest.Wait()
		p.Reconnect()
		time.Sleep(2 * time.Second)
		if status := p.Status()[0]; dials() != 2 || status.State != Connected {
			t.Errorf("dialled %d times, %+v", dials(), status)
		}
		p.Close()
	})
}
