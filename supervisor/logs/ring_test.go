package logs

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Two programs print line by line, with any time between two lines; sometimes the clock is set back.
// One ring has the text, the other only its places in a file. Every query gives the lines that it
// selects, with their numbers and times.
func TestLinesThatComeOneByOne(t *testing.T) {
	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 0))
	p := newPlane(t, Config{RingBytes: 1 << 20})
	file, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll(t, file)
	gen := &generation{file: file, path: file.Name()}
	type printed struct {
		seq  uint64
		at   time.Time
		text string
	}
	var all []printed
	now, size := time.Unix(1_800_000_000, 0), int64(0)
	steps := []time.Duration{0, time.Duration(mergeTime), time.Second, 50 * time.Hour}
	streams := [2]*stream{}
	for i, name := range []string{"memory", "file"} {
		streams[i] = &stream{plane: p, program: p.program(name), kind: Stdout, run: 1}
	}
	for i := range 3000 {
		if now = now.Add(steps[rnd.IntN(len(steps))]); rnd.IntN(200) == 0 {
			now = now.Add(-time.Minute)
		}
		s := streams[rnd.IntN(2)]
		blk := block{}
		for range 1 + rnd.IntN(2) {
			blk.text = fmt.Appendf(blk.text, "%s %d.%d\n", s.program.name, i, blk.lines)
			blk.lines++
		}
		first := p.seq.Load() + 1
		if s.program.name == "memory" {
			s.store(blk, now)
		} else {
			write(t, file, string(blk.text))
			s.record([]filePart{{gen, size, len(blk.text)}}, blk, nil, now)
			size += int64(len(blk.text))
		}
		for n, text := range strings.Split(strings.TrimSuffix(string(blk.text), "\n"), "\n") {
			all = append(all, printed{first + uint64(n), now, text})
		}
	}
	for range 400 {
		var q Query
		if rnd.IntN(2) == 0 {
			q.After = uint64(rnd.IntN(len(all)))
		}
		if rnd.IntN(2) == 0 {
			q.Since = all[rnd.IntN(len(all))].at
		}
		if rnd.IntN(2) == 0 {
			q.Until = all[rnd.IntN(len(all))].at.Add(1)
		}
		if rnd.IntN(2) == 0 {
			q.Lines = 1 + rnd.IntN(100)
		}
		if rnd.IntN(2) == 0 {
			q.Programs = []string{streams[rnd.IntN(2)].program.name}
		}
		var want []printed
		for _, pr := range all {
			if pr.seq > q.After && q.inTime(pr.at.UnixNano()) && q.wantsProgram(strings.Fields(pr.text)[0]) {
				want = append(want, pr)
			}
		}
		if q.Lines > 0 {
			want = want[max(len(want)-q.Lines, 0):]
		}
		i := 0
		for line := range p.Read(t.Context(), q) {
			if i == len(want) {
				t.Fatalf("seed %d: %+v gives more than %d lines", seed, q, i)
			}
			if w := want[i]; line.Text != w.text || line.Seq != w.seq || !line.Time.Equal(w.at) {
				t.Fatalf("seed %d: line %d of %+v is %+v, want %+v", seed, i, q, line, w)
			}
			i++
		}
		if i != len(want) {
			t.Fatalf("seed %d: %+v gives %d lines, want %d", seed, q, i, len(want))
		}
	}
}

// A ring has room for many lines that come one by one. For those in a file, their length does not
// matter.
func TestRoomForLinesOneByOne(t *testing.T) {
	for name, tc := range map[string]struct {
		file  *generation
		lines uint64
	}{
		"memory": {nil, 2000},
		"file":   {&generation{}, 15_000},
	} {
		r := &ring{max: defaultRingBytes, budget: newBudget(1 << 30)}
		text := []byte(strings.Repeat("x", 99) + "\n")
		for i := range uint64(40_000) {
			// Another program prints a line after each, and a second goes by.
			c := chunk{seq: 2*i + 1, time: int64(i) * int64(time.Second), lines: 1, file: tc.file}
			if tc.file == nil {
				r.append(text, c)
				continue
			}
			c.off, c.n = int64(i)*int64(len(text)), len(text)
			r.refer(c)
		}
		if n := r.next - r.first(); n < tc.lines {
			t.Errorf("%s: room for %d lines, want %d", name, n, tc.lines)
		}
		if r.bytes > r.max {
			t.Errorf("%s: %d bytes", name, r.bytes)
		}
	}
}
