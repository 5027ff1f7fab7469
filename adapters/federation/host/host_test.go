package host

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/federation"
	"github.com/dreamlab-ai/agentinit/internal/foreign"
)

// onBoth runs a test over each kind of registry. open opens another host of the
// same one.
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
		s, err := foreign.PostgreSQL(t.Context())
		var missing *foreign.MissingError
		if errors.As(err, &missing) {
			t.Skip(err)
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Stop)
		test(t, func(t *testing.T) *Host { return start(t, Config{Conninfo: s.Address}) })
	})
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

// Two hosts over one registry act as one; the second is also what the first is
// after a restart.
func TestSession(t *testing.T) {
	onBoth(t, func(t *testing.T, open func(*testing.T) *Host) {
		a, b := open(t), open(t)
		g := register(t, a, "box-1", "boot-1")
		if g.Nonce != "n-boot-1" || g.HeartbeatIntervalS != 30 || g.ContractRanges["beads"] != "^1" || len(g.Token) != 64 {
			t.Errorf("%+v", g)
		}
		for _, h := range []*Host{a, b} {
			if m, ok := h.ByToken(t.Context(), g.Token); !ok || m != (Member{Box: "box-1"}) {
				t.Errorf("the token is %v's, %v", m, ok)
			}
			if gone := beat(t, h, "box-1", g); gone != nil {
				t.Errorf("%+v", gone)
			}
		}
		if _, ok := a.ByToken(t.Context(), "another"); ok {
			t.Error("an unknown token is somebody's")
		}
		if _, gone, err := a.Heartbeat(t.Context(), "box-2", federation.Beat{SessionID: g.SessionID}); err != nil || gone == nil {
			t.Errorf("another box's heartbeat: %v %v", gone, err)
		}
		next := register(t, b, "box-1", "boot-2")
		if gone := beat(t, a, "box-1", g); gone == nil || gone.Permanent {
			t.Errorf("the replaced session: %+v", gone)
		}
		if gone := beat(t, a, "box-1", next); gone != nil {
			t.Errorf("%+v", gone)
		}
		if err := a.Deregister(t.Context(), "box-1", federation.Farewell{SessionID: next.SessionID}); err != nil {
			t.Fatal(err)
		}
		if boxes, err := b.Boxes(t.Context()); err != nil || len(boxes) != 0 {
			t.Errorf("%v %v", boxes, err)
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
		if m, ok := b.ByToken(t.Context(), g.Token); !ok || !m.Ended {
			t.Errorf("%+v %v", m, ok)
		}
		if boxes, err := a.Boxes(t.Context()); err != nil || len(boxes) != 1 || boxes[0].State != "evicted" || boxes[0].Registration.BootID != "boot-1" {
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
	} {
		_, err := h.Register(t.Context(), c.principal, c.r)
		if !errors.Is(err, c.want) || err != nil && !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A herd: all at once, none lost; two hosts, one of which is closed meanwhile.
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
		list, err := b.Boxes(context.WithoutCancel(t.Context()))
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
		boxes, err := h.Boxes(t.Context())
		if err != nil || len(boxes) != c.left || c.left > 0 && boxes[0].State != c.state {
			t.Errorf("after %v: %+v %v", c.later, boxes, err)
		}
		if n, err := h.Count(t.Context()); err != nil || n["active"]+n["silent"]+n["evicted"] != c.left || c.left > 0 && n[c.state] != 1 {
			t.Errorf("after %v: %v %v", c.later, n, err)
		}
	}
}

// A registry that cannot be asked is not one that does not know the token.
func TestTokenWhileTheRegistryIsAway(t *testing.T) {
	h, err := Open(t.Context(), Config{File: filepath.Join(t.TempDir(), "f.db"), Endpoints: func() federation.Endpoints { return federation.Endpoints{} }})
	if err != nil {
		t.Fatal(err)
	}
	g := register(t, h, "box-1", "boot-1")
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	if m, ok := h.ByToken(t.Context(), g.Token); !ok || m != (Member{Unknown: true}) {
		t.Errorf("%+v %v", m, ok)
	}
}
