package event

import (
	"errors"
	"testing"
)

// The text of an error is on one line, also if several errors make it up. The publisher's own data stays.
func TestReasonsAreOneLine(t *testing.T) {
	bus := NewBus(8)
	joined := errors.Join(errors.New("cannot write a"), errors.New("cannot restore b:\n\tno such file"), errors.New("")).Error()
	fields := map[string]any{"reason": joined, "error": "one", "message": joined, "stack": "a\nb", "count": 3}
	change := &Change{Reason: joined}
	bus.Publish(Event{Name: "E", Fields: fields, Change: change})
	e, err := bus.Watch(0).Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const want = "cannot write a; cannot restore b:; no such file"
	for key, want := range map[string]any{"reason": want, "error": "one", "message": want, "stack": "a\nb", "count": 3} {
		if e.Fields[key] != want {
			t.Errorf("%s is %q", key, e.Fields[key])
		}
	}
	if e.Change.Reason != want {
		t.Errorf("the reason of the change is %q", e.Change.Reason)
	}
	if fields["reason"] != joined || change.Reason != joined {
		t.Errorf("the publisher's data is changed: %v %v", fields, change)
	}
}
