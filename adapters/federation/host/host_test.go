package host

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/federation"
	"github.com/dreamlab-ai/agentinit/internal/foreign"
	"github.com/dreamlab-ai/agentinit/internal/slowcall"
)

// onBoth runs a test with each kind of registry. open opens another host on the same registry.
func onBoth(t *testing.T, test func(t *testing.T, open func(*testing.T) *Host)) {
	endpoints := func() federation.Endpoints {
		return federation.Endpoints{Beads: federation.Endpoint{URL: "http://host:9090"}}
	}
	start := func(t *testing.T, cfg Config) *Host {
		t.Helper()
		cfg.Endpoints = endpoints
		h, err := Open(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := h.Close(); err != nil {
				t.Error(err)
			}
		})
		return h
	}
	t.Run("sqlite", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "federation.db")
		test(t, func(t *testing.T) *Host { return start(t, Config{File: file}) })
	})
	t.Run("postgres", func(t *testing.T) {
		database := emptyDatabase(t)
		test(t, func(t *testing.T) *Host { return start(t, Config{Server: NewServer(database)}) })
	})
}

// A program can write the home directory of agentinit. What it puts there must not keep a registry from opening.
func TestHomeOfRegistry(t *testing.T) {
	home := t.TempDir()
	if err := foreign.HostileHome(home); err != nil {
		t.Fatal(err)
	}
	t.Setenv("HOME", home)
	for _, text := range []string{"host=127.0.0.1 sslmode=verify-full", "postgres://127.0.0.1/x?sslmode=verify-full"} {
		if _, err := NewServer(text).Wait(t.Context()); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// A file that the connection string names does not answer. An attempt to open the registry ends with its
// context, the next one does not read the file too, and one works when the file answers.
func TestFileOfRegistryDoesNotAnswer(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "root.pem")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	begun := make(chan bool, 2)
	cfg := Config{Server: slowcall.New(func() (*pgx.ConnConfig, error) {
		begun <- true
		return pgx.ParseConfig("host=127.0.0.1 sslmode=verify-full sslrootcert=" + fifo)
	})}
	ctx, end := context.WithCancel(t.Context())
	go func() {
		<-begun
		end()
	}()
	for range 2 {
		if _, err := Open(ctx, cfg); adapters.CodeOf(err) != adapters.CodeUnavailable || !strings.Contains(err.Error(), "does not answer") {
			t.Errorf("while the file does not answer: %v", err)
		}
	}
	if len(begun) > 0 {
		t.Error("the file is read again while it does not answer")
	}
	w, err := os.OpenFile(fifo, os.O_WRONLY, 0) // waits for the reader
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), cfg); adapters.CodeOf(err) == adapters.CodeUnavailable || !strings.Contains(err.Error(), "is no PostgreSQL connection string") {
		t.Errorf("when the file is read: %v", err)
	}
}

func box(id, boot string) federation.Registration {
	return federation.Registration{BoxID: id, BootID: boot, Nonce: "n-" + boot, Adapters: map[string]federation.AdapterReport{
		"beads": {Impl: "external", ContractVersion: "1.1"},
	}}
}

func register(t *testing.T, h *Host, id, boot string) federation.Grant {
	t.Helper()
	g, err := h.Register(t.Context(), "member token", box(id, boot))
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func beat(t *testing.T, h *Host, id string, g federation.Grant) *federation.Eviction {
	t.Helper()
	answer, gone, err := h.Heartbeat(t.Context(), id, federation.Beat{SessionID: g.SessionID, Seq: 1, Status: "ok"})
	if err != nil {
		t.Fatal(err)
	}
	if gone == nil && answer.Endpoints.Beads.URL != "http://host:9090" {
		t.Errorf("%+v", answer)
	}
	return gone
}

// Two hosts on one registry act as one. The second host also stands for the first host after a
// restart.
func TestSession(t *testing.T) {
	onBoth(t, func(t *testing.T, open func(*testing.T) *Host) {
		a, b := open(t), open(t)
		g := register(t, a, "box-1", "boot-1")
		if g.Nonce != "n-boot-1" || g.HeartbeatIntervalS != 30 || g.ContractRanges["beads"] != "^1" || len(g.Token) != 64 {
			t.Errorf("%+v", g)
		}
		for _, h := range []*Host{a, b} {
			if m, err := h.ByToken(t.Context(), g.Token); err != nil || m != (Member{Box: "box-1"}) {
				t.Errorf("the token is %v's, %v", m, err)
			}
			if gone := beat(t, h, "box-1", g); gone != nil {
				t.Errorf("%+v", gone)
			}
		}
		if _, err := a.ByToken(t.Context(), "another"); !errors.Is(err, adapters.ErrNotFound) {
			t.Errorf("an unknown token: %v", err)
		}
		if _, gone, err := a.Heartbeat(t.Context(), "box-2", federation.Beat{SessionID: g.SessionID}); err != nil || gone == nil {
			t.Errorf("another box's heartbeat: %v %v", gone, err)
		}
		next := register(t, b, "box-1", "boot-2")
		a.forget("box-1") // as one second later
		if gone := beat(t, a, "box-1", g); gone == nil || gone.Permanent {
			t.Errorf("the replaced session: %+v", gone)
		}
		if gone := beat(t, a, "box-1", next); gone != nil {
			t.Errorf("%+v", gone)
		}
		if err := a.Deregister(t.Context(), "box-1", federation.Farewell{SessionID: next.SessionID}); err != nil {
			t.Fatal(err)
		}
		if boxes, err := b.Boxes(t.Context(), "", 100); err != nil || len(boxes) != 0 {
			t.Errorf("%v %v", boxes, err)
		}
		register(t, a, "box-3", "boot-1")
		for id, want := range map[string]bool{"box-1": false, "box-3": true} {
			if known, err := b.Known(t.Context(), id); err != nil || known != want {
				t.Errorf("%s is known %v, %v", id, known, err)
			}
		}
	})
}

// Whoever may register can fill the registry, so a host reads one page of it at a time.
func TestBoxesInPages(t *testing.T) {
	onBoth(t, func(t *testing.T, open func(*testing.T) *Host) {
		h := open(t)
		for _, box := range []string{"box-2", "box-1", "box-3"} {
			register(t, h, box, "boot-1")
		}
		first, err := h.Boxes(t.Context(), "", 2)
		if err != nil || len(first) != 2 || first[0].Box != "box-1" || first[1].Box != "box-2" {
			t.Fatalf("%+v %v", first, err)
		}
		if rest, err := h.Boxes(t.Context(), "box-2", 2); err != nil || len(rest) != 1 || rest[0].Box != "box-3" {
			t.Errorf("%+v %v", rest, err)
		}
	})
}

func TestEviction(t *testing.T) {
	onBoth(t, func(t *testing.T, open func(*testing.T) *Host) {
		a, b := open(t), open(t)
		g := register(t, a, "box-1", "boot-1")
		if err := b.Evict(t.Context(), "box-1", "maintenance", false, 9*time.Second); err != nil {
			t.Fatal(err)
		}
		if gone := beat(t, a, "box-1", g); gone == nil || *gone != (federation.Eviction{Reason: "maintenance", RetryAfterS: 9}) {
			t.Errorf("%+v", gone)
		}
		if m, err := b.ByToken(t.Context(), g.Token); err != nil || !m.Ended {
			t.Errorf("%+v %v", m, err)
		}
		if boxes, err := a.Boxes(t.Context(), "", 100); err != nil || len(boxes) != 1 || boxes[0].State != "evicted" || boxes[0].Registration.BootID != "boot-1" {
			t.Errorf("%+v %v", boxes, err)
		}
		if n, err := a.Count(t.Context()); err != nil || n["evicted"] != 1 || n["active"] != 0 {
			t.Errorf("%v %v", n, err)
		}
		g = register(t, a, "box-1", "boot-1")
		if err := b.Evict(t.Context(), "box-1", "bad", true, 0); err != nil {
			t.Fatal(err)
		}
		if gone := beat(t, a, "box-1", g); gone == nil || !gone.Permanent {
			t.Errorf("%+v", gone)
		}
		if _, err := a.Register(t.Context(), "member token", box("box-1", "boot-3")); !errors.Is(err, adapters.ErrPermissionDenied) || !strings.Contains(err.Error(), "bad") {
			t.Errorf("a banned box: %v", err)
		}
		if err := b.Admit(t.Context(), "box-1"); err != nil {
			t.Fatal(err)
		}
		register(t, a, "box-1", "boot-4")
		if err := a.Evict(t.Context(), "", "", true, 0); !errors.Is(err, adapters.ErrValidation) {
			t.Errorf("a box without a name: %v", err)
		}
		if err := a.Evict(t.Context(), "nobody", "", false, 0); !errors.Is(err, adapters.ErrNotFound) {
			t.Errorf("%v", err)
		}
	})
}

func TestRefusedRegistrations(t *testing.T) {
	h, err := Open(t.Context(), Config{File: filepath.Join(t.TempDir(), "f.db"), Endpoints: func() federation.Endpoints { return federation.Endpoints{} }})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	register(t, h, "box-1", "boot-1")
	old := box("box-2", "boot-1")
	old.Adapters["beads"] = federation.AdapterReport{Impl: "external", ContractVersion: "2.0"}
	local := box("box-3", "boot-1")
	local.Adapters["beads"] = federation.AdapterReport{Impl: "local-sqlite", ContractVersion: "2.0"}
	at := func(meta string) federation.Registration {
		r := box("box-4", "boot-1")
		r.MetaURL = meta
		return r
	}
	for name, c := range map[string]struct {
		principal string
		r         federation.Registration
		want      error
		text      string
	}{
		"another's box":    {"member other", box("box-1", "b"), adapters.ErrPermissionDenied, "another principal"},
		"no id":            {"p", box("", "b"), adapters.ErrValidation, "box_id"},
		"id with a slash":  {"p", box("a/b", "b"), adapters.ErrValidation, "box_id"},
		"another MAJOR":    {"p", old, adapters.ErrContractMismatch, "2.0, wanted 1"},
		"a slot of itself": {"p", local, nil, ""},
		"a meta_url":       {"p", at("https://[fd00::1]:9090/v1/meta"), nil, ""},
		"no meta_url":      {"p", at(""), nil, ""},
		"no URL":           {"p", at("box:\x1b[2J"), adapters.ErrValidation, "meta_url"},
		"a path":           {"p", at("/v1/meta"), adapters.ErrValidation, "meta_url"},
		"another scheme":   {"p", at("file:///etc/passwd"), adapters.ErrValidation, "meta_url"},
		"no host name":     {"p", at("http://:9090/v1/meta"), adapters.ErrValidation, "meta_url"},
		"a password":       {"p", at("http://me:secret@box/v1/meta"), adapters.ErrValidation, "meta_url"},
	} {
		_, err := h.Register(t.Context(), c.principal, c.r)
		if !errors.Is(err, c.want) || err != nil && !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Of several principals that register a new box id at once, one gets it.
func TestOnePrincipalGetsABox(t *testing.T) {
	onBoth(t, func(t *testing.T, open func(*testing.T) *Host) {
		hosts := []*Host{open(t), open(t)}
		var got atomic.Int32
		var all sync.WaitGroup
		for i := range 16 {
			all.Go(func() {
				if _, err := hosts[i%2].Register(t.Context(), fmt.Sprint("member ", i), box("box-1", "boot-1")); err == nil {
					got.Add(1)
				}
			})
		}
		all.Wait()
		if got.Load() != 1 {
			t.Errorf("%d principals have registered the box", got.Load())
		}
	})
}

// Many boxes register at once with two hosts, and one host closes meanwhile. No registration is
// lost.
func TestHerd(t *testing.T) {
	onBoth(t, func(t *testing.T, open func(*testing.T) *Host) {
		a, b := open(t), open(t)
		const boxes = 200
		var all sync.WaitGroup
		grants := make([]federation.Grant, boxes)
		for i := range boxes {
			h := []*Host{a, b}[i%2]
			all.Go(func() {
				for {
					g, err := h.Register(t.Context(), "member token", box(adapters.NewID(), "boot"))
					if err == nil {
						grants[i] = g
						return
					}
					if !errors.Is(err, adapters.ErrUnavailable) {
						t.Error(err)
						return
					}
				}
			})
		}
		all.Wait()
		known := map[string]string{}
		list, err := b.Boxes(context.WithoutCancel(t.Context()), "", 1000)
		if err != nil {
			t.Fatal(err)
		}
		for _, one := range list {
			known[one.Session] = one.Box
		}
		for _, g := range grants {
			if known[g.SessionID] == "" {
				t.Errorf("session %s is lost", g.SessionID)
			}
		}
	})
}

func TestSweep(t *testing.T) {
	now := time.Now()
	h, err := Open(t.Context(), Config{File: filepath.Join(t.TempDir(), "f.db"), Now: func() time.Time { return now }, Endpoints: func() federation.Endpoints { return federation.Endpoints{} }})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	register(t, h, "box-1", "boot-1")
	for _, c := range []struct {
		later time.Duration
		left  int
		state string
	}{{time.Minute, 1, "active"}, {time.Hour, 1, "silent"}, {24 * time.Hour, 0, ""}} {
		now = now.Add(c.later)
		if err := h.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
		boxes, err := h.Boxes(t.Context(), "", 100)
		if err != nil || len(boxes) != c.left || c.left > 0 && boxes[0].State != c.state {
			t.Errorf("after %v: %+v %v", c.later, boxes, err)
		}
		if n, err := h.Count(t.Context()); err != nil || n["active"]+n["silent"]+n["evicted"] != c.left || c.left > 0 && n[c.state] != 1 {
			t.Errorf("after %v: %v %v", c.later, n, err)
		}
	}
}

// Heartbeats of a recently confirmed session are written together, a short time later. A host that
// closes in an orderly way writes all of them.
func TestHeartbeatsAreWrittenTogether(t *testing.T) {
	onBoth(t, func(t *testing.T, open func(*testing.T) *Host) {
		a, b := open(t), open(t)
		g := register(t, a, "box-1", "boot-1")
		noted := func() int {
			a.mu.Lock()
			defer a.mu.Unlock()
			return len(a.beats)
		}
		status := func(h *Host) string {
			boxes, err := h.Boxes(t.Context(), "", 100)
			if err != nil || len(boxes) != 1 {
				t.Fatalf("%v %v", boxes, err)
			}
			return boxes[0].Beat.Status
		}
		a.stop() // stops the regular writes
		a.writing.Wait()
		if beat(t, a, "box-1", g); noted() != 0 || status(b) != "ok" {
			t.Errorf("the heartbeat of a session that was not confirmed by the registry waits: %d, %q", noted(), status(b))
		}
		if _, err := a.ByToken(t.Context(), g.Token); err != nil {
			t.Fatal(err)
		}
		if _, gone, err := a.Heartbeat(t.Context(), "box-1", federation.Beat{SessionID: g.SessionID, Seq: 2, Status: "degraded"}); gone != nil || err != nil {
			t.Fatalf("%v %v", gone, err)
		}
		if noted() != 1 || status(b) != "ok" {
			t.Errorf("%d wait, and the other host reads %q", noted(), status(b))
		}
		if got := status(a); got != "degraded" || noted() != 0 || status(b) != "degraded" {
			t.Errorf("the list of the host that heard it has %q, %d wait", got, noted())
		}
		// Heartbeats of another box or of an ended session always ask the registry.
		if _, gone, err := a.Heartbeat(t.Context(), "box-2", federation.Beat{SessionID: g.SessionID}); gone == nil || err != nil {
			t.Errorf("another box: %v %v", gone, err)
		}
		if err := a.Evict(t.Context(), "box-1", "maintenance", false, 0); err != nil {
			t.Fatal(err)
		}
		if gone := beat(t, a, "box-1", g); gone == nil {
			t.Error("an evicted box is not told")
		}
		if _, err := a.ByToken(t.Context(), g.Token); err != nil {
			t.Fatal(err)
		}
		if gone := beat(t, a, "box-1", g); gone == nil || noted() != 0 {
			t.Error("an evicted box is not told once its token was looked up")
		}
	})
}

// If the registry cannot be written for a while, the newest heartbeat of each box is written later.
// Trouble is called once.
func TestHeartbeatsOutliveATrouble(t *testing.T) {
	told := make(chan error, 10)
	h, err := Open(t.Context(), Config{
		File: filepath.Join(t.TempDir(), "f.db"), Trouble: func(err error) { told <- err },
		Endpoints: func() federation.Endpoints { return federation.Endpoints{} },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	g := register(t, h, "box-1", "boot-1")
	h.stop()
	h.writing.Wait()
	works := h.store
	h.store = broken{works}
	for seq := range uint64(3) {
		if _, err := h.ByToken(t.Context(), g.Token); err != nil {
			t.Fatal(err)
		}
		if _, gone, err := h.Heartbeat(t.Context(), "box-1", federation.Beat{SessionID: g.SessionID, Seq: seq}); gone != nil || err != nil {
			t.Fatalf("%v %v", gone, err)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		h.keepWriting(ended)
	}
	if len(told) != 1 {
		t.Errorf("told %d times", len(told))
	}
	h.store = works
	if boxes, err := h.Boxes(t.Context(), "", 100); err != nil || len(boxes) != 1 || boxes[0].Beat.Seq != 2 {
		t.Errorf("%+v %v", boxes, err)
	}
}

// A heartbeat with a lower number than one before is late, or of a box that runs from an earlier state. It
// replaces no later one, on any host, and its box is told to register anew. The same number again is a
// repetition on the way.
func TestNumberOfAHeartbeatGoesBack(t *testing.T) {
	onBoth(t, func(t *testing.T, open func(*testing.T) *Host) {
		a, b := open(t), open(t)
		for _, h := range []*Host{a, b} { // no regular writes
			h.stop()
			h.writing.Wait()
		}
		g := register(t, a, "box-1", "boot-1")
		send := func(h *Host, seq uint64) (outdated bool) {
			_, gone, err := h.Heartbeat(t.Context(), "box-1", federation.Beat{SessionID: g.SessionID, Seq: seq})
			if err != nil || gone != nil && (gone.Permanent || !strings.Contains(gone.Reason, "the seq of the heartbeat is lower")) {
				t.Errorf("heartbeat %d: %+v %v", seq, gone, err)
			}
			return gone != nil
		}
		seen := func(h *Host) BoxStatus {
			boxes, err := h.Boxes(t.Context(), "", 100)
			if err != nil || len(boxes) != 1 {
				t.Fatalf("%v %v", boxes, err)
			}
			return boxes[0]
		}
		confirm := func(h *Host) {
			if _, err := h.ByToken(t.Context(), g.Token); err != nil {
				t.Fatal(err)
			}
		}
		// The hosts ask the registry about each heartbeat.
		if send(a, 5) || send(b, 6) || !send(a, 5) || send(a, 6) || !send(b, 0) {
			t.Error("the registry takes a lower number, or refuses the same")
		}
		// A host that the registry has confirmed the session to.
		confirm(a)
		if !send(a, 5) || send(a, 6) || send(a, 8) || !send(a, 7) {
			t.Error("a host takes a lower number from memory, or refuses the same")
		}
		a.mu.Lock()
		a.tokens[hash(g.Token)].asked = time.Time{} // as some seconds later
		a.mu.Unlock()
		confirm(a)
		if !send(a, 7) {
			t.Error("a host forgets the number of a heartbeat that is not written yet")
		}
		// Another host has written a later one meanwhile.
		if send(b, 9) || seen(a).Beat.Seq != 9 || seen(b).Beat.Seq != 9 || seen(b).State != "active" {
			t.Errorf("%+v", seen(b))
		}
		// The session is not over: a late heartbeat has no effect on it.
		if send(b, 10) || send(a, math.MaxInt64) {
			t.Error("the session has ended")
		}
		if _, _, err := a.Heartbeat(t.Context(), "box-1", federation.Beat{SessionID: g.SessionID, Seq: math.MaxInt64 + 1}); !errors.Is(err, adapters.ErrValidation) {
			t.Errorf("a number that the registry cannot store: %v", err)
		}
		g = register(t, b, "box-1", "boot-2")
		if send(a, 1) {
			t.Error("a new session does not begin with its own numbers")
		}
	})
}

// broken is a store that refuses all changes.
type broken struct{ store }

func (broken) write(context.Context, func(tx) error) error {
	return adapters.Errorf(adapters.CodeUnavailable, "the disk is full")
}

// A limited number of boxes registers at the same time, and a few more wait for their turn. All
// others are told at once to come back, each at another time.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(Config{})
		h.pace.each = 0.1
		for range maxRegistering {
			if err := h.enter(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		begun := time.Now()
		waited := make(chan error, maxWaiting)
		for range maxWaiting {
			go func() { waited <- h.enter(t.Context()) }()
		}
		synctest.Wait()
		later, last := map[time.Duration]bool{}, time.Duration(0)
		for range 100 {
			err := h.enter(t.Context())
			e, ok := errors.AsType[*adapters.Error](err)
			if !ok || e.Code != adapters.CodeUnavailable || e.RetryAfter() < max(time.Second, last) || e.RetryAfter() > 15*time.Second {
				t.Fatalf("%v", err)
			}
			last = e.RetryAfter()
			later[last] = true
		}
		if time.Since(begun) != 0 || len(later) < 10 {
			t.Errorf("told after %s to come back at %d different times", time.Since(begun), len(later))
		}
		<-h.gate // one registration is finished
		if err := <-waited; err != nil {
			t.Errorf("the one whose turn it is: %v", err)
		}
		for range maxWaiting - 1 {
			if err := <-waited; !errors.Is(err, adapters.ErrUnavailable) {
				t.Errorf("one that had no turn: %v", err)
			}
		}
		if time.Since(begun) != patience || len(h.queue) != 0 {
			t.Errorf("after %s, %d wait", time.Since(begun), len(h.queue))
		}
	})
}

// If the registry cannot be read, the error must not say that the token is unknown.
func TestTokenWhileTheRegistryIsAway(t *testing.T) {
	h, err := Open(t.Context(), Config{File: filepath.Join(t.TempDir(), "f.db"), Endpoints: func() federation.Endpoints { return federation.Endpoints{} }})
	if err != nil {
		t.Fatal(err)
	}
	g := register(t, h, "box-1", "boot-1")
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	if m, err := h.ByToken(t.Context(), g.Token); !errors.Is(err, adapters.ErrUnavailable) {
		t.Errorf("%+v %v", m, err)
	}
}

// A member cannot fill the disk, or the memory of a client that lists the boxes.
func TestRegistryIsBounded(t *testing.T) {
	onBoth(t, func(t *testing.T, open func(*testing.T) *Host) {
		h := open(t)
		big := box("box-1", "boot-1")
		big.Version = strings.Repeat("x", maxKept)
		if _, err := h.Register(t.Context(), "member token", big); adapters.CodeOf(err) != adapters.CodeValidation {
			t.Errorf("a registration of %d bytes: %v", maxKept, err)
		}
		g := register(t, h, "box-1", "boot-1")
		if _, _, err := h.Heartbeat(t.Context(), "box-1", federation.Beat{SessionID: g.SessionID, Status: strings.Repeat("x", maxKept)}); adapters.CodeOf(err) != adapters.CodeValidation {
			t.Errorf("a heartbeat of %d bytes: %v", maxKept, err)
		}
		if n := h.members.Load(); n != 1 {
			t.Errorf("%d boxes are counted", n)
		}
		h.members.Store(maxBoxes)
		_, err := h.Register(t.Context(), "member token", box("box-2", "boot-1"))
		if e, ok := errors.AsType[*adapters.Error](err); !ok || e.Code != adapters.CodeUnavailable || e.RetryAfter() != maxPause {
			t.Errorf("one box more than the registry takes: %v", err)
		}
		g = register(t, h, "box-1", "boot-2") // the registry knows this box
		if gone := beat(t, h, "box-1", g); gone != nil {
			t.Errorf("%+v", gone)
		}
		if err := h.count(t.Context()); err != nil || h.members.Load() != 1 {
			t.Errorf("%d boxes are counted: %v", h.members.Load(), err)
		}
		register(t, h, "box-2", "boot-1")
		if again := open(t); again.members.Load() != 2 {
			t.Errorf("a host that opens the registry counts %d boxes", again.members.Load())
		}
	})
}

// A string that cannot be a token is refused without asking the registry.
func TestNoTokenAtAll(t *testing.T) {
	h := newHost(Config{Now: time.Now}) // without a registry
	for _, token := range []string{"", "x", strings.Repeat("a", tokenSize-1), strings.Repeat("a", 1<<20)} {
		if _, err := h.ByToken(t.Context(), token); !errors.Is(err, adapters.ErrNotFound) {
			t.Errorf("%.20q: %v", token, err)
		}
	}
}
