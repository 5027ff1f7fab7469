package supervisord

import (
	"math/rand/v2"
	"strings"
	"testing"
)

func TestListenerProtocol(t *testing.T) {
	const event = "<" // the listener gets an event
	for name, test := range map[string]struct {
		steps     []string
		want      string // R: rejected, P: processed, for each answer
		violation string
		ready     bool
	}{
		"an event":             {[]string{"READY\n", event, "RESULT 2\nOK"}, "P", "", false},
		"two events":           {[]string{"READY\n", event, "RESULT 2\nOKREADY\n", event, "RESULT 4\nFAIL"}, "PR", "", false},
		"byte by byte":         {[]string{"R", "E", "A", "D", "Y", "\n", event, "RES", "ULT ", "2", "\n", "O", "K", "REA", "DY\n"}, "P", "", true},
		"an empty result":      {[]string{"READY\n", event, "RESULT 0\nREADY\n"}, "R", "", true},
		"a long result":        {[]string{"READY\n", event, "RESULT 65536\n" + strings.Repeat("x", 65536) + "READY\n"}, "R", "", true},
		"begins with OK":       {[]string{"READY\n", event, "RESULT 3\nOK\n"}, "R", "", false},
		"spaces":               {[]string{"READY\n", event, "RESULT  2 \r\nOK"}, "P", "", false},
		"the result is open":   {[]string{"READY\n", event, "RESULT 2\nO"}, "", "", false},
		"not ready":            {[]string{"hello\n"}, "", `it wrote "hello\n" in place of READY and a line feed`, false},
		"with CR LF":           {[]string{"READY\r\n"}, "", `it wrote "READY\r" in place of READY`, false},
		"lower case":           {[]string{"r"}, "", `it wrote "r" in place of READY`, false},
		"twice ready":          {[]string{"READY\nREADY\n"}, "", `it wrote "READY\n" while it had no event`, true},
		"a print when ready":   {[]string{"READY\n", "debug\n"}, "", `it wrote "debug\n" while it had no event`, true},
		"a print when busy":    {[]string{"READY\n", event, "debug: RESULT"}, "", `it wrote "debug: RESULT" in place of RESULT`, false},
		"a print after OK":     {[]string{"READY\n", event, "RESULT 2\nOK\nREADY\n"}, "P", `it wrote "\nREADY" in place of READY`, false},
		"READY for a result":   {[]string{"READY\n", event, "READY\n"}, "", `it wrote "READY" in place of RESULT`, false},
		"no number":            {[]string{"READY\n", event, "RESULT two\n"}, "", `it wrote "RESULT two" in place of RESULT`, false},
		"a number below 0":     {[]string{"READY\n", event, "RESULT -1\n"}, "", `it wrote "RESULT -1" in place of RESULT`, false},
		"a result too long":    {[]string{"READY\n", event, "RESULT 999999999\n"}, "", "it announced a result of 999999999 bytes; the most is 65536", false},
		"a number of 20 bytes": {[]string{"READY\n", event, "RESULT 99999999999999999999\n"}, "", `in place of RESULT`, false},
		"no line feed":         {[]string{"READY\n", event, "RESULT 1", strings.Repeat("1", 1<<20)}, "", `in place of RESULT`, false},
		"zeros for ever":       {[]string{"READY\n", event, "RESULT ", strings.Repeat("0", 32), "0", "0"}, "", `in place of RESULT`, false},
	} {
		t.Run(name, func(t *testing.T) {
			var l Listener
			got := ""
			var violation error
			for _, s := range test.steps {
				if violation != nil {
					t.Fatalf("a violation before the end: %v", violation)
				}
				if s == event {
					if !l.Ready() {
						t.Fatal("it is not ready for its event")
					}
					l.Sent()
					continue
				}
				var verdict Verdict
				verdict, violation = l.Feed([]byte(s))
				got += map[Verdict]string{Processed: "P", Rejected: "R"}[verdict]
			}
			if got != test.want {
				t.Errorf("verdicts %q, want %q", got, test.want)
			}
			switch {
			case test.violation == "" && violation != nil, test.violation != "" && (violation == nil || !strings.Contains(violation.Error(), test.violation)):
				t.Errorf("violation %v, want %q", violation, test.violation)
			case violation == nil && l.Ready() != test.ready:
				t.Errorf("ready: %v", l.Ready())
			}
			if len(l.held) > maxResultLine+1 {
				t.Errorf("it holds %d bytes", len(l.held))
			}
		})
	}
}

// FuzzListener: whatever a listener writes, and however it is cut into pieces, the verdicts are the same,
// and little of it is held.
func FuzzListener(f *testing.F) {
	f.Add([]byte("READY\nRESULT 2\nOKREADY\nRESULT 4\nFAIL"), uint64(1))
	f.Add([]byte("READY\nRESULT 999999999\n"), uint64(2))
	f.Add([]byte("READY\nRESULT 0\nREADY\nRESULT 1\nx\n"), uint64(3))
	f.Fuzz(func(t *testing.T, data []byte, seed uint64) {
		random := rand.New(rand.NewPCG(seed, seed))
		whole, wholeBad := converse(data, func(left int) int { return left })
		parts, partsBad := converse(data, func(left int) int { return 1 + random.IntN(left) })
		if whole != parts || wholeBad != partsBad {
			t.Fatalf("%q: %q %v in one piece, %q %v in parts", data, whole, wholeBad, parts, partsBad)
		}
	})
}

// converse feeds a listener's output in pieces, and sends it an event whenever it is ready.
func converse(data []byte, piece func(left int) int) (verdicts string, violated bool) {
	var l Listener
	for len(data) > 0 {
		n := piece(len(data))
		// No piece goes beyond the point where the listener gets an event: what follows is written later.
		for i := 1; i <= n; i++ {
			probe := l
			probe.held = append([]byte(nil), l.held...)
			if probe.Feed(data[:i]); probe.Ready() {
				n = i
				break
			}
		}
		verdict, err := l.Feed(data[:n])
		verdicts += map[Verdict]string{Processed: "P", Rejected: "R"}[verdict]
		if err != nil {
			return verdicts, true
		}
		if len(l.held) > maxResultLine+1 {
			panic("it holds too much")
		}
		data = data[n:]
		if l.Ready() {
			l.Sent()
		}
	}
	return verdicts, false
}
