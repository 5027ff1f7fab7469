package logs

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/creack/pty"

	"github.com/dreamlab-ai/agentinit/internal/escape"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 123456000, time.UTC)

func jsonLine(text string) string {
	return string(appendJSON(&batch{now: noon}, "web", Stdout, 7, []byte(text), false))
}

func TestAppendJSON(t *testing.T) {
	const head = `{"time":"2026-01-02T12:00:00.123456Z","program":"web","stream":"stdout","pid":7`
	tests := []struct{ name, in, want string }{
		{"text", "hi", `,"msg":"hi"}`},
		{"empty", "", `,"msg":""}`},
		{"quotes", `a"b\c` + "\t", `,"msg":"a\"b\\c\t"}`},
		{"controls", "\x00\x1b[m\x7f", `,"msg":"\u0000\u001b[m\u007f"}`},
		{"obeyed by terminals", "\u009b2J\u202e\u2028ä", `,"msg":"\u009b2J\u202e\u2028ä"}`},
		{"obeyed, in an object", `{"k` + "\u0085" + `":["` + "\u009b2J\u202eä\x7f" + `"]}`, `,"k\u0085":["\u009b2J\u202eä\u007f"]}`},
		{"spoofed, from the first column of a terminal", "{\"a\":\r{\"level\":\"info\"}\r,\"b\":\"\\r\"\r}", `,"a": {"level":"info"} ,"b":"\r"}`},
		{"spoofed, in a key that is escaped", `{"agentbox.` + "\u009b" + `":1}`, `,"app_agentbox.\u009b":1}`},
		{"not UTF-8", "a\xffb", `,"msg":"a` + "\ufffd" + `b"}`},
		{"object", `{"user":"u","n":{"pid":1},"l":["time",{"program":2}]}`, `,"user":"u","n":{"pid":1},"l":["time",{"program":2}]}`},
		{"agentinit's own", `{"level":"info","Event":"Sealed","agentbox.stage":"seal","AGENTBOX.x":1,"agentboxer":2}`, `,"app_level":"info","app_Event":"Sealed","app_agentbox.stage":"seal","app_AGENTBOX.x":1,"agentboxer":2}`},
		{"empty object", ` { } `, `}`},
		{"spoofed", `{"program":"db","pid":1,"stream":"x","time":0,"k":1}`, `,"app_program":"db","app_pid":1,"app_stream":"x","app_time":0,"k":1}`},
		{"spoofed by escapes", `{"pro\u0067ram":"db"}`, `,"app_pro\u0067ram":"db"}`},
		{"spoofed by case", `{"Program":"db","\u017ftream":1}`, `,"app_Program":"db","app_\u017ftream":1}`},
		{"renamed already", `{"time":1,"app_time":2,"App_app_time":3,"Time":4,"app_timer":5,"app_":6,"app_agentbox.x":7}`, `,"app_time":1,"app_app_time":2,"app_App_app_time":3,"app_Time":4,"app_timer":5,"app_":6,"app_app_agentbox.x":7}`},
		{"key as value", `{"a":"program","b":"x,\"program\":1"}`, `,"a":"program","b":"x,\"program\":1"}`},
		{"two objects", `{"a":1}{"program":"db"}`, `,"msg":"{\"a\":1}{\"program\":\"db\"}"}`},
		{"broken object", `{"a":1,}`, `,"msg":"{\"a\":1,}"}`},
		{"array", `[1]`, `,"msg":"[1]"}`},
	}
	for _, tt := range tests {
		if got := jsonLine(tt.in); got != head+tt.want+"\n" {
			t.Errorf("%s:\n got %s want %s", tt.name, got, head+tt.want)
		}
	}
}

func TestAppendJSONOfAPiece(t *testing.T) {
	out := string(appendJSON(&batch{now: noon}, "web", Stdout, 7, []byte(`{"a":1}`), true))
	if !strings.HasSuffix(out, `"pid":7,"truncated":true,"msg":"{\"a\":1}"}`+"\n") {
		t.Errorf("got %s", out)
	}
}

// For any output of a program, the result is one line of valid JSON, and the keys of agentinit have
// agentinit's values.
func FuzzAppendJSON(f *testing.F) {
	for _, s := range []string{`{"program":"x"}`, `{"\u0070id":{"a":[]}}`, "\xff\"", `{"a":"}\"","pid":2}`, "{\"a\":\r1}", `{"time":1,"app_time":2,"\u0061pp_time":3}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		text = bytes.ReplaceAll(text, []byte{'\n'}, nil)
		out := appendJSON(&batch{now: noon}, "web", Stdout, 7, text, false)
		if bytes.IndexAny(out, "\r\n") != len(out)-1 || !utf8.Valid(out) {
			t.Fatalf("not one line of UTF-8: %q", out)
		}
		var members map[string]json.RawMessage
		if err := json.Unmarshal(out, &members); err != nil {
			t.Fatalf("%q: %v", out, err)
		}
		for key := range members {
			if strings.EqualFold(key, "level") || strings.EqualFold(key, "event") || hasOwnPrefix(key) {
				t.Fatalf("passes for an event of agentinit: %q", out)
			}
		}
		var own map[string]json.RawMessage
		if _, ok := objectMembers(text); ok && json.Unmarshal(text, &own) == nil && len(members) != len(own)+4 {
			t.Fatalf("%d keys for %d of the program: %q", len(members), len(own), out)
		}
		var envelope struct {
			Program, Stream string
			PID             int
			Time            time.Time
		}
		if err := json.Unmarshal(out, &envelope); err != nil {
			t.Fatalf("%q: %v", out, err)
		}
		if envelope.Program != "web" || envelope.Stream != "stdout" || envelope.PID != 7 || !envelope.Time.Equal(noon) {
			t.Fatalf("spoofed: %q", out)
		}
	})
}

func TestAppendConsole(t *testing.T) {
	c := &console{format: FormatConsole}
	line := func(program, text string, kind Stream) string {
		return strings.TrimPrefix(string(c.appendConsole(&batch{now: noon}, program, kind, []byte(text))), noon.Format("15:04:05.000")+" ")
	}
	tests := []struct{ program, in, want string }{
		{"web", "plain\ttext é", "web | plain\ttext é\n"},
		{"database", "x", "database | x\n"},
		{"web", "red \x1b[31m", "web      | red \\x1b[31m\n"},
		{"web", "\rdatabase | forged", "web      | \\x0ddatabase | forged\n"},
		{"web", "\u009b31m \u202ecba \u2028", "web      | \\u009b31m \\u202ecba \\u2028\n"},
		{"web", "bin\xff\x9b", "web      | bin\\xff\\x9b\n"},
	}
	for _, tt := range tests {
		if got := line(tt.program, tt.in, Stdout); got != tt.want {
			t.Errorf("%q: got %q, want %q", tt.in, got, tt.want)
		}
	}
	if got := line("web", "e", Stderr); got != "web      ! e\n" {
		t.Errorf("stderr: %q", got)
	}
	c.color = true
	if got := line("web", "e", Stdout); !strings.HasPrefix(got, "\x1b[38;5;") || !strings.HasSuffix(got, "\x1b[0m e\n") {
		t.Errorf("colour: %q", got)
	}
}

// Colours are for terminals only: a file gets none.
func TestColourIsForTerminals(t *testing.T) {
	master, tty, err := pty.Open()
	if err != nil {
		t.Skip("needs a pseudo-terminal: ", err)
	}
	file, err := os.Create(t.TempDir() + "/out")
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		out  *os.File
		want bool
	}{{tty, true}, {file, false}} {
		for _, wanted := range []bool{true, false} {
			p := newPlane(t, Config{Stdout: tc.out, Format: FormatConsole, Color: wanted})
			if got := p.console.color; got != (wanted && tc.want) {
				t.Errorf("%s, wanted %v: %v", tc.out.Name(), wanted, got)
			}
		}
	}
	closeAll(t, master, tty, file)
}

func FuzzAppendVisible(f *testing.F) {
	f.Add([]byte("\x1b[2J\xc2\x9b\u202e"))
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, r := range string(appendVisible(nil, text)) {
			if r < ' ' && r != '\t' || r == 0x7f || r == utf8.RuneError && !bytes.ContainsRune(text, utf8.RuneError) || escape.Obeyed(r) {
				t.Fatalf("%q lets %U through", text, r)
			}
		}
	})
}

// On a terminal, the console format is the default, and agentinit's own lines are readable text.
func TestConsoleOnTerminal(t *testing.T) {
	master, tty, err := pty.Open()
	if err != nil {
		t.Skip("needs a pseudo-terminal: ", err)
	}
	p := newPlane(t, Config{Stdout: tty})
	if p.console.format != FormatConsole {
		t.Errorf("format = %s", p.console.format)
	}
	line := `{"level":"info","time":"x","message":"sealed","programs":3,"a":"b"}` + "\n"
	if n, err := p.Writer().Write([]byte(line)); n != len(line) || err != nil {
		t.Errorf("Write = %d, %v", n, err)
	}
	flush(t, p)
	got, err := bufio.NewReader(master).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(got, "agentinit | info  sealed a=b programs=3\r\n") {
		t.Errorf("got %q", got)
	}
	closeAll(t, master, tty)
}

// A terminal of a program is captured through a duplicate of its master side.
func TestCaptureOfTerminal(t *testing.T) {
	master, tty, err := pty.Open()
	if err != nil {
		t.Skip("needs a pseudo-terminal: ", err)
	}
	p := newPlane(t, Config{})
	c, err := p.Open(Options{Program: "shell", PTY: master, To: ToNone})
	if err != nil {
		t.Fatal(err)
	}
	c.Started(1)
	write(t, tty, "hello\n")
	closeAll(t, tty)
	<-c.Done()
	if got := lastLines(c, Stdout, 1); len(got) != 1 || got[0].Text != "hello" {
		t.Errorf("got %+v", got)
	}
	closeAll(t, master)
}

func TestBrokenConsoleIsReportedOnce(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	closeAll(t, r)
	reports := make(chan error, 10)
	p := newPlane(t, Config{Stdout: w, Format: FormatRaw, OnTrouble: func(_ string, err error) { reports <- err }})
	for range 3 {
		ownLine(t, p, "lost\n")
		flush(t, p)
	}
	if err := <-reports; err == nil || !strings.Contains(err.Error(), "broken pipe") {
		t.Errorf("report = %v", err)
	}
	if len(reports) != 0 {
		t.Errorf("%d more reports", len(reports))
	}
	closeAll(t, w)
}

func ownLine(t *testing.T, p *Plane, s string) {
	t.Helper()
	if _, err := p.Writer().Write([]byte(s)); err != nil {
		t.Error(err)
	}
}

func FuzzFramer(f *testing.F) {
	f.Add([]byte("a\nbb\r\n\n"), 16, 3, 7)
	f.Add([]byte("ééééééééééééééééééééé"), 17, 5, 100)
	f.Fuzz(func(t *testing.T, in []byte, limit, step, piece int) {
		limit, step, piece = 16+abs(limit)%64, 1+abs(step)%50, 1+abs(piece)%100
		s := framer{max: limit}
		var out []byte
		cont := false
		take := func(blk block) {
			if len(blk.text) == 0 || blk.cont != cont || blk.cut && bytes.IndexByte(blk.text, '\n') >= 0 {
				t.Fatalf("block %+v", blk)
			}
			cont = blk.cut
			out = append(out, blk.text...)
			if n, unfinished := linesOf(blk.text); int(n) != blk.lines && !blk.cut || unfinished && n != 1 {
				t.Fatalf("block of %d lines says %d: %q", n, blk.lines, blk.text)
			}
			blk.eachLine(func(ln rawLine) bool {
				if most := limit + bytes.Count(ln.text[max(len(ln.text)-1, 0):], []byte{'\r'}); len(ln.text) > most {
					t.Fatalf("line %q (limit %d)", ln.text, limit)
				}
				return true
			})
		}
		for i, rest := 0, in; len(rest) > 0; i++ {
			chunk := rest[:min(step, len(rest))]
			rest = rest[len(chunk):]
			if i%3 == 2 {
				held := len(s.carry)
				if blk, ok := s.whole(append(bytes.Clone(s.carry), chunk...), held); ok {
					take(blk)
					continue
				}
			}
			for len(chunk) > 0 {
				blk, after, ok := s.next(chunk, piece)
				if ok {
					take(blk)
				}
				chunk = after
			}
			if i%5 == 4 {
				if blk, ok := s.flush(); ok {
					take(blk)
				}
			}
		}
		if blk, ok := s.last(); ok {
			take(blk)
		}
		if !bytes.Equal(in, out) {
			t.Fatalf("in %q\nout %q", in, out)
		}
	})
}

// Many programs that never end their lines have little memory together. No byte is lost, and a program
// alone may have a long line again.
func TestUnfinishedLinesOfManyPrograms(t *testing.T) {
	shared := newBudget(2 << 20)
	framers, in, out := make([]framer, 40), make([][]byte, 40), make([][]byte, 40)
	for i := range framers {
		framers[i] = framer{max: 1 << 20, unfinished: shared}
	}
	for part := range 16 {
		for i := range framers {
			f := &framers[i]
			data := bytes.Repeat([]byte{byte('a' + part), '\r'}, 28<<10)
			in[i] = append(in[i], data...)
			for len(data) > 0 {
				blk, rest, ok := f.next(data, sinkPiece)
				if data = rest; ok {
					out[i] = append(out[i], blk.text...)
				}
			}
			f.trim()
			if used, most := shared.used.Load(), int64(2<<20+len(framers)*2*crowdedLine); used > most {
				t.Fatalf("part %d: unfinished lines take %d bytes, want at most %d", part, used, most)
			}
		}
	}
	for i := range framers {
		if blk, ok := framers[i].last(); ok {
			out[i] = append(out[i], blk.text...)
		}
		if !bytes.Equal(in[i], out[i]) {
			t.Errorf("stream %d: %d bytes in, %d bytes out", i, len(in[i]), len(out[i]))
		}
	}
	if used := shared.used.Load(); used != 0 {
		t.Fatalf("%d bytes still count", used)
	}
	long := bytes.Repeat([]byte("x"), 1<<20)
	for data := long; len(data) > 0; {
		blk, rest, ok := framers[0].next(data, sinkPiece)
		if data = rest; ok {
			t.Fatalf("a line alone was divided at %d bytes", len(blk.text))
		}
	}
	if blk, _, ok := framers[0].next(newline, sinkPiece); !ok || len(blk.text) != len(long)+1 || blk.cut {
		t.Errorf("the line alone is a block of %d bytes, cut %v", len(blk.text), blk.cut)
	}
}

// A plane has a share of a small memory, and its own limits in a large one.
func TestBound(t *testing.T) {
	for memory, want := range map[uint64][3]int64{
		0:         {defaultTotalBytes, maxPipeBytes, maxUnfinished},
		128 << 20: {16 << 20, 8 << 20, 8 << 20},
		64 << 30:  {defaultTotalBytes, maxPipeBytes, maxUnfinished},
	} {
		p := newPlane(t, Config{})
		p.Bound(memory)
		if got := [3]int64{p.budget.max.Load(), p.pipes.max.Load(), p.unfinished.max.Load()}; got != want {
			t.Errorf("of %d bytes: %v, want %v", memory, got, want)
		}
	}
}

// A line of just the longest length is whole, also if it ends with CRLF and however it is read.
func TestLongestLine(t *testing.T) {
	line := strings.Repeat("x", 16)
	for text, want := range map[string][]block{
		line + "\n":       {{text: []byte(line + "\n"), lines: 1}},
		line + "\r\n":     {{text: []byte(line + "\r\n"), lines: 1}},
		line + "\r\r\n":   {{text: []byte(line), lines: 1, cut: true}, {text: []byte("\r\r\n"), lines: 1, cont: true}},
		line + "\rx\n":    {{text: []byte(line), lines: 1, cut: true}, {text: []byte("\rx\n"), lines: 1, cont: true}},
		line + "\r":       {{text: []byte(line + "\r"), lines: 1}},
		line + "x\r\n":    {{text: []byte(line), lines: 1, cut: true}, {text: []byte("x\r\n"), lines: 1, cont: true}},
		line + "\r\n\r\n": {{text: []byte(line + "\r\n"), lines: 1}, {text: []byte("\r\n"), lines: 1}},
	} {
		for step := 1; step <= len(text); step++ {
			s := framer{max: len(line)}
			var got []block
			for part := range slices.Chunk([]byte(text), step) {
				for len(part) > 0 {
					blk, rest, ok := s.next(part, sinkPiece)
					if ok {
						blk.text = bytes.Clone(blk.text)
						got = append(got, blk)
					}
					part = rest
				}
			}
			if blk, ok := s.last(); ok {
				got = append(got, blk)
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%q in steps of %d:\n got %+v\nwant %+v", text, step, got, want)
			}
		}
	}
}

func abs(n int) int {
	if n < 0 {
		n = -(n + 1)
	}
	return n
}

func newBudget(most int64) *budget {
	b := new(budget)
	b.max.Store(most)
	return b
}

func TestRing(t *testing.T) {
	b := newBudget(1 << 30)
	r := &ring{max: 8192, budget: b}
	for i := range 10_000 {
		r.append([]byte(strings.Repeat("x", i%100)+"\n"), chunk{seq: uint64(i)})
		if r.bytes > r.max {
			t.Fatalf("line %d: %d bytes", i, r.bytes)
		}
	}
	next := r.first()
	for _, c := range r.chunks(next) {
		blk, i := c.block(c.text)
		for ln := range blk.eachLine {
			if seq, _ := c.at(i); seq != next || c.first+uint64(i) != next || len(ln.text) != int(next%100) {
				t.Fatalf("index %d holds line %d of %d bytes", next, seq, len(ln.text))
			}
			next++
			i++
		}
	}
	if next != 10_000 {
		t.Errorf("the newest line is %d", next-1)
	}
	if int(b.used.Load()) != r.bytes {
		t.Errorf("budget %d, ring %d", b.used.Load(), r.bytes)
	}
	r.close()
	if b.used.Load() != 0 {
		t.Errorf("%d bytes stay in the budget", b.used.Load())
	}
}

// A block of many lines is forgotten line by line, not at once.
func TestRingOfBlocks(t *testing.T) {
	b := newBudget(1 << 30)
	r := &ring{max: 8192, budget: b}
	text := strings.Repeat("0123456789\n", 5000)
	r.append([]byte(text), chunk{seq: 1})
	if r.next != 5000 || r.bytes > r.max || r.bytes < r.max/2 {
		t.Fatalf("%d lines, %d bytes", r.next, r.bytes)
	}
	for _, c := range r.chunks(0) {
		if c.seq != c.first+1 {
			t.Errorf("the line with index %d has number %d", c.first, c.seq)
		}
	}
}

// Many programs with much output share the budget. Each keeps its newest lines.
func TestRingBudget(t *testing.T) {
	b := newBudget(256 << 10)
	rings := make([]*ring, 100)
	for i := range rings {
		rings[i] = &ring{max: 64 << 10, budget: b}
	}
	for i := range 2000 {
		for _, r := range rings {
			r.append([]byte(strings.Repeat("x", 100)+"\n"), chunk{seq: uint64(i)})
		}
	}
	if limit := b.max.Load() + int64(len(rings))*(8<<10); b.used.Load() > limit {
		t.Errorf("%d bytes in all rings, want at most %d", b.used.Load(), limit)
	}
	for i, r := range rings {
		if newest := r.newest(); newest == nil || newest.lastSeq() != 1999 {
			t.Errorf("ring %d does not end with the newest line", i)
		}
	}
	rings[0].append(make([]byte, 1<<20), chunk{})
	if rings[0].bytes > 64<<10 {
		t.Errorf("a huge line took %d bytes of a spent budget", rings[0].bytes)
	}
}
