package logs

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

const secret = "5f2c9a1be07d4436a8e1c3b59d7f0e62"

// A secret reaches no destination, even if it is written in pieces, across reads or long lines, or
// on either stream. Without Redact it does.
func TestSecretsReachNoSink(t *testing.T) {
	for _, known := range []bool{true, false} {
		var out string
		for _, to := range []To{ToNone, ToConsole, ToFile} {
			sink := newSinkhole(t)
			p := New(Config{Stdout: sink.w, Format: FormatJSON, RingBytes: 4 << 20, MaxLine: 64 << 10, FlushAfter: time.Millisecond})
			if known {
				p.Redact(secret, "short", "-----BEGIN KEY-----\nMIIEvQIBADANBgkq\n-----END KEY-----\n")
			}
			path := filepath.Join(t.TempDir(), "log")
			c, stdout, stderr := open(t, p, Options{Program: "web", To: to, Path: path})
			write(t, stdout, "key="+secret+" short\n")
			for i := range len(secret) {
				write(t, stderr, secret[i:i+1])
			}
			write(t, stderr, "\nMIIEvQIBADANBgkq\n")
			write(t, stdout, strings.Repeat("x", 64<<10-10)+secret+"\n")
			write(t, stdout, strings.Repeat("line\n", 20_000)+secret+strings.Repeat("y", 300<<10)+"\n")
			fmt.Fprintf(stdout, "Basic %s\n", base64.StdEncoding.EncodeToString([]byte(secret)))
			closeAll(t, stdout, stderr)
			<-c.Done()
			if _, err := p.Writer().Write([]byte(`{"message":"` + secret + `"}` + "\n")); err != nil {
				t.Error(err)
			}
			lines := strings.Join(texts(all(p, Query{})), "\n")
			if err := p.Close(t.Context()); err != nil {
				t.Error(err)
			}
			lines += string(sink.bytes(t))
			if to == ToFile {
				data, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				lines += string(data)
			}
			if !strings.Contains(lines, " short") || !strings.Contains(lines, "line") {
				t.Errorf("%v: what is no secret is gone", to)
			}
			out += lines
		}
		for _, s := range []string{secret, "MIIEvQIBADANBgkq", base64.StdEncoding.EncodeToString([]byte(secret)), secret[:20]} {
			if strings.Contains(out, s) == known {
				t.Errorf("with redaction %v: %q is there %d times", known, s, strings.Count(out, s))
			}
		}
	}
}

// A secret is found in every form in which tools write it. The text around it stays.
func TestFormsOfSecrets(t *testing.T) {
	const value = `p/w+"d<1>&é🔑=e!(nd`
	p := newPlane(t, Config{})
	p.Redact(value)
	for name, text := range map[string]string{
		"plain": value, "query": url.QueryEscape(value), "path": url.PathEscape(value),
		"url of Python":          `p/w%2B%22d%3C1%3E%26%C3%A9%F0%9F%94%91%3De%21%28nd`,
		"encodeURIComponent":     `p%2Fw%2B%22d%3C1%3E%26%C3%A9%F0%9F%94%91%3De!(nd`,
		"encodeURI":              `p/w+%22d%3C1%3E&%C3%A9%F0%9F%94%91=e!(nd`,
		"url in lower case":      `p%2fw%2b%22d%3c1%3e%26%c3%a9%f0%9f%94%91%3de%21%28nd`,
		"json of Go":             `p/w+\"d\u003c1\u003e\u0026é🔑=e!(nd`,
		"json of Node, Rust, jq": `p/w+\"d<1>&é🔑=e!(nd`,
		"json of Python":         `p/w+\"d<1>&\u00e9\ud83d\udd11=e!(nd`,
		"json of PHP":            `p\/w+\"d<1>&\u00e9\ud83d\udd11=e!(nd`,
		"json of Gson":           `p/w+\"d\u003c1\u003e\u0026é🔑\u003de!(nd`,
		"json of .NET":           `p/w\u002B\u0022d\u003C1\u003E\u0026\u00E9\uD83D\uDD11=e!(nd`,
		"json of PHP, Unicode":   `p\/w+\"d<1>&é🔑=e!(nd`,
		"base64":                 base64.StdEncoding.EncodeToString([]byte(value)), "base64url": base64.RawURLEncoding.EncodeToString([]byte(value)),
		"basic 1": base64.StdEncoding.EncodeToString([]byte("u:" + value)),
		"basic 2": base64.StdEncoding.EncodeToString([]byte("user:" + value + ":more")),
		"basic 3": base64.StdEncoding.EncodeToString([]byte("admin:" + value)),
	} {
		got := p.Mask("before " + text + " after")
		if stars := strings.Count(got, "*"); stars < len(value)-2 || len(got) != len(text)+len("before  after") {
			t.Errorf("%s: %q became %q", name, text, got)
		}
		if !strings.HasPrefix(got, "before ") || !strings.HasSuffix(got, " after") {
			t.Errorf("%s: the neighbours of %q are gone: %q", name, text, got)
		}
	}
	tooLong := strings.Repeat("no variable can be as long as this ", maxSecret/32)
	p.Redact(tooLong)
	for _, text := range []string{value[:7], tooLong, "p/w+", "nothing secret here", base64.StdEncoding.EncodeToString([]byte("user:other"))} {
		if got := p.Mask(text); got != text {
			t.Errorf("%q became %q", text, got)
		}
	}
}

// Encoders of URLs differ in the tilde and the asterisk.
func TestFormsOfSecretsInURLs(t *testing.T) {
	p := newPlane(t, Config{})
	p.Redact("se~cr*et!(and more")
	for name, text := range map[string]string{
		"Go's QueryEscape":   "se~cr%2Aet%21%28and+more",
		"encodeURIComponent": "se~cr*et!(and%20more",
		"URLSearchParams":    "se%7Ecr*et%21%28and+more",
		"PHP's urlencode":    "se%7Ecr%2Aet%21%28and+more",
	} {
		if got := p.Mask(text); got != strings.Repeat("*", len(text)) {
			t.Errorf("%s: %q became %q", name, text, got)
		}
	}
}

// However the output of a program and its long lines are cut, no destination gets a part of a
// secret that is longer than a short secret.
func TestSecretsCutAnywhere(t *testing.T) {
	for _, known := range []bool{true, false} {
		path := filepath.Join(t.TempDir(), "log")
		p := newPlane(t, Config{MaxLine: 100, FlushAfter: time.Millisecond, RingBytes: 1 << 20})
		if known {
			p.Redact(secret)
		}
		c, stdout, stderr := open(t, p, Options{Program: "web", To: ToFile, Path: path})
		for cut := range len(secret) + 1 {
			// The line is cut after 100 bytes, inside the secret.
			write(t, stdout, strings.Repeat("x", 100-cut)+secret[:cut])
			write(t, stdout, secret[cut:]+"\n")
			write(t, stderr, secret[:cut])
			write(t, stderr, secret[cut:]+"\n")
		}
		write(t, stderr, "it dies here: "+secret[:len(secret)-1])
		closeAll(t, stdout, stderr)
		<-c.Done()
		flush(t, p)
		kept := readLog(t, path) + strings.Join(texts(all(p, Query{})), "")
		for at := range len(secret) - minSecret {
			if part := secret[at : at+minSecret]; strings.Contains(kept, part) == known {
				t.Fatalf("with redaction %v: %q is there %d times", known, part, strings.Count(kept, part))
			}
		}
	}
}

// A secret is longer than max_line: a token, or a list of codes in base64. No destination gets
// a part of it, wherever it stands in its line and however it is written. Lines without a secret are
// cut at max_line as ever, or a little later.
func TestSecretsLongerThanLines(t *testing.T) {
	const maxLine = 1 << 10
	var token, codes strings.Builder
	for i := range 150 {
		fmt.Fprintf(&token, "%03d-tok.", i)
	}
	for i := range 240 {
		fmt.Fprintf(&codes, "%04d\n", i*7919%10_000)
	}
	for _, known := range []bool{true, false} {
		for _, written := range []string{token.String(), base64.StdEncoding.EncodeToString([]byte(codes.String()))} {
			path := filepath.Join(t.TempDir(), "log")
			p := newPlane(t, Config{MaxLine: maxLine, FlushAfter: time.Millisecond, RingBytes: 1 << 20})
			c, stdout, stderr := open(t, p, Options{Program: "web", To: ToFile, Path: path})
			if known { // later secrets count as well
				p.Redact(token.String(), codes.String())
			}
			for _, before := range []int{0, 6, maxLine - 20, maxLine - 1, maxLine, len(written)} {
				text := strings.Repeat("x", before) + written + strings.Repeat("y", before) + written + "\n"
				write(t, stdout, text)
				for len(text) > 0 {
					n := min(len(text), 500)
					write(t, stderr, text[:n])
					text = text[n:]
				}
			}
			write(t, stdout, strings.Repeat("z", 3*len(written)))
			closeAll(t, stdout, stderr)
			<-c.Done()
			flush(t, p)
			lines := texts(all(p, Query{}))
			kept := readLog(t, path) + strings.Join(lines, "")
			found := 0
			for at := range len(written) - minSecret {
				found += strings.Count(kept, written[at:at+minSecret])
			}
			if known != (found == 0) {
				t.Errorf("with redaction %v: %d parts of a secret of %d bytes are there", known, found, len(written))
			}
			longest := 0
			for _, line := range lines {
				longest = max(longest, len(line))
			}
			if longest < maxLine || longest > 2*maxLine || !known && longest != maxLine {
				t.Errorf("with redaction %v: the longest line has %d bytes", known, longest)
			}
		}
	}
}

// An unfinished line, such as a prompt, is cut so that each secret is on one side as a whole, even if
// its end looks like the start of a secret.
func TestACutTearsNoSecret(t *testing.T) {
	const one, two = "Zabc1234efgh5678Z", "678Z-another-secret"
	for name, tc := range map[string]struct {
		secrets     []string
		first, then string
		shown, rest string // what is shown of first, and what after it
	}{
		"ends as it begins":         {[]string{one}, "key: " + one, "\n", "key: *****************", "\n"},
		"ends as another begins":    {[]string{secret + "678", two}, secret + "678", "?\n", strings.Repeat("*", len(secret)+3), "?\n"},
		"is the start of a longer":  {[]string{one, one + "-longer"}, "key: " + one, "-longer\n", "key: ", "************************\n"},
		"is followed by its start":  {[]string{one}, one + one[:5], one[5:] + "\n", "*****************", "*****************\n"},
		"is only begun":             {[]string{one}, "key: " + one[:16], "Z\n", "key: ", "*****************\n"},
		"is none, but begins as it": {[]string{one}, "key: " + one[:16], "Y\n", "key: ", one[:16] + "Y\n"},
		"is unknown":                {[]string{two}, "key: " + one[:13], "!\n", "key: " + one[:13], "!\n"},
	} {
		r := newRedactor(tc.secrets)
		f := framer{max: 1 << 10, secrets: new(atomic.Pointer[redactor])}
		f.secrets.Store(r)
		if _, _, ok := f.next([]byte(tc.first), sinkPiece); ok {
			t.Errorf("%s: a line without its end is a block", name)
		}
		shown, _ := f.flush()
		r.mask(shown.text)
		if string(shown.text) != tc.shown {
			t.Errorf("%s: shown is %q", name, shown.text)
		}
		rest, _, _ := f.next([]byte(tc.then), sinkPiece)
		r.mask(rest.text)
		if string(rest.text) != tc.rest {
			t.Errorf("%s: the rest is %q", name, rest.text)
		}
	}
}

func FuzzMatcher(f *testing.F) {
	f.Add([]byte("abc12345678xyz12345678"), []byte("12345678"), []byte("abcdefgh-long-enough-for-the-other"))
	f.Add(bytes.Repeat([]byte("a"), 100), []byte("aaaaaaaa"), []byte("aaaaaaaaaaaaaaaaaaaaaaaaaaaaab"))
	f.Fuzz(func(t *testing.T, text, one, two []byte) {
		r := newRedactor([]string{string(one), string(two)})
		got := bytes.Clone(text)
		r.mask(got)
		if len(got) != len(text) {
			t.Fatal("the length has changed")
		}
		for _, p := range r.patterns {
			if !bytes.Contains(p, []byte("*")) && bytes.Contains(got, p) {
				t.Fatalf("%q is left in %q", p, got)
			}
		}
		for i := range got {
			if got[i] != text[i] && got[i] != '*' {
				t.Fatalf("%q became %q", text, got)
			}
		}
		// The negative test: a text without a secret stays unchanged.
		has := false
		for _, p := range r.patterns {
			has = has || bytes.Contains(text, p)
		}
		if !has && !bytes.Equal(got, text) {
			t.Fatalf("masked without a secret: %q", got)
		}
	})
}

func BenchmarkRedact(b *testing.B) {
	text := []byte(strings.Repeat("2026-01-02T12:00:00Z INFO request path=/v1/agents status=200 ms=1.25 user=somebody\n", 800))
	for name, secrets := range map[string][]string{
		"none": nil, "key": {secret}, "10 long": {}, "10 short": {},
	} {
		for i := range 10 {
			switch name {
			case "10 long":
				secrets = append(secrets, fmt.Sprintf("sk-%02d%s", i, secret))
			case "10 short":
				secrets = append(secrets, fmt.Sprintf("pw%02d-%d-zz", i, i*7919))
			}
		}
		b.Run(name, func(b *testing.B) {
			p := New(Config{})
			p.Redact(secrets...)
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				p.secrets.Load().mask(text)
			}
		})
	}
}

// If a program exceeds its rate, its output is cut, a line in the log says so, and the loss is
// counted. Other programs are not affected.
func TestRateIsSummedUp(t *testing.T) {
	for _, o := range []Options{
		{To: ToNone, Rate: Rate{Lines: 3, Interval: time.Hour}},
		{To: ToNone, Rate: Rate{Bytes: 12, Interval: time.Hour}},
		{To: ToFile, Rate: Rate{Lines: 3, Bytes: 100, Interval: time.Hour}},
	} {
		o.Program, o.Path = "loud", filepath.Join(t.TempDir(), "log")
		p := newPlane(t, Config{})
		c, stdout, stderr := open(t, p, o)
		calm, calmOut, calmErr := open(t, p, Options{Program: "calm", To: ToNone})
		for i := range 10 {
			write(t, stdout, fmt.Sprintf("%03d\n", i))
			write(t, calmOut, "x\n")
		}
		closeAll(t, stdout, stderr, calmOut, calmErr)
		<-c.Done()
		<-calm.Done()
		got := texts(all(p, Query{Programs: []string{"loud"}}))
		if len(got) != 4 || got[2] != "002" || !strings.HasPrefix(got[3], "agentinit: 7 lines (28 bytes) suppressed: more than ") {
			t.Errorf("%+v: %q", o.Rate, got)
		}
		if n := len(all(p, Query{Programs: []string{"calm"}})); n != 10 {
			t.Errorf("the other program has %d lines", n)
		}
		if s := p.Stats()[2]; s.Suppressed != 28 || s.Bytes != 40 {
			t.Errorf("stats %+v", s)
		}
	}
}

// The start of a long line passes, the rest does not. The summary is a line of its own in the file
// too.
func TestRateBreaksOffALine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	p := newPlane(t, Config{})
	s := &stream{plane: p, program: p.program("web"), kind: Stdout}
	s.sink, _ = p.sinkFor(Options{Program: "web", To: ToFile, Path: path}, Stdout)
	s.program.limit.set(Rate{Lines: 1})
	s.program.limit.timing = true // the summary comes before the next line, not by a timer
	at := time.Unix(1000, 0)
	s.limited(block{text: []byte("start"), lines: 1, cut: true}, at)
	s.limited(block{text: []byte("rest\n"), lines: 1, cont: true}, at)
	s.limited(block{text: []byte("two\n"), lines: 1}, at.Add(time.Second))
	flush(t, p)
	want := []string{"start", "agentinit: 1 line (5 bytes) suppressed: more than 1 line in 1s", "two"}
	if got := readLog(t, path); got != strings.Join(want, "\n")+"\n" {
		t.Errorf("the file has %q", got)
	}
	if got := texts(all(p, Query{})); !slices.Equal(got, want) {
		t.Errorf("memory has %q", got)
	}
}

// When the window has passed, the summary is written and output is accepted again.
func TestRateWindow(t *testing.T) {
	l := &limiter{}
	l.set(Rate{Lines: 2})
	at := time.Unix(1000, 0)
	blk := block{text: []byte("a\nb\nc\n"), lines: 3}
	n, last, wait := l.admit(blk, at)
	if n != 4 || last.lines != 0 || wait != time.Second {
		t.Errorf("first: %d, %+v, %v", n, last, wait)
	}
	if n, _, wait = l.admit(blk, at.Add(time.Second/2)); n != 0 || wait != 0 {
		t.Errorf("in the same window: %d, %v", n, wait)
	}
	if n, last, _ = l.admit(blk, at.Add(time.Second)); n != 4 || last.lines != 4 || last.bytes != 8 {
		t.Errorf("in the next: %d, %+v", n, last)
	}
	if n, _, _ = l.admit(blk, at.Add(-time.Hour)); n != 4 {
		t.Errorf("after the clock was set back: %d", n)
	}
}

// The end of one secret may be the start of another, also of one that is searched for apart.
func TestSecretsThatOverlap(t *testing.T) {
	long := strings.Repeat("0123456789", 3)
	for _, tt := range []struct {
		text, want string
		secrets    []string
	}{
		{"token-12345678", strings.Repeat("*", 14), []string{"token-12", "12345678"}},
		{"<" + long + "-and-more>", "<" + strings.Repeat("*", 39) + ">", []string{long, "6789-and-more"}},
		{"<and-more-" + long + ">", "<" + strings.Repeat("*", 39) + ">", []string{long, "and-more-0123"}},
		{"abababababa abababab", "**********a ********", []string{"abababab"}},
		{"two secret-1 secret-2 end", "two ******** ******** end", []string{"secret-1", "secret-2"}},
	} {
		p := newPlane(t, Config{})
		p.Redact(tt.secrets...)
		if got := p.Mask(tt.text); got != tt.want {
			t.Errorf("%q became %q", tt.text, got)
		}
	}
}
