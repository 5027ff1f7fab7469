package supervisord

import (
	"testing"

	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
)

// Of a long output no more is kept than is wanted.
func TestAppendTail(t *testing.T) {
	var got []byte
	for _, l := range []api.LogLine{{Text: "one"}, {Text: "cut", Truncated: true}, {Data: []byte("\xff")}} {
		if got = AppendTail(got, l, 5); len(got) > 5 {
			t.Errorf("%q has more than 5 bytes", got)
		}
	}
	if string(got) != "cut\xff\n" {
		t.Errorf("%q", got)
	}
}
