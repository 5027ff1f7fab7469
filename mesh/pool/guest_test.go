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

// byURL dials the fake of each address; a relay without one refuses.
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

// Guests come and go; the pool's own relays stay. A subscription reaches those that come later.
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
		case <-guest.closed: // at once
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

// What a guest answers decides nothing while the pool has a relay of its own: a message is not
// published because a guest says so, does not fail because a guest refuses it, and does not wait
// for a guest that is silent.
func TestGuestsDecideNothing(t *testing.T) {
	for name, c := range map[string]struct {
		away      bool // the pool's own relay cannot be reached
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
				answers.Go(func() { answer(guest, c.guestSays) }) // it gets its copy in any case
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

// A pool of guests alone publishes there; no guest makes a message fail for good.
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

// One relay that is silent holds up no other: once a relay has taken an event, the rest have a
// second.
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
	})
}

// A guest that floods is read slower than a relay of the pool's own.
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
		// As much as the channel holds, and what may come at once, is read without a pause.
		if took, want := time.Since(begun), time.Duration(messages-guestPerSecond-cap(guest.to)-2)*time.Second/guestPerSecond; took < want {
			t.Errorf("%d messages were read within %v, want %v", messages, took, want)
		}
	})
}

// A relay that says again and again that the login holds does not have all subscriptions sent
// again and again.
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
		for verb != nip01.VerbAuth { // REQ, twice where the connection came meanwhile
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
