package adapters

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

// port is the place where a slot's active adapter is plugged in. The wrapped types share it. The
// Set can replace the adapter while calls are under way: such calls end on the adapter on which
// they began.
type port struct {
	slot   Slot
	mw     Middleware
	active atomic.Pointer[plug]
	failed atomic.Pointer[failure] // nil if there is none
	doubts chan struct{}           // gets a token when a call fails for a reason that is not the caller's
}

// failure is the latest call that the active adapter could not carry out, for a reason that is not
// the caller's.
type failure struct {
	text  string
	at    time.Time
	write bool
}

// plug is one adapter in a port, and the reason why it cannot be called, if any.
type plug struct {
	adapter Adapter
	guard   error // nil = calls go through
	idle    bool  // the manifest turns the slot off
	calls   *inflight
}

func newPort(slot Slot, mw Middleware) *port {
	if mw == nil {
		mw = basic
	}
	return &port{slot: slot, mw: mw, doubts: make(chan struct{}, 1)}
}

// wrapped is a port with one adapter; nil means off.
func wrapped(slot Slot, a Adapter, mw Middleware) *port {
	p := newPort(slot, mw)
	if a == nil {
		p.plugOff()
	} else {
		p.plug(a, nil)
	}
	return p
}

func (p *port) plug(a Adapter, guard error) {
	p.active.Store(&plug{adapter: a, guard: guard, calls: newInflight()})
	p.failed.Store(nil)
}

// note records how a call has ended. A failure that may be the adapter's asks for a health check. A read
// that succeeds says nothing about writes: on a full disk, reads go on.
func (p *port) note(ctx context.Context, write bool, err error) {
	if err == nil {
		if was := p.failed.Load(); was != nil && (write || !was.write) {
			p.failed.CompareAndSwap(was, nil)
		}
		return
	}
	e := AsError(err)
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return
	case e.Code == CodeTimeout, e.Code == CodeContractMismatch:
	case e.Code != CodeUnavailable && e.Code != CodeInternal:
		return
	case ctx.Err() == nil:
		p.failed.Store(&failure{e.Message, time.Now(), write})
	}
	select {
	case p.doubts <- struct{}{}:
	default:
	}
}

// plugOff turns the slot off, as the manifest says.
func (p *port) plugOff() {
	p.active.Store(&plug{adapter: off{p.slot}, guard: disabled(p.slot, false), idle: true, calls: newInflight()})
}

// enter counts a call on the active plug. If the plug is replaced before the call is counted, the
// plug may be disconnected as idle. So such a call enters again on the new plug.
func (p *port) enter() *plug {
	for {
		cur := p.active.Load()
		cur.calls.add()
		if p.active.Load() == cur {
			return cur
		}
		cur.calls.done()
	}
}

// via sends one call through the middleware to the active adapter. An idle slot passes the zero A
// to f, because no adapter carries out the call.
func via[A Adapter, T any](ctx context.Context, p *port, c Call, f func(context.Context, A) (T, error)) (T, error) {
	cur := p.enter()
	defer cur.calls.done()
	c.Slot, c.Impl, c.Class, c.Guard = p.slot, cur.adapter.Impl(), cur.adapter.Class(), cur.guard
	if cur.idle && c.Idle {
		c.Guard = nil
	}
	a, _ := cur.adapter.(A)
	return Do(ctx, p.mw, c, func(ctx context.Context) (T, error) {
		out, err := f(ctx, a)
		p.note(ctx, c.Write, err)
		return out, err
	})
}

// exec is via for methods without a result.
func exec[A Adapter](ctx context.Context, p *port, c Call, f func(context.Context, A) error) error {
	_, err := via(ctx, p, c, func(ctx context.Context, a A) (struct{}, error) { return struct{}{}, f(ctx, a) })
	return err
}

// Slot, Impl, Class, Enabled, ContractVersion and Capabilities describe the active adapter.

func (p *port) Slot() Slot              { return p.slot }
func (p *port) Impl() string            { return p.active.Load().adapter.Impl() }
func (p *port) Class() Class            { return p.active.Load().adapter.Class() }
func (p *port) ContractVersion() string { return p.active.Load().adapter.ContractVersion() }
func (p *port) Capabilities() []string  { return p.active.Load().adapter.Capabilities() }
func (p *port) Enabled() bool {
	cur := p.active.Load()
	return cur.guard == nil && cur.adapter.Enabled()
}

// Connect, Health and Disconnect reach the active adapter directly. For a slot of a Set, the Set
// calls them.

func (p *port) Connect(ctx context.Context) error    { return p.active.Load().adapter.Connect(ctx) }
func (p *port) Health(ctx context.Context) Health    { return p.active.Load().adapter.Health(ctx) }
func (p *port) Disconnect(ctx context.Context) error { return p.active.Load().adapter.Disconnect(ctx) }

// inflight counts the calls under way on one plug. A replaced adapter is disconnected when the last
// of them has ended.
type inflight struct {
	n    atomic.Int64
	idle chan struct{} // gets a token when n falls to 0
}

func newInflight() *inflight { return &inflight{idle: make(chan struct{}, 1)} }

func (i *inflight) add() { i.n.Add(1) }

func (i *inflight) done() {
	if i.n.Add(-1) == 0 {
		select {
		case i.idle <- struct{}{}:
		default:
		}
	}
}

// wait returns when no call is under way, or when ctx ends.
func (i *inflight) wait(ctx context.Context) {
	for i.n.Load() > 0 {
		select {
		case <-i.idle:
		case <-ctx.Done():
			return
		}
	}
}
