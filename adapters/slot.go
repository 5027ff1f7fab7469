package adapters

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Slot names one of the five slots for adapters.
type Slot string

// The five slots.
const (
	SlotBeads        Slot = "beads"
	SlotPods         Slot = "pods"
	SlotMemory       Slot = "memory"
	SlotEvents       Slot = "events"
	SlotOrchestrator Slot = "orchestrator"
)

// Class says where the data behind an adapter lives.
type Class string

// The three classes. "stdio-bridge" and "external-pg" are of class external.
const (
	ClassLocal    Class = "local"
	ClassExternal Class = "external"
	ClassOff      Class = "off"
)

// State is the state of a slot.
type State string

// The states of a slot. An adapter's Health returns healthy, degraded or unhealthy. Only the Set
// uses connecting and off.
const (
	StateConnecting State = "connecting"
	StateHealthy    State = "healthy"
	StateDegraded   State = "degraded"
	StateUnhealthy  State = "unhealthy"
	StateOff        State = "off"
)

// Health is the result of one health check.
type Health struct {
	State   State  `json:"state"`
	Message string `json:"message,omitempty"` // for people; no secrets
	// Mismatch says that the contract does not match any more: the adapter must not be called until it has connected again.
	Mismatch bool `json:"-"`
}

// Healthy is the result for an adapter that works.
func Healthy() Health { return Health{State: StateHealthy} }

// Unhealthy is the result for an adapter that does not work, with the reason. A contract that does not
// match is not an outage that may be over at the next check, so the slot is degraded at once, to off.
func Unhealthy(err error) Health {
	if errors.Is(err, ErrContractMismatch) {
		return Health{State: StateDegraded, Message: err.Error(), Mismatch: true}
	}
	return Health{State: StateUnhealthy, Message: err.Error()}
}

// Adapter has the methods that all implementations of all slots share.
//
// Connect and Disconnect are idempotent and may run concurrently with the slot's methods. After
// Disconnect every method returns UNAVAILABLE. All methods may be called from any goroutine. They
// must return within 100 ms after the deadline of ctx, and must not keep a slice that they were
// given.
type Adapter interface {
	Slot() Slot
	// Impl is the manifest's word for the implementation, such as "local-sqlite".
	Impl() string
	Class() Class
	// Enabled is false for class off, and while a slot is degraded to off.
	Enabled() bool
	// ContractVersion is the version of the slot's contract, MAJOR.MINOR.
	ContractVersion() string
	// Capabilities are the optional parts that are available, sorted; never nil.
	Capabilities() []string
	// Connect opens files and connections. An error with the code CONTRACT_MISMATCH means a wrong
	// configuration, not an outage.
	Connect(ctx context.Context) error
	Health(ctx context.Context) Health
	Disconnect(ctx context.Context) error
}

// SelfAware is an Adapter that notices changes of its health itself, for example because its peer
// connects and disconnects. Its Health reads only memory. The Set calls Health right after Connect
// and at every change, not only every 10 s.
type SelfAware interface {
	Adapter
	// HealthChanged has a token whenever the result of Health may have changed. Every call returns
	// the same channel.
	HealthChanged() <-chan struct{}
}

// Contract describes one slot. All tables about slots are made from it.
type Contract struct {
	Slot Slot
	// Version is the newest contract this code knows, MAJOR.MINOR.
	Version string
	// Methods are the method names in metrics, spans and errors.
	Methods []string
	// Impls are the words the manifest may use, "off" excluded.
	Impls []string
}

// Contracts lists the five slots in connect order. They are disconnected in the reverse order.
func Contracts() []Contract {
	return []Contract{
		{SlotBeads, "1.1", []string{
			"createEpic", "createChild", "claim", "close", "getReady", "show",
			"list", "update", "release", "reopen", "addDep", "removeDep", "comment", "export", "import",
		}, []string{"local-sqlite", "external"}},
		{SlotPods, "1.1", []string{
			"write", "read", "patch", "del", "list", "head", "createContainer", "subscribe",
		}, []string{"local-solid-rs", "external"}},
		{SlotMemory, "1.1", []string{
			"store", "retrieve", "search", "del", "list", "namespaces",
		}, []string{"embedded-ruvector", "external-pg"}},
		{SlotEvents, "1.1", []string{
			"dispatch", "subscribe", "unsubscribe", "history",
		}, []string{"local-jsonl", "external"}},
		{SlotOrchestrator, "1.1", []string{
			"spawnAgent", "streamEvents", "listAgents", "terminateAgent", "getAgent", "sendInput",
		}, []string{"local-process-manager", "stdio-bridge"}},
	}
}

// Slots are the five slots in connect order.
func Slots() []Slot {
	all := Contracts()
	slots := make([]Slot, len(all))
	for i, c := range all {
		slots[i] = c.Slot
	}
	return slots
}

// ContractOf returns the row of one slot.
func ContractOf(slot Slot) (Contract, bool) {
	all := Contracts()
	i := slices.IndexFunc(all, func(c Contract) bool { return c.Slot == slot })
	if i < 0 {
		return Contract{}, false
	}
	return all[i], true
}

// Version is MAJOR.MINOR of a contract.
type Version struct{ Major, Minor int }

// ParseVersion reads MAJOR.MINOR or MAJOR.MINOR.PATCH, with or without a leading "v". The patch is
// ignored.
func ParseVersion(s string) (Version, error) {
	parts := strings.Split(strings.TrimPrefix(s, "v"), ".")
	if len(parts) > 3 {
		return Version{}, fmt.Errorf("version %q is not MAJOR.MINOR", s)
	}
	var n [3]int
	for i, p := range parts {
		v, err := strconv.ParseUint(p, 10, 16)
		if err != nil {
			return Version{}, fmt.Errorf("version %q is not MAJOR.MINOR", s)
		}
		n[i] = int(v)
	}
	return Version{n[0], n[1]}, nil
}

// CheckVersion compares the contract of a peer or an implementation with the wanted one. MAJOR must
// be equal. If exact is true, MINOR must not be older. The error has the code CONTRACT_MISMATCH.
func CheckVersion(slot Slot, want, have string, exact bool) error {
	w, wrong := ParseVersion(want)
	h, err := ParseVersion(have)
	if err := cmp.Or(wrong, err); err != nil {
		return Errorf(CodeContractMismatch, "%v", err).With("slot", slot, "want", want, "have", have)
	}
	if h.Major == w.Major && (!exact || h.Minor >= w.Minor) {
		return nil
	}
	return Errorf(CodeContractMismatch, "%s speaks contract %s, wanted %s", slot, have, want).
		With("slot", slot, "want", want, "have", have)
}
