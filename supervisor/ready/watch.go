package ready

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/dreamlab-ai/agentinit/internal/escape"
	"github.com/dreamlab-ai/agentinit/internal/sleep"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// finding is the result of one probe.
type finding struct {
	probe  int
	ok     bool
	final  bool // the probe cannot succeed any more, or has succeeded
	reason string
}

// Watch finds out when t becomes ready. It returns when all (or any) of r's probes have succeeded,
// when none can succeed any more, or when ctx has ended. Watch does not apply r's deadline: the
// caller may grant the program more time (EXTEND_TIMEOUT_USEC), so the caller ends ctx. report gets
// each new result; the last one has Final set, unless ctx ended. report is called by one goroutine
// at a time and must not block. Without probes the target is ready at once.
func (w *Watcher) Watch(ctx context.Context, t Target, r program.Readiness, report func(Result)) {
	if t.ReadyFD != nil {
		defer t.ReadyFD.Close() // the descriptor is only read
	}
	state := make([]finding, len(r.Probes))
	var last Result
	if len(r.Probes) == 0 {
		last.Final, last.Ready, last.Reason = true, true, "no condition to wait for"
		report(last)
		return
	}
	for i, p := range r.Probes {
		state[i].reason = w.dialect(t, p).name + ": not yet"
	}
	for f := range w.findings(ctx, t, r.Probes, w.untilReady) {
		state[f.probe] = f
		next := summarize(state, f, r.Any)
		if next != last {
			report(next)
			last = next
		}
		if next.Final {
			return
		}
	}
}

func summarize(state []finding, latest finding, anyOne bool) Result {
	res := Result{Reason: latest.reason}
	good := func(f finding) bool { return f.ok }
	bad := func(f finding) bool { return f.final && !f.ok }
	if anyOne {
		res.Ready = slices.ContainsFunc(state, good)
		res.Final = res.Ready || !slices.ContainsFunc(state, func(f finding) bool { return !bad(f) })
	} else {
		missing := slices.IndexFunc(state, func(f finding) bool { return !good(f) })
		res.Ready = missing < 0
		res.Final = res.Ready || slices.ContainsFunc(state, bad)
		if latest.ok && !res.Ready {
			res.Reason = state[missing].reason
		}
	}
	return res
}

// findings runs every probe in its own goroutine and yields their results. All probes end when the
// loop over findings ends, or when ctx ends.
func (w *Watcher) findings(ctx context.Context, t Target, probes []program.Probe,
	run func(ctx context.Context, d dialect, p program.Probe, found func(finding))) func(func(finding) bool) {
	return func(yield func(finding) bool) {
		ctx, cancel := context.WithCancel(ctx)
		found := make(chan finding)
		var wg sync.WaitGroup
		for i, p := range probes {
			wg.Go(func() {
				run(ctx, w.dialect(t, p), p, func(f finding) {
					f.probe = i
					select {
					case found <- f:
					case <-ctx.Done():
					}
				})
			})
		}
		defer wg.Wait()
		defer cancel()
		for {
			select {
			case f := <-found:
				if ctx.Err() != nil || !yield(f) {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}
}

// untilReady tries one probe until it has succeeded often enough.
func (w *Watcher) untilReady(ctx context.Context, d dialect, p program.Probe, found func(finding)) {
	if d.wait != nil {
		err := d.wait(ctx)
		if ctx.Err() != nil {
			return
		}
		found(finding{ok: err == nil, final: true, reason: reason(d.name, err, 0)})
		return
	}
	pause, successes := startInterval(p), 0
	for attempt := 1; ; attempt++ {
		err := try(ctx, d, p)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			successes++
		} else if !unasked(err) {
			successes = 0
		}
		f := finding{reason: reason(d.name, err, attempt)}
		f.ok = successes >= max(p.Successes, 1)
		if err == nil && !f.ok {
			f.reason += fmt.Sprintf(" (%d of %d in a row)", successes, p.Successes)
		}
		f.final = f.ok
		found(f)
		if f.ok || !sleep.For(ctx, pause) {
			return
		}
		if p.Interval <= 0 {
			pause = min(2*pause, maxInterval)
		}
	}
}

func startInterval(p program.Probe) time.Duration {
	if p.Interval > 0 {
		return max(p.Interval, minInterval)
	}
	return firstInterval
}

// maxError is how many bytes of an error a result carries.
const maxError = 512

// try makes one attempt, in at most the probe's timeout.
func try(ctx context.Context, d dialect, p program.Probe) error {
	timeout := p.Timeout
	if timeout <= 0 {
		timeout = program.DefaultProbeTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err := d.poll(ctx)
	if why := obstacle(err); why != "" {
		return unaskedError(why)
	}
	if err != nil && ctx.Err() == context.DeadlineExceeded {
		err = fmt.Errorf("no answer within %s", timeout)
	}
	return err
}

func reason(name string, err error, attempt int) string {
	text := name + ": ok"
	if err != nil {
		text = name + ": " + escape.Line(plain(err), maxError)
	}
	if attempt > 0 && err != nil {
		text += fmt.Sprintf(" (attempt %d)", attempt)
	}
	return text
}

// Check judges the health of t until ctx ends. If a probe fails h.Failures times in a row (3 if 0),
// the target is unhealthy. After its Successes in a row (1 if 0), the target is healthy again. A
// missed watchdog makes it unhealthy at once. An attempt that agentinit could not make counts as neither;
// Config.Unasked gets it. report gets the first result and every change, also of the
// reason while the target is unhealthy; it must not block.
func (w *Watcher) Check(ctx context.Context, t Target, h program.Health, report func(Result)) {
	probes := slices.Clone(h.Probes)
	limit := h.Failures
	if limit <= 0 {
		limit = program.DefaultHealthFailures
	}
	check := func(ctx context.Context, d dialect, p program.Probe, found func(finding)) {
		w.judge(ctx, t, d, p, limit, found)
	}
	if h.Watchdog > 0 {
		probes = append(probes, program.Probe{Dialect: "notify", Timeout: h.Watchdog})
		pollers := check
		check = func(ctx context.Context, d dialect, p program.Probe, found func(finding)) {
			if p.Dialect == program.DialectNotify {
				w.watchdog(ctx, t, p.Timeout, found)
				return
			}
			pollers(ctx, d, p, found)
		}
	}
	state := make([]finding, len(probes))
	for i := range state {
		state[i].ok = true
	}
	var last Result
	told := false
	for f := range w.findings(ctx, t, probes, check) {
		state[f.probe] = f
		next := Result{Ready: true, Reason: f.reason}
		if i := slices.IndexFunc(state, func(f finding) bool { return !f.ok }); i >= 0 {
			next = Result{Reason: state[i].reason}
		}
		if !told || next.Ready != last.Ready || !next.Ready && next != last {
			report(next)
			last, told = next, true
		}
	}
}

// judge repeats one probe and reports each result that may change the verdict.
func (w *Watcher) judge(ctx context.Context, t Target, d dialect, p program.Probe, limit int, found func(finding)) {
	if d.poll == nil {
		return // a notification comes only once and says nothing about health
	}
	interval := p.Interval
	if interval <= 0 {
		interval = program.DefaultHealthInterval
	}
	healthy, first, successes, failures := true, true, 0, 0
	for attempt := 1; sleep.For(ctx, max(interval, minInterval)); attempt++ {
		err := try(ctx, d, p)
		if ctx.Err() != nil {
			return
		}
		if unasked(err) {
			if w.cfg.Unasked != nil {
				w.cfg.Unasked(t, reason(d.name, err, attempt))
			}
			continue
		}
		if err == nil {
			successes, failures = successes+1, 0
		} else {
			successes, failures = 0, failures+1
		}
		was := healthy
		if failures >= limit {
			healthy = false
		} else if successes >= max(p.Successes, 1) {
			healthy = true
		}
		if healthy != was || (first && err == nil) {
			first = false
			found(finding{ok: healthy, reason: reason(d.name, err, attempt)})
		}
	}
}

// watchdog expects a WATCHDOG=1 within every timeout.
func (w *Watcher) watchdog(ctx context.Context, t Target, timeout time.Duration, found func(finding)) {
	if w.cfg.Notifier == nil {
		found(finding{reason: "watchdog: " + errNoNotifier.Error()})
		return
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	healthy, pings := true, uint64(0)
	for {
		st, ok := w.cfg.Notifier.look(ctx, t.Program, t.Run)
		if !ok {
			return // a newer run has begun
		}
		if st.timeout > 0 && st.timeout != timeout {
			timeout = st.timeout
			timer.Reset(timeout)
		}
		switch {
		case st.trigger:
			found(finding{reason: "watchdog: the program asked for it (WATCHDOG=trigger)"})
			return
		case st.pings != pings:
			pings = st.pings
			timer.Reset(timeout)
			if !healthy {
				healthy = true
				found(finding{ok: true, reason: "watchdog: ok"})
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-st.changed:
		case <-timer.C:
			healthy = false
			found(finding{reason: fmt.Sprintf("watchdog: no WATCHDOG=1 within %s", timeout)})
		}
	}
}
