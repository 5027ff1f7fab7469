package event

import (
	"encoding/json"
	"maps"
)

// SetMask passes every text in the reason and the fields of an event through mask before the event
// is stored. So a secret in a path or in an error reaches no reader. Events that are already held
// are masked too. mask must be safe for concurrent use.
func (b *Bus) SetMask(mask func(string) string) {
	b.mask.Store(&mask)
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, part := range b.ring.parts {
		for i := range part {
			part[i] = masked(part[i], mask)
		}
	}
}

// masked returns the event with its texts masked.
func masked(e Event, mask func(string) string) Event {
	return rewritten(e, mask, func(_ string, value any) (any, bool) { return maskedValue(value, mask) })
}

// rewritten returns the event with another reason of its change and other fields. It does not change the given
// event's fields and change, because the publisher may still use them.
func rewritten(e Event, reason func(string) string, field func(key string, value any) (other any, changed bool)) Event {
	if e.Change != nil {
		if text := reason(e.Change.Reason); text != e.Change.Reason {
			change := *e.Change
			change.Reason = text
			e.Change = &change
		}
	}
	cloned := false
	for key, value := range e.Fields {
		other, changed := field(key, value)
		if !changed {
			continue
		}
		if !cloned {
			e.Fields, cloned = maps.Clone(e.Fields), true
		}
		e.Fields[key] = other
	}
	return e
}

// maskedValue masks a field. A list or table that contains a secret becomes its JSON text.
func maskedValue(value any, mask func(string) string) (other any, changed bool) {
	switch v := value.(type) {
	case nil, bool, int, int32, int64, uint32, uint64, float64:
		return value, false
	case string:
		text := mask(v)
		return text, text != v
	}
	data, err := Encode(value)
	if err != nil {
		return value, false // such a value cannot be written for any reader either
	}
	text := mask(string(data))
	if text != string(data) && !json.Valid([]byte(text)) {
		return text, true // if a secret begins with the n of "\\n", that n is masked too
	}
	return json.RawMessage(text), text != string(data)
}
