package plural

import "testing"

func TestOf(t *testing.T) {
	for n, want := range map[int]string{0: "0 lines", 1: "1 line", 2: "2 lines", -1: "-1 lines"} {
		if got := Of(n, "line"); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}
