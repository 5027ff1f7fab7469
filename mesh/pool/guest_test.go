package pool

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dreamlab-ai/agentinit/mesh/nip01"
	"github.com/dreamlab-ai/agentinit/mesh/relay/relaytest"
)

// byURL returns the fake of each address once. It refuses all other connections.
type byURL struct {
	mu    sync.Mutex
	fakes map[string]*fake
}

func (b *byURL) dial(_ context.Context, url string) (Conn, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f := b.fakes[url]
	delete(b.fakes, url) // once
	if f == nil {
		return nil, errors.New("refused")
	}
	return f, nil
}

func names(p *Pool) string {
	out := []string{}
	for _, s := range p.Status() {
		name := strings.TrimPrefix(s.URL, "ws://")
		if s.Guest {
			name += "(guest)"
		}
		out = append(out, name)
	}
	return strings.Join(out, " ")
}

// A change of the guests does not affect the pool's own relays. A subscription also reaches guests
// that connect later.
func TestGuests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own, guest := newFake(), newFake()
		relays := &byURL{fakes: map[string]*fake{"ws://own": own, "ws://g1": guest}}
		p := start(t, Config{URLs: []string{"ws://own"}, Dial: relays.dial})
		s, err := p.Subscribe(notes, 4)
		if err != nil {
			t.Fatal(err)
		}
		for _, step := range []struct {
			urls []string
			want string
		}{
			{nil, "own"},
			{[]string{"ws://g2", "ws://g1", "ws://g1", "ws://own", "http://x", "nonsense"}, "own g1(guest) g2(guest)"},
			{[]string{"ws://g1"}, "own g1(guest)"},
		} {
			p.Guests(step.urls, true, true)
			synctest.Wait()
			if got := names(p); got != step.want {
				t.Errorf("guests %v: %s, want %s", step.urls, got, step.want)
			}
		}
		verb, id, _ := guest.heard(t)
		if verb != nip01.VerbReq {
			t.Fatalf("the guest hears %s first", verb)
		}
		a := note(t, relaytest.NewKey(t), "a")
		guest.to <- nip01.Message(nip01.VerbEvent, id, a)
		if got, err := s.Next(t.Context()); err != nil || got.ID != a.ID || got.Relay != "ws://g1" {
			t.Fatalf("%v %v", got, err)
		}
		p.Guests(nil, true, true)
		select {
		case <-guest.closed: // immediately
		case <-time.After(time.Second):
			t.Error("the connection to a guest that is none any more stays")
		}
		synctest.Wait()
		if got := names(p); got != "own" || p.Status()[0].State != Connected {
			t.Errorf("after the guests: %s", got)
		}
		many := []string{}
		for i := range 100 {
			many = append(many, fmt.Sprintf("ws://g%d", i))
		}
		if p.Guests(many, true, true); len(p.Status()) != 1+MaxGuests {
			t.Errorf("%d relays", len(p.Status()))
		}
		p.Close()
		if p.Guests([]string{"ws://late"}, true, true); strings.Contains(names(p), "late") {
			t.Error("a pool that is closed takes a guest")
		}
	})
}

// If the pool has its own relay, the answers of guests do not count. A guest's OK does not make a
// message published, a guest's refusal does not make it fail, and Publish does not wait for a guest.
func TestGuestsDecideNothing(t *testing.T) {
	for name, c := range map[string]struct {
		away      bool // the pool's own relay is unreachable
		ownSays   string
		guestSays string
		published bool
		refused   bool
		noRelay   bool
		at        time.Duration
	}{
		"both take it":                {false, "true", "true", true, false, false, 0},
		"a silent guest":              {false, "true", "", true, false, false, 0},
		"a guest refuses":             {false, "true", "blocked: no", true, false, false, 0},
		"the own one refuses":         {false, "blocked: no", "true", false, true, false, 0},
		"the own one says try again":  {false, "error: later", "invalid: no", false, false, false, 0},
		"the own one is silent":       {false, "", "true", false, false, false, answerLimit},
		"the own one is away":         {true, "", "true", false, false, true, 0},
		"the own one is away, refuse": {true, "", "invalid: no", false, false, true, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			own, guest := newFake(), newFake()
			relays := &byURL{fakes: map[string]*fake{"ws://own": own, "ws://guest": guest}}
			if c.away {
				delete(relays.fakes, "ws://own")
			}
			p := start(t, Config{URLs: []string{"ws://own"}, Dial: relays.dial})
			p.Guests([]string{"ws://guest"}, true, true)
			synctest.Wait()
			answer := func(f *fake, says string) {
				_, _, whole := f.heard(t)
				id := string(whole[1])[strings.Index(string(whole[1]), `"id":"`)+6:][:64]
				if says != "" {
					f.to <- nip01.Message(nip01.VerbOK, id, says == "true", says)
				}
			}
			var answers sync.WaitGroup
			defer answers.Wait()
			if !c.away {
				answers.Go(func() { answer(own, c.ownSays) })
				answers.Go(func() { answer(guest, c.guestSays) }) // a guest always gets a copy
			}
			begun := time.Now()
			results, err := p.Publish(t.Context(), note(t, relaytest.NewKey(t), "x"))
			published, refused := Verdict(results)
			if published != c.published || refused != c.refused || errors.Is(err, ErrNoRelay) != c.noRelay || time.Since(begun) != c.at {
				t.Errorf("%s: published %v, refused %v, %v after %v", name, published, refused, err, time.Since(begun))
			}
		})
	}
}

// A pool with only guests publishes to them. The refusal of a guest never makes a message fail
// permanently.
func TestGuestsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		guest := newFake()
		relays := &byURL{fakes: map[string]*fake{"ws://guest": guest}}
		p := start(t, Config{URLs: []string{}, Dial: relays.dial})
		p.Guests([]string{"ws://guest"}, true, false)
		synctest.Wait()
		k := relaytest.NewKey(t)
		for _, says := range []string{"true", "invalid: no"} {
			e := note(t, k, says)
			go func() {
				guest.heard(t)
				guest.to <- nip01.Message(nip01.VerbOK, e.ID, says == "true", says)
			}()
			results, err := p.Publish(t.Context(), e)
			if published, refused := Verdict(results); err != nil || published != (says == "true") || refused {
				t.Errorf("%q: published %v, refused %v, %v", says, published, refused, err)
			}
		}
		p.Guests(nil, true, false)
		if _, err := p.Publish(t.Context(), note(t, k, "x")); !errors.Is(err, ErrNoRelay) {
			t.Errorf("without the guest: %v", err)
		}
	})
}

// A silent relay does not delay Publish: after one relay has accepted an event, the others have only
// one second.
func TestSilentRelayHoldsUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		good, silent := newFake(), newFake()
		relays := &byURL{fakes: map[string]*fake{"ws://good": good, "ws://silent": silent}}
		p := start(t, Config{URLs: []string{"ws://good", "ws://silent"}, Dial: relays.dial})
		synctest.Wait()
		e := note(t, relaytest.NewKey(t), "x")
		go func() {
			good.heard(t)
			good.to <- nip01.Message(nip01.VerbOK, e.ID, true, "")
		}()
		begun := time.Now()
		results, err := p.Publish(t.Context(), e)
		if err != nil || len(results) != 2 || !results[0].Accepted || results[1].Accepted || results[1].Reason != "no answer in time" || time.Since(begun) != slowLimit {
			t.Errorf("%+v %v after %v", results, err, time.Since(begun))
		}
		if published, _ := Verdict(results); !published {
			t.Error("not published")
		}
		time.Sleep(answerLimit)
		silent.heard(t)
		go func() {
			silent.heard(t)
			silent.to <- nip01.Message(nip01.VerbOK, e.ID, true, "")
		}()
		if results, err = p.Publish(t.Context(), e); err != nil || !results[1].Accepted {
			t.Errorf("at the second attempt: %+v %v", results, err)
		}
	})
}

// The pool reads from a flooding guest more slowly than from its own relays.
func TestFloodingGuest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		guest := newFake()
		relays := &byURL{fakes: map[string]*fake{"ws://guest": guest}}
		p := start(t, Config{URLs: []string{}, Dial: relays.dial})
		p.Guests([]string{"ws://guest"}, false, true)
		begun := time.Now()
		const messages = 500
		for range messages {
			guest.to <- []byte(`["NOTICE","x"]`)
		}
		synctest.Wait()
		// The messages in the channel and those of the first burst are read without a pause.
		if took, want := time.Since(begun), time.Duration(messages-guestPerSecond-cap(guest.to)-2)*time.Second/guestPerSecond; took < want {
			t.Errorf("%d messages were read within %v, want %v", messages, took, want)
		}
	})
}

// If a relay answers one login several times, the pool sends the subscriptions again only once.
func TestLoginIsAnsweredOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		dial, _ := dialled(f)
		p := start(t, Config{Dial: dial, Signer: relaytest.NewKey(t)})
		if _, err := p.Subscribe(notes, 1); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		f.to <- nip01.Message(nip01.VerbAuth, "challenge")
		verb, _, whole := f.heard(t)
		for verb != nip01.VerbAuth { // skip REQ; it comes twice if the link connected at the same time
			verb, _, whole = f.heard(t)
		}
		id := string(whole[1])[strings.Index(string(whole[1]), `"id":"`)+6:][:64]
		for range 5 {
			f.to <- nip01.Message(nip01.VerbOK, id, true, "")
		}
		synctest.Wait()
		if n := len(f.from); n != 1 || !p.Status()[0].LoggedIn {
			t.Errorf("after five answers to one login the relay hears %d messages", n)
		}
	})
}
