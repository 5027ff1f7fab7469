package edits

import (
	"math/rand/v2"
	"testing"
)

func TestDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"a", "", 1}, {"", "ab", 2}, {"web", "web", 0}, {"wbe", "web", 1}, {"kitten", "sitting", 3}, {"ca", "abc", 3}} {
		if d := Distance(c.a, c.b); d != c.want || d != Distance(c.b, c.a) {
			t.Errorf("Distance(%q, %q) = %d, want %d, and %d the other way", c.a, c.b, d, c.want, Distance(c.b, c.a))
		}
	}
}

func TestDistanceIsSymmetric(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	word := func() string {
		b := make([]byte, r.IntN(8))
		for i := range b {
			b[i] = 'a' + byte(r.IntN(3))
		}
		return string(b)
	}
	for range 2000 {
		a, b := word(), word()
		if x, y := Distance(a, b), Distance(b, a); x != y || (x == 0) != (a == b) {
			t.Fatalf("%q %q: %d %d", a, b, x, y)
		}
	}
}
