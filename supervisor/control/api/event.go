package api

import (
	"encoding/json"
	"fmt"
	"time"
)

// Event is one event as it is sent: a flat JSON object whose unknown keys become Fields. It encodes
// to exactly the bytes it was decoded from.
type Event struct {
	Seq     uint64
	Time    time.Time
	Level   string
	Stage   string
	Name    string
	Program string
	Run     uint64
	Change  *Change
	Fields  map[string]json.RawMessage

	raw json.RawMessage
}

// Change is a program's change of state.
type Change struct {
	From      string `json:"from"`
	To        string `json:"to"`
	PID       int    `json:"pid,omitempty"`
	Ready     bool   `json:"ready"`
	Completed bool   `json:"completed,omitempty"`
	Reason    string `json:"reason,omitempty"`
}

// EventLagged is the name of the event that replaces the events that the ring had already
// overwritten.
const EventLagged = "Lagged"

// UnmarshalJSON reads the flat form. It fails only if data is not an object.
func (e *Event) UnmarshalJSON(data []byte) error {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil {
		return err
	}
	*e = Event{raw: append(json.RawMessage(nil), data...)}
	known := []struct {
		key string
		to  any
	}{
		{"seq", &e.Seq}, {"time", &e.Time}, {"level", &e.Level}, {"agentbox.stage", &e.Stage},
		{"event", &e.Name}, {"program", &e.Program}, {"run", &e.Run}, {"change", &e.Change},
	}
	for _, k := range known {
		value, ok := fields[k.key]
		if !ok {
			continue
		}
		// A key with an unusual type stays in Fields, so that one strange event does not end the
		// stream.
		if json.Unmarshal(value, k.to) == nil {
			delete(fields, k.key)
		}
	}
	if _, strange := fields["change"]; strange {
		e.Change = nil // a failed decoding may have set it
	}
	if len(fields) > 0 {
		e.Fields = fields
	}
	return nil
}

// MarshalJSON returns the bytes from which the event was read. It fails for an event that was not
// read.
func (e Event) MarshalJSON() ([]byte, error) {
	if e.raw == nil {
		return nil, fmt.Errorf("event %d was not read from the wire", e.Seq)
	}
	return e.raw, nil
}
