package compose

import (
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	reader "go.yaml.in/yaml/v3"
)

func readBack(t *testing.T, m mapping) map[string]any {
	t.Helper()
	text := yaml(m)
	var out map[string]any
	if err := reader.Unmarshal([]byte(text), &out); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return out
}

func TestYAMLReadsBack(t *testing.T) {
	got := readBack(t, mapping{
		{"a", "x"}, {"empty", ""}, {"null", nil}, {"yes", true}, {"n", 7}, {"list", []string{"-", "a: b", "# c"}}, {"none", []string{}}, {"map", mapping{}},
		{"nested", []any{mapping{{"k", []any{mapping{{"deep", 1}}, "s"}}, {"l", "m"}}, mapping{}, "t"}},
		{"text", text("one\n two\n\nthree\n")}, {"not a block", text(" indented\n")}, {"open", text("no end")},
	})
	want := map[string]any{
		"a": "x", "empty": "", "null": nil, "yes": true, "n": 7, "list": []any{"-", "a: b", "# c"}, "none": []any{}, "map": map[string]any{},
		"nested": []any{map[string]any{"k": []any{map[string]any{"deep": 1}, "s"}, "l": "m"}, map[string]any{}, "t"},
		"text":   "one\n two\n\nthree\n", "not a block": " indented\n", "open": "no end",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("\n got %#v\nwant %#v", got, want)
	}
}

// Words that some reader takes as another type stay strings.
func TestYAMLStringsStayStrings(t *testing.T) {
	for _, s := range []string{
		"yes", "No", "on", "OFF", "y", "n", "true", "False", "null", "NULL", "~", "", " ", "1", "1.5", "0x1f", "0o7", "1e3", "e3", "inf", "-inf", ".inf", ".nan", "NaN",
		"12:30:45", "2001-01-01", "-", "- a", "a: b", "a #b", "#b", "&a", "*a", "!t", "|", ">", "%x", "@x", "`x`", "{a}", "[a]", "'q'", `"q"`, `\`, "a\tb", "a\nb", "\u2028",
		"\ufeff", "\x7f", "\u0085", "é", "😀", "<b>&</b>", "..", "...", "---", "=", "<<", "?", "? x", "9090:9090", "1_000", "0b1",
	} {
		if got := readBack(t, mapping{{s, s}, {"list", []string{s}}}); got[s] != s || got["list"].([]any)[0] != s {
			t.Errorf("%q came back as %#v", s, got)
		}
	}
}

// Any string survives a round trip as key, value, element and block.
func FuzzYAML(f *testing.F) {
	for _, s := range []string{"", "yes", "a: b", "one\ntwo\n", " x\n", "\t\n", "\u0085\n", "\r\n", "---\n", "a\n\n", "\x00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		want := strings.ToValidUTF8(s, "�")
		m := mapping{{"value", s}, {"block", text(s)}, {"list", []any{s, mapping{{"in", s}}}}}
		if utf8.ValidString(s) && s != "value" && s != "block" && s != "list" {
			m = append(m, pair{s, 1})
		}
		got := readBack(t, m)
		if got["value"] != want || got["block"] != want || !reflect.DeepEqual(got["list"], []any{want, map[string]any{"in": want}}) {
			t.Errorf("%q came back as %#v from\n%s", s, got, yaml(m))
		}
	})
}
