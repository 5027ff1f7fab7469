package event

import (
	"slices"
	"strings"
)

// reasons are the fields that may hold the text of an error.
var reasons = []string{"error", "message", "reason"}

// onOneLine returns the event with the text of each error on one line: errors.Join puts a newline between
// its parts.
func onOneLine(e Event) Event {
	return rewritten(e, oneLine, func(key string, value any) (any, bool) {
		text, ok := value.(string)
		if !ok || !slices.Contains(reasons, key) {
			return value, false
		}
		line := oneLine(text)
		return line, line != text
	})
}

func oneLine(text string) string {
	if !strings.Contains(text, "\n") {
		return text
	}
	var parts []string
	for part := range strings.Lines(text) {
		if part = strings.TrimSpace(part); part != "" {
			parts = append(parts, part)
		}
	}
	return strings.Join(parts, "; ")
}
