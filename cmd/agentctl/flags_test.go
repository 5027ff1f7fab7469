package main

import "testing"

// A flag of whole seconds takes the forms of every other duration, and what it shows it can read.
func TestWholeSeconds(t *testing.T) {
	for text, want := range map[string]int{"60": 60, "60s": 60, "1m30s": 90, "0": 0, "1h": 3600} {
		var got, again int
		if err := (*wholeSeconds)(&got).Set(text); err != nil || got != want {
			t.Errorf("%s: %d, %v", text, got, err)
		}
		if shown := (*wholeSeconds)(&got).String(); shown != "" && ((*wholeSeconds)(&again).Set(shown) != nil || again != want) {
			t.Errorf("%s is shown as %s, which is %d", text, shown, again)
		}
	}
	for _, text := range []string{"", "x", "-1", "1.5", "100ms", "10 s"} {
		var got int
		if (*wholeSeconds)(&got).Set(text) == nil {
			t.Errorf("%q is accepted as %d", text, got)
		}
	}
}
