package program

import (
	"reflect"
	"strings"
)

// ChangeKind says what a new set of specifications means for one program.
type ChangeKind string

// The kinds of change.
const (
	Unchanged ChangeKind = "unchanged"
	Live      ChangeKind = "live"    // in force at once, the process keeps running
	Restart   ChangeKind = "restart" // needs a new process
	Add       ChangeKind = "add"
	Remove    ChangeKind = "remove"
)

// SpecChange is what happens to one program.
type SpecChange struct {
	Program string     `json:"program"`
	Kind    ChangeKind `json:"kind"`
	// Was is the former name of the instance, if a changed number of instances renamed it ("web"
	// alone, "web:0" among several); otherwise empty.
	Was string `json:"was,omitempty"`
	// Fields names the fields that differ, as in Spec's JSON ("env" for the environment, whose
	// values are never shown).
	Fields []string `json:"fields,omitempty"`
}

// effect says what a change of each field of Spec needs.
var effect = map[string]ChangeKind{
	"Name": Live, "Group": Restart, "Instance": Restart, "Type": Restart, "Argv": Restart,
	"Credential": Restart, "Umask": Restart, "Directory": Restart, "Env": Restart, "Limits": Restart,
	"Guard": Restart, "Sandbox": Restart, "Stdin": Restart, "TTY": Restart, "Logs": Restart, "Readiness": Restart,
	"Health": Restart, "Kill": Restart, "Schedule": Restart, "Overlap": Restart, "Timezone": Restart,

	"Priority": Live, "Needs": Live, "Autostart": Live, "Required": Live, "Essential": Live,
	"OnFatal": Live, "Restart": Live, "ExitCodes": Live, "RunningAfter": Live, "StartTimeout": Live,
	"Backoff": Live, "RestartLimit": Live, "StartRetries": Live, "Stop": Live, "StopCommand": Live,
	"Hooks": Live, "Control": Live,

	// A secret is part of another field, and that field changes too.
	"Secrets": Unchanged,
}

// Diff compares two sets of specifications. It returns one change for each program: first those of
// next in their order, then the removed ones.
func Diff(before, next []Spec) []SpecChange {
	old := make(map[identity]*Spec, len(before))
	for i := range before {
		old[identityOf(&before[i])] = &before[i]
	}
	changes := make([]SpecChange, 0, len(next))
	for i := range next {
		id := identityOf(&next[i])
		was, ok := old[id]
		if !ok {
			changes = append(changes, SpecChange{Program: next[i].Name, Kind: Add})
			continue
		}
		delete(old, id)
		changes = append(changes, compare(was, &next[i]))
	}
	for i := range before {
		if _, gone := old[identityOf(&before[i])]; gone {
			changes = append(changes, SpecChange{Program: before[i].Name, Kind: Remove})
		}
	}
	return changes
}

// identity tells whether two specifications belong to the same instance. The name does not: the
// first instance of a set is called "web" as long as it is the only one.
type identity struct {
	group    string
	instance int
}

func identityOf(s *Spec) identity {
	if s.Group == "" {
		return identity{group: s.Name}
	}
	return identity{s.Group, s.Instance}
}

func compare(a, b *Spec) SpecChange {
	c := SpecChange{Program: b.Name, Kind: Unchanged}
	if a.Name != b.Name {
		c.Was = a.Name
	}
	va, vb := reflect.ValueOf(*a), reflect.ValueOf(*b)
	for i := range va.NumField() {
		field := va.Type().Field(i)
		if effect[field.Name] == Unchanged || same(va.Field(i), vb.Field(i)) {
			continue
		}
		c.Fields = append(c.Fields, fieldName(field))
		if c.Kind != Restart {
			c.Kind = effect[field.Name]
		}
	}
	return c
}

// same compares deeply; an empty slice or map equals a nil one.
func same(a, b reflect.Value) bool {
	switch a.Kind() {
	case reflect.Slice, reflect.Map:
		if a.Len() == 0 && b.Len() == 0 {
			return true
		}
	}
	return reflect.DeepEqual(a.Interface(), b.Interface())
}

func fieldName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	if name == "-" {
		return strings.ToLower(f.Name)
	}
	return name
}
