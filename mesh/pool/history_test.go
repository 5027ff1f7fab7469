package pool

import (
	"encoding/json"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nbd-wtf/go-nostr"

	"github.com/dreamlab-ai/agentinit/mesh/nip01"
	"github.com/dreamlab-ai/agentinit/mesh/relay/relaytest"
)

// limitedRelay plays a relay that gives only so many events for a filter, the newest first.
type limitedRelay struct {
	*fake
	events []*nostr.Event // the newest first
	most   int            // events for a filter
	asked  []nip01.Filter // of the pages
}

// serve answers requests until the connection ends.
func (r *limitedRelay) serve(t *testing.T) {
	for {
		var raw []byte
		select {
		case raw = <-r.from:
		case <-r.closed:
			return
		}
		m, err := nip01.ParseFromClient(raw)
		if err != nil {
			t.Error(err)
		}
		if m.Verb != nip01.VerbReq {
			continue
		}
		f := m.Filters[0]
		if f.Until != nil {
			r.asked = append(r.asked, f)
		}
		n := 0
		for _, e := range r.events {
			if n < r.most && f.Matches(nip01.NewSubject(e)) {
				n++
				r.give(nip01.Message(nip01.VerbEvent, m.Subscription, e))
			}
		}
		r.give(nip01.Message(nip01.VerbEOSE, m.Subscription))
	}
}

func (r *limitedRelay) give(raw []byte) {
	select {
	case r.to <- raw:
	case <-r.closed:
	}
}

// notesAt returns signed notes with these dates, in seconds before now.
func notesAt(t *testing.T, ages ...int) (out []*nostr.Event) {
	k := relaytest.NewKey(t)
	for i, age := range ages {
		e := &nostr.Event{Kind: 1, CreatedAt: nostr.Timestamp(time.Now().Unix() - int64(age)), Content: fmt.Sprint(i)}
		if err := k.Sign(e); err != nil {
			t.Fatal(err)
		}
		out = append(out, e)
	}
	return out
}

// A subscription gets all events that a relay holds, although the relay gives few at once, and many have
// the same date.
func TestOlderEventsAreAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ages []int
		for i := range 150 {
			ages = append(ages, i/2) // two a second
		}
		for range fullPage {
			ages = append(ages, 100) // a page of one second
		}
		ages = append(ages, 200)
		first := &limitedRelay{fake: newFake(), most: fullPage, events: notesAt(t, ages...)}
		second := &limitedRelay{fake: newFake(), most: fullPage, events: first.events}
		dial, _ := dialled(first.fake, second.fake)
		p := start(t, Config{Dial: dial})
		s, err := p.Subscribe(notes, len(ages))
		if err != nil {
			t.Fatal(err)
		}
		go first.serve(t)
		got := map[string]bool{}
		for range ages {
			e, err := s.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			got[e.ID] = true
		}
		if len(got) != len(ages) {
			t.Errorf("%d different events, want %d", len(got), len(ages))
		}
		synctest.Wait()

		// The next subscription on this connection does not read them again.
		asked := len(first.asked)
		s.Close()
		if _, err = p.Subscribe(notes, len(ages)); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if len(first.asked) != asked {
			t.Errorf("%d pages were asked for again", len(first.asked)-asked)
		}

		// The next connection asks as far back as events may be dated.
		ended := time.Now()
		first.Close()
		go second.serve(t)
		time.Sleep(2 * backoffFirst)
		synctest.Wait()
		if len(second.asked) == 0 {
			t.Fatal("the next connection asks for no page")
		}
		if since := second.asked[0].Since; since == nil || *since != ended.Add(-backdated).Unix() {
			t.Errorf("the next connection asks since %v", since)
		}
	})
}

// A relay that has an endless past is asked for a limited number of pages.
func TestPagesAreBounded(t *testing.T) {
	p := &page{}
	for n := 0; p.turn() || n == 0; n++ {
		if n > maxPages {
			t.Fatal("more pages than the limit")
		}
		p.got, p.oldest = pageLimit, int64(1_000_000-n)
	}
	if p.n != maxPages {
		t.Errorf("%d pages, want %d", p.n, maxPages)
	}
	since := int64(500)
	for name, p := range map[string]*page{
		"before since":     {got: fullPage, oldest: 499, filter: nip01.Filter{Since: &since}},
		"a part of a page": {got: fullPage - 1, oldest: 1000},
		"before 1970":      {got: fullPage, oldest: 0, filter: nip01.Filter{Until: new(int64(0))}},
	} {
		if p.turn() {
			t.Errorf("%s: another page is asked for", name)
		}
	}
}

// A relay that refuses a page, answers one that was closed, or gives events that no page wants.
func TestPagesOfALyingRelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ages []int
		for i := range fullPage {
			ages = append(ages, i)
		}
		events, older := notesAt(t, ages...), notesAt(t, 1000)[0]
		f := newFake()
		dial, _ := dialled(f)
		p := start(t, Config{Dial: dial})
		synctest.Wait() // a subscription made during the dial may be sent twice, which is harmless
		s, err := p.Subscribe(notes, 2*len(ages))
		if err != nil {
			t.Fatal(err)
		}
		_, id, _ := f.heard(t)
		f.to <- nip01.Message(nip01.VerbEvent, id+"-0", older) // the pool has not asked for a page yet
		for _, e := range events {
			f.to <- nip01.Message(nip01.VerbEvent, id, e)
		}
		f.to <- nip01.Message(nip01.VerbEOSE, id)
		verb, page, whole := f.heard(t)
		if verb != nip01.VerbReq || page != id+"-0" {
			t.Fatalf("the pool sends %s %s", verb, page)
		}
		var filter map[string]any
		_ = json.Unmarshal(whole[2], &filter)
		if filter["until"] != float64(events[len(events)-1].CreatedAt) || filter["limit"] != float64(pageLimit) {
			t.Errorf("the page is asked for with %v", filter)
		}
		f.to <- nip01.Message(nip01.VerbEOSE, id) // a second end of the same request
		f.to <- nip01.Message(nip01.VerbEvent, page, events[0])
		f.to <- nip01.Message(nip01.VerbClosed, page, "error: no pages")
		f.to <- nip01.Message(nip01.VerbEOSE, page)
		synctest.Wait()
		if len(f.from) > 0 {
			t.Errorf("the pool says %s", <-f.from)
		}
		for range events {
			if _, err := s.Next(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if got := p.Status()[0].Refused; got != 1 || len(s.events) > 0 { // an event newer than the page
			t.Errorf("%d messages of no honest relay, want 1; %d more events", got, len(s.events))
		}
	})
}
