package adapters

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"
)

// unit is one slot of a Set: its port, the adapter that the manifest wants, and the state of that
// adapter. After the boot, only the goroutine of run changes it.
type unit struct {
	port     *port
	pub      Publisher
	wg       *sync.WaitGroup // of the Set: drains
	commands chan command

	bootErr error        // of boot, read when all boots have ended
	pending <-chan error // a Connect that outlived its limit, nil if none
	checked time.Time    // when the last health check ended; only run reads it

	mu          sync.Mutex // guards what follows
	wanted      Adapter
	state       State
	since       time.Time
	lastErr     string
	lastErrAt   time.Time
	reconnects  uint64
	closed      bool
	connected   bool // wanted is plugged in
	held        bool // degraded from outside: no retries
	badInARow   int
	nextBackoff time.Duration
}

// command asks the unit's goroutine for a change: for a restore if it names no other.
type command struct {
	replace Adapter
	degrade error
	done    chan error
}

func newUnit(slot Slot, wanted Adapter, o Options, wg *sync.WaitGroup) *unit {
	u := &unit{
		port: newPort(slot, o.Middleware), pub: o.Publisher, wg: wg, commands: make(chan command),
		wanted: wanted, state: StateConnecting, since: time.Now(), nextBackoff: retryFirst,
	}
	if u.off() {
		u.state = StateOff
		u.port.plugOff()
		return u
	}
	u.port.plug(wanted, Errorf(CodeUnavailable, "the %s adapter is connecting", slot))
	return u
}

func (u *unit) off() bool { return u.target().Class() == ClassOff }

func (u *unit) target() Adapter {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.wanted
}

func (u *unit) status() SlotStatus {
	u.mu.Lock()
	defer u.mu.Unlock()
	s := SlotStatus{
		Slot: u.port.slot, Wanted: u.wanted.Impl(), Active: u.port.Impl(), Class: u.wanted.Class(),
		State: u.state, Since: At(u.since), LastError: u.lastErr, LastErrorAt: At(u.lastErrAt),
		ContractVersion: u.wanted.ContractVersion(), Capabilities: u.wanted.Capabilities(), Reconnects: u.reconnects,
		Lost: lost(u.wanted),
	}
	if f := u.port.failed.Load(); f != nil && s.LastError == "" {
		s.LastError, s.LastErrorAt = f.text, At(f.at)
	}
	return s
}

// boot is the first attempt.
func (u *unit) boot(ctx context.Context) {
	u.bootErr = u.attempt(ctx)
	if u.bootErr != nil {
		u.degrade(u.bootErr)
		return
	}
	u.swapIn(ctx, NoticeConnected)
}

// attempt connects the wanted adapter within connectLimit. If an earlier attempt still runs, it
// starts no second one, and takes the result of the earlier one.
func (u *unit) attempt(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, connectLimit)
	defer cancel()
	done := u.pending
	if done == nil {
		done = launch(ctx, u.target().Connect)
	}
	u.pending = done
	err, ended := await(ctx, connectGrace, done)
	if ended {
		u.pending = nil
	}
	return err
}

// run watches the slot until ctx ends.
func (u *unit) run(ctx context.Context) {
	timer := time.NewTimer(u.wait())
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case c := <-u.commands:
			c.done <- u.obey(ctx, c)
		case <-u.changes():
			u.check(ctx)
		case <-u.doubts():
			timer.Reset(time.Until(u.checked.Add(healthAgain)))
			continue
		case <-timer.C:
			u.tick(ctx)
		}
		timer.Reset(u.wait())
	}
}

// changes returns the channel of a connected SelfAware adapter; nil for others.
func (u *unit) changes() <-chan struct{} {
	u.mu.Lock()
	defer u.mu.Unlock()
	if a, ok := u.wanted.(SelfAware); ok && u.connected {
		return a.HealthChanged()
	}
	return nil
}

// doubts returns the channel on which a connected adapter's failed calls show; nil for others. Each
// one asks for a check, but no sooner than healthAgain after the last one: many calls can fail at
// once, and an adapter that is away for less than two seconds is not unhealthy.
func (u *unit) doubts() <-chan struct{} {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.connected {
		return u.port.doubts
	}
	return nil
}

// wait is how long until the next check or attempt.
func (u *unit) wait() time.Duration {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.connected || u.held {
		return healthEvery
	}
	d := u.nextBackoff
	return d - d/10 + rand.N(d/5+1) // ±10 %, so that slots do not knock in step
}

func (u *unit) tick(ctx context.Context) {
	u.mu.Lock()
	connected, held := u.connected, u.held
	u.mu.Unlock()
	switch {
	case connected:
		u.check(ctx)
	case !held:
		u.retry(ctx)
	}
}

func (u *unit) retry(ctx context.Context) {
	if err := u.attempt(ctx); err != nil {
		u.mu.Lock()
		u.nextBackoff = min(2*u.nextBackoff, retryMax)
		u.mu.Unlock()
		u.noteError(err)
		return
	}
	if ctx.Err() == nil {
		u.swapIn(ctx, NoticeRecovered)
	}
}

// check asks for the adapter's health. After unhealthyAfter bad answers in a row the slot is
// unhealthy, and after one good answer it is healthy. An answer that says degraded counts at once.
func (u *unit) check(ctx context.Context) {
	h := ask(ctx, u.target())
	u.checked = time.Now()
	switch {
	case ctx.Err() != nil:
	case h.Mismatch:
		u.unplug(ctx, h)
	default:
		u.judge(h)
	}
}

// unplug degrades the slot, and disconnects the adapter: a Connect of a connected adapter would not ask for the contract again.
func (u *unit) unplug(ctx context.Context, h Health) {
	before, wanted := u.port.active.Load(), u.target()
	u.degrade(errors.New(h.Message))
	drained := make(chan struct{})
	u.wg.Go(func() {
		drain(before, wanted, nil)
		close(drained)
	})
	select {
	case <-drained:
	case <-ctx.Done():
	}
}

// ask gets an answer within healthLimit.
func ask(ctx context.Context, a Adapter) Health {
	ctx, cancel := context.WithTimeout(ctx, healthLimit)
	defer cancel()
	answer := make(chan Health, 1)
	err := bounded(ctx, func(ctx context.Context) error {
		answer <- a.Health(ctx)
		return nil
	})
	if err != nil {
		return Unhealthy(err)
	}
	return <-answer
}

func (u *unit) judge(h Health) {
	u.mu.Lock()
	other := h.State != StateHealthy && h.Message != u.lastErr // another cause
	u.blame(h)
	next := u.state
	switch h.State {
	case StateHealthy:
		u.badInARow, next = 0, StateHealthy
	case StateDegraded:
		u.badInARow, next = 0, StateDegraded
	default:
		if u.badInARow++; u.badInARow >= unhealthyAfter {
			next = StateUnhealthy
		}
	}
	changed := next != u.state
	if changed {
		u.enter(next)
	}
	u.mu.Unlock()
	if !changed && (!other || next == StateHealthy) {
		return
	}
	if next == StateHealthy {
		u.publish(NoticeRecovered, next, "")
		return
	}
	u.publish(NoticeDegraded, next, h.Message)
}

// blame records the reason of a state; a healthy slot has none. The caller holds mu.
func (u *unit) blame(h Health) {
	if h.State == StateHealthy {
		u.lastErr, u.lastErrAt = "", time.Time{}
		return
	}
	u.lastErr, u.lastErrAt = h.Message, time.Now()
}

// enter records a state. The caller holds mu.
func (u *unit) enter(s State) { u.state, u.since = s, time.Now() }

// swapIn plugs in the connected adapter. The slot is then healthy, unless a SelfAware adapter says
// otherwise: a bridge is open before a host has attached.
func (u *unit) swapIn(ctx context.Context, notice string) {
	h := Healthy()
	if a, ok := u.target().(SelfAware); ok {
		h = ask(ctx, a)
	}
	u.mu.Lock()
	if u.closed {
		u.mu.Unlock()
		return
	}
	u.port.plug(u.wanted, nil)
	u.connected, u.held, u.badInARow, u.nextBackoff = true, false, 0, retryFirst
	if notice == NoticeRecovered {
		u.reconnects++
	}
	u.blame(h)
	if h.State != StateHealthy && notice == NoticeRecovered {
		notice = NoticeDegraded
	}
	u.enter(h.State)
	u.mu.Unlock()
	u.publish(notice, h.State, h.Message)
}

// degrade plugs in class off instead of the adapter.
func (u *unit) degrade(err error) {
	u.mu.Lock()
	if u.closed {
		u.mu.Unlock()
		return
	}
	u.port.plug(off{u.port.slot}, disabled(u.port.slot, true))
	u.connected = false
	u.lastErr, u.lastErrAt = err.Error(), time.Now()
	u.enter(StateDegraded)
	u.mu.Unlock()
	u.publish(NoticeDegraded, StateDegraded, err.Error())
}

// noteError records why another attempt failed. It publishes a notice if the reason has changed.
func (u *unit) noteError(err error) {
	u.mu.Lock()
	other, state := err.Error() != u.lastErr, u.state
	u.lastErr, u.lastErrAt = err.Error(), time.Now()
	u.mu.Unlock()
	if other {
		u.publish(NoticeDegraded, state, err.Error())
	}
}

func (u *unit) obey(ctx context.Context, c command) error {
	switch {
	case c.replace != nil:
		return u.replace(ctx, c.replace)
	case c.degrade != nil:
		u.mu.Lock()
		u.held = true
		u.mu.Unlock()
		u.degrade(c.degrade)
		return nil
	}
	u.mu.Lock()
	idle := u.connected || !u.held
	u.held = false
	u.mu.Unlock()
	if idle {
		return nil
	}
	if err := u.attempt(ctx); err != nil {
		u.noteError(err)
		return AsError(err)
	}
	u.swapIn(ctx, NoticeRecovered)
	return nil
}

// replace makes a the wanted adapter. The old one serves until a is connected.
func (u *unit) replace(ctx context.Context, a Adapter) error {
	old := u.target()
	u.mu.Lock()
	u.wanted, u.held = a, false
	u.mu.Unlock()
	connecting := u.pending // of the old one
	u.pending = nil
	before := u.port.active.Load()
	err := u.attempt(ctx)
	if err != nil {
		u.degrade(err)
	} else {
		u.swapIn(ctx, NoticeRecovered)
	}
	u.wg.Go(func() { drain(before, old, connecting) })
	if err != nil {
		return AsError(err)
	}
	return nil
}

// drain disconnects an adapter that was unplugged. It first waits up to drainLimit for the running
// calls. If a Connect is still running (connecting is not nil), it waits for that too: otherwise
// that Connect would connect the adapter again.
func drain(p *plug, a Adapter, connecting <-chan error) {
	ctx, cancel := context.WithTimeout(context.Background(), drainLimit)
	defer cancel()
	p.calls.wait(ctx)
	if connecting != nil {
		select {
		case <-connecting:
		case <-ctx.Done():
		}
	}
	last, cancelLast := context.WithTimeout(context.Background(), disconnectLimit)
	defer cancelLast()
	// The adapter is out of service already, so its error changes nothing.
	_ = bounded(last, a.Disconnect)
}

// close makes the slot refuse all further calls.
func (u *unit) close() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.wanted.Class() == ClassOff {
		return
	}
	u.closed = true
	u.connected = false
	u.port.plug(u.wanted, Closed(u.port.slot))
}

func (u *unit) publish(name string, s State, why string) {
	if u.pub == nil {
		return
	}
	u.pub.Publish(Notice{Name: name, Slot: u.port.slot, Impl: u.target().Impl(), State: s, Error: why})
}
