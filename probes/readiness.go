package probes

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// Events published by this package.
const (
	EventReady         = "ReadinessReached"
	EventUnready       = "ReadinessLost"
	EventShuttingDown  = "ReadinessShutdown"
	EventListening     = "ListenerOpened"
	EventListenFailed  = "ListenerFailed"
	EventAcceptFailed  = "ListenerAcceptFailed" // connections wait until the cause is gone
	EventHandlerPanic  = "HandlerPanicked"
	EventContractDrift = "ContractDriftDetected"
	EventContractKept  = "ContractDriftResolved"
)

// stage is what this package writes as agentbox.stage.
const stage = "probes"

// reasonShutdown is the reason of a 503 as soon as a shutdown has begun.
const reasonShutdown = "shutting down"

// Readiness holds the requirements of the box and tells whether all are met. Its methods may be
// called from any goroutine and only use memory. After a change, the next Verdict contains it.
type Readiness struct {
	bus *event.Bus
	now func() time.Time

	mu       sync.Mutex
	reqs     map[string]*entry
	missing  int
	nextRank int
	ready    bool
	since    time.Time // of the latest change to ready
	down     bool
	cached   *Verdict       // of the present state while ready; nil when it must be built anew
	programs program.Reader // nil before Follow; its Status only uses memory
	recheck  chan struct{}
}

type entry struct {
	Requirement
	rank int // order of first appearance within its kind
}

// Verdict is a report with its times.
type Verdict struct {
	Report
	// Since is the latest change from unready to ready; zero before the first.
	Since        time.Time
	ShuttingDown bool
}

// NewReadiness returns a set with these requirements and the sentinel: without the sentinel, a box
// would be ready before its boot has completed.
func NewReadiness(bus *event.Bus, initial ...Requirement) *Readiness {
	r := &Readiness{bus: bus, now: time.Now, reqs: make(map[string]*entry), recheck: make(chan struct{})}
	r.Set(Requirement{ID: SentinelID, Kind: KindSentinel})
	for _, q := range initial {
		r.Set(q)
	}
	return r
}

// SentinelID is the id of the requirement that bootstrap has completed. While it is not met and has no Reason,
// the boot goes on, and a report says what it waits for. A Reason says why the seal was given up.
const SentinelID = "bootstrap-sentinel"

// Set adds or replaces one requirement. When that changes the verdict, the
// change is published with the requirement that caused it.
func (r *Readiness) Set(q Requirement) {
	if q.Met {
		q.Reason = ""
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	e, known := r.reqs[q.ID]
	if known && e.Requirement == q {
		return
	}
	if !known {
		e = &entry{rank: r.nextRank, Requirement: Requirement{Met: true}}
		r.nextRank++
		r.reqs[q.ID] = e
	}
	r.count(e.Met, q.Met)
	e.Requirement = q
	if q.ID == SentinelID && q.Met {
		// A directory that the boot has made must not count as missing until the next cycle.
		close(r.recheck)
		r.recheck = make(chan struct{})
	}
	r.settle(q, "set")
}

// rechecked returns a channel that the seal closes: FollowMounts and FollowRelays then check again.
func (r *Readiness) rechecked() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.recheck
}

// Remove removes a requirement.
func (r *Readiness) Remove(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e, known := r.reqs[id]
	if !known {
		return
	}
	delete(r.reqs, id)
	r.count(e.Met, true)
	r.settle(e.Requirement, "removed")
}

// Keep drops every requirement of the kind whose id is not in ids.
func (r *Readiness) Keep(kind Kind, ids map[string]bool) {
	r.mu.Lock()
	var gone []string
	for id, e := range r.reqs {
		if e.Kind == kind && !ids[id] {
			gone = append(gone, id)
		}
	}
	r.mu.Unlock()
	slices.Sort(gone)
	for _, id := range gone {
		r.Remove(id)
	}
}

// Shutdown makes the box unready until its end, with the reason reasonShutdown.
func (r *Readiness) Shutdown() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.down {
		return
	}
	r.down, r.cached = true, nil
	level := event.Info
	if r.ready {
		r.ready, level = false, event.Warn
	}
	r.bus.Publish(event.Event{Level: level, Stage: stage, Name: EventShuttingDown,
		Fields: map[string]any{"reason": reasonShutdown}})
}

// Verdict is the present answer. The caller must not change its slices.
func (r *Readiness) Verdict() Verdict {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cached == nil || !r.ready { // why a program is not ready changes without an event
		v := r.build()
		r.cached = &v
	}
	return *r.cached
}

func (r *Readiness) count(was, is bool) {
	switch {
	case was && !is:
		r.missing++
	case !was && is:
		r.missing--
	}
}

// settle publishes a change of the verdict. It runs under the lock so that two
// changes cannot be published in the wrong order; the bus never blocks.
func (r *Readiness) settle(q Requirement, how string) {
	r.cached = nil
	ready := r.missing == 0 && !r.down
	if ready == r.ready {
		return
	}
	r.ready = ready
	fields := map[string]any{"requirement": q.ID, "kind": string(q.Kind), "how": how, "missing": r.missing}
	if ready {
		r.since = r.now()
		r.bus.Publish(event.Event{Level: event.Info, Stage: stage, Name: EventReady, Fields: fields})
		return
	}
	fields["reason"] = q.Reason
	r.bus.Publish(event.Event{Level: event.Warn, Stage: stage, Name: EventUnready, Fields: fields})
}

func (r *Readiness) build() Verdict {
	list := slices.SortedFunc(maps.Values(r.reqs), func(a, b *entry) int {
		return cmp.Or(cmp.Compare(kindOrder[a.Kind], kindOrder[b.Kind]), cmp.Compare(a.rank, b.rank))
	})
	reqs := make([]Requirement, len(list))
	for i, e := range list {
		reqs[i] = e.Requirement
		if e.Met {
			continue
		}
		if e.ID == SentinelID && e.Reason == "" {
			reqs[i].Reason = r.bootGoesOn()
		}
		if e.Kind != KindProgram || r.programs == nil {
			continue
		}
		if p, known := r.programs.Status(strings.TrimPrefix(e.ID, programPrefix)); known {
			if ready, why := met(p); !ready {
				reqs[i].Reason = why
			}
		}
	}
	v := Verdict{Report: evaluate(reqs), Since: r.since, ShuttingDown: r.down}
	if r.down {
		v.Ready, v.Reason = false, reasonShutdown
	}
	return v
}

// mostNamed is how many programs the reason of the sentinel names.
const mostNamed = 3

// bootGoesOn is why the sentinel is missing. It names the programs that the boot can be waiting for. The
// required ones have a requirement of their own.
func (r *Readiness) bootGoesOn() string {
	var programs []program.Status
	if r.programs != nil {
		_, programs = r.programs.All()
	}
	var names []string
	more := 0
	for i := range programs {
		p := &programs[i]
		begun := p.State == program.Starting || p.State == program.Backoff || p.State == program.Running && !p.Ready
		switch {
		case p.Required || !begun || p.Schedule != nil:
		case len(names) == mostNamed:
			more++
		default:
			names = append(names, p.Name)
		}
	}
	text := "the boot has not completed"
	if len(names) > 0 {
		text += "; not up yet: " + strings.Join(names, ", ")
	}
	if more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text + "; agentctl boot shows its phases, agentctl status what its programs wait for"
}
