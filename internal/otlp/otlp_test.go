package otlp

import (
	"math"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
)

// answer writes the message of a collector that has rejected n records.
func answer(n int64, why string) []byte {
	success := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), uint64(n))
	success = protowire.AppendString(protowire.AppendTag(success, 2, protowire.BytesType), why)
	return protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), success)
}

func TestRejected(t *testing.T) {
	for name, c := range map[string]struct {
		answer []byte
		n      int64
		why    string
	}{
		"none":                        {nil, 0, ""},
		"some":                        {answer(3, "too old"), 3, "too old"},
		"a warning":                   {answer(0, "slow"), 0, "slow"},
		"fewer than none":             {answer(-1, "odd"), 0, "odd"},
		"as many as fit":              {answer(math.MaxInt64, ""), math.MaxInt64, ""},
		"the last of two counts":      {append(answer(3, "first"), answer(4, "second")...), 4, "second"},
		"cut off":                     {answer(3, "too old")[:6], 0, ""},
		"other fields are skipped":    {append(protowire.AppendFixed64(protowire.AppendTag(nil, 9, protowire.Fixed64Type), 1), answer(1, "x")...), 1, "x"},
		"the field has another type":  {protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 7), 0, ""},
		"a page of text, not a reply": {[]byte("<html>busy</html>"), 0, ""},
	} {
		if n, why := Rejected(c.answer); n != c.n || why != c.why {
			t.Errorf("%s: %d %q, want %d %q", name, n, why, c.n, c.why)
		}
	}
}

// FuzzRejected: whatever bytes a collector sends, the number is not negative and the reading ends.
func FuzzRejected(f *testing.F) {
	f.Add(answer(3, "too old"))
	f.Add([]byte{0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, message []byte) {
		if n, _ := Rejected(message); n < 0 {
			t.Errorf("%d records", n)
		}
	})
}
