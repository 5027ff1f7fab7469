package middleware

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
	local "github.com/dreamlab-ai/agentinit/adapters/beads"
	"github.com/dreamlab-ai/agentinit/adapters/events"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"
)

// With these set the test binary plays the box that is killed.
const (
	crashDir   = "REPLAY_CRASH_DIR"
	crashPoint = "REPLAY_CRASH_POINT"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(crashDir); dir != "" {
		crashChild(dir, os.Getenv(crashPoint))
		return
	}
	goleak.VerifyTestMain(m)
}

// slots are beads and events in dir behind a stack that keeps its answers there.
type slots struct {
	beads  adapters.Beads
	events adapters.Events
	stack  *Stack
	close  func() error
}

// openSlots opens what is in dir. around is put between the middleware and the
// slots.
func openSlots(ctx context.Context, dir string, around adapters.Middleware) (*slots, error) {
	b, err := local.NewLocal(local.LocalConfig{Path: filepath.Join(dir, "beads.db")})
	if err != nil {
		return nil, err
	}
	e, err := events.NewLocal(events.LocalConfig{Dir: filepath.Join(dir, "events"), Source: func() string { return "urn:agentbox:test" }})
	if err != nil {
		return nil, err
	}
	s, err := New(Options{Log: zerolog.New(os.Stderr).Level(zerolog.WarnLevel)})
	if err != nil {
		return nil, err
	}
	if err := errors.Join(b.Connect(ctx), e.Connect(ctx), s.Keep(ctx, filepath.Join(dir, "idempotency.db"))); err != nil {
		return nil, err
	}
	mw := adapters.Chain(s.Middleware(), around)
	return &slots{
		beads: adapters.WrapBeads(b, mw), events: adapters.WrapEvents(e, mw), stack: s,
		close: func() error { return errors.Join(b.Disconnect(ctx), e.Disconnect(ctx), s.Close()) },
	}, nil
}

func keyed(ctx context.Context, key string, r *adapters.Report) context.Context {
	return adapters.WithReport(adapters.WithMeta(ctx, adapters.Meta{Actor: "ann", IdempotencyKey: key}), r)
}

// creating makes one of everything that takes a key, each under a key of its
// own, and returns what names it and how many answers were the first ones again.
func (s *slots) creating(ctx context.Context) (names [4]string, replayed int, err error) {
	var parent string
	for i, call := range []func(context.Context) (string, error){
		func(ctx context.Context) (string, error) {
			b, err := s.beads.CreateEpic(ctx, adapters.NewBead{Title: "once"})
			parent = b.ID
			return b.ID, err
		},
		func(ctx context.Context) (string, error) {
			b, err := s.beads.CreateChild(ctx, adapters.NewBead{Title: "below", ParentID: parent})
			return b.ID, err
		},
		func(ctx context.Context) (string, error) {
			c, err := s.beads.Comment(ctx, parent, "said")
			return c.ID, err
		},
		func(ctx context.Context) (string, error) {
			r, err := s.events.Dispatch(ctx, adapters.Event{Kind: "test.once"})
			return r.ID, err
		},
	} {
		var r adapters.Report
		if names[i], err = call(keyed(ctx, fmt.Sprint("key-", i), &r)); err != nil {
			return names, replayed, err
		}
		if r.Replayed {
			replayed++
		}
	}
	return names, replayed, nil
}

// made counts what there is: beads, comments, events.
func (s *slots) made(t *testing.T) [3]int {
	t.Helper()
	list, err := s.beads.List(t.Context(), adapters.BeadFilter{})
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := s.beads.Export(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	history, err := s.events.History(t.Context(), adapters.EventFilter{}, adapters.PageOpt{})
	if err != nil {
		t.Fatal(err)
	}
	return [3]int{len(list.Items), strings.Count(out.String(), `"said"`), len(history.Items)}
}

// at stops for ever at a point of one method's call: before its effect, or
// after it and before the middleware has heard of it.
func at(point, method string) adapters.Middleware {
	return func(next adapters.Handler) adapters.Handler {
		return func(ctx context.Context, c adapters.Call) error {
			if c.Method != method {
				return next(ctx, c)
			}
			if point == "before" {
				stopHere()
			}
			err := next(ctx, c)
			if point == "after" {
				stopHere()
			}
			return err
		}
	}
}

func stopHere() {
	fmt.Println("here")
	select {}
}

// crashChild calls everything and stops where "POINT METHOD" says.
func crashChild(dir, where string) {
	point, method, _ := strings.Cut(where, " ")
	ctx := context.Background()
	s, err := openSlots(ctx, dir, at(point, method))
	if err == nil {
		_, _, err = s.creating(ctx)
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	stopHere() // all answered
}

// crash lets a child come to a point and kills it there.
func crash(t *testing.T, dir, where string) {
	t.Helper()
	child := exec.Command(os.Args[0], "-test.run=^$")
	child.Env = append(os.Environ(), crashDir+"="+dir, crashPoint+"="+where)
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	if line := bufio.NewScanner(out); !line.Scan() || line.Text() != "here" {
		t.Errorf("the child says %q", line.Text())
	}
	if err := child.Process.Kill(); err != nil {
		t.Error(err)
	}
	err = child.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("the child was not killed: %v", err)
	}
}

// TestRepeatsAfterAKillMakeNothingTwice kills the box between any two writes of
// a creating call and then makes all the calls again, twice.
func TestRepeatsAfterAKillMakeNothingTwice(t *testing.T) {
	for where, answered := range map[string]int{
		"before createEpic": 0, "after createEpic": 0, "before createChild": 1, "after createChild": 1,
		"before comment": 2, "after comment": 2, "before dispatch": 3, "after dispatch": 3, "end": 4,
	} {
		t.Run(where, func(t *testing.T) {
			dir := t.TempDir()
			crash(t, dir, where)
			s, err := openSlots(t.Context(), dir, adapters.Chain())
			if err != nil {
				t.Fatal(err)
			}
			defer s.close()
			first, replayed, err := s.creating(t.Context())
			if err != nil || replayed != answered {
				t.Fatalf("%d answers were remembered, want %d (%v)", replayed, answered, err)
			}
			again, replayed, err := s.creating(t.Context())
			if err != nil || replayed != len(again) || again != first {
				t.Errorf("%v, then %v (%v)", first, again, err)
			}
			if got := s.made(t); got != [3]int{2, 1, 1} {
				t.Errorf("%d beads, %d comments, %d events", got[0], got[1], got[2])
			}
			// The request is remembered too.
			if _, err := s.beads.CreateEpic(keyed(t.Context(), "key-0", new(adapters.Report)), adapters.NewBead{Title: "another"}); !errors.Is(err, adapters.ErrIdempotencyMismatch) {
				t.Errorf("another request: %v", err)
			}
		})
	}
}

// TestWithoutOnceThereWouldBeTwo shows that the test above can fail: a slot that
// is not told which call it is makes a second thing.
func TestWithoutOnceThereWouldBeTwo(t *testing.T) {
	nameless := func(next adapters.Handler) adapters.Handler {
		return func(ctx context.Context, c adapters.Call) error {
			m := adapters.MetaFrom(ctx)
			m.Once = ""
			return next(adapters.WithMeta(ctx, m), c)
		}
	}
	dir := t.TempDir()
	crash(t, dir, "after createEpic")
	s, err := openSlots(t.Context(), dir, nameless)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	if _, err := s.beads.CreateEpic(keyed(t.Context(), "key-0", new(adapters.Report)), adapters.NewBead{Title: "once"}); err != nil {
		t.Fatal(err)
	}
	if got := s.made(t); got[0] != 2 {
		t.Errorf("%d beads", got[0])
	}
}

// keptBeads is a fake slot behind a stack that keeps its answers in a file.
func keptBeads(t *testing.T, path string, create func(context.Context, adapters.NewBead) (adapters.Bead, error)) (*Stack, adapters.Beads) {
	t.Helper()
	s := stack(t, Options{})
	if err := s.Keep(t.Context(), path); err != nil {
		t.Fatal(err)
	}
	b := newBeads()
	b.create = create
	return s, adapters.WrapBeads(b, s.Middleware())
}

// TestKeptAnswersExpireAndFailuresAreNotKept looks at the file over restarts.
func TestKeptAnswersExpireAndFailuresAreNotKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "idempotency.db")
	n := 0
	create := func(_ context.Context, in adapters.NewBead) (adapters.Bead, error) {
		if in.Title == "fail" {
			return adapters.Bead{}, adapters.Unavailable(nil, "down")
		}
		n++
		return adapters.Bead{ID: fmt.Sprint("ab-", n)}, nil
	}
	round := func(title string) (bead adapters.Bead, replayed bool, keys int, err error) {
		s, w := keptBeads(t, path, create)
		defer s.Close()
		var r adapters.Report
		bead, err = w.CreateEpic(keyed(t.Context(), "k-"+title, &r), adapters.NewBead{Title: title})
		return bead, r.Replayed, len(s.replays.byKey), err
	}
	first, _, _, err := round("a")
	if err != nil {
		t.Fatal(err)
	}
	if again, replayed, keys, err := round("a"); err != nil || !replayed || again.ID != first.ID || keys != 1 {
		t.Errorf("%+v %v %d %v", again, replayed, keys, err)
	}
	if _, _, keys, err := round("fail"); !errors.Is(err, adapters.ErrUnavailable) || keys != 1 {
		t.Errorf("a failure: %d keys, %v", keys, err)
	}
	s, _ := keptBeads(t, path, create)
	if len(s.replays.byKey) != 1 {
		t.Errorf("%d keys in the file: a failure is there", len(s.replays.byKey))
	}
	old := time.Now().Add(-adapters.IdempotencyLife).UnixMilli()
	err = s.replays.keep.db.Write(t.Context(), func(tx *sql.Tx) error {
		_, err := tx.ExecContext(t.Context(), "UPDATE answers SET at = ?", old)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if late, replayed, keys, err := round("a"); err != nil || replayed || late.ID == first.ID || keys != 1 {
		t.Errorf("after 24 h: %+v %v %d %v", late, replayed, keys, err)
	}
}

// TestExpiredAnswersLeaveTheFile: a repeated call between does not keep the expired ones there.
func TestExpiredAnswersLeaveTheFile(t *testing.T) {
	s, w := keptBeads(t, filepath.Join(t.TempDir(), "idempotency.db"), func(_ context.Context, in adapters.NewBead) (adapters.Bead, error) {
		return adapters.Bead{ID: "ab-" + in.Title}, nil
	})
	defer s.Close()
	for i, title := range []string{"old", "new", "new", "newer"} {
		if _, err := w.CreateEpic(keyed(t.Context(), title, new(adapters.Report)), adapters.NewBead{Title: title}); err != nil {
			t.Fatal(err)
		}
		if i == 1 {
			s.replays.order.Front().Value.(*replay).at = time.Now().Add(-adapters.IdempotencyLife)
		}
	}
	var rows int
	if err := s.replays.keep.db.Read(t.Context(), func(tx *sql.Tx) error {
		return tx.QueryRowContext(t.Context(), "SELECT count(*) FROM answers").Scan(&rows)
	}); err != nil || rows != 2 {
		t.Errorf("%d answers in the file, %v", rows, err)
	}
}

// TestKeptAnswersAreBounded: what is dropped from memory is dropped from the
// file, and the answers are in the file alone.
func TestKeptAnswersAreBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "idempotency.db")
	big := make([]string, 1)
	big[0] = strings.Repeat("x", 8<<20)
	s, w := keptBeads(t, path, func(_ context.Context, in adapters.NewBead) (adapters.Bead, error) {
		return adapters.Bead{ID: "ab-" + in.Title, Tags: big}, nil
	})
	defer s.Close()
	for i := range 6 {
		if _, err := w.CreateEpic(keyed(t.Context(), fmt.Sprint(i), new(adapters.Report)), adapters.NewBead{Title: fmt.Sprint(i)}); err != nil {
			t.Fatal(err)
		}
	}
	for e := s.replays.order.Front(); e != nil; e = e.Next() {
		if e.Value.(*replay).answer != nil {
			t.Error("an answer is in memory too")
		}
	}
	k, _, old, err := openKeeper(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer k.db.Close()
	size := 0
	for _, one := range old {
		size += one.size
	}
	if len(old) != 3 || size > maxReplayed {
		t.Errorf("%d answers of %d bytes in the file", len(old), size)
	}
}

// TestRowsOfOthersAreBounded: of a file into which another program wrote too many rows, the newest
// are read.
func TestRowsOfOthersAreBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "idempotency.db")
	k, _, _, err := openKeeper(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	err = k.db.Write(t.Context(), func(tx *sql.Tx) error {
		_, err := tx.ExecContext(t.Context(), `WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i <= ?1)
			INSERT INTO answers(no, key, request, at) SELECT i, randomblob(CASE i WHEN 7 + ?1 / 2 THEN 31 ELSE 32 END), zeroblob(32), ?2 FROM n`,
			maxReplays+10, time.Now().UnixMilli())
		return err
	})
	if err := errors.Join(err, k.db.Close()); err != nil {
		t.Fatal(err)
	}
	k, _, old, err := openKeeper(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer k.db.Close()
	if len(old) != maxReplays-1 { // one of the newest has a key of another length
		t.Errorf("%d rows were read", len(old))
	}
}

// TestWhereNothingCanBeKept: the error is typed, the file is left alone, keys
// work in memory.
func TestWhereNothingCanBeKept(t *testing.T) {
	dir := t.TempDir()
	broken := filepath.Join(dir, "broken.db")
	if err := os.WriteFile(broken, []byte(strings.Repeat("no database ", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(broken)
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{broken, filepath.Join(broken, "below", "a.db")} {
		s := stack(t, Options{})
		if err := s.Keep(t.Context(), path); !errors.Is(err, adapters.ErrUnavailable) {
			t.Errorf("%s: %v", path, err)
		}
		b := newBeads()
		b.create = func(context.Context, adapters.NewBead) (adapters.Bead, error) { return adapters.Bead{ID: "ab-1"}, nil }
		var r adapters.Report
		for range 2 {
			if _, err := adapters.WrapBeads(b, s.Middleware()).CreateEpic(keyed(t.Context(), "k", &r), adapters.NewBead{Title: "x"}); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Close(); err != nil || !r.Replayed {
			t.Errorf("in memory: %v, replayed %v", err, r.Replayed)
		}
	}
	if after, err := os.ReadFile(broken); err != nil || string(after) != string(before) {
		t.Errorf("the file was changed (%v)", err)
	}
}

// TestTheFileFailsMeanwhile: before the call that is a refusal, after it the
// answer is remembered in memory.
func TestTheFileFailsMeanwhile(t *testing.T) {
	s, _ := keptBeads(t, filepath.Join(t.TempDir(), "idempotency.db"), nil)
	calls := 0
	fail := func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	b := newBeads()
	b.create = func(context.Context, adapters.NewBead) (adapters.Bead, error) {
		calls++
		fail()
		return adapters.Bead{ID: "ab-1"}, nil
	}
	w := adapters.WrapBeads(b, s.Middleware())
	var r adapters.Report
	for range 2 {
		if _, err := w.CreateEpic(keyed(t.Context(), "k", &r), adapters.NewBead{Title: "x"}); err != nil {
			t.Fatal(err)
		}
	}
	if calls != 1 || !r.Replayed {
		t.Errorf("%d calls, replayed %v", calls, r.Replayed)
	}
	if _, err := w.CreateEpic(keyed(t.Context(), "next", &r), adapters.NewBead{Title: "x"}); !errors.Is(err, adapters.ErrUnavailable) || calls != 1 {
		t.Errorf("a call that could not be remembered: %v, %d calls", err, calls)
	}
	if len(s.replays.byKey) != 1 {
		t.Errorf("%d keys", len(s.replays.byKey))
	}
}
