package relay

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nbd-wtf/go-nostr"
	"pgregory.net/rapid"

	"github.com/dreamlab-ai/agentinit/adapters/sqlite"
	"github.com/dreamlab-ai/agentinit/mesh/nip01"
)

// The model keeps events in a slice and finds them with Filter.Matches. After each step, the database
// must return the same events as the model, in the same order.
func TestStoreIsItsModel(t *testing.T) {
	s, err := openStore(context.Background(), filepath.Join(t.TempDir(), "relay.db"), 64<<20, 128<<10)
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
			if got, _, err := s.add(context.Background(), e, stranger, now); err != nil || got != want {
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
		ids, err := s.find(context.Background(), f, limit, now)
		for err == nil && len(ids) > 0 {
			ids, err = s.read(context.Background(), ids, rapid.IntRange(1, 1000).Draw(t, "page"), func(e *nostr.Event, _ []byte) { got = append(got, e.ID) })
		}
		if err != nil {
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
			if len(want) < limit && f.Matches(nip01.NewSubject(e)) && !nip01.Expired(e, now) {
				want = append(want, e.ID)
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("query gives %v, the model %v", got, want)
		}
	})
}

// keep is the same operation on the model as add on the database.
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
	s, err := openStore(context.Background(), filepath.Join(t.TempDir(), "relay.db"), 64<<20, 128<<10)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	now := time.Unix(1_000_000, 0)
	k := newKey(t)
	put := func(content string, received time.Time, tags nostr.Tags) {
		e := signed(t, k, nostr.Event{Kind: 1, Content: content, Tags: tags})
		if _, _, err := s.add(context.Background(), &e, stranger, received); err != nil {
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
	if stored, err := s.count(context.Background()); stored.Events != 2 || stored.Bytes == 0 || stored.LastEvent == nil || !stored.LastEvent.Equal(now) || err != nil {
		t.Errorf("%+v are left, %v; want 2 events, the last of %v", stored, err, now)
	}
	if ids, err := s.find(context.Background(), nip01.Filter{Tags: map[string][]string{"t": {"x"}}}, 9, now); err != nil || len(ids) != 0 {
		t.Errorf("events by a deleted tag: %q, %v", ids, err)
	}
	if n, err := s.prune(context.Background(), now.Add(time.Hour), time.Time{}); n != 1 || err != nil {
		t.Errorf("without a retention time %d were pruned, %v; want the expired one", n, err)
	}
}

func TestChallengeIsFreshForAMinute(t *testing.T) {
	issued := time.Unix(1000, 0)
	c := Challenge{"x", issued}
	for after, want := range map[time.Duration]bool{0: true, time.Minute: true, time.Minute + 1: false} {
		if c.fresh(issued.Add(after)) != want {
			t.Errorf("after %s: fresh is %t", after, !want)
		}
	}
	if (Challenge{"", issued}).fresh(issued) {
		t.Error("a used challenge is fresh")
	}
}

// fill adds n events of a rank, 20 KiB each, and returns how many were refused as Full.
func fill(t *testing.T, s *store, r rank, name string, n int) (full int) {
	t.Helper()
	for i := range n {
		e := &nostr.Event{
			ID: fmt.Sprintf("%s%d", name, i), PubKey: name, Kind: 1, CreatedAt: 1, Content: strings.Repeat("x", 20<<10),
			Tags: nostr.Tags{{"t", name}},
		}
		outcome, _, err := s.add(context.Background(), e, r, time.Unix(int64(i), 0))
		switch {
		case err != nil || outcome != Stored && outcome != Full:
			t.Fatalf("event %d of %s: %v, %v", i, name, outcome, err)
		case outcome == Full:
			full++
		}
	}
	return full
}

// held returns the ids of name's stored events.
func held(t *testing.T, s *store, name string) (ids []string) {
	t.Helper()
	err := s.db.Read(context.Background(), func(tx *sql.Tx) error {
		var err error
		ids, err = sqlite.All(t.Context(), tx, func(r *sql.Rows) (id string, err error) { return id, r.Scan(&id) },
			"SELECT id FROM events WHERE pubkey = ? ORDER BY n", name)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

func TestAFullStoreDropsTheOldestOfTheLowestRank(t *testing.T) {
	const max, many, few = 1 << 20, 100, 10 // 1 MiB holds about 40 of these events
	for _, c := range []struct {
		name            string
		max             int64
		first, second   rank
		nFirst, nSecond int
		firstLeft       int // -1: some are left, but not the oldest
		refused         bool
	}{
		{"strangers push out strangers", max, stranger, stranger, few, many, 0, false},
		{"a listed key pushes out strangers", max, stranger, listedKey, many, few, -1, false},
		{"the box pushes out listed keys", max, listedKey, ownKey, few, many, 0, false},
		{"the box pushes out its own", max, ownKey, ownKey, few, many, 0, false},
		{"strangers do not push out listed keys", max, listedKey, stranger, few, many, few, false},
		{"listed keys do not push out the box", max, ownKey, listedKey, few, many, few, false},
		{"strangers find no room among the box's", max, ownKey, stranger, many, few, -1, true},
		{"a large store drops none", 64 << 20, stranger, ownKey, many, many, many, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, err := openStore(context.Background(), filepath.Join(t.TempDir(), "relay.db"), c.max, 128<<10)
			if err != nil {
				t.Fatal(err)
			}
			defer s.close()
			if full := fill(t, s, c.first, "a", c.nFirst); full > 0 {
				t.Errorf("%d of the first events were refused", full)
			}
			// Add the second events to the room that the first ones have left.
			full := fill(t, s, c.second, "b", c.nSecond)
			if full > 0 != c.refused {
				t.Errorf("%d of the second events were refused, want some: %t", full, c.refused)
			}
			left := held(t, s, "a")
			if c.firstLeft >= 0 && len(left) != c.firstLeft || c.firstLeft < 0 && (len(left) == 0 || len(left) == c.nFirst) {
				t.Errorf("%d of %d first events are left", len(left), c.nFirst)
			}
			if len(left) > 0 && left[len(left)-1] != fmt.Sprintf("a%d", c.nFirst-1) {
				t.Errorf("the newest of the first events is gone: %v", left)
			}
			if newest := held(t, s, "b"); !c.refused && !slices.Contains(newest, fmt.Sprintf("b%d", c.nSecond-1)) {
				t.Errorf("the newest event is not there: %v", newest)
			}
			if stored, err := s.count(context.Background()); err != nil || stored.Bytes > c.max {
				t.Errorf("the file has %d bytes, %v; the limit is %d", stored.Bytes, err, c.max)
			}
		})
	}
}

func TestAnEventLargerThanTheStoreDropsNone(t *testing.T) {
	s, err := openStore(context.Background(), filepath.Join(t.TempDir(), "relay.db"), 1<<20, 128<<10)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	fill(t, s, stranger, "a", 10)
	e := &nostr.Event{ID: "large", PubKey: "b", Kind: 1, Content: strings.Repeat("x", 1<<20)}
	if outcome, evicted, err := s.add(context.Background(), e, ownKey, time.Unix(1, 0)); outcome != Full || evicted != 0 || err != nil {
		t.Errorf("%v, %d events dropped, %v", outcome, evicted, err)
	}
	if n := len(held(t, s, "a")); n != 10 {
		t.Errorf("%d of 10 events are left", n)
	}
}

func TestShrinkKeepsToASmallerLimit(t *testing.T) {
	s, err := openStore(context.Background(), filepath.Join(t.TempDir(), "relay.db"), 64<<20, 128<<10)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	fill(t, s, ownKey, "own", 10)
	fill(t, s, stranger, "a", 100)
	if n, err := s.shrink(context.Background()); n != 0 || err != nil {
		t.Errorf("below the limit %d events were dropped, %v", n, err)
	}
	s.max = 1 << 20 // safe, because no add is running
	n, err := s.shrink(context.Background())
	if left := len(held(t, s, "a")); err != nil || n == 0 || left == 0 || int(n)+left != 100 {
		t.Errorf("%d events were dropped, %d are left, %v", n, left, err)
	}
	if own := len(held(t, s, "own")); own != 10 {
		t.Errorf("%d of the box's 10 events are left", own)
	}
}

// The migration adds the column rank to a file of the first schema. Its events then count as those of
// strangers.
func TestEventsOfAnOlderFileCountAsStrangers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "relay.db")
	db, err := sqlite.Open(context.Background(), sqlite.Options{Path: path, AppID: appID, Migrations: migrations[:1]})
	if err != nil {
		t.Fatal(err)
	}
	err = db.Write(context.Background(), func(tx *sql.Tx) error {
		_, err := tx.Exec("INSERT INTO events (id, pubkey, kind, created_at, received_at, raw) VALUES ('old', 'old', 1, 1, 1, '{}')")
		return err
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	s, err := openStore(context.Background(), path, 1<<20, 128<<10)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	if got := held(t, s, "old"); len(got) != 1 {
		t.Fatalf("the old file holds %v", got)
	}
	fill(t, s, stranger, "a", 100)
	if got := held(t, s, "old"); len(got) != 0 {
		t.Errorf("the oldest event is still there: %v", got)
	}
}

func TestRank(t *testing.T) {
	p := Policy{Ingress: Open, Own: []string{"own"}, Allowed: []string{"listed", ""}}
	for _, c := range []struct {
		session, author string
		want            rank
	}{
		{"own", "throwaway", ownKey}, {"", "own", ownKey}, {"listed", "throwaway", listedKey},
		{"", "listed", stranger}, {"", "", stranger}, {"other", "other", stranger},
	} {
		if got := p.rank(c.session, &nostr.Event{PubKey: c.author}); got != c.want {
			t.Errorf("session %q, author %q: rank %d, want %d", c.session, c.author, got, c.want)
		}
	}
}
