package announce

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nbd-wtf/go-nostr"

	"github.com/dreamlab-ai/agentinit/bootstrap/identity"
	"github.com/dreamlab-ai/agentinit/mesh/pool"
)

func TestLists(t *testing.T) {
	both, writes, reads := Use{"wss://a", true, true}, Use{"wss://b", true, false}, Use{"wss://c", false, true}
	got := listsOf([]Use{both, writes, reads}, time.Unix(7, 0))
	want := []nostr.Event{
		{Kind: 10002, CreatedAt: 7, Tags: nostr.Tags{{"r", "wss://a"}, {"r", "wss://b", "write"}, {"r", "wss://c", "read"}}},
		{Kind: 10050, CreatedAt: 7, Tags: nostr.Tags{{"relay", "wss://a"}, {"relay", "wss://c"}}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := listsOf([]Use{writes}, time.Unix(7, 0)); len(got) != 1 || got[0].Kind != 10002 {
		t.Errorf("a box that reads nowhere tells %v", got)
	}
}

// single is one relay. It answers with reasons to refuse, and then accepts.
type single struct {
	reasons  []string
	refusing string // the reason for ever; "" = it accepts
	took     []nostr.Event
}

func (s *single) Publish(_ context.Context, e *nostr.Event) ([]pool.Result, error) {
	r := pool.Result{URL: "wss://a", Reason: s.refusing, Accepted: s.refusing == ""}
	if len(s.reasons) > 0 {
		r.Reason, r.Accepted = s.reasons[0], false
		s.reasons = s.reasons[1:]
	} else {
		s.took = append(s.took, *e)
	}
	return []pool.Result{r}, nil
}

// The lists are sent after each connection, signed once for each key, and again to a relay that could
// not take them.
func TestRunLists(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		key, err1 := identity.NewKey()
		next, err2 := identity.NewKey()
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		signer := identity.NewSigner(key)
		r := &single{}
		var reports []map[string]any
		connected := make(chan struct{}, 1)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			RunLists(ctx, ListsConfig{
				Uses: []Use{{"wss://a", true, true}}, Signer: signer, Relays: r, Box: func() string { return string(signer.Public()) },
				Connected: connected, Report: func(_ string, fields map[string]any) { reports = append(reports, fields) },
			})
		}()
		took := func() (kinds []int, authors, ids []string) {
			for _, e := range r.took {
				if ok, err := e.CheckSignature(); !ok {
					t.Errorf("%v: %v", e, err)
				}
				kinds, authors, ids = append(kinds, e.Kind), append(authors, e.PubKey), append(ids, e.ID)
			}
			r.took = nil
			return kinds, authors, ids
		}
		synctest.Wait()
		if kinds, _, _ := took(); len(kinds) > 0 {
			t.Errorf("%v were sent although no relay is connected", kinds)
		}
		r.reasons = []string{"rate-limited: slower"}
		connected <- struct{}{}
		time.Sleep(time.Hour)
		synctest.Wait()
		kinds, authors, first := took()
		if !slices.Equal(kinds, []int{KindRelays, KindInbox}) || authors[0] != string(key.Public()) {
			t.Errorf("%v by %v", kinds, authors)
		}
		connected <- struct{}{}
		time.Sleep(time.Hour)
		synctest.Wait()
		if _, _, again := took(); !slices.Equal(again, first) {
			t.Errorf("after another connection the lists are other ones: %v, %v", first, again)
		}
		signer.Replace(next)
		r.reasons = []string{"blocked: not you"}
		connected <- struct{}{}
		time.Sleep(time.Hour)
		synctest.Wait()
		if kinds, authors, _ := took(); !slices.Equal(kinds, []int{KindInbox}) || authors[0] != string(next.Public()) {
			t.Errorf("after a rotation %v by %v", kinds, authors)
		}
		if len(reports) != 1 || reports[0]["kind"] != KindRelays || reports[0]["relay"] != "wss://a" {
			t.Errorf("reports: %v", reports)
		}
		r.refusing = "rate-limited: slower"
		connected <- struct{}{}
		time.Sleep(time.Hour)
		synctest.Wait()
		if kinds, _, _ := took(); len(kinds) != 2*listTries {
			t.Errorf("the relay was asked %d times, want %d", len(kinds), 2*listTries)
		}
		cancel()
		<-done
	})
}
