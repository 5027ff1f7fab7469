package signame

import (
	"syscall"
	"testing"
)

func TestParse(t *testing.T) {
	for s, want := range map[string]syscall.Signal{
		"TERM": 15, "SIGTERM": 15, "term": 15, "sigusr1": 10, "9": 9, "64": 64, "CLD": 17, "IOT": 6, "POLL": 29,
		"RTMIN": 34, "SIGRTMIN+3": 37, "RTMIN+30": 64, "RTMAX": 64, "RTMAX-1": 63, "RTMAX-30": 34,
		"": 0, "SIG": 0, "0": 0, "65": 0, "100": 0, "257": 0, "AAAAAAAAAAAAAAAAAAAA": 0, "-9": 0, "+9": 0, "9x": 0, "NOPE": 0, "HUP\n": 0, "H UP": 0,
		"RTMIN+31": 0, "RTMIN-1": 0, "RTMIN+-1": 0, "RTMINx": 0, "RTMIN3": 0, "RTMAX+1": 0, "RTMAX-31": 0, "RTMAX-": 0,
	} {
		if got, err := Parse(s); got != want || (err == nil) != (want != 0) {
			t.Errorf("%q: got %d, %v", s, got, err)
		}
	}
}

func TestNames(t *testing.T) {
	for sig := syscall.Signal(1); sig <= Last; sig++ {
		if got, err := Parse(Of(sig)); err != nil || got != sig {
			t.Errorf("%d is called %q, which is %d, %v", sig, Of(sig), got, err)
		}
	}
	if got := Of(65); got != "65" {
		t.Errorf("65 is called %q", got)
	}
	for _, name := range All() {
		if _, err := Parse(name); err != nil {
			t.Error(err)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range append(All(), "9", "sigterm", "RTMIN+3") {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		sig, err := Parse(s)
		if (err == nil) != (sig >= 1 && sig <= Last) {
			t.Errorf("%q: %d, %v", s, sig, err)
		}
	})
}
