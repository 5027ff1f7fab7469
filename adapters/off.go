package adapters

import (
	"context"
	"io"
	"time"
)

// off is the class that every slot shares: calls answer ADAPTER_DISABLED, but
// for Dispatch, which does nothing and succeeds. It also stands in for an
// adapter that could not connect; then every call says so, Dispatch included,
// because an event the manifest wants kept must not vanish in silence.
type off struct {
	slot     Slot
	degraded bool
}

func (o off) Slot() Slot                       { return o.slot }
func (o off) Impl() string                     { return string(ClassOff) }
func (o off) Class() Class                     { return ClassOff }
func (o off) Enabled() bool                    { return false }
func (o off) Capabilities() []string           { return []string{} }
func (o off) Connect(context.Context) error    { return nil }
func (o off) Disconnect(context.Context) error { return nil }
func (o off) Health(context.Context) Health    { return Health{State: StateOff} }
func (o off) err() error                       { return Disabled(o.slot, o.degraded) }
func (o off) ContractVersion() string {
	c, _ := ContractOf(o.slot)
	return c.Version
}

// Off returns the class-off adapter of a slot, nil for an unknown slot.
func Off(slot Slot) Adapter { return newOff(slot, false) }

func newOff(slot Slot, degraded bool) Adapter {
	o := off{slot, degraded}
	switch slot {
	case SlotBeads:
		return offBeads{o}
	case SlotPods:
		return offPods{o}
	case SlotMemory:
		return offMemory{o}
	case SlotEvents:
		return offEvents{o}
	case SlotOrchestrator:
		return offOrchestrator{o}
	}
	return nil
}

type offBeads struct{ off }

var _ Beads = offBeads{}

func (o offBeads) CreateEpic(context.Context, NewBead) (Bead, error)  { return Bead{}, o.err() }
func (o offBeads) CreateChild(context.Context, NewBead) (Bead, error) { return Bead{}, o.err() }
func (o offBeads) Claim(context.Context, string, string, ...ClaimOpt) (Bead, error) {
	return Bead{}, o.err()
}
func (o offBeads) Close(context.Context, string, string, ...CloseOpt) (Bead, error) {
	return Bead{}, o.err()
}
func (o offBeads) GetReady(context.Context, ReadyFilter) (Page[Bead], error) {
	return Page[Bead]{}, o.err()
}
func (o offBeads) Show(context.Context, string) (Bead, error) { return Bead{}, o.err() }
func (o offBeads) List(context.Context, BeadFilter) (Page[Bead], error) {
	return Page[Bead]{}, o.err()
}
func (o offBeads) Update(context.Context, string, BeadChange) (Bead, error) { return Bead{}, o.err() }
func (o offBeads) Release(context.Context, string, string) (Bead, error)    { return Bead{}, o.err() }
func (o offBeads) Reopen(context.Context, string) (Bead, error)             { return Bead{}, o.err() }
func (o offBeads) AddDep(context.Context, Dep) (Dep, error)                 { return Dep{}, o.err() }
func (o offBeads) RemoveDep(context.Context, Dep) error                     { return o.err() }
func (o offBeads) Comment(context.Context, string, string) (BeadComment, error) {
	return BeadComment{}, o.err()
}
func (o offBeads) Export(context.Context, io.Writer) error { return o.err() }
func (o offBeads) Import(context.Context, io.Reader, ImportOpt) (ImportResult, error) {
	return ImportResult{}, o.err()
}

type offPods struct{ off }

var _ Pods = offPods{}

func (o offPods) Write(context.Context, string, Body, Cond) (Written, error) {
	return Written{}, o.err()
}
func (o offPods) Read(context.Context, string, ReadOpt) (Resource, error) {
	return Resource{}, o.err()
}
func (o offPods) Patch(context.Context, string, PodPatch, Cond) (Written, error) {
	return Written{}, o.err()
}
func (o offPods) Del(context.Context, string, Cond) (bool, error) { return false, o.err() }
func (o offPods) List(context.Context, string, PageOpt) (Page[PodEntry], error) {
	return Page[PodEntry]{}, o.err()
}
func (o offPods) Head(context.Context, string, ReadOpt) (Resource, error) {
	return Resource{}, o.err()
}
func (o offPods) CreateContainer(context.Context, string) (Written, error) {
	return Written{}, o.err()
}
func (o offPods) Subscribe(context.Context, string) (PodSubscription, error) { return nil, o.err() }

type offMemory struct{ off }

var _ Memory = offMemory{}

func (o offMemory) Store(context.Context, string, string, string, StoreOpt) (Stored, error) {
	return Stored{}, o.err()
}
func (o offMemory) Retrieve(context.Context, string, string) (MemoryEntry, bool, error) {
	return MemoryEntry{}, false, o.err()
}
func (o offMemory) Search(context.Context, string, SearchOpt) ([]Hit, error) { return nil, o.err() }
func (o offMemory) Del(context.Context, string, string) (bool, error)        { return false, o.err() }
func (o offMemory) List(context.Context, string, PageOpt) (Page[MemoryKey], error) {
	return Page[MemoryKey]{}, o.err()
}
func (o offMemory) Namespaces(context.Context) ([]Namespace, error) { return nil, o.err() }

type offEvents struct{ off }

var _ Events = offEvents{}

func (o offEvents) Dispatch(_ context.Context, e Event) (Receipt, error) {
	if o.degraded {
		return Receipt{}, o.err()
	}
	return Receipt{ID: e.ID, TS: At(time.Now()), Kind: e.Kind}, nil
}
func (o offEvents) Subscribe(context.Context, EventFilter, From) (Subscription, error) {
	return nil, o.err()
}
func (o offEvents) Unsubscribe(context.Context, string) error { return o.err() }
func (o offEvents) History(context.Context, EventFilter, PageOpt) (Page[Event], error) {
	return Page[Event]{}, o.err()
}

type offOrchestrator struct{ off }

var _ Orchestrator = offOrchestrator{}

func (o offOrchestrator) SpawnAgent(context.Context, AgentSpec) (Agent, error) {
	return Agent{}, o.err()
}
func (o offOrchestrator) StreamEvents(context.Context, string, uint64) (AgentStream, error) {
	return nil, o.err()
}
func (o offOrchestrator) ListAgents(context.Context, AgentFilter) ([]Agent, error) {
	return nil, o.err()
}
func (o offOrchestrator) TerminateAgent(context.Context, string, time.Duration) (Agent, error) {
	return Agent{}, o.err()
}
func (o offOrchestrator) GetAgent(context.Context, string) (Agent, error)       { return Agent{}, o.err() }
func (o offOrchestrator) SendInput(context.Context, string, []byte, bool) error { return o.err() }
