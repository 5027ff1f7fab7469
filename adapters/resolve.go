package adapters

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Config says which implementation each slot wants.
type Config struct {
	// Slots maps a slot to the implementation that the manifest names. A missing entry, "" and
	// "off" mean class off.
	Slots map[Slot]string
	// Lines are the lines of adapters.<slot> in the manifest, if known.
	Lines map[Slot]int
}

// Constructor makes an adapter without any I/O. For missing or contradictory settings the error is
// a *ConfigError.
type Constructor func() (Adapter, error)

// Table has the constructors by slot and by the name of the implementation in the manifest.
type Table map[Slot]map[string]Constructor

// ConfigError is an error in one key of the manifest.
type ConfigError struct {
	Key     string // such as "integrations.external_beads.url"
	Line    int    // 0 when unknown
	Message string
	Err     error // an *Error when the complaint has a code, else nil
}

func (e *ConfigError) Error() string {
	where := e.Key
	if e.Line > 0 {
		where = fmt.Sprintf("%s (line %d)", e.Key, e.Line)
	}
	return where + ": " + e.Message
}

// Unwrap returns Err.
func (e *ConfigError) Unwrap() error { return e.Err }

// Missing is the error for a required setting that is missing.
func Missing(key, why string) *ConfigError {
	return &ConfigError{Key: key, Message: "is required: " + why}
}

// Resolved are the five adapters that are wanted, not yet connected.
type Resolved struct{ wanted map[Slot]Adapter }

// Adapter returns the adapter that a slot wants, not to be called directly: calls go through the
// slots of a Set.
func (r *Resolved) Adapter(slot Slot) Adapter { return r.wanted[slot] }

// Resolve makes the adapters. It performs no I/O. It returns all errors together, joined; each is a
// *ConfigError.
func Resolve(cfg Config, table Table) (*Resolved, error) {
	r := &Resolved{wanted: make(map[Slot]Adapter)}
	var errs []error
	for slot := range cfg.Slots {
		if _, ok := ContractOf(slot); !ok {
			errs = append(errs, &ConfigError{Key: "adapters." + string(slot), Line: cfg.Lines[slot], Message: "there is no such slot"})
		}
	}
	for _, c := range Contracts() {
		a, err := resolveSlot(c, cfg, table[c.Slot])
		if err != nil {
			errs = append(errs, err)
			continue
		}
		r.wanted[c.Slot] = a
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return r, nil
}

func resolveSlot(c Contract, cfg Config, impls map[string]Constructor) (Adapter, error) {
	word := cfg.Slots[c.Slot]
	if word == "" || word == string(ClassOff) {
		return off{c.Slot}, nil
	}
	key := "adapters." + string(c.Slot)
	build, ok := impls[word]
	if !ok {
		known := append(slices.Sorted(maps.Keys(impls)), string(ClassOff))
		return nil, &ConfigError{Key: key, Line: cfg.Lines[c.Slot],
			Message: fmt.Sprintf("%q is not one of %s", word, strings.Join(known, ", "))}
	}
	a, err := build()
	if err != nil {
		if ce, ok := errors.AsType[*ConfigError](err); ok {
			ce.Line = cmp.Or(ce.Line, cfg.Lines[c.Slot])
			return nil, ce
		}
		return nil, &ConfigError{Key: key, Line: cfg.Lines[c.Slot], Message: err.Error(), Err: err}
	}
	if !fits(c.Slot, a) {
		return nil, &ConfigError{Key: key, Message: fmt.Sprintf("%q does not implement the slot", word)}
	}
	v, _ := ParseVersion(c.Version)
	if err := CheckVersion(c.Slot, fmt.Sprintf("%d.0", v.Major), a.ContractVersion(), true); err != nil {
		return nil, &ConfigError{Key: key, Line: cfg.Lines[c.Slot], Message: err.Error(), Err: err}
	}
	return a, nil
}

// fits says whether a implements the interface of slot.
func fits(slot Slot, a Adapter) bool {
	ok := false
	switch slot {
	case SlotBeads:
		_, ok = a.(Beads)
	case SlotPods:
		_, ok = a.(Pods)
	case SlotMemory:
		_, ok = a.(Memory)
	case SlotEvents:
		_, ok = a.(Events)
	case SlotOrchestrator:
		_, ok = a.(Orchestrator)
	}
	return ok && a.Slot() == slot
}
