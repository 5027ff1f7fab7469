// Package event holds the numbered ring of all events of the box.
//
// Publish never waits. A reader that falls behind gets an explicit Lagged event and continues from
// the oldest event still held. Every event has a number. A reader that has a snapshot with its
// number continues with Watch(number) and misses no event.
//
// The package must never call back into a publisher, write a file or wait for a reader.
package event

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"sync"
	"sync/atomic"
	"time"
)

// Level is the severity of an event, spelled as zerolog spells it.
type Level string

// The levels an event can have.
const (
	Debug Level = "debug"
	Info  Level = "info"
	Warn  Level = "warn"
	Error Level = "error"
)

// Lagged is the name of the event that a reader gets in place of events that
// the ring no longer holds. Its fields are "dropped" (count) and "resume_from"
// (number of the first event that follows).
const Lagged = "Lagged"

// ProgramStateChanged is published for every change of a program's state or facts (pid, ready,
// healthy, completed). If only a fact has changed, From and To are equal. The event carries Change.
const ProgramStateChanged = "ProgramStateChanged"

// The names of the supervisor's other events. A reader that waits for one uses the constant.
const (
	ProgramsStarted    = "ProgramsStarted" // every wave of the boot was started
	ProgramsApplied    = "ProgramsApplied" // another set of programs is in force
	ProgramRemoved     = "ProgramRemoved"
	ProgramRenamed     = "ProgramRenamed" // an instance got another name, because the number of instances changed
	ApplyRolledBack    = "ApplyRolledBack"
	ScheduleSkipped    = "ScheduleSkipped"
	HookCompleted      = "HookCompleted"
	HookFailed         = "HookFailed"
	SignalFailed       = "SignalFailed"
	SupervisorPanicked = "SupervisorPanicked"

	ShutdownStarted   = "ShutdownStarted"
	ShutdownHurried   = "ShutdownHurried" // the rest of the grace is skipped
	ShutdownKills     = "ShutdownKills"   // the processes that are left get KILL
	ShutdownCompleted = "ShutdownCompleted"

	NotifySocketUnavailable = "NotifySocketUnavailable"
	NotifyRefused           = "NotifyRefused"
	HealthUnknown           = "HealthUnknown" // a check could not be made
	MainProcessChanged      = "MainProcessChanged"
	SandboxNotApplied       = "SandboxNotApplied"
	LogCaptureFailed        = "LogCaptureFailed"
	ProcessesLeaked         = "ProcessesLeaked"
)

// Change is the typed payload of ProgramStateChanged.
type Change struct {
	From      string `json:"from"`
	To        string `json:"to"`
	PID       int    `json:"pid,omitempty"`
	Ready     bool   `json:"ready"`
	Completed bool   `json:"completed,omitempty"`
	Reason    string `json:"reason,omitempty"`

	// The rest is not written as JSON: only supervisord's events, which are made inside agentinit, need it.

	PIDBefore    int  `json:"-"` // the pid before the change
	FailedStarts int  `json:"-"` // in a row, since the program was last RUNNING
	Exit         Exit `json:"-"`
}

// Exit says that a change is the end of a run that had been RUNNING and was not stopped. Its zero value
// means another change.
type Exit string

// The kinds of exit.
const (
	ExitExpected   Exit = "expected" // by the specification
	ExitUnexpected Exit = "unexpected"
)

// Event is one thing that happened. It is immutable once published: neither the
// publisher nor a reader may change Fields or Change.
type Event struct {
	// Seq is set by Publish: 1 for the first event, and one more for each further event.
	Seq   uint64
	Time  time.Time
	Level Level
	// Stage is the part of the box that publishes the event: bootstrap, supervisor, probes,
	// adapters. It is written as "agentbox.stage".
	Stage string
	// Name is CamelCase, such as BootstrapStarted.
	Name    string
	Program string
	Run     uint64
	Change  *Change
	// Fields holds all other data of the event. Keys are snake_case and never one of the names
	// above.
	Fields map[string]any
}

// MarshalJSON writes the event as one flat JSON object: seq, level, time
// (RFC 3339, UTC, milliseconds), agentbox.stage, event, program, run, the
// change and the fields.
func (e Event) MarshalJSON() ([]byte, error) {
	m := make(map[string]any, len(e.Fields)+8)
	maps.Copy(m, e.Fields)
	if e.Change != nil {
		m["change"] = e.Change
	}
	if e.Program != "" {
		m["program"] = e.Program
	}
	if e.Run != 0 {
		m["run"] = e.Run
	}
	m["seq"] = e.Seq
	m["level"] = e.Level
	m["time"] = e.Time.UTC().Format(TimeFormat)
	m["agentbox.stage"] = e.Stage
	m["event"] = e.Name
	return Encode(m)
}

// Encode is json.Marshal that leaves <, > and & as they are: events are read in logs and terminals.
func Encode(v any) ([]byte, error) {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSuffix(out.Bytes(), []byte("\n")), err
}

// TimeFormat is how the box writes an instant: RFC 3339, UTC, milliseconds.
const TimeFormat = "2006-01-02T15:04:05.000Z07:00"

// Bus is the ring. All methods may be called from any goroutine.
type Bus struct {
	mu     sync.Mutex
	ring   ring
	last   uint64 // number of the newest event, 0 when there is none
	counts map[string]uint64
	wake   chan struct{} // closed and replaced by Publish while a reader waits
	waits  bool
	mask   atomic.Pointer[func(string) string]
}

// NewBus returns a ring that holds the newest capacity events.
func NewBus(capacity int) *Bus {
	return &Bus{
		ring:   ring{most: capacity},
		counts: make(map[string]uint64),
		wake:   make(chan struct{}),
	}
}

// Publish numbers the event, stores it and wakes the readers. It sets Time when
// it is zero and returns the number. It never waits for a reader.
func (b *Bus) Publish(e Event) uint64 {
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	mask := b.mask.Load()
	if mask != nil {
		e = masked(e, *mask)
	}
	e = onOneLine(e)
	b.mu.Lock()
	defer b.mu.Unlock()
	if newer := b.mask.Load(); newer != mask { // SetMask has perhaps been through the ring already
		e = masked(e, *newer)
	}
	b.last++
	e.Seq = b.last
	*b.ring.next(e.Seq) = e
	b.counts[e.Name]++
	if b.waits {
		close(b.wake)
		b.wake = make(chan struct{})
		b.waits = false
	}
	return e.Seq
}

// Seq returns the number of the newest event, 0 before the first.
func (b *Bus) Seq() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.last
}

// Counts returns how many events of each name have been published.
func (b *Bus) Counts() map[string]uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.counts)
}

// Watch returns a reader whose first event is the one after since: 0 starts
// with the oldest event held, Bus.Seq() with the next one published.
func (b *Bus) Watch(since uint64) *Watcher {
	return &Watcher{bus: b, next: since + 1}
}

// Watcher is one reader's position in the ring. It holds no resources and need not be closed. Two
// goroutines must not use it at the same time.
type Watcher struct {
	bus  *Bus
	next uint64
}

// Next returns the next event and waits for it if necessary. One Lagged event replaces the events
// that the ring no longer holds. At position 0 the oldest held event is the next one, so there is
// no Lagged event. The only error is ctx's.
func (w *Watcher) Next(ctx context.Context) (Event, error) {
	for {
		e, ok, wake := w.take()
		if ok {
			return e, nil
		}
		select {
		case <-ctx.Done():
			return Event{}, context.Cause(ctx)
		case <-wake:
		}
	}
}

// TryNext returns the next event if it has already been published.
func (w *Watcher) TryNext() (Event, bool) {
	e, ok, _ := w.take()
	return e, ok
}

func (w *Watcher) take() (Event, bool, <-chan struct{}) {
	b := w.bus
	b.mu.Lock()
	defer b.mu.Unlock()
	if w.next > b.last {
		b.waits = true
		return Event{}, false, b.wake
	}
	oldest := b.last - uint64(b.ring.held) + 1
	if w.next < oldest {
		dropped := oldest - w.next
		fresh := w.next == 1
		w.next = oldest
		if !fresh {
			return Event{
				Seq: oldest - 1, Time: time.Now(), Level: Warn, Stage: "event", Name: Lagged,
				Fields: map[string]any{"dropped": dropped, "resume_from": oldest},
			}, true, nil
		}
	}
	e := *b.ring.at(w.next)
	w.next++
	return e, true, nil
}
