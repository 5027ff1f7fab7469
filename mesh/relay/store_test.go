package relay

import (
	"context"
	"database/sql"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nbd-wtf/go-nostr"
	"pgregory.net/rapid"

	"github.com/dreamlab-ai/agentinit/mesh/nip01"
)

// The model keeps events in a slice and finds them with Filter.Matches: whatever
// is stored and asked for, the database gives the same, in the same order.
func TestStoreIsItsModel(t *testing.T) {
	s, err := openStore(context.Background(), filepath.Join(t.TempDir(), "relay.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(1000, 0)
		if err := s.db.Write(context.Background(), func(tx *sql.Tx) error { _, err := tx.Exec("DELETE FROM events"); return err }); err != nil {
			t.Fatal(err)
		}
		var model []*nostr.Event
		hex := rapid.SampledFrom([]string{strings.Repeat("a", 64), strings.Repeat("b", 64)})
		word := rapid.SampledFrom([]string{"", "x", "y' OR 1=1 --"})
		for i := range rapid.IntRange(0, 30).Draw(t, "events") {
			e := &nostr.Event{
				ID: fmt.Sprintf("%064x", rapid.IntRange(0, 40).Draw(t, "id")), PubKey: hex.Draw(t, "pubkey"), Sig: strings.Repeat("0", 128),
				Kind:      rapid.SampledFrom([]int{0, 1, 1059, 10002, 30078}).Draw(t, "kind"),
				CreatedAt: nostr.Timestamp(rapid.IntRange(1, 5).Draw(t, "at")), Content: fmt.Sprint(i),
				Tags: nostr.Tags{{"d", word.Draw(t, "d")}, {"p", word.Draw(t, "p")}, {"p", word.Draw(t, "p")}},
			}
			if rapid.Bool().Draw(t, "expires") {
				e.Tags = append(e.Tags, nostr.Tag{"expiration", fmt.Sprint(rapid.IntRange(999, 1001).Draw(t, "expiration"))})
			}
			want := keep(&model, e)
			if got, err := s.add(context.Background(), e, now); err != nil || got != want {
				t.Fatalf("add %v: %v %v, want %v", e, got, err, want)
			}
		}
		var f nip01.Filter
		if rapid.Bool().Draw(t, "by kinds") {
			f.Kinds = rapid.SliceOfN(rapid.SampledFrom([]int{0, 1, 30078}), 0, 3).Draw(t, "kinds")
		}
		if rapid.Bool().Draw(t, "by authors") {
			f.Authors = rapid.SliceOfN(hex, 0, 2).Draw(t, "authors")
		}
		if rapid.Bool().Draw(t, "by tag") {
			f.Tags = map[string][]string{"p": rapid.SliceOfN(word, 0, 2).Draw(t, "p values"), "d": {"", "x"}}
		}
		if rapid.Bool().Draw(t, "since") {
			since := rapid.Int64Range(1, 5).Draw(t, "since at")
			f.Since = &since
		}
		limit := rapid.IntRange(0, 10).Draw(t, "limit")
		var got []string
		if err := s.query(context.Background(), f, limit, now, func(e *nostr.Event) bool { got = append(got, e.ID); return true }); err != nil {
			t.Fatal(err)
		}
		var want []string
		slices.SortFunc(model, func(a, b *nostr.Event) int {
			if a == b || nip01.Newer(a, b) {
				return -1
			}
			return 1
		})
		for _, e := range model {
			if len(want) < limit && f.Matches(e) && !nip01.Expired(e, now) {
				want = append(want, e.ID)
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("query gives %v, the model %v", got, want)
		}
	})
}

// keep does to the model what add does to the database.
func keep(model *[]*nostr.Event, e *nostr.Event) Outcome {
	if slices.ContainsFunc(*model, func(m *nostr.Event) bool { return m.ID == e.ID }) {
		return Duplicate
	}
	if slot := replaces(e); slot != nil {
		i := slices.IndexFunc(*model, func(m *nostr.Event) bool { return replaces(m) == slot })
		if i >= 0 && !nip01.Newer(e, (*model)[i]) {
			return Superseded
		}
		if i >= 0 {
			*model = slices.Delete(*model, i, i+1)
		}
	}
	*model = append(*model, e)
	return Stored
}

func TestPrune(t *testing.T) {
	s, err := openStore(context.Background(), filepath.Join(t.TempDir(), "relay.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	now := time.Unix(1_000_000, 0)
	k := newKey(t)
	put := func(content string, received time.Time, tags nostr.Tags) {
		e := signed(t, k, nostr.Event{Kind: 1, Content: content, Tags: tags})
		if _, err := s.add(context.Background(), &e, received); err != nil {
			t.Fatal(err)
		}
	}
	put("old", now.Add(-2*time.Hour), nostr.Tags{{"t", "x"}})
	put("old, expires later", now.Add(-2*time.Hour), nostr.Tags{{"expiration", "1000001"}})
	put("expired", now, nostr.Tags{{"expiration", "1000000"}})
	put("new", now, nil)
	if n, err := s.prune(context.Background(), now, now.Add(-time.Hour)); n != 2 || err != nil {
		t.Errorf("pruned %d, %v; want 2", n, err)
	}
	if n, bytes, err := s.count(context.Background()); n != 2 || bytes == 0 || err != nil {
		t.Errorf("%d events in %d bytes are left, %v; want 2", n, bytes, err)
	}
	var tags int
	if err := s.query(context.Background(), nip01.Filter{Tags: map[string][]string{"t": {"x"}}}, 9, now, func(*nostr.Event) bool { tags++; return true }); err != nil || tags != 0 {
		t.Errorf("%d events by a deleted tag, %v", tags, err)
	}
	if n, err := s.prune(context.Background(), now.Add(time.Hour), time.Time{}); n != 1 || err != nil {
		t.Errorf("without a retention time %d were pruned, %v; want the expired one", n, err)
	}
}

func TestChallengeIsFreshForAMinute(t *testing.T) {
	issued := time.Unix(1000, 0)
	c := Challenge{"x", issued}
	for after, want := range map[time.Duration]bool{0: true, time.Minute: true, time.Minute + 1: false} {
		if c.Fresh(issued.Add(after)) != want {
			t.Errorf("after %s: fresh is %t", after, !want)
		}
	}
	if (Challenge{"", issued}).Fresh(issued) {
		t.Error("a used challenge is fresh")
	}
}
