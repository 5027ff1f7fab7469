package plan

import (
	"reflect"
	"strings"
	"testing"
)

func TestExpand(t *testing.T) {
	get := func(name string) (string, bool) {
		v, ok := map[string]string{"A": "a", "EMPTY": "", "D": "${A}"}[name]
		return v, ok
	}
	for _, c := range []struct{ in, want, missing, bad string }{
		{in: "", want: ""},
		{in: "plain", want: "plain"},
		{in: "${A}", want: "a"},
		{in: "x${A}y${A}", want: "xaya"},
		{in: "$A $ $", want: "$A $ $"},
		{in: "$$", want: "$"},
		{in: "$${A}", want: "${A}"},
		{in: "$$$${A}", want: "$${A}"},
		{in: "$$${A}", want: "$a"},
		{in: "${EMPTY}", want: ""},
		{in: "${EMPTY:-d}", want: "d"},
		{in: "${N:-}", want: ""},
		{in: "${N:-a b}", want: "a b"},
		{in: "${N:-${A}}", want: "a"},
		{in: "${N:-${M:-${A}!}?}", want: "a!?"},
		{in: "${N:-$$}", want: "$"},
		{in: "${N:-$$}}", want: "$}"},
		{in: "${A:-${N}}", want: "a"}, // an unused default is not expanded
		{in: "${D}", want: "${A}"},    // values are not expanded again
		{in: "${N}", missing: "N"},
		{in: "${N:-${M}}", missing: "M"},
		{in: "${A:?needed}", want: "a"},
		{in: "${EMPTY:?needed}", missing: "EMPTY needed"},
		{in: "^done$|^end$", want: "^done$|^end$"},
		{in: "${", bad: "not closed"},
		{in: "${A", bad: "not closed"},
		{in: "${N:-${A}", bad: "not closed"},
		{in: "${}", bad: "not the name"},
		{in: "${1}", bad: "not the name"},
		{in: "${A-b}", bad: "not understood"},
		{in: "${A+b}", bad: "not understood"},
		{in: "${A B}", bad: "not understood"},
		{in: strings.Repeat("${N:-", 40) + strings.Repeat("}", 40), bad: "too deeply"},
	} {
		x := &expander{get: get}
		got := x.expand(c.in)
		var missing []string
		for _, m := range x.missing {
			missing = append(missing, strings.TrimSpace(m.Name+" "+m.Message))
		}
		if strings.Join(missing, ",") != c.missing {
			t.Errorf("%q: missing %q, want %q", c.in, missing, c.missing)
		}
		switch {
		case c.bad != "":
			if len(x.bad) != 1 || !strings.Contains(x.bad[0].Err.Error(), c.bad) {
				t.Errorf("%q: %v, want an error with %q", c.in, x.bad, c.bad)
			}
		case len(x.bad) > 0:
			t.Errorf("%q: %v", c.in, x.bad)
		case c.missing == "" && got != c.want:
			t.Errorf("%q: %q, want %q", c.in, got, c.want)
		}
	}
}

func TestExpansionIsBounded(t *testing.T) {
	big := strings.Repeat("x", 64<<10)
	x := &expander{get: func(string) (string, bool) { return big, true }}
	if x.expand(strings.Repeat("${A}", 100)); len(x.bad) != 1 {
		t.Errorf("6 MiB of expansion draws %v", x.bad)
	}
}

// A text without a dollar stays unchanged. A text whose dollars are doubled comes back with single
// dollars, whatever else it contains.
func FuzzExpand(f *testing.F) {
	for _, s := range []string{"", "$", "${A}", "$$", "${A:-${B}}", "${A:?x}", "}{"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		x := &expander{get: func(n string) (string, bool) { return n, len(n)%2 == 0 }}
		x.expand(s)
		x = &expander{get: func(string) (string, bool) { return "", false }}
		if got := x.expand(strings.ReplaceAll(s, "$", "$$")); got != s && len(s) < maxExpansion {
			t.Errorf("escaped %q came back as %q", s, got)
		}
	})
}

func TestEnvFile(t *testing.T) {
	for _, c := range []struct {
		in   string
		want []variable
		bad  string
	}{
		{in: ""},
		{in: "\n# c\n  # d\n"},
		{in: "A=1", want: []variable{{"A", "1"}}},
		{in: "A=1\r\nB=2\r\n", want: []variable{{"A", "1"}, {"B", "2"}}},
		{in: "export  A=1\n", want: []variable{{"A", "1"}}},
		{in: "A=\nB=x=y", want: []variable{{"A", ""}, {"B", "x=y"}}},
		{in: "A= a b # c\nB=a#b", want: []variable{{"A", "a b"}, {"B", "a#b"}}},
		{in: `A='a # "b" \n $c'`, want: []variable{{"A", `a # "b" \n $c`}}},
		{in: `A="a\n\"b\" \$c \d" # note`, want: []variable{{"A", "a\n\"b\" $c \\d"}}},
		{in: "A=\"two\nlines\"\nB=1", want: []variable{{"A", "two\nlines"}, {"B", "1"}}},
		{in: "A=${B}", want: []variable{{"A", "${B}"}}},
		{in: "\ufeffA=1", want: []variable{{"A", "1"}}},
		{in: "A=1\n=2", bad: "line 2"},
		{in: "1A=1", bad: "NAME=value"},
		{in: "A", bad: "NAME=value"},
		{in: "A B=1", bad: "NAME=value"},
		{in: "A='x", bad: "not closed"},
		{in: "A='x' y", bad: "follows"},
		{in: "A=\x00", bad: "UTF-8"},
		{in: "A=\xff", bad: "UTF-8"},
		{in: strings.Repeat("#", MaxEnvFile+1), bad: "larger"},
	} {
		got, err := parseEnvFile([]byte(c.in))
		if c.bad != "" {
			if err == nil || !strings.Contains(err.Error(), c.bad) {
				t.Errorf("%.40q: %v, want an error with %q", c.in, err, c.bad)
			}
			continue
		}
		if err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%q: %q, %v; want %q", c.in, got, err, c.want)
		}
	}
}

func FuzzEnvFile(f *testing.F) {
	for _, s := range []string{"A=1\n", "export A='x'\n#c\n", "A=\"a\nb\"\nB=2", "A=\"\\"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		entries, err := parseEnvFile(text)
		if err != nil {
			return
		}
		for _, e := range entries {
			if nameEnd(e.Name) != len(e.Name) || e.Name == "" || strings.ContainsRune(e.Value, 0) {
				t.Errorf("entry %q", e)
			}
			again, err := parseEnvFile([]byte(e.Name + "='" + strings.ReplaceAll(e.Value, "'", "") + "'"))
			if err != nil || len(again) != 1 {
				t.Errorf("value %q does not survive quotes: %v", e.Value, err)
			}
		}
	})
}
