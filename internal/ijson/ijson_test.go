package ijson

import (
	"encoding/json"
	"strings"
	"testing"
)

// What is refused is what encoding/json would replace by U+FFFD.
func TestSurrogatesHavePairs(t *testing.T) {
	for _, text := range []string{
		`a`, `\n`, `\\`, `\ud83d\ude00`, `\uD83D\uDE00x`, `\\ud800`, `\\\ud83d\ude00`, `\ud7ff`, `\ue000`, `\u0000`,
		`\ud800`, `\udc00`, `x\uD800x`, `\ud800\n`, `\ud800\u0041`, `\ud800\ud800`, `\ud800\ud83d\ude00`, `\ude00\ud83d`, `\\\ud800`,
		`\ud83d\ude00\ude00`, `\ud83d\ude0`, `\ud83d\`, `\u`, `\ud8zz`, `\`,
	} {
		raw := []byte(`{"a":"` + text + `"}`)
		var read struct{ A string }
		if json.Unmarshal(raw, &read) != nil {
			_ = Check(raw) // only must not panic
			continue
		}
		if err := Check(raw); (err != nil) != strings.Contains(read.A, "\ufffd") {
			t.Errorf("%s is read as %q, and the check says %v", raw, read.A, err)
		}
	}
}
