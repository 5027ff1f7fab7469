package memory

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
)

// unit returns a copy of v with length 1, so that cosine similarity is a dot product. It returns
// false if v has no direction.
func unit(v []float32) ([]float32, bool) {
	var sum float64
	for _, x := range v {
		sum += float64(x) * float64(x)
	}
	n := math.Sqrt(sum)
	if n == 0 {
		return nil, false
	}
	out := make([]float32, len(v))
	for i, x := range v {
		out[i] = float32(float64(x) / n)
	}
	return out, true
}

// cosine is the score of both classes: the dot product of two unit vectors of equal length, with a
// fixed order of additions. The conversions prevent the compiler from fusing multiply and add. Only
// some architectures would do that, and a ranking must not depend on the machine.
func cosine(a, b []float32) float64 {
	var s0, s1, s2, s3 float32
	b = b[:len(a)]
	i := 0
	for ; i+4 <= len(a); i += 4 {
		x, y := a[i:i+4:i+4], b[i:i+4:i+4]
		s0 += float32(x[0] * y[0])
		s1 += float32(x[1] * y[1])
		s2 += float32(x[2] * y[2])
		s3 += float32(x[3] * y[3])
	}
	for ; i < len(a); i++ {
		s0 += float32(a[i] * b[i])
	}
	return min(max(float64((s0+s1)+(s2+s3)), -1), 1)
}

// pack writes a vector as little-endian float32.
func pack(v []float32) []byte {
	out := make([]byte, 0, 4*len(v))
	for _, x := range v {
		out = binary.LittleEndian.AppendUint32(out, math.Float32bits(x))
	}
	return out
}

// unpack reads what pack wrote into dst, grown as needed.
func unpack(dst []float32, b []byte) ([]float32, error) {
	if len(b)%4 != 0 {
		return nil, fmt.Errorf("a vector of %d bytes", len(b))
	}
	dst = slices.Grow(dst[:0], len(b)/4)
	for ; len(b) > 0; b = b[4:] {
		dst = append(dst, math.Float32frombits(binary.LittleEndian.Uint32(b)))
	}
	return dst, nil
}

// candidate is an entry with its score. rev shows whether the entry has changed since it was
// scored.
type candidate struct {
	id    int64
	rev   int64
	key   string
	score float64
}

// better sorts candidates by descending score, and by key if scores are equal.
func better(a, b candidate) int {
	switch {
	case a.score > b.score:
		return -1
	case a.score < b.score:
		return 1
	}
	return strings.Compare(a.key, b.key)
}

// best keeps the k best candidates offered, in order.
type best struct {
	k    int
	list []candidate
}

func newBest(k int) *best { return &best{k: k, list: make([]candidate, 0, k+1)} }

// wants tells whether a candidate with this score may still be added.
func (b *best) wants(score float64) bool {
	return len(b.list) < b.k || score >= b.list[b.k-1].score
}

// refuses tells that no candidate with at most this score can be added. A bound that is NaN proves
// nothing.
func (b *best) refuses(bound float64) bool {
	return len(b.list) == b.k && bound < b.list[b.k-1].score
}

func (b *best) offer(c candidate) {
	i, _ := slices.BinarySearchFunc(b.list, c, better)
	if i == b.k {
		return
	}
	b.list = slices.Insert(b.list, i, c)
	if len(b.list) > b.k {
		b.list = b.list[:b.k]
	}
}
