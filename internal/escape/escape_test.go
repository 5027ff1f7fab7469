package escape

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"
	"unicode"
	"unicode/utf8"
)

func TestObeyedHasUnicodesCharacters(t *testing.T) {
	for r := rune(0x80); r <= unicode.MaxRune; r++ {
		want := unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || unicode.In(r, unicode.Zl, unicode.Zp)
		if Obeyed(r) != want {
			t.Errorf("%U: %v", r, !want)
		}
	}
}

func FuzzJSON(f *testing.F) {
	f.Add([]byte(`{"a":"` + "\u0085\u009b2J\u2028\u202eä\x7f\u061c" + `"}`))
	f.Add([]byte(`["plain"]`))
	f.Add([]byte("{\"a\":\r[1\r,\"\\r\"]\r}\r\n"))
	f.Add([]byte("\"\xff\u0085\""))
	f.Fuzz(func(t *testing.T, text []byte) {
		got := JSON(text)
		if bytes.ContainsFunc(got, func(r rune) bool { return r == '\r' || r == 0x7f || Obeyed(r) }) {
			t.Fatalf("%q", got)
		}
		var before, after any
		if json.Unmarshal(text, &before) != nil || !utf8.Valid(text) {
			return
		}
		if err := json.Unmarshal(got, &after); err != nil || !reflect.DeepEqual(before, after) {
			t.Fatalf("%q became %q: %v", text, got, err)
		}
	})
}
