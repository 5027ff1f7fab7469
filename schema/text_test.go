package schema

import (
	"bytes"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestRefusedTexts(t *testing.T) {
	cases := map[string]struct {
		text      string
		line, col int
	}{
		"syntax":                   {"x = = 1", 1, 5},
		"duplicate key":            {"[core]\norchestration = 'a'\norchestration = 'b'", 3, 1},
		"redefined table":          {"[core]\n[core]", 2, 2},
		"impossible date":          {"x = 1979-02-30", 1, 13},
		"invalid UTF-8":            {"x = 1\ny = '\xff'", 2, 6},
		"control character":        {"x = 'a\x01b'", 1, 7},
		"bare carriage return":     {"x = 1\ry = 2", 1, 6},
		"inline table over lines":  {"x = {\n a = 1}", 1, 6},
		"comment in inline table":  {"x = { # no\n}", 1, 7},
		"trailing comma":           {"x = {a = 1, }", 1, 13},
		"escape of 1.1":            {`x = "\e"`, 1, 6},
		"hex escape of 1.1":        {`x = "\x41"`, 1, 6},
		"time without seconds":     {"x = 07:32", 1, 5},
		"date-time without":        {"x = 1979-05-27T07:32", 1, 16},
		"unclosed string":          {"x = 'a", 1, 6},
		"after other characters":   {`x = "é𝄞" b`, 1, 10},
		"a control among them":     {"x = 'é𝄞\x01'", 1, 8},
		"invalid UTF-8 after them": {"x = 'é𝄞\xff'", 1, 8},
		"far in a long line":       {"x = '" + strings.Repeat("é𝄞", 3000) + "' b", 1, 6008},
		"deep arrays":              {"x = " + strings.Repeat("[", 200), 1, 105},
		"deep dotted key":          {strings.Repeat("a.", 200) + "a = 1", 1, 200},
		"deep inline tables":       {"x = " + strings.Repeat("{a=", 200), 1, 305},
	}
	for name, c := range cases {
		d, bad := Parse("f.toml", []byte(c.text))
		if d != nil || bad == nil || bad.Code != "E000" || bad.Severity != Error || bad.File != "f.toml" {
			t.Errorf("%s: %v %v", name, d != nil, bad)
			continue
		}
		if bad.Line != c.line || bad.Column != c.col {
			t.Errorf("%s: at %d:%d, want %d:%d: %s", name, bad.Line, bad.Column, c.line, c.col, bad.Message)
		}
	}
}

// An editor that saves with a byte order mark shows no sign of it, so the message must name it.
func TestByteOrderMark(t *testing.T) {
	_, bad := Parse("f", []byte("\uFEFF[core]\n"))
	if bad == nil || bad.Line != 1 || bad.Column != 1 || !strings.Contains(bad.Message, "byte order mark") {
		t.Errorf("got %v", bad)
	}
}

// The message names the character that the user sees, not its first byte.
func TestCharactersOutsideASCII(t *testing.T) {
	for text, want := range map[string]string{
		"x = “a”":      `unexpected character U+201C '“' at start of value (write the straight quotes " or ')`,
		"x = ’a’":      `unexpected character U+2019 '’' at start of value (write the straight quotes " or ')`,
		"é = 1":        "U+00E9 'é'",
		"x = 1 — y":    "U+2014 '—'",
		"x = \"\\é\"":  "invalid escape character U+00E9 'é'",
		"x = 'é' “":    "U+201C '“'",
		"x = é":        "U+00E9 'é'",
		"x = [1, “2”]": "U+201C '“'",
		"x = l":        "U+006C 'l' at start of value",
		"x = \"\xe9\"": "not valid UTF-8; save the file as UTF-8",
	} {
		_, bad := Parse("f", []byte(text))
		if bad == nil || !strings.Contains(said(*bad), want) {
			t.Errorf("%s\n got %v\nwant %s", text, bad, want)
		}
	}
}

// The message does not name the function of a library.
func TestNumbersTooLarge(t *testing.T) {
	for text, want := range map[string]string{
		"x = 1e1000":              "cannot read the manifest: the number is too large for a float",
		"x = 9223372036854775808": "too large to fit in a 64-bit signed integer",
	} {
		_, bad := Parse("f", []byte(text))
		if bad == nil || !strings.Contains(bad.Message, want) || strings.Contains(bad.Message, "strconv") || bad.Line != 1 || bad.Column != 5 {
			t.Errorf("%s\n got %v\nwant %s", text, bad, want)
		}
	}
}

func TestAcceptedTexts(t *testing.T) {
	for _, text := range []string{
		"x = [ # comment\n 1, 2,\n]", "x = {a = [\n1,\n2]}", "x = '''a\n\\e'''", "x = \"\"\"\\\"\"\"\"", `x = "\\e"`,
		"x = 1979-05-27T07:32:00-07:00", "x = 1979-05-27 07:32:00.5+05:30", "x = 07:32:00", "\"07:32\" = 1",
		"x = 'it = { # [ \"'", "# { [ \" '''", "x = [[1], {a = 'b'}]", "a.\"b.c\".d = 1", "x = \"\"\"\"quoted\"\"\"\"",
	} {
		if _, bad := Parse("f", []byte(text)); bad != nil {
			t.Errorf("%q: %v", text, bad)
		}
	}
}

// For a document of any size and shape, Load returns and the process survives. The numbers of
// findings are exact. The test's own limit bounds the time.
func TestHugeDocuments(t *testing.T) {
	if testing.Short() {
		t.Skip("long: reads tens of megabytes")
	}
	many := func(n int, line string) []byte {
		var b bytes.Buffer
		for i := range n {
			fmt.Fprintf(&b, line, i)
		}
		return b.Bytes()
	}
	cases := []struct {
		name string
		text []byte
		want int
	}{
		{"10,000 unknown keys", many(10_000, "orchestratio%d = 1\n"), 10_000},
		{"5,000 programs", many(5_000, "[programs.p%d]\ncommand = ['x']\n"), 0},
		{"10,000 wrong types", append([]byte("[sovereign_mesh.relay]\nallowed_kinds = ["), append(bytes.Repeat([]byte("'x',"), 10_000), ']')...), 10_000},
		{"10 MB of comment", bytes.Repeat([]byte("# comment\n"), 1<<20), 0},
		{"10 MB in one value", []byte("[core]\norchestration = '" + strings.Repeat("x", 10<<20) + "'"), 0},
		{"10 MB of one unknown key", []byte(strings.Repeat("x", 10<<20) + " = 1"), 1},
		{"10 MB of brackets", bytes.Repeat([]byte("["), 10<<20), 1},
		{"10 MB of dots", bytes.Repeat([]byte("a."), 5<<20), 1},
		{"too many keys", many(40_001, "k%d = 1\n"), 1},
		{"too many tables", many(40_001, "[t%d]\n"), 1},
		{"too many keys of inline tables", append([]byte("x = ["), append(bytes.Repeat([]byte("{a=1},"), 1<<20), ']')...), 1},
		{"as many elements as may be", append([]byte("[programs.x]\ncommand = ["), append(bytes.Repeat([]byte("1,"), maxElements-1), ']')...), maxElements - 1},
		{"too many elements", append([]byte("[programs.x]\ncommand = ["), append(bytes.Repeat([]byte("1,"), maxElements), ']')...), 1},
		{"beyond the bound", bytes.Repeat([]byte("#"), MaxBytes+1), 1},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, _, findings := Load("f", c.text)
			if len(findings) != c.want {
				t.Errorf("%d findings, want %d", len(findings), c.want)
			}
			for _, f := range findings {
				if n := len(f.Error()); n > 1000 {
					t.Fatalf("a message of %d bytes", n)
				}
			}
		})
	}
}

func TestSplitCommand(t *testing.T) {
	cases := map[string][]string{
		"":                         nil,
		"  a  b\tc\n":              {"a", "b", "c"},
		`a 'b c' "d e"`:            {"a", "b c", "d e"},
		`a''b "" ''`:               {"ab", "", ""},
		`a\ b \'c`:                 {"a b", "'c"},
		`"a\"b\\c\d\$x"`:           {`a"b\c\d$x`},
		"a\\\nb":                   {"ab"},
		`echo ${X:-a b} $(ls) | *`: {"echo", "${X:-a b}", "$(ls)", "|", "*"},
		`sh -c 'a && b'`:           {"sh", "-c", "a && b"},

		`a ${X:?please set X} b`:     {"a", "${X:?please set X}", "b"},
		`a x${X:-b ${Y:-c d} e}y z`:  {"a", "x${X:-b ${Y:-c d} e}y", "z"},
		`a "${X:-b c}" d`:            {"a", "${X:-b c}", "d"},
		`a "x ${X:-"b c"} y" d`:      {"a", "x ${X:-b c} y", "d"},
		`a ${X:-"b  c" 'd  e'\ f} g`: {"a", "${X:-b  c d  e f}", "g"},
		`a ${X:-} } b`:               {"a", "${X:-}", "}", "b"},
		`a $${X b} c$ {d e}`:         {"a", "$${X", "b}", "c$", "{d", "e}"},
		`a "$${X" b`:                 {"a", "$${X", "b"},
		`a ${X b`:                    {"a", "${X b"},
		`a '${' b`:                   {"a", "${", "b"},
	}
	for line, want := range cases {
		got, err := SplitCommand(line)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %q %v, want %q", line, got, err, want)
		}
	}
	for _, line := range []string{"'a", `"a`, `a\`, "a\x00b", `"a\`} {
		if got, err := SplitCommand(line); err == nil {
			t.Errorf("%q: %q", line, got)
		}
	}
}

func TestValues(t *testing.T) {
	sizes := map[string]Size{"0": 0, "50MB": 50e6, "64MiB": 64 << 20, "1K": 1024, "7 GB": 7e9, "12B": 12}
	for text, want := range sizes {
		if got, err := ParseSize(text); err != nil || got != want {
			t.Errorf("%s = %d %v", text, got, err)
		}
	}
	for _, text := range []string{"", "-1", "1.5M", "9999999999T", "MB", "1mb"} {
		if got, err := ParseSize(text); err == nil {
			t.Errorf("%q = %d", text, got)
		}
	}
	for _, text := range []string{"", "-1s", "+1s", "1", "99999999h", "soon", "1d"} {
		if got, err := ParseDuration(text); err == nil {
			t.Errorf("%q = %v", text, got)
		}
	}
	for text, want := range map[string]string{"1m30s": "1m30s", "60s": "1m", "2h": "2h", "0": "0s", "1.5s": "1.5s", "90m": "1h30m"} {
		if got, err := ParseDuration(text); err != nil || got.String() != want {
			t.Errorf("%q = %v %v, want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"", ":ready", "a:done", "a:b:c"} {
		if got, err := parseNeed(text); err == nil {
			t.Errorf("%q = %v", text, got)
		}
	}
	var l Limit
	for _, text := range []string{"5:3", "x", "1:2:3", "-1", ":"} {
		if err := l.fromTOML(text); err == nil {
			t.Errorf("limit %q = %v", text, l)
		}
	}
}

func TestMergeProgram(t *testing.T) {
	low := map[string]any{"stop": []any{"TERM"}, "environment": map[string]any{"A": "1", "B": "1"}, "ready": map[string]any{"tcp": "x", "any": true}}
	high := map[string]any{"stop_signal": "INT", "environment": map[string]any{"B": "2"}, "ready": map[string]any{"http": "y"}}
	got := MergeProgram(low, nil, high)
	want := map[string]any{"stop_signal": "INT", "environment": map[string]any{"A": "1", "B": "2"}, "ready": map[string]any{"http": "y"}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%v", got)
	}
	if _, still := low["stop"]; !still || low["environment"].(map[string]any)["B"] != "1" {
		t.Error("a layer was changed")
	}
}

func TestDecodeProgramReports(t *testing.T) {
	p, findings := DecodeProgram(map[string]any{"priority": "first"})
	if len(findings) != 2 || findings[0].Path != "priority" || findings[1].Path != "command" {
		t.Errorf("%v", findings)
	}
	if p.Restart != "on-failure" || p.StartTimeout.Std() != time.Minute || p.Backoff.Factor != 2 || p.StartRetries != -1 {
		t.Errorf("defaults %+v", p)
	}
}

func TestFormat(t *testing.T) {
	cases := map[string]string{
		"":                             "",
		"\n\n  x=1\n\n\n\ny  =  2  \n": "x = 1\n\ny = 2\n",
		"[a]\nx=1\n[b]\n":              "[a]\nx = 1\n\n[b]\n",
		"x=1\n# about a\n[a]":          "x = 1\n\n# about a\n[a]\n",
		"# top\n\n[a]":                 "# top\n\n[a]\n",
		"x=[1,\n2,\n   [ 3,\n4],\n]":   "x = [1,\n  2,\n  [ 3,\n    4],\n]\n",
		"x = 'a=b' # c  \r\n":          "x = 'a=b' # c\n",
		"x=\"\"\"a  \n  b\"\"\"  \n":   "x = \"\"\"a  \n  b\"\"\"\n",
		"\"k=1\"=2":                    "\"k=1\" = 2\n",
	}
	for in, want := range cases {
		got, bad := Format("f", []byte(in))
		if bad != nil || string(got) != want {
			t.Errorf("%q → %q %v, want %q", in, got, bad, want)
		}
	}
	if _, bad := Format("f", []byte("x = ")); bad == nil {
		t.Error("an invalid text was formatted")
	}
}

func TestNearest(t *testing.T) {
	words := []string{"command", "enabled", "environment"}
	for word, want := range map[string]string{"comand": "command", "enabld": "enabled", "ENABLED": "enabled", "xyz": "", "": "", "enviroment": "environment"} {
		if got, _ := Nearest(word, words); got != want {
			t.Errorf("%s: %q, want %q", word, got, want)
		}
	}
}

func TestEffective(t *testing.T) {
	_, d, _ := load(t, `
[integrations.ruvector_external]
conninfo = "postgres://u:secret@h/db"
[federation]
external_url = "https://user:secret@mesh/"
[observability]
log_level = "debug"
[supervisor.defaults]
restart = "always"
[programs.web]
priority = 5
environment = { TOKEN = "secret", env = "a b", COLOUR = "blue", OTHER_TOKEN = "${T}" }
[api.keys.oncall]
role = "viewer"
env = "the-secret-itself"
`)
	env := func(name string) (string, bool) {
		v, ok := map[string]string{"AGENTBOX_LOG_LEVEL": "warn", "MANAGEMENT_API_PORT": "7000",
			"MANAGEMENT_API_PUBLIC_URLS": "https://a, https://b"}[name]
		return v, ok
	}
	got := map[string]Setting{}
	for _, s := range Effective(d, env, map[string]map[string]any{"web": {"priority": int64(1), "directory": "/x"}, "cat": {"command": "y"}}) {
		if _, twice := got[s.Path]; twice {
			t.Errorf("%s twice", s.Path)
		}
		if strings.Contains(TOML(s.Value), "secret") && s.Path != "privacy_filter.entities.enabled" {
			t.Errorf("%s shows a secret", s.Path)
		}
		got[s.Path] = s
	}
	want := map[string][3]any{
		"integrations.ruvector_external.conninfo": {Redacted, "file", "agentbox.toml:3:1"},
		"federation.external_url":                 {"https://user:" + Redacted + "@mesh/", "file", "agentbox.toml:5:1"},
		"observability.log_level":                 {"warn", "env", "AGENTBOX_LOG_LEVEL"},
		"supervisor.listen":                       {"0.0.0.0:7000", "env", "MANAGEMENT_API_HOST, MANAGEMENT_API_PORT"},
		"supervisor.stop_grace":                   {"25s", "default", ""},
		"api.public_urls":                         {[]any{"https://a", "https://b"}, "env", "MANAGEMENT_API_PUBLIC_URLS"},
		"programs.web.priority":                   {int64(5), "file", "agentbox.toml:11:1"},
		"programs.web.directory":                  {"/x", "catalogue", ""},
		"programs.web.restart":                    {"always", "file", "agentbox.toml:9:1"},
		"programs.web.kill":                       {"tree", "default", ""},
		"programs.web.backoff.max":                {"10s", "default", ""},
		"programs.web.environment.TOKEN":          {Redacted, "file", "agentbox.toml:12:17"},
		"programs.web.environment.COLOUR":         {"blue", "file", "agentbox.toml:12:48"},
		"programs.web.environment.env":            {"a b", "file", "agentbox.toml:12:35"},
		"api.keys.oncall.env":                     {Redacted, "file", "agentbox.toml:15:1"},
		"programs.web.environment.OTHER_TOKEN":    {"${T}", "file", "agentbox.toml:12:65"},
		"programs.cat.command":                    {"y", "catalogue", ""},
		"programs.cat.restart":                    {"always", "file", "agentbox.toml:9:1"},
	}
	for path, w := range want {
		if s := got[path]; !reflect.DeepEqual(s.Value, w[0]) || s.Source != w[1] || s.Detail != w[2] {
			t.Errorf("%s = %+v, want %v", path, s, w)
		}
	}
}

// A key that another one replaces is not in force, and a log file means to = "file".
func TestEffectiveIsInForce(t *testing.T) {
	_, d, _ := load(t, `
[supervisor.defaults]
stop = ["INT 5s", "KILL"]
restart = "always"
[programs.a]
command = "x"
stop_signal = "QUIT"
logs = { path = "/var/log/a.log" }
[programs.b]
command = "x"
start_seconds = "90s"
[programs.once]
command = "x"
type = "oneshot"
[programs.daily]
command = "x"
type = "schedule"
schedule = "@daily"
[programs.retried]
command = "x"
type = "schedule"
schedule = "@daily"
start_retries = 2
`)
	got := map[string]string{}
	for _, s := range Effective(d, nil, nil) {
		got[s.Path] = TOML(s.Value) + " " + s.Source + " " + s.Detail
	}
	for path, want := range map[string]string{
		"programs.a.stop": "", "programs.a.stop_signal": `"QUIT" file agentbox.toml:7:1`, "programs.a.stop_timeout": `"10s" default `,
		"programs.a.start_timeout": `"1m" default `, "programs.b.start_timeout": `"2m30s" default `, "programs.once.start_timeout": `"0s" default `,
		"programs.b.stop": `["INT 5s", "KILL"] file agentbox.toml:3:1`, "programs.b.stop_signal": "", "programs.b.stop_timeout": "",
		"programs.a.logs.to": `"file" file agentbox.toml:8:1`, "programs.b.logs.to": `"console" default `,
		"programs.daily.restart": `"never" default `, "programs.retried.restart": `"always" file agentbox.toml:4:1`,
	} {
		if got[path] != want {
			t.Errorf("%s = %q, want %q", path, got[path], want)
		}
	}
}

// As at boot, the environment overrides the host and the port of the listener's address separately.
func TestEffectiveListener(t *testing.T) {
	for _, c := range []struct{ listen, host, port, want string }{
		{"127.0.0.1:9090", "", "", "127.0.0.1:9090"},
		{"127.0.0.1:9090", "", "7000", "127.0.0.1:7000"},
		{"127.0.0.1:9090", "::1", "", "[::1]:9090"},
		{"[::1]:9090", "", "7000", "[::1]:7000"},
		{"[::1]:9090", "[::]", "7000", "[::]:7000"},
		{"off", "", "7000", "off"},
	} {
		_, d, findings := load(t, "[supervisor]\nlisten = '"+c.listen+"'")
		if len(findings) > 0 {
			t.Fatal(findings)
		}
		env := map[string]string{"MANAGEMENT_API_HOST": c.host, "MANAGEMENT_API_PORT": c.port}
		for _, s := range Effective(d, func(name string) (string, bool) { return env[name], env[name] != "" }, nil) {
			if s.Path == "supervisor.listen" && s.Value != c.want {
				t.Errorf("%+v: %v", c, s.Value)
			}
		}
	}
}

func FuzzLoad(f *testing.F) {
	for _, c := range countCases {
		f.Add([]byte(c.text))
	}
	f.Add([]byte("[[artifacts]]\nid='a'\n[artifacts.x]\n[[artifacts]]\n"))
	f.Add([]byte("a = {b = {c = [{d = 1}]}}\n\"\".x = 07:32:00\n"))
	library := compiled(f)
	f.Fuzz(func(t *testing.T, text []byte) {
		m, d, findings := Load("f", text)
		if (m == nil) != (d == nil) || d == nil && len(findings) != 1 {
			t.Fatalf("manifest %v, document %v, %d findings", m != nil, d != nil, len(findings))
		}
		for _, one := range findings {
			if strings.ContainsAny(one.Error(), "\n\r\x00") || one.Line > len(bytes.Split(text, []byte("\n"))) {
				t.Errorf("%+v", one)
			}
		}
		if d == nil {
			return
		}
		if len(findings) == 0 && finite(d.raw) {
			if n := libraryCount(t, library, d); n != 0 {
				t.Errorf("valid for us, but the library finds %d violations", n)
			}
		}
		Effective(d, nil, nil)
	})
}

// finite reports whether the tree can be written as JSON.
func finite(v any) bool {
	switch v := v.(type) {
	case float64:
		return v-v == 0
	case []any:
		for _, e := range v {
			if !finite(e) {
				return false
			}
		}
	case map[string]any:
		for _, e := range v {
			if !finite(e) {
				return false
			}
		}
	}
	return true
}

func FuzzFormat(f *testing.F) {
	f.Add([]byte("x=[1,\n#c\n{a='b'}]\n[[t]]#x\n\n\ny='''\n \r\n'''"))
	f.Add([]byte("a=\"\"\"\\\n   b\"\"\"#c\r\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		once, bad := Format("f", text)
		if bad != nil {
			if _, refused := Parse("f", text); refused == nil {
				t.Fatalf("a valid text cannot be formatted: %v", bad)
			}
			return
		}
		twice, bad := Format("f", once)
		if bad != nil || !bytes.Equal(once, twice) {
			t.Errorf("not stable: %q then %q (%v)", once, twice, bad)
		}
	})
}

func FuzzSplitCommand(f *testing.F) {
	f.Add(`a 'b c' "d\"e" \f`)
	f.Add(`a ${X:-b "${Y:-c d}" $$ } e`)
	f.Fuzz(func(t *testing.T, line string) {
		words, err := SplitCommand(line)
		if err != nil {
			return
		}
		quoted := make([]string, len(words))
		for i, w := range words {
			quoted[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
		again, err := SplitCommand(strings.Join(quoted, " "))
		if err != nil || len(again) != len(words) || len(words) > 0 && !reflect.DeepEqual(again, words) {
			t.Errorf("%q → %q → %q (%v)", line, words, again, err)
		}
	})
}

// The code of each rule for names agrees with its pattern.
func FuzzNamesAreTheirPattern(f *testing.F) {
	for _, s := range []string{"", "a", "a.b-c_d", "-a", "_", "A", "ä", "a b", "a\n", "a=b", "a\x00", "\xff", strings.Repeat("a", 63), strings.Repeat("a", 64)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, n := range []*names{programNames, variableNames} {
			if n.allow(text) != regular(n.pattern).MatchString(text) {
				t.Errorf("%q matches %s: %v", text, n.pattern, !n.allow(text))
			}
		}
	})
}

// A text that its decoder accepts is not compared with the pattern, so the pattern must accept it
// too. Otherwise a manifest could load that the JSON Schema refuses.
func FuzzPatternsTakeWhatDecodersTake(f *testing.F) {
	for _, s := range []string{"10s", "1m30s", ".5h", "5.s", "0", "1µs", "1μs", "64MiB", "50 MB", "7", "1k", " 5MB", "5\tMB", "5MB ", "1_0s", "+1s", "٣s", "1e3s", "9TiB"} {
		f.Add(s)
	}
	shapes := map[string]*shape{"duration": duration(""), "size": size("")}
	f.Fuzz(func(t *testing.T, text string) {
		for name, s := range shapes {
			if s.form(text) == nil && !regular(s.pattern).MatchString(text) {
				t.Errorf("%s %q is decoded, and its pattern refuses it", name, text)
			}
		}
	})
}

// Each usual mistake is shown with its value, and with what to write instead.
func TestUsualMistakes(t *testing.T) {
	for text, want := range map[string]string{
		"command = \"sleep 1\nrequired = true": `(close the text with a quote on the same line;`,
		"command = /bin/sleep":                 `(a text stands in quotes, such as command = "sleep 10";`,
		"command = npm start":                  `(a text stands in quotes,`,
		"command = [\"sleep\", \"1\"\n\n":      `(close the list with ])`,
		"command = [\"a\" \"b\"]":              `(write a comma between two values, and ] at the end of the list)`,
		`environment = { A = "1" B = "2" }`:    `(write a comma between two keys, and } at the end of the table)`,
		"ready = { exec = [\"a\" }\n":          `close each bracket in it`,
		`command = "grep \d"`:                  `(write two backslashes for one, or put the text in single quotes)`,
		`command = "grep \x41"`:                `; write two backslashes for one, or`,
		`logs.path = "/var/log/web/"`:          `must be the path of a file, without a "/" at the end, not "/var/log/web/"`,
		"stop_timeout = 10s":                   `(a text stands in quotes,`,
		"umask = 022":                          `(a number in octal is a text here, such as "022")`,
		"user = \"a\"\nuser = \"b\"":           `(write each key and each [table] once)`,
		`needs = "db"`:                         `must be an array, not a string ("db") (write ["db"])`,
		`required = "yes"`:                     `must be a boolean, not a string ("yes") (write true or false)`,
		`required = 1`:                         `must be a boolean, not an integer (1) (write true or false)`,
		`required = "1"`:                       `(write true or false)`,
		`required = "true"`:                    `(write it without quotes)`,
		`priority = "5"`:                       `(write it without quotes)`,
		`priority = "true"`:                    `not a string ("true") ()`,
		`exit_codes = 3`:                       `must be an array, not an integer (3) (write [3])`,
		`exit_codes = "3"`:                     `must be an array, not a string ("3") ()`,
		`environment = ["A=1"]`:                `must be a table, not an array (write [programs.web.environment], and below it a line KEY = VALUE for each of its keys)`,
		`environment = { PORT = 80 }`:          `programs.web.environment.PORT must be a string, not an integer (write it in quotes)`,
		`restart_limit = 5`:                    `(write [programs.web.restart_limit], and below it a line KEY`,
		`directory = 5`:                        `must be a string, not an integer (5) (write it in quotes)`,
		`log.path = "/x"`:                      `unknown key programs.web.log in [programs.web] (use logs;`,
		`ready = "http://127.0.0.1:80/"`:       `must be an array or a table, not a string (write a table such as { http = "http`,
		`colour = "red"`:                       `unknown key programs.web.colour in [programs.web] (agentctl help manifest programs shows the keys)`,
		`hooks.before = "x"`:                   `in [programs.web.hooks] (agentctl help manifest programs.hooks shows the keys)`,
		`ready = [{ tcp = "h:1", x = 1 }]`:     `(agentctl help manifest programs.ready shows the keys)`,
		`needs = ["db:healthy"]`:               `":ready" or ":completed", not "db:healthy"`,
		`ports = ["http"]`:                     `"127.0.0.1:80:8080" or "53/udp", not "http"`,
		`limits.memory = "512MBs"`:             `must be a number, a size such as "64MiB", "soft:hard" or "unlimited", not "512MBs"`,
		`limits.memory = 512`:                  `must be at least 128KiB, such as "512MiB": with less, no program can start, not 512`,
		`limits.nofile = "5:4"`:                `must be a soft limit of at most the hard one, not "5:4"`,
		`ready.tcp = "localhost"`:              `must be host and port, such as "127.0.0.1:5432", not "localhost"`,
		`ready.http = "localhost:80/up"`:       `such as "http://localhost:80/up", not "localhost:80/…"`,
		`logs.max_line = 1`:                    `must be a size from 1KiB to 16MiB, not 1`,
		`command = "é 'x"`:                     `quotes are closed: close the ' at character 3, or write the command as an array; the value is not shown,`,
		`command = 'a "b" "c'`:                 `quotes are closed: close the " at character 7, or`,
		`stop = ["TERM 10sec", "KILL"]`:        `must be a signal, a blank and a duration such as "TERM 10s", not "TERM 10sec"`,
		`logs.max_age = "7d"`:                  `must be a duration such as "10s", "1m30s" or "168h" for 7 days, or a number of seconds, at most ten years, not "7d"`,
		`logs.to = "disk"`:                     `must be "console", "file" or "none", not "disk"`,
		`limits.as = "10"`:                     `must be at least 128KiB, such as "512MiB": with less, no program can start, not "10"`,
		`limits.as = "100KiB:unlimited"`:       `must be at least 128KiB`,
		`sandbox.read = ["/usr", "etc"]`:       `sandbox.read[1] must be an absolute path such as "/usr", or "-/opt" if it may be missing, not "etc"`,
		`sandbox.write = ["-tmp"]`:             `sandbox.write[0] must be an absolute path`,
		`pass_environment = ["PATH", "[A"]`:    `pass_environment[1] must be the name of a variable, or a pattern of names such as "LC_*", not "[A"`,
		`pass_environment = ["A=hunter2"]`:     `must be the name of a variable`,
	} {
		_, _, findings := load(t, "[programs.web]\n"+text+"\n")
		if len(findings) == 0 || !strings.Contains(said(findings[0]), want) {
			t.Errorf("%s\n got %v\nwant %s", text, findings, want)
		}
	}
	for text, want := range map[string]string{
		"[programs.web]\ncommand: [\"web\"]":                                      "expected '=' after key (write KEY = VALUE, or [TABLE])",
		"[api]\ntrusted_proxies = ['proxy']":                                      `api.trusted_proxies[0] must be an address or a prefix such as "10.0.0.0/8", not "proxy"`,
		"[supervisor]\nlisten = 9090":                                             `must be a string, not an integer (9090) (write "off" or an address such as "0.0.0.0:9090", the port at most 65535)`,
		"[adapters]\nbeads = false":                                               `adapters.beads must be a string, not a boolean (false) ()`,
		"[adapters]\npods = 'local-jss'":                                          `not "local-jss" (use "local-solid-rs")`,
		"[adapters]\nbeads = 'local-jss'":                                         `not "local-jss" ()`,
		"[sovereign_mesh.relay]\nbind = '0.0.0.0:7777'":                           `sovereign_mesh.relay.bind must be an address or a name without a port, such as "127.0.0.1", not "0.0.0.0:7777"`,
		"[sovereign_mesh.relay]\nbind = ''":                                       `sovereign_mesh.relay.bind must be an address or a name without a port, such as "127.0.0.1", not ""`,
		"[sovereign_mesh.relay]\nbind = '[]'":                                     `sovereign_mesh.relay.bind must be an address or a name without a port, such as "127.0.0.1", not "[]"`,
		"[integrations.solid_pod_rs]\nbind = ' '":                                 `integrations.solid_pod_rs.bind must be an address or a name without a port, such as "127.0.0.1", not " "`,
		"[integrations.solid_pod_rs]\nbind = 'http://h'":                          `integrations.solid_pod_rs.bind must be an address or a name without a port,`,
		"[api]\ncors_origins = ['*']":                                             `api.cors_origins[0] must be an origin such as`,
		"[supervisor]\nimage = 'Web:1.2'":                                         `supervisor.image must be an image reference such as "registry.example.org/web:1.2", not "Web:1.2"`,
		"[programs.API]":                                                          "programs.API: the name must have 1 to 63 characters: lower-case letters, digits, and after the first also '_', '.' and '-' (did you mean api?)",
		"[programs.-x]":                                                           "also '_', '.' and '-' ()",
		"[supervisor.log.forward.a]\ntype = \"loki\"\nurl = \"tcp//log:1\"":       `must be a URL such as https://logs.example/ingest, or tcp://logs.example:514 for syslog, not "tcp//log:1" ()`,
		"[supervisor.log.forward.a]\ntype = \"loki\"\nurl = \"htps://log/token\"": `not "htps://log/…" ()`,
	} {
		_, _, findings := load(t, text+"\ncommand = 'x'")
		if len(findings) == 0 || !strings.Contains(said(findings[0]), want) {
			t.Errorf("%s\n got %v\nwant %s", text, findings, want)
		}
	}
	for _, text := range []string{"programs = ['web']", "[[programs]]\nname = 'web'"} {
		if _, _, findings := load(t, text); len(findings) != 1 || findings[0].Hint != "write each program as [programs.NAME], with command below it" {
			t.Errorf("%s: %v", text, findings)
		}
	}
	_, _, findings := load(t, "[[programs.web]]\ncommand = \"x\"\n")
	if len(findings) != 1 || findings[0].Hint != "write [programs.web], with single brackets" {
		t.Errorf("an array of tables: %v", findings)
	}
}

// A password stays out of every finding. The twin of each mistake, without a place for a password, is
// shown.
func TestMistakesKeepSecrets(t *testing.T) {
	for text, isShown := range map[string]bool{
		"[supervisor.log.forward.x]\ntype = 'http'\nurl = 'htps://web:hunter2@host'":          false,
		"[supervisor.log.forward.x]\ntype = 'http'\nurl = 'web:hunter2@host'":                 false,
		"[supervisor.log.forward.x]\ntype = 'http'\nurl = 'http://h'\nheaders = 'X: hunter2'": false,
		"[supervisor.log.forward.x]\ntype = 'hunter2'\nurl = 'http://host'":                   true,
		"[programs]\nweb = 'web --login hunter2'":                                             false,
		"[programs.web]\ncommand = \"web --login hunter2 'x\"":                                false,
		"[programs.web]\ncommand = ['web', '--login', ['hunter2']]":                           false,
		"[programs.web]\ncommand = ['web', '--pin', 1234567890]":                              false,
		"[programs.web]\ncommand = 'a'\nstop_command = \"web --login hunter2 'x\"":            false,
		"[programs.web]\ncommand = 'a'\nhooks.pre_start = \"web --login hunter2 'x\"":         false,
		"[programs.web]\ncommand = 'a'\nready.exec = \"web --login hunter2 'x\"":              false,
		"[programs.web]\ncommand = 'a'\nready.http = 'localhost/?login=hunter2'":              false,
		"[programs.web]\ncommand = 'a'\nready.http = 'web:hunter2@localhost/'":                false,
		"[programs.web]\ncommand = 'a'\nready.tcp = 'hunter2'":                                true,
		"[programs.web]\ncommand = 'a'\nready = 'http://host/?login=hunter2'":                 false,
		"[programs.web]\ncommand = 'a'\nenvironment = 'DB_LOGIN=\"hunter2\"'":                 false,
		"[programs.web]\ncommand = 'a'\nenvironment = ['DB_LOGIN=hunter2']":                   false,
		"[programs.web]\ncommand = 'a'\nenvironment.PIN = 1234567890":                         false,
		"[programs.web]\ncommand = 'a'\npass_environment = 'DB_PASSWORD=hunter2'":             false,
		"[programs.web]\ncommand = 'a'\nneeds = 'hunter2'":                                    true,
		"[integrations.ruvector_external]\nconninfo = ['hunter2']":                            false,
	} {
		_, _, findings := load(t, text+"\n")
		if len(findings) == 0 {
			t.Errorf("no finding about %s", text)
		}
		shown := false
		for _, f := range findings {
			all := said(f) + f.Value
			shown = shown || strings.Contains(all, "hunter2") || strings.Contains(all, "1234567890")
		}
		if shown != isShown {
			t.Errorf("%s: shown %v: %v", text, shown, findings)
		}
	}
}

// What these keys name is accepted in every form that is right.
func TestAcceptedReferences(t *testing.T) {
	text := "[programs.web]\ncommand = 'x'\n" +
		"limits.as = '128KiB'\nsandbox.read = ['/usr', '-/opt', '${HOME}', '-${HOME}/x']\npass_environment = ['PATH', 'LC_*', '[A-Z]?']\n"
	for _, image := range []string{"web", "web:1.2", "localhost:5000/a/b__c-d.e:latest", "Registry.example.org/web", "web@sha256:" + strings.Repeat("0a", 32)} {
		if _, _, findings := load(t, text+"[supervisor]\nimage = '"+image+"'"); len(findings) > 0 {
			t.Errorf("%s: %v", image, findings)
		}
	}
}

// A retention that the arithmetic of times cannot hold is a long one.
func TestRetentionIsNeverShort(t *testing.T) {
	for days, want := range map[int64]int{0: 0, 30: 30, 213504: 36500, 1<<63 - 1: 36500} {
		if got := (Relay{RetentionDays: days}).KeptDays(); got != want {
			t.Errorf("%d days are kept for %d, want %d", days, got, want)
		}
	}
}

func said(f Finding) string { return f.Message + " (" + f.Hint + ")" }
