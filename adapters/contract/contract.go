// Package contract owns one suite of tests per slot, run by every class of it:
// local, external against a real server, and off.
//
// A suite takes a factory that makes a fresh, unconnected adapter over an
// empty store, and reaches it only through its wrapped slot, as all consumers
// do. It must never know which class it is looking at: what a class may leave
// out it says by Enabled and Capabilities. A slot's package runs it from a
// test of its own:
//
//	contract.Beads(t, func(t testing.TB) adapters.Beads { … })
package contract

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// wait bounds whatever a suite waits for: long enough for a loaded machine,
// short enough to name the hanging case.
const wait = 60 * time.Second

// connect connects a and disconnects it with the test.
func connect(t *testing.T, a adapters.Adapter) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	t.Cleanup(cancel)
	if err := a.Connect(ctx); err != nil {
		t.Fatalf("connect: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), wait)
		defer cancel()
		if err := a.Disconnect(ctx); err != nil {
			t.Errorf("disconnect: %v", err)
		}
	})
	return ctx
}

// want fails unless err is of the given code.
func want(t *testing.T, what string, err error, code adapters.Code) *adapters.Error {
	t.Helper()
	if err == nil {
		t.Fatalf("%s: no error, want %s", what, code)
	}
	var e *adapters.Error
	if !errors.As(err, &e) {
		t.Fatalf("%s: an untyped error %v", what, err)
	}
	if e.Code != code {
		t.Fatalf("%s: %v, want %s", what, err, code)
	}
	if e.Slot == "" || e.Method == "" {
		t.Errorf("%s: the error does not say where: %+v", what, e)
	}
	return e
}

func ok[T any](t *testing.T, what string) func(T, error) T {
	t.Helper()
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		return v
	}
}

// describe checks what every adapter says of itself.
func describe(t *testing.T, a adapters.Adapter, slot adapters.Slot) {
	t.Helper()
	c, _ := adapters.ContractOf(slot)
	if a.Slot() != slot {
		t.Errorf("slot %q, want %q", a.Slot(), slot)
	}
	if !slices.Contains(append(c.Impls, "off"), a.Impl()) {
		t.Errorf("impl %q is not a word of the manifest", a.Impl())
	}
	if a.Enabled() != (a.Class() != adapters.ClassOff) {
		t.Errorf("class %s, enabled %v", a.Class(), a.Enabled())
	}
	if err := adapters.CheckVersion(slot, c.Version, a.ContractVersion(), false); err != nil {
		t.Error(err)
	}
	if caps := a.Capabilities(); caps == nil || !slices.IsSorted(caps) {
		t.Errorf("capabilities %v", caps)
	}
}

// life checks that connecting and disconnecting are idempotent, that they may
// meet calls, and that a call outside of them is UNAVAILABLE. call makes one
// read through the wrapped slot.
func life(t *testing.T, a adapters.Adapter, call func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	if a.Class() == adapters.ClassOff {
		want(t, "call on off", call(ctx), adapters.CodeDisabled)
		return
	}
	want(t, "call before connect", call(ctx), adapters.CodeUnavailable)
	for range 2 {
		if err := a.Connect(ctx); err != nil {
			t.Fatalf("connect: %v", err)
		}
	}
	if h := a.Health(ctx); h.State != adapters.StateHealthy {
		t.Errorf("health after connect: %+v", h)
	}
	if err := call(ctx); err != nil && adapters.CodeOf(err) != adapters.CodeNotFound {
		t.Errorf("call after connect: %v", err)
	}
	expired, stop := context.WithCancel(ctx)
	stop()
	want(t, "call with an ended context", call(expired), adapters.CodeTimeout)

	done := make(chan error)
	for range 4 {
		go func() {
			for range 50 {
				if err := call(ctx); err != nil {
					switch adapters.CodeOf(err) {
					case adapters.CodeNotFound:
					default:
						done <- err
						return
					}
				}
			}
			done <- nil
		}()
	}
	for range 2 {
		if err := a.Disconnect(ctx); err != nil {
			t.Errorf("disconnect: %v", err)
		}
	}
	for range 4 {
		if err := <-done; err != nil {
			want(t, "call during disconnect", err, adapters.CodeUnavailable)
		}
	}
	want(t, "call after disconnect", call(ctx), adapters.CodeUnavailable)
	if h := a.Health(ctx); h.State == adapters.StateHealthy {
		t.Error("healthy after disconnect")
	}
	if err := a.Connect(ctx); err != nil {
		t.Fatalf("connect again: %v", err)
	}
	if err := call(ctx); err != nil && adapters.CodeOf(err) != adapters.CodeNotFound {
		t.Errorf("call after reconnect: %v", err)
	}
	if err := a.Disconnect(ctx); err != nil {
		t.Error(err)
	}
}

func long(n int) string { return strings.Repeat("x", n) }

func as(ctx context.Context, actor string) context.Context {
	m := adapters.MetaFrom(ctx)
	m.Actor = actor
	return adapters.WithMeta(ctx, m)
}
