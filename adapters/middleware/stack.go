package middleware

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"go.opentelemetry.io/otel/trace"
)

// Default limits of a call without its own limit. The caller's deadline applies too.
const (
	DefaultReadLimit  = 20 * time.Second
	DefaultWriteLimit = 30 * time.Second
)

// Options of New. The zero value works: metrics are kept but not exposed, there are no spans and no
// log, the limits are the default ones, and privacy is off.
type Options struct {
	Registerer prometheus.Registerer // nil = metrics are kept but not exposed
	Tracer     trace.Tracer          // nil = no spans, no cost
	Log        zerolog.Logger
	ReadLimit  time.Duration // 0 = DefaultReadLimit
	WriteLimit time.Duration // 0 = DefaultWriteLimit
	Privacy    PrivacyConfig
}

// Stack is the chain with its data: metrics, remembered answers, the privacy filter. It is safe for
// concurrent use and needs no goroutine.
type Stack struct {
	metrics *metrics
	tracer  trace.Tracer
	log     zerolog.Logger
	read    time.Duration // limit of a call
	write   time.Duration // limit of a call that writes
	replays *replays
	privacy *privacyFilter
	reg     prometheus.Registerer
}

// New builds the chain and registers its metrics.
func New(o Options) (*Stack, error) {
	s := &Stack{
		metrics: newMetrics(), tracer: o.Tracer, log: o.Log, replays: newReplays(o.Log), reg: o.Registerer,
		read: cmp.Or(max(o.ReadLimit, 0), DefaultReadLimit), write: cmp.Or(max(o.WriteLimit, 0), DefaultWriteLimit),
	}
	s.privacy = newFilter(o.Privacy, o.Tracer, o.Log)
	if o.Registerer == nil {
		return s, nil
	}
	for _, c := range append(s.metrics.collectors(), s.privacy.metrics.collectors()...) {
		if err := o.Registerer.Register(c); err != nil {
			return nil, fmt.Errorf("cannot register adapter metrics: %w", err)
		}
	}
	return s, nil
}

// Keep makes idempotency keys and their answers survive a restart: from now on they are in the file
// at path, which is created if it is missing. Keep is called once, before the first call. If it
// fails (UNAVAILABLE or ADAPTER_TIMEOUT), they stay in memory and the file stays unchanged.
func (s *Stack) Keep(ctx context.Context, path string) error {
	k, secret, old, err := openKeeper(ctx, path)
	if err != nil {
		return err
	}
	s.replays.adopt(k, secret, old)
	return nil
}

// Forget drops all remembered answers, because the things in them no longer exist. Running calls
// keep their keys.
func (s *Stack) Forget(ctx context.Context) error { return s.replays.forgetAll(ctx) }

// Close closes the file of Keep, if there is one, after the last call.
func (s *Stack) Close() error {
	if k := s.replays.kept(); k != nil {
		return k.db.Close()
	}
	return nil
}

// Watch exposes the slots' health, info and reconnects, read at each scrape.
func (s *Stack) Watch(status func() []adapters.SlotStatus) error {
	if s.reg == nil {
		return nil
	}
	return s.reg.Register(statusCollector{status})
}

// Middleware is the whole chain.
func (s *Stack) Middleware() adapters.Middleware {
	return adapters.Chain(s.recoverPanics, s.measure, s.span, s.logCalls, s.deadline,
		adapters.Guarded, adapters.Limits, s.replays.middleware, s.privacy.middleware)
}

// recoverPanics turns a panic of an adapter into INTERNAL. The log has the stack under the id that
// the caller gets.
func (s *Stack) recoverPanics(next adapters.Handler) adapters.Handler {
	return func(ctx context.Context, c adapters.Call) (err error) {
		defer func() {
			p := recover()
			if p == nil {
				return
			}
			id := adapters.NewID()
			s.log.Error().Str("slot", string(c.Slot)).Str("method", c.Method).Str("impl", c.Impl).
				Str("error_id", id).Str("panic", fmt.Sprint(p)).Bytes("stack", debug.Stack()).Msg("adapter panicked")
			err = adapters.Errorf(adapters.CodeInternal, "the adapter panicked").With("error_id", id)
		}()
		return next(ctx, c)
	}
}

// logCalls writes one line per call. It gives an INTERNAL error an id, under which the log has the
// cause.
func (s *Stack) logCalls(next adapters.Handler) adapters.Handler {
	return func(ctx context.Context, c adapters.Call) error {
		begin := time.Now()
		err := next(ctx, c)
		e := adapters.AsError(err)
		line := s.log.Info()
		if serviceError(e) {
			line = s.log.Error()
		}
		m := adapters.MetaFrom(ctx)
		line.Str("slot", string(c.Slot)).Str("method", c.Method).Str("impl", c.Impl).
			Float64("duration_ms", float64(time.Since(begin).Microseconds())/1000).
			Str("session_id", m.SessionID).Str("execution_id", m.ExecutionID).Str("outcome", outcome(c, err))
		if e == nil {
			line.Str("code", "").Msg("adapter call")
			return nil
		}
		line.Str("code", string(e.Code))
		if e.Code == adapters.CodeInternal && e.Fields["error_id"] == nil {
			e = e.With("error_id", adapters.NewID())
		}
		if id, ok := e.Fields["error_id"].(string); ok {
			line.Str("error_id", id)
		}
		if cause := errors.Unwrap(e); cause != nil && serviceError(e) {
			line.AnErr("cause", cause)
		}
		line.Msg("adapter call")
		return e
	}
}

// serviceError tells whether the service, not the caller, caused the error.
func serviceError(e *adapters.Error) bool {
	if e == nil {
		return false
	}
	switch e.Code {
	case adapters.CodeInternal, adapters.CodeUnavailable, adapters.CodeEmbedding, adapters.CodePrivacyRejected:
		return true
	case adapters.CodeTimeout:
		return !errors.Is(e, context.Canceled)
	}
	return false
}

// deadline bounds every call. For a stream, the limit applies only until the stream is open,
// because its context lives on with it.
func (s *Stack) deadline(next adapters.Handler) adapters.Handler {
	return func(ctx context.Context, c adapters.Call) error {
		limit := s.read
		if c.Write {
			limit = s.write
		}
		limit = cmp.Or(c.Limit, limit)
		if c.Cancel == nil {
			ctx, cancel := context.WithTimeout(ctx, limit)
			defer cancel()
			return next(ctx, c)
		}
		timer := time.AfterFunc(limit, func() { c.Cancel(context.DeadlineExceeded) })
		err := next(ctx, c)
		if !timer.Stop() && err != nil {
			return adapters.Errorf(adapters.CodeTimeout, "the stream did not open in time").Wrap(err)
		}
		return err
	}
}
