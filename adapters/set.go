package adapters

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Time limits for the life of a slot.
const (
	connectLimit    = 10 * time.Second // for one attempt of one slot
	connectGrace    = 500 * time.Millisecond
	healthEvery     = 10 * time.Second
	healthAgain     = time.Second // at least, between two checks because of failed calls
	healthLimit     = 2 * time.Second
	unhealthyAfter  = 3 // failed checks in a row
	retryFirst      = time.Second
	retryMax        = time.Minute
	drainLimit      = 5 * time.Second // for running calls on a replaced adapter
	disconnectLimit = 5 * time.Second // for all slots together
)

// Exit codes in a FatalError, from sysexits.h.
const (
	ExitUnavailable = 69 // EX_UNAVAILABLE: the configured orchestrator cannot connect
	ExitSoftware    = 70 // EX_SOFTWARE: contract versions do not match
)

// FatalError is a failure to connect that must end the boot.
type FatalError struct {
	Slot Slot
	Impl string
	Exit int // ExitUnavailable or ExitSoftware
	Err  error
}

func (e *FatalError) Error() string {
	return fmt.Sprintf("cannot connect adapter %s = %q: %v", e.Slot, e.Impl, e.Err)
}

// Unwrap returns the error of Connect.
func (e *FatalError) Unwrap() error { return e.Err }

// Names of the notices a Set publishes.
const (
	NoticeConnected = "AdapterConnected"
	NoticeDegraded  = "AdapterDegraded"
	NoticeRecovered = "AdapterRecovered"
)

// Notice is a change of a slot's state, for the event ring.
type Notice struct {
	Name  string
	Slot  Slot
	Impl  string // the configured one
	State State  // the new one
	Error string // the cause; "" on recovery
}

// Publisher receives notices. Publish must not block.
type Publisher interface{ Publish(Notice) }

// Options of a Set. The zero value works: guard and limits alone, no notices.
type Options struct {
	Middleware Middleware
	Publisher  Publisher
}

// SlotStatus is the state of one slot for /ready, /health, /v1/meta, metrics and agentctl.
type SlotStatus struct {
	Slot            Slot     `json:"slot"`
	Wanted          string   `json:"wanted"`
	Active          string   `json:"active"`
	Class           Class    `json:"class"` // of the configured implementation
	State           State    `json:"state"`
	Since           Time     `json:"since"`
	LastError       string   `json:"last_error,omitempty"`
	LastErrorAt     Time     `json:"last_error_at"`
	ContractVersion string   `json:"contract_version"`
	Capabilities    []string `json:"capabilities"`
	Reconnects      uint64   `json:"reconnects"` // successful reconnects after the boot
	// Lost counts, by kind, the data that the adapter could not keep; see Lossy.
	Lost map[string]uint64 `json:"lost,omitempty"`
}

// Lossy is an adapter that counts the data that it could not keep or deliver since Connect. The
// kinds are a fixed set: "dead_letters", "torn_lines".
type Lossy interface{ Lost() map[string]uint64 }

func lost(a Adapter) map[string]uint64 {
	if l, ok := a.(Lossy); ok {
		return l.Lost()
	}
	return nil
}

// Ready tells whether the slot is in the state that the manifest asks for.
func (s SlotStatus) Ready() bool { return s.State == StateOff || s.State == StateHealthy }

// Set owns the five slots from connect to disconnect. Its methods may be called from any goroutine.
// The wrapped slots can be used at any time; before Connect and after Disconnect they return
// UNAVAILABLE.
type Set struct {
	units []*unit // in connect order

	life context.Context
	stop context.CancelFunc
	wg   sync.WaitGroup
	once sync.Once
}

// NewSet plugs in the resolved adapters. It dials nothing before Connect.
func NewSet(r *Resolved, o Options) *Set {
	s := &Set{}
	s.life, s.stop = context.WithCancel(context.Background())
	for _, slot := range Slots() {
		s.units = append(s.units, newUnit(slot, r.wanted[slot], o, &s.wg))
	}
	return s
}

func (s *Set) unit(slot Slot) *unit {
	for _, u := range s.units {
		if u.port.slot == slot {
			return u
		}
	}
	return nil
}

// Beads, Pods, Memory, Events and Orchestrator are the wrapped slots. They are the only way to the
// adapters.

func (s *Set) Beads() Beads               { return beadsPort{s.unit(SlotBeads).port} }
func (s *Set) Pods() Pods                 { return podsPort{s.unit(SlotPods).port} }
func (s *Set) Memory() Memory             { return memoryPort{s.unit(SlotMemory).port} }
func (s *Set) Events() Events             { return eventsPort{s.unit(SlotEvents).port} }
func (s *Set) Orchestrator() Orchestrator { return orchestratorPort{s.unit(SlotOrchestrator).port} }

// Status returns the state of the slots, in connect order. It reads only memory.
func (s *Set) Status() []SlotStatus {
	out := make([]SlotStatus, len(s.units))
	for i, u := range s.units {
		out[i] = u.status()
	}
	return out
}

// Connect connects all slots at the same time, with 10 s for each, and always returns within 11 s.
// If the configured orchestrator failed or the MAJOR of a contract does not match, the error is a
// *FatalError (joined, if several). The caller must then disconnect and exit. Any other failure
// degrades its slot, which keeps trying. Connect is called once; the Set watches the slots until
// Disconnect.
func (s *Set) Connect(ctx context.Context) error {
	var wg sync.WaitGroup
	for _, u := range s.units {
		if u.off() {
			continue
		}
		wg.Go(func() { u.boot(ctx) })
	}
	wg.Wait()
	if err := s.fatal(); err != nil {
		return err
	}
	for _, u := range s.units {
		if !u.off() {
			s.wg.Go(func() { u.run(s.life) })
		}
	}
	return nil
}

// fatal collects the errors that must end the boot, mismatches first.
func (s *Set) fatal() error {
	var mismatch, lost []error
	for _, u := range s.units {
		err := u.bootErr
		switch {
		case err == nil:
		case errors.Is(err, ErrContractMismatch):
			mismatch = append(mismatch, &FatalError{u.port.slot, u.wanted.Impl(), ExitSoftware, err})
		case u.port.slot == SlotOrchestrator:
			lost = append(lost, &FatalError{u.port.slot, u.wanted.Impl(), ExitUnavailable, err})
		}
	}
	return errors.Join(append(mismatch, lost...)...)
}

// Replace swaps a slot's implementation for a new one. It connects a and plugs it in. It
// disconnects the old one when its running calls have ended or 5 s have passed. If a cannot
// connect, the slot is degraded, a keeps trying, and Replace returns the error. It must not be
// called before Connect has returned.
func (s *Set) Replace(ctx context.Context, slot Slot, a Adapter) error {
	u := s.unit(slot)
	if u == nil || !fits(slot, a) {
		return Invalid("slot", "the adapter does not implement %s", slot)
	}
	if u.off() {
		return disabled(slot, false)
	}
	return s.command(ctx, u, command{replace: a})
}

// Degrade takes a slot out of service although its adapter works, because the host behind it is
// gone. The slot does not retry until Restore or Replace.
func (s *Set) Degrade(ctx context.Context, slot Slot, why error) error {
	return s.command(ctx, s.unit(slot), command{degrade: why})
}

// Restore ends a Degrade: the adapter connects again and is plugged in.
func (s *Set) Restore(ctx context.Context, slot Slot) error {
	return s.command(ctx, s.unit(slot), command{})
}

func (s *Set) command(ctx context.Context, u *unit, c command) error {
	if u == nil || u.off() {
		return Invalid("slot", "is off or unknown")
	}
	c.done = make(chan error, 1)
	select {
	case u.commands <- c:
	case <-ctx.Done():
		return AsError(context.Cause(ctx))
	case <-s.life.Done():
		return Closed(u.port.slot)
	}
	select {
	case err := <-c.done:
		return err
	case <-ctx.Done():
		return AsError(context.Cause(ctx))
	case <-s.life.Done():
		return Closed(u.port.slot)
	}
}

// Disconnect refuses new calls and disconnects the adapters in reverse order. It takes at most 5 s.
// Each slot gets an equal share of the remaining time, so that one that hangs does not use up the
// time of the others. Further calls have no effect.
func (s *Set) Disconnect(ctx context.Context) error {
	var err error
	s.once.Do(func() { err = s.disconnect(ctx) })
	return err
}

func (s *Set) disconnect(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, disconnectLimit)
	defer cancel()
	deadline, _ := ctx.Deadline()
	s.stop()
	for _, u := range s.units {
		u.close()
	}
	var errs []error
	for i := len(s.units) - 1; i >= 0; i-- {
		u := s.units[i]
		if u.off() {
			continue
		}
		share := time.Until(deadline) / time.Duration(i+1)
		one, cancel := context.WithTimeout(ctx, share)
		if err := bounded(one, u.target().Disconnect); err != nil {
			errs = append(errs, AsError(err).At(u.port.slot, "disconnect"))
		}
		cancel()
	}
	waited := make(chan struct{})
	go func() {
		s.wg.Wait()
		close(waited)
	}()
	select {
	case <-waited:
	case <-ctx.Done():
		errs = append(errs, Errorf(CodeTimeout, "a slot's watch did not end"))
	}
	return errors.Join(errs...)
}

// bounded runs f and returns when ctx has ended, even if f ignores ctx: an adapter that hangs must
// not hang the box. A panic of f becomes an error.
func bounded(ctx context.Context, f func(context.Context) error) error {
	err, _ := await(ctx, 0, launch(ctx, f))
	return err
}

// launch runs f in a new goroutine; the channel yields its result.
func launch(ctx context.Context, f func(context.Context) error) <-chan error {
	done := make(chan error, 1)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				done <- Errorf(CodeInternal, "panic: %v", p)
			}
		}()
		done <- f(ctx)
	}()
	return done
}

// await returns the result of launch and true. If ctx has ended and grace has passed, it returns
// ADAPTER_TIMEOUT and false, and f still runs.
func await(ctx context.Context, grace time.Duration, done <-chan error) (result error, ended bool) {
	select {
	case err := <-done:
		return err, true
	case <-ctx.Done():
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case err := <-done:
		return err, true
	case <-timer.C:
		return AsError(context.Cause(ctx)), false
	}
}
