package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
)

// Report is the result of a run: the machine and one row for each measurement.
type Report struct {
	Machine Machine `json:"machine"`
	Rows    []Row   `json:"rows"`
}

// Row is one measurement, made for all peers.
type Row struct {
	Name    string   `json:"name"`
	Columns []Column `json:"columns"`
	Results []Result `json:"results"`
}

// Column is one number of a measurement.
type Column struct {
	Name   string `json:"name"`
	Unit   string `json:"unit"`
	Higher bool   `json:"higher_is_better,omitempty"`
	Count  bool   `json:"count,omitempty"` // how many samples the other columns are of: neither better nor worse
	Goals  []Goal `json:"goals,omitempty"`
}

// Goal bounds agentinit's median: by a multiple of another peer's median or, without another peer,
// by a number.
type Goal struct {
	Times float64 `json:"times"`
	Of    string  `json:"of,omitempty"`
}

// Result is what was measured for one peer.
type Result struct {
	Peer   string   `json:"peer"`
	Failed string   `json:"failed,omitempty"`
	Values []Spread `json:"values,omitempty"` // one for each column

	peer   peer
	rounds [][]float64
}

// Spread summarises the rounds.
type Spread struct {
	Min    float64   `json:"min"`
	Median float64   `json:"median"`
	Max    float64   `json:"max"`
	All    []float64 `json:"all"`
}

func (r *Result) sum(columns int) {
	if len(r.rounds) == 0 {
		return
	}
	for c := range columns {
		var all []float64
		for _, values := range r.rounds {
			all = append(all, values[c])
		}
		r.Values = append(r.Values, spread(all))
	}
}

func spread(all []float64) Spread {
	sorted := slices.Sorted(slices.Values(all))
	return Spread{Min: sorted[0], Median: quantile(sorted, 0.5), Max: sorted[len(sorted)-1], All: all}
}

// quantile sorts values and returns the one at q, 0 to 1.
func quantile[T cmp.Ordered](values []T, q float64) T {
	slices.Sort(values)
	return values[min(int(q*float64(len(values))), len(values)-1)]
}

// median returns the median of a peer's column. ok is false if the peer has none.
func (r Row) median(peer string, column int) (v float64, ok bool) {
	for _, result := range r.Results {
		if result.Peer == peer && len(result.Values) > column {
			return result.Values[column].Median, true
		}
	}
	return 0, false
}

// bestPeer returns the best median of the other peers, without the floor.
func (r Row) bestPeer(column int) (peer string, v float64) {
	for _, result := range r.Results {
		if result.Peer == ours || result.Peer == floorName || len(result.Values) <= column {
			continue
		}
		m := result.Values[column].Median
		if peer == "" || (m < v) != r.Columns[column].Higher {
			peer, v = result.Peer, m
		}
	}
	return peer, v
}

func (r Row) print(out io.Writer) error {
	fmt.Fprintf(out, "\n%s\n", r.Name)
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprint(w, "  ")
	for _, c := range r.Columns {
		fmt.Fprintf(w, "\t%s", c.Name)
		if c.Unit != "" {
			fmt.Fprintf(w, ", %s", c.Unit)
		}
	}
	fmt.Fprintln(w)
	for _, result := range r.Results {
		fmt.Fprintf(w, "  %s", result.Peer)
		if result.Failed != "" {
			fmt.Fprintf(w, "\tfailed: %s", strings.Join(strings.Fields(result.Failed), " "))
		}
		for _, v := range result.Values {
			fmt.Fprintf(w, "\t%s (%s–%s)", short(v.Median), short(v.Min), short(v.Max))
		}
		fmt.Fprintln(w)
	}
	for c := range r.Columns {
		for _, line := range r.verdicts(c) {
			fmt.Fprintf(w, "  → %s\n", line)
		}
	}
	return w.Flush()
}

// verdicts compares agentinit's median with those of the best peer and the floor, and with the
// goals.
func (r Row) verdicts(column int) (lines []string) {
	mine, ok := r.median(ours, column)
	c := r.Columns[column]
	if !ok || c.Count {
		return nil
	}
	if peer, best := r.bestPeer(column); peer != "" && best != 0 {
		lines = append(lines, fmt.Sprintf("%s: %.2f × %s, the best peer", c.Name, mine/best, peer))
	}
	if floor, ok := r.median(floorName, column); ok && floor != 0 {
		lines = append(lines, fmt.Sprintf("%s: %.2f × the floor", c.Name, mine/floor))
	}
	for _, g := range c.Goals {
		bound, sign, of := g.Times, "≤", c.Unit
		if g.Of != "" {
			other, ok := r.median(g.Of, column)
			if !ok {
				continue
			}
			bound, of = g.Times*other, "× "+g.Of
		}
		met := mine <= bound
		if c.Higher {
			met, sign = mine >= bound, "≥"
		}
		word := "met"
		if !met {
			word = "missed"
		}
		lines = append(lines, fmt.Sprintf("%s: goal %s %g %s: %s", c.Name, sign, g.Times, of, word))
	}
	return lines
}

// short prints a number with as many digits as a reader needs.
func short(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

func (r Report) writeJSON(file string) error {
	if file == "" {
		return nil
	}
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o644)
}
