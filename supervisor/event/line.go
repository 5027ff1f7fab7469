package event

import (
	"maps"
	"strings"
)

// reasons are the fields that may hold the text of an error.
var reasons = []string{"error", "message", "reason"}

// onOneLine returns the event with the text of each error on one line: errors.Join puts a newline between
// its parts. Like masked, it does not change the given event's fields and change.
func onOneLine(e Event) Event {
	if e.Change != nil {
		if reason, joined := oneLine(e.Change.Reason); joined {
			change := *e.Change
			change.Reason = reason
			e.Change = &change
		}
	}
	cloned := false
	for _, key := range reasons {
		text, _ := e.Fields[key].(string)
		text, joined := oneLine(text)
		if !joined {
			continue
		}
		if !cloned {
			e.Fields, cloned = maps.Clone(e.Fields), true
		}
		e.Fields[key] = text
	}
	return e
}

func oneLine(text string) (line string, joined bool) {
	if !strings.Contains(text, "\n") {
		return text, false
	}
	var parts []string
	for part := range strings.Lines(text) {
		if part = strings.TrimSpace(part); part != "" {
			parts = append(parts, part)
		}
	}
	return strings.Join(parts, "; "), true
}
