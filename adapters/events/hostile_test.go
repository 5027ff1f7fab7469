package events

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/contract"
)

// crashChild dispatches events and reports each one.
func crashChild(dir string) error {
	l, err := NewLocal(LocalConfig{Dir: dir, MaxBytes: minMaxBytes})
	if err == nil {
		err = l.Connect(context.Background())
	}
	for err == nil {
		var r adapters.Receipt
		r, err = l.Dispatch(context.Background(), adapters.Event{
			Kind: "x", ID: adapters.NewID(), Payload: json.RawMessage(`{"a":"` + strings.Repeat("y", rand.IntN(3000)) + `"}`),
		})
		if err == nil {
			fmt.Println(r.Seq, r.ID)
		}
	}
	return err
}

func start(t testing.TB, cfg LocalConfig) *Local {
	t.Helper()
	l := newLocal(t, cfg)
	if err := l.Connect(context.Background()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Disconnect(context.Background()) })
	return l
}

func history(t testing.TB, l *Local) map[uint64]string {
	t.Helper()
	got := map[uint64]string{}
	opt := adapters.PageOpt{Limit: 1000}
	for {
		page, err := l.History(context.Background(), adapters.EventFilter{}, opt)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range page.Items {
			if _, twice := got[e.Seq]; twice {
				t.Fatalf("number %d twice", e.Seq)
			}
			got[e.Seq] = e.ID
		}
		if page.NextCursor == "" {
			return got
		}
		opt.Cursor = string(page.NextCursor)
	}
}

// TestNoReceiptIsLostByKill repeatedly kills a process that dispatches events into the same
// directory, at a random moment. Every event with a receipt must be there under the same number,
// unless its segment was removed.
func TestNoReceiptIsLostByKill(t *testing.T) {
	dir := t.TempDir()
	acked := map[uint64]string{}
	contract.Killed(t, dir, func(line string) {
		var seq uint64
		var id string
		if _, err := fmt.Sscan(line, &seq, &id); err != nil {
			t.Fatalf("child: %s", line)
		}
		if old, twice := acked[seq]; twice {
			t.Fatalf("number %d for %s and %s", seq, old, id)
		}
		acked[seq] = id
	}, func() {
		l := newLocal(t, LocalConfig{Dir: dir, MaxBytes: minMaxBytes})
		if err := l.Connect(t.Context()); err != nil {
			t.Fatal(err)
		}
		got := history(t, l)
		oldest := l.open.Load().journal.oldest()
		for seq, id := range acked {
			if seq >= oldest && got[seq] != id {
				t.Fatalf("event %d (%s) is acknowledged and lost", seq, id)
			}
		}
		if err := l.Disconnect(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

// closed disconnects l and returns the only file of its journal, with its text.
func closed(t *testing.T, l *Local, dir string) (file string, text []byte) {
	t.Helper()
	if err := l.Disconnect(t.Context()); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*"+suffix))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	text, err = os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	return files[0], text
}

func TestTornLinesAreSkippedCountedAndKeptApart(t *testing.T) {
	dir := t.TempDir()
	l := start(t, LocalConfig{Dir: dir})
	for i := range 3 {
		if _, err := l.Dispatch(t.Context(), adapters.Event{Kind: "x", ID: fmt.Sprint(i)}); err != nil {
			t.Fatal(err)
		}
	}
	file, whole := closed(t, l, dir)
	last := strings.LastIndex(strings.TrimSuffix(string(whole), "\n"), "\n") + 1
	for cut := last; cut < len(whole); cut += 7 {
		if err := os.WriteFile(file, whole[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		l := newLocal(t, LocalConfig{Dir: dir})
		if err := l.Connect(t.Context()); err != nil {
			t.Fatal(err)
		}
		want := uint64(1)
		if cut == last {
			want = 0
		}
		if got := l.Lost()["torn_lines"]; got != want {
			t.Errorf("cut at %d: %d torn lines", cut, got)
		}
		r, err := l.Dispatch(t.Context(), adapters.Event{Kind: "x", ID: "after"})
		if err != nil || r.Seq != 3 {
			t.Errorf("cut at %d: %+v %v", cut, r, err)
		}
		if got := history(t, l); len(got) != 3 || got[3] != "after" {
			t.Errorf("cut at %d: %v", cut, got)
		}
		if err := l.Disconnect(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// What a program writes into the journal neither ends the numbers nor forges messages of a stream.
func TestForgedLinesAreSkipped(t *testing.T) {
	dir := t.TempDir()
	l := start(t, LocalConfig{Dir: dir})
	if _, err := l.Dispatch(t.Context(), adapters.Event{Kind: "x", ID: "first"}); err != nil {
		t.Fatal(err)
	}
	file, whole := closed(t, l, dir)
	forged := fmt.Sprintf("{\"seq\":%d,\"kind\":\"x\"}\n", uint64(math.MaxUint64)) + `{"seq":2,"kind":"x\ndata: {}\n"}` + "\n"
	if err := os.WriteFile(file, append(whole, forged...), 0o600); err != nil {
		t.Fatal(err)
	}
	l = start(t, LocalConfig{Dir: dir})
	if r, err := l.Dispatch(t.Context(), adapters.Event{Kind: "x", ID: "second"}); err != nil || r.Seq != 2 {
		t.Errorf("%+v %v", r, err)
	}
	if got, torn := history(t, l), l.Lost()["torn_lines"]; len(got) != 2 || got[2] != "second" || torn != 2 {
		t.Errorf("%v, %d lines torn", got, torn)
	}
}

func TestNumbersAndIDsSurviveARestart(t *testing.T) {
	dir := t.TempDir()
	l := start(t, LocalConfig{Dir: dir})
	first, err := l.Dispatch(t.Context(), adapters.Event{Kind: "x", ID: "a"})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Disconnect(t.Context()); err != nil {
		t.Fatal(err)
	}
	// After a crash, today's segment may be empty: it was created, and its first line was not
	// written. Such a segment must not hide the earlier numbers.
	empty := filepath.Join(dir, time.Now().UTC().AddDate(0, 0, 1).Format(dayFormat)+suffix)
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	l = start(t, LocalConfig{Dir: dir})
	again, err := l.Dispatch(t.Context(), adapters.Event{Kind: "other", ID: "a"})
	if err != nil || again != first {
		t.Errorf("%+v %v, first %+v", again, err, first)
	}
	next, err := l.Dispatch(t.Context(), adapters.Event{Kind: "x", ID: "b"})
	if err != nil || next.Seq != first.Seq+1 {
		t.Errorf("%+v %v", next, err)
	}
}

func TestOldSegmentsNeedNotBeReadForTheNumber(t *testing.T) {
	dir := t.TempDir()
	write := func(day string, seqs ...int) {
		var b strings.Builder
		for _, s := range seqs {
			fmt.Fprintf(&b, `{"ts":"%sT00:00:00Z","kind":"x","payload":{},"id":"i%d","seq":%d}`+"\n", day, s, s)
		}
		if err := os.WriteFile(filepath.Join(dir, day+suffix), []byte(b.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("2020-01-01", 1, 2, 3)
	write("2020-01-02", 4, 5, 6, 7)
	write("2020-01-03")
	write("2020-01-04")
	l := start(t, LocalConfig{Dir: dir, RetentionDays: 36500})
	r, err := l.Dispatch(t.Context(), adapters.Event{Kind: "x", ID: "new"})
	if err != nil || r.Seq != 8 {
		t.Errorf("%+v %v", r, err)
	}
	if got := history(t, l); len(got) != 8 {
		t.Errorf("%v", got)
	}
}

// The manifest says that retention_days = 0 keeps all, and that max_bytes = 0 has no limit.
func TestRetentionDays(t *testing.T) {
	for days, want := range map[int]int{0: 2, 30: 1} {
		dir := t.TempDir()
		old := `{"ts":"2020-01-01T00:00:00Z","kind":"x","payload":{},"id":"old","seq":1}` + "\n"
		if err := os.WriteFile(filepath.Join(dir, "2020-01-01"+suffix), []byte(old), 0o600); err != nil {
			t.Fatal(err)
		}
		l := start(t, LocalConfig{Dir: dir, RetentionDays: days})
		if _, err := l.Dispatch(t.Context(), adapters.Event{Kind: "x", ID: "new"}); err != nil {
			t.Fatal(err)
		}
		if err := l.open.Load().retain(l.cfg); err != nil {
			t.Fatal(err)
		}
		if got := history(t, l); len(got) != want {
			t.Errorf("retention_days = %d: %d events, want %d", days, len(got), want)
		}
	}
}

func TestRetentionRemovesTheOldestAndTellsReaders(t *testing.T) {
	dir := t.TempDir()
	l := start(t, LocalConfig{Dir: dir, MaxBytes: minMaxBytes})
	payload := json.RawMessage(`{"a":"` + strings.Repeat("x", 60<<10) + `"}`)
	for i := range 60 {
		if _, err := l.Dispatch(t.Context(), adapters.Event{Kind: "x", ID: fmt.Sprint(i), Payload: payload}); err != nil {
			t.Fatal(err)
		}
	}
	var size int64
	files, _ := filepath.Glob(filepath.Join(dir, "*"+suffix))
	for _, f := range files {
		info, err := os.Stat(f)
		if err != nil {
			t.Fatal(err)
		}
		size += info.Size()
	}
	if size > minMaxBytes+minMaxBytes/4 || len(files) < 3 {
		t.Errorf("%d bytes in %d files", size, len(files))
	}
	sub, err := l.Subscribe(t.Context(), adapters.EventFilter{}, adapters.From{After: 1})
	if err != nil {
		t.Fatal(err)
	}
	e, err := sub.Next(t.Context())
	if err != nil || e.Kind != adapters.KindLagged {
		t.Fatalf("%+v %v", e, err)
	}
	var p struct {
		Dropped uint64 `json:"dropped"`
		Resume  uint64 `json:"resume_from"`
	}
	if err := json.Unmarshal(e.Payload, &p); err != nil || p.Dropped != p.Resume-2 {
		t.Errorf("%+v %v", p, err)
	}
	if first, err := sub.Next(t.Context()); err != nil || first.Seq != p.Resume {
		t.Errorf("after the notice: %d %v", first.Seq, err)
	}
}

// TestAFailedAppendIsAnErrorAndStillLive fills a small file system, also in the middle of a line.
func TestAFailedAppendIsAnErrorAndStillLive(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to mount a small tmpfs")
	}
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=512k"); err != nil {
		t.Skipf("needs root that may mount: %v", err)
	}
	defer func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 200<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	l := newLocal(t, LocalConfig{Dir: dir})
	if err := l.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer l.Disconnect(context.Background())
	sub, err := l.Subscribe(t.Context(), adapters.EventFilter{}, adapters.From{Live: true})
	if err != nil {
		t.Fatal(err)
	}
	payload := json.RawMessage(`{"a":"` + strings.Repeat("x", 10<<10) + `"}`)
	var stored []string
	var failed error
	for i := 0; failed == nil && i < 100; i++ {
		id := fmt.Sprint(i)
		if _, failed = l.Dispatch(t.Context(), adapters.Event{Kind: "x", ID: id, Payload: payload}); failed == nil {
			stored = append(stored, id)
		}
		if e, err := sub.Next(t.Context()); err != nil || e.ID != id {
			t.Fatalf("live: %+v %v", e.ID, err)
		}
	}
	if !errors.Is(failed, adapters.ErrUnavailable) {
		t.Fatalf("after %d events: %v", len(stored), failed)
	}
	if h := l.Health(t.Context()); h.State != adapters.StateUnhealthy {
		t.Errorf("health on a full disk: %+v", h)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	if h := l.Health(t.Context()); h.State != adapters.StateHealthy {
		t.Errorf("health with room again: %+v", h)
	}
	if _, err := l.Dispatch(t.Context(), adapters.Event{Kind: "x", ID: "room again"}); err != nil {
		t.Errorf("with room again: %v", err)
	}
	got := history(t, l)
	if len(got) != len(stored)+1 {
		t.Errorf("%d events stored, %d read", len(stored)+1, len(got))
	}
	if err := l.Disconnect(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := l.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	if l.Lost()["torn_lines"] != 0 {
		t.Errorf("half a line was left behind")
	}
}

func TestADirectoryThatCannotBeWrittenIsAConnectError(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := newLocal(t, LocalConfig{Dir: filepath.Join(file, "events")}).Connect(t.Context()); !errors.Is(err, adapters.ErrUnavailable) {
		t.Errorf("below a file: %v", err)
	}
	if os.Getuid() == 0 {
		return // root may write anywhere, so the test stops here
	}
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o500); err != nil {
		t.Fatal(err)
	}
	if err := newLocal(t, LocalConfig{Dir: dir}).Connect(t.Context()); !errors.Is(err, adapters.ErrUnavailable) {
		t.Errorf("read-only: %v", err)
	}
}

// An agent that guesses the id of another caller's event cannot suppress that event, not even over a
// restart. The same caller gets the first receipt.
func TestAnIDBelongsToItsAuthor(t *testing.T) {
	dir := t.TempDir()
	as := func(e adapters.Events, who, kind string) adapters.Receipt {
		t.Helper()
		r, err := e.Dispatch(adapters.WithMeta(t.Context(), adapters.Meta{Actor: who}), adapters.Event{ID: "nostr:1", Kind: kind})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	for range 2 {
		l := newLocal(t, LocalConfig{Dir: dir})
		if err := l.Connect(t.Context()); err != nil {
			t.Fatal(err)
		}
		e := adapters.WrapEvents(l, nil)
		forged, real := as(e, "agent-1", "forged"), as(e, "box", "real")
		if real.Kind != "real" || forged.Seq == real.Seq {
			t.Errorf("the agent's event %+v, the box's %+v", forged, real)
		}
		if again := as(e, "box", "other"); again != real {
			t.Errorf("%+v, want %+v", again, real)
		}
		if err := l.Disconnect(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func TestSeenForgetsAfterADayAndIsBounded(t *testing.T) {
	s := newSeen()
	old := adapters.Event{ID: "old", TS: adapters.At(time.Now().Add(-adapters.IdempotencyLife - time.Minute))}
	s.add(old)
	if _, ok := s.get(adapters.Event{ID: "old"}); ok {
		t.Error("remembered after a day")
	}
	for i := range maxSeen + 10 {
		s.add(adapters.Event{ID: fmt.Sprint(i), TS: adapters.At(time.Now())})
	}
	if len(s.byID) != maxSeen || len(s.order) != maxSeen {
		t.Errorf("%d ids, %d in the ring", len(s.byID), len(s.order))
	}
	if _, ok := s.get(adapters.Event{ID: "9"}); ok {
		t.Error("the oldest was kept")
	}
	if _, ok := s.get(adapters.Event{ID: "10"}); !ok {
		t.Error("one too many was forgotten")
	}
}

func FuzzRecover(f *testing.F) {
	f.Add([]byte(`{"ts":"2026-01-01T00:00:00Z","kind":"x","payload":{},"id":"a","seq":4}` + "\nhalf"))
	f.Add([]byte("\n\n\x00\xff{}\n"))
	f.Fuzz(func(t *testing.T, content []byte) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "2026-01-01"+suffix), content, 0o600); err != nil {
			t.Fatal(err)
		}
		l := start(t, LocalConfig{Dir: dir, RetentionDays: 36500})
		newest, _, _ := l.open.Load().journal.status()
		if newest >= 1<<63 {
			return // as if 2^63 events had existed: no number is left
		}
		r, err := l.Dispatch(t.Context(), adapters.Event{Kind: "x", ID: "mine"})
		if err != nil {
			t.Fatal(err)
		}
		if r.Kind == "x" && r.Seq > newest {
			page, err := l.History(t.Context(), adapters.EventFilter{}, adapters.PageOpt{Limit: 1000})
			if err != nil || len(page.Items) == 0 || page.NextCursor == "" && page.Items[len(page.Items)-1].ID != "mine" {
				t.Fatalf("%+v %v", page, err)
			}
		}
	})
}

func BenchmarkDispatch(b *testing.B) {
	for _, fsync := range []string{"1s", "always"} {
		b.Run(fsync, func(b *testing.B) {
			w := adapters.WrapEvents(start(b, LocalConfig{Dir: b.TempDir(), Fsync: fsync}), nil)
			payload := json.RawMessage(`{"a":"` + strings.Repeat("x", 500) + `"}`)
			for b.Loop() {
				if _, err := w.Dispatch(b.Context(), adapters.Event{Kind: "x", Payload: payload}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
