package memory

import "math"

// The exact scan of a namespace must consider every vector. Most vectors are far from the query,
// and six bits a number are enough to prove that. So each row also has a sketch. A row is scored in
// full only if its sketch does not exclude it from the best. The bound is a proof, so the result is
// the same as if every row were scored.
//
// A vector x becomes the codes c = round(x/step) + codeZero, so that x differs
// from step·(c−codeZero) by a vector of known length, its error. For a query
// sketched likewise,
//
//	x·q = x̃·q̃ + (x−x̃)·q + x̃·(q−q̃) ≤ x̃·q̃ + error(x)·|q| + |x̃|·error(q)
//
// by Cauchy and Schwarz.
//
// The codes of groupRows rows are the bytes of one word for each dimension; zero words follow up to
// a multiple of laneRun. Even and odd bytes are taken separately, so a word has four lanes of 16
// bits, and one multiplication by a code of the query computes four products.
const (
	groupRows = 8
	codeZero  = 32
	codeMax   = 31 // codes are codeZero-codeMax … codeZero+codeMax, six bits
	// laneRun is how many products of two codes a lane of 16 bits can hold: 16·63² < 2¹⁶.
	laneRun = 16

	tiny = 1e-12 // above what is lost where numbers are too small to be normal

	lanes16 = 0x00ff00ff00ff00ff
	lanes32 = 0x0000ffff0000ffff
)

// sketch has the values of a vector that belong to its codes.
type sketch struct {
	step  float32
	sum   int32   // of its codes
	err   float32 // length of the difference from the vector, not less than that
	shown float32 // length of what the codes stand for, not less than that
}

// groupWords is how many words hold the codes of a group.
func groupWords(dim int) int { return (dim + laneRun - 1) / laneRun * laneRun }

// quantize computes the codes of v and its sketch.
func quantize(codes []uint8, v []float32) sketch {
	var largest float64
	for _, x := range v {
		largest = max(largest, math.Abs(float64(x)))
	}
	step := float32(largest / codeMax)
	s := sketch{step: step}
	var missed, shown float64
	for i, x := range v {
		level := 0.0
		if step > 0 && step <= math.MaxFloat32 {
			level = min(max(math.Round(float64(x)/float64(step)), -codeMax), codeMax)
		}
		codes[i] = uint8(level + codeZero)
		s.sum += int32(codes[i])
		there := level * float64(step)
		missed += (float64(x) - there) * (float64(x) - there)
		shown += there * there
	}
	s.err, s.shown = upward(math.Sqrt(missed)), upward(math.Sqrt(shown))
	return s
}

// upward rounds to a float32 that is not smaller.
func upward(x float64) float32 {
	return math.Nextafter32(float32(x), float32(math.Inf(1)))
}

// probe is a query prepared for scans of sketches.
type probe struct {
	sketch
	codes  []uint64
	length float64
	base   float64 // the part of x̃·q̃ that only depends on the query
	// rounding is the largest error of cosine for vectors of length 1: dim times 2⁻²⁴ (Higham,
	// Accuracy and Stability of Numerical Algorithms, 3.1), and the same again for the bound
	// itself.
	rounding float64
}

func newProbe(q []float32) *probe {
	codes := make([]uint8, len(q))
	p := &probe{sketch: quantize(codes, q), codes: make([]uint64, groupWords(len(q)))}
	var square float64
	for i, c := range codes {
		p.codes[i] = uint64(c)
		square += float64(q[i]) * float64(q[i])
	}
	p.length = math.Sqrt(square)
	p.rounding = float64(len(q)) / (1 << 23)
	p.base = codeZero*codeZero*float64(len(q)) - codeZero*float64(p.sum)
	return p
}

// bounds sets the highest possible cosine of each row of a group.
func (p *probe) bounds(group []uint64, rows []slabRow, out *[groupRows]float64) {
	dots := p.dots(group)
	for i := range rows {
		s := &rows[i].sketch
		near := float64(p.step) * float64(s.step) * (float64(dots[i]) + p.base - codeZero*float64(s.sum))
		err, shown := float64(s.err), float64(s.shown)
		out[i] = near + err*p.length + shown*float64(p.err) + (err+shown)*p.length*p.rounding + tiny
	}
}

// dots are the products of the query's codes with those of each row.
func (p *probe) dots(group []uint64) (out [groupRows]uint32) {
	var even0, even1, odd0, odd1 uint64 // two lanes of 32 bits each
	for codes := p.codes; len(codes) >= laneRun && len(group) >= laneRun; codes, group = codes[laneRun:], group[laneRun:] {
		// The length is known, so the compiler can leave out the checks in the loop.
		g, c := (*[laneRun]uint64)(group), (*[laneRun]uint64)(codes)
		var even, odd uint64
		for i := 0; i < laneRun; i += 4 {
			w, x, y, z := g[i], g[i+1], g[i+2], g[i+3]
			even += (w&lanes16)*c[i] + (x&lanes16)*c[i+1] + (y&lanes16)*c[i+2] + (z&lanes16)*c[i+3]
			odd += (w>>8&lanes16)*c[i] + (x>>8&lanes16)*c[i+1] + (y>>8&lanes16)*c[i+2] + (z>>8&lanes16)*c[i+3]
		}
		even0 += even & lanes32
		even1 += even >> 16 & lanes32
		odd0 += odd & lanes32
		odd1 += odd >> 16 & lanes32
	}
	return [groupRows]uint32{
		uint32(even0), uint32(odd0), uint32(even1), uint32(odd1),
		uint32(even0 >> 32), uint32(odd0 >> 32), uint32(even1 >> 32), uint32(odd1 >> 32),
	}
}
