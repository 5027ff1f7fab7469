package probes

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dreamlab-ai/agentinit/internal/sleep"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
)

// driftCycle is the time between two comparisons of contract and reality.
const driftCycle = 60 * time.Second

// Declared is what the manifest and the generated security profile promise. A nil pointer or empty
// field is not compared.
type Declared struct {
	MetricsAddress string    // host:port; empty when the listener is off
	Profile        *Security // nil: no profile was declared
	// Enforce makes a capability that should have been dropped fatal.
	Enforce        bool
	WritableMounts []string
	ImageRef       string
	// Environment names the variables whose value the manifest sets. A different value at run time
	// is drift.
	Environment map[string]string
}

// Security is a security profile, declared or effective.
type Security struct {
	Capabilities []string // without CAP_, sorted
	ReadOnlyRoot bool
	NoNewPrivs   bool
}

// Actual is what was found in the running box.
type Actual struct {
	MetricsAddress string // where the listener is bound; empty when it is not
	Security       *Security
	// Mounts says for each declared mount why it is not writable; empty means that it is.
	Mounts      map[string]string
	ImageRef    string
	Environment map[string]string
	// Unknown says for each surface why it could not be read. It is then not compared: an unknown
	// value is not drift.
	Unknown map[string]string
}

// DriftSeverity says what a drift means for the box.
type DriftSeverity string

// The severities of a drift.
const (
	DriftWarning DriftSeverity = "warning" // /health is degraded
	DriftFatal   DriftSeverity = "fatal"   // /ready is 503
)

// Drift is one difference between contract and reality.
type Drift struct {
	Surface  string        `json:"surface"`
	Kind     string        `json:"drift_kind"`
	Expected string        `json:"expected"`
	Actual   string        `json:"actual"`
	Severity DriftSeverity `json:"severity"`
}

func (d Drift) key() string { return d.Surface + "\x00" + d.Kind + "\x00" + d.Actual }

// compare lists the differences, ordered by surface.
func compare(want Declared, is Actual) []Drift {
	var out []Drift
	add := func(surface, kind, expected, actual string, severity DriftSeverity) {
		if _, unknown := is.Unknown[surface]; !unknown {
			out = append(out, Drift{surface, kind, expected, actual, severity})
		}
	}
	if want.MetricsAddress != "" && !samePort(want.MetricsAddress, is.MetricsAddress) {
		add("metrics_port", "not_bound", want.MetricsAddress, cmp.Or(is.MetricsAddress, "not bound"), DriftWarning)
	}
	if want.Profile != nil && is.Security != nil {
		compareSecurity(want, *is.Security, add)
	}
	for _, path := range want.WritableMounts {
		if why := is.Mounts[path]; why != "" {
			add("mount:"+path, "not_writable", "writable", why, DriftWarning)
		}
	}
	if want.ImageRef != "" && is.ImageRef != "" && want.ImageRef != is.ImageRef {
		add("image_ref", "different", want.ImageRef, is.ImageRef, DriftWarning)
	}
	for name, value := range want.Environment {
		if got, set := is.Environment[name]; set && got != value {
			add("environment:"+name, "different", value, got, DriftWarning)
		}
	}
	slices.SortFunc(out, func(a, b Drift) int { return cmp.Compare(a.key(), b.key()) })
	return out
}

func compareSecurity(want Declared, is Security, add func(surface, kind, expected, actual string, severity DriftSeverity)) {
	p := want.Profile
	expected := strings.Join(p.Capabilities, ",")
	if extra := without(is.Capabilities, p.Capabilities); len(extra) > 0 {
		severity := DriftWarning
		if want.Enforce {
			severity = DriftFatal
		}
		add("capabilities", "not_dropped", cmp.Or(expected, "none"), strings.Join(extra, ","), severity)
	}
	if lost := without(p.Capabilities, is.Capabilities); len(lost) > 0 {
		add("capabilities", "missing", expected, "without "+strings.Join(lost, ","), DriftWarning)
	}
	if p.ReadOnlyRoot && !is.ReadOnlyRoot {
		add("root_filesystem", "writable", "read-only", "writable", DriftWarning)
	}
	if p.NoNewPrivs && !is.NoNewPrivs {
		add("no_new_privs", "not_set", "1", "0", DriftWarning)
	}
}

// samePort compares only the ports, because the kernel may show the wildcard host as 0.0.0.0 or
// [::]. Port 0 fits any port.
func samePort(declared, bound string) bool {
	_, want, errWant := net.SplitHostPort(declared)
	_, got, errGot := net.SplitHostPort(bound)
	return errWant == nil && errGot == nil && (want == got || want == "0")
}

// without returns the members of a that are not in b.
func without[T comparable](a, b []T) []T {
	return slices.DeleteFunc(slices.Clone(a), func(x T) bool { return slices.Contains(b, x) })
}

// DriftDetector compares contract and reality at its start and every driftCycle, and remembers the
// outcome. Current may be called from any goroutine.
type DriftDetector struct {
	bus   *event.Bus
	ready *Readiness
	want  func() Declared
	read  func(context.Context, Declared) Actual

	mu      sync.Mutex
	current []Drift
}

// NewDriftDetector returns a detector that reads reality with read. The time of read must be
// bounded. While there is a fatal drift, a requirement of ready is not met.
func NewDriftDetector(bus *event.Bus, ready *Readiness, want func() Declared, read func(context.Context, Declared) Actual) *DriftDetector {
	return &DriftDetector{bus: bus, ready: ready, want: want, read: read}
}

// Run compares now and every driftCycle until ctx ends.
func (d *DriftDetector) Run(ctx context.Context) {
	for again := true; again; again = sleep.For(ctx, driftCycle) {
		d.once(ctx)
	}
}

// Current is the outcome of the latest comparison.
func (d *DriftDetector) Current() []Drift {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.current)
}

// once compares now. It publishes a drift when it appears and when it is gone, and not each time
// that the drift is still there.
func (d *DriftDetector) once(ctx context.Context) {
	want := d.want()
	found := compare(want, d.read(ctx, want))
	d.mu.Lock()
	before := d.current
	d.current = found
	d.mu.Unlock()
	for _, x := range without(found, before) {
		level := event.Warn
		if x.Severity == DriftFatal {
			level = event.Error
		}
		d.publish(level, EventContractDrift, x)
	}
	for _, x := range without(before, found) {
		d.publish(event.Info, EventContractKept, x)
	}
	d.require(found)
}

func (d *DriftDetector) publish(level event.Level, name string, x Drift) {
	d.bus.Publish(event.Event{Level: level, Stage: stage, Name: name, Fields: map[string]any{
		"surface": x.Surface, "drift_kind": x.Kind, "expected": x.Expected, "actual": x.Actual, "severity": string(x.Severity),
	}})
}

// require turns fatal drifts into requirements: one for each surface.
func (d *DriftDetector) require(found []Drift) {
	keep := make(map[string]bool)
	for _, x := range found {
		if x.Severity == DriftFatal {
			id := "contract:" + x.Surface
			keep[id] = true
			d.ready.Set(Requirement{ID: id, Kind: KindContract,
				Reason: fmt.Sprintf("%s: expected %s, found %s", x.Kind, x.Expected, x.Actual)})
		}
	}
	d.ready.Keep(KindContract, keep)
}
