// Package contract owns one suite of tests for each slot. Every class of adapter runs the suite of
// its slot: local, external against a real server, and off.
//
// A suite takes a factory that makes a fresh, unconnected adapter over an empty store. It calls the
// adapter only through its wrapped slot, as all consumers do. It must never know the class of the
// adapter: Enabled and Capabilities tell what the class leaves out. The package of a slot runs the
// suite from its own tests:
//
//	contract.Beads(t, func(t testing.TB) adapters.Beads { … })
package contract

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// connect connects a, and disconnects it at the end of the test. The calls of a suite have no
// deadline, so that a loaded machine fails none of them: the timeout of go test names what hangs.
func connect(t *testing.T, a adapters.Adapter) context.Context {
	t.Helper()
	if err := a.Connect(t.Context()); err != nil {
		t.Fatalf("connect: %v", err)
	}
	t.Cleanup(func() {
		if err := a.Disconnect(context.WithoutCancel(t.Context())); err != nil {
			t.Errorf("disconnect: %v", err)
		}
	})
	return t.Context()
}

// want fails the test unless err has the given code.
func want(t *testing.T, what string, err error, code adapters.Code) *adapters.Error {
	t.Helper()
	if err == nil {
		t.Fatalf("%s: no error, want %s", what, code)
	}
	e, ok := errors.AsType[*adapters.Error](err)
	if !ok {
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

// equal fails the test unless got equals want.
func equal[T any](t *testing.T, what string, got, want T) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s: %+v, want %+v", what, got, want)
	}
}

// gives checks the result of a call: gives(t, "delete", true)(m.Del(ctx, "k", "n")).
func gives[T any](t *testing.T, what string, want T) func(T, error) {
	return func(got T, err error) {
		t.Helper()
		equal(t, what, ok[T](t, what)(got, err), want)
	}
}

// facts are named conditions that must all be true for a value.
type facts map[string]bool

// holds fails the test for each fact about v that is false.
func holds(t *testing.T, v any, all facts) {
	t.Helper()
	for name, is := range all {
		if !is {
			t.Errorf("%s does not hold of %+v", name, v)
		}
	}
}

// describe checks the descriptive methods of an adapter.
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

// life checks that Connect and Disconnect are idempotent, that Disconnect may run during calls, and
// that a call on an unconnected adapter is UNAVAILABLE. call makes one call through the wrapped slot.
func life(t *testing.T, a adapters.Adapter, call func(context.Context) error) {
	t.Helper()
	ctx := t.Context()
	if a.Class() == adapters.ClassOff {
		want(t, "call on off", call(ctx), adapters.CodeDisabled)
		return
	}
	twice := func(what string, f func(context.Context) error) {
		t.Helper()
		for range 2 {
			succeed(t, what, f(ctx))
		}
	}
	want(t, "call before connect", call(ctx), adapters.CodeUnavailable)
	twice("connect", a.Connect)
	equal(t, "health after connect", a.Health(ctx).State, adapters.StateHealthy)
	succeed(t, "call after connect", foundOrNot(call(ctx)))
	expired, stop := context.WithCancel(ctx)
	stop()
	want(t, "call with an ended context", call(expired), adapters.CodeTimeout)

	crowd := callers(ctx, call)
	twice("disconnect", a.Disconnect)
	for range callerCount {
		if err := <-crowd; err != nil {
			want(t, "call during disconnect", err, adapters.CodeUnavailable)
		}
	}
	want(t, "call after disconnect", call(ctx), adapters.CodeUnavailable)
	if h := a.Health(ctx); h.State == adapters.StateHealthy {
		t.Error("healthy after disconnect")
	}
	succeed(t, "connect again", a.Connect(ctx))
	succeed(t, "call after reconnect", foundOrNot(call(ctx)))
	succeed(t, "disconnect at the end", a.Disconnect(ctx))
}

// succeed ends the test if err is not nil.
func succeed(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// foundOrNot returns the error of a read, or nil if the error is NOT_FOUND.
func foundOrNot(err error) error {
	if adapters.CodeOf(err) == adapters.CodeNotFound {
		return nil
	}
	return err
}

const callerCount = 4

// callers starts several goroutines that make calls. Each one sends its first error, or nil.
func callers(ctx context.Context, call func(context.Context) error) <-chan error {
	done := make(chan error)
	for range callerCount {
		go func() {
			var err error
			for i := 0; i < 50 && err == nil; i++ {
				err = foundOrNot(call(ctx))
			}
			done <- err
		}()
	}
	return done
}

func long(n int) string { return strings.Repeat("x", n) }

func as(ctx context.Context, actor string) context.Context {
	m := adapters.MetaFrom(ctx)
	m.Actor = actor
	return adapters.WithMeta(ctx, m)
}
