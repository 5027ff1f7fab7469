package picture

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
)

// span is one bar of a boot: from and to are milliseconds since the boot began.
type span struct {
	from, to float64
	class    string // class in the SVG
	what     string // "starting", "until ready", a phase's outcome
}

// bar is one row of a boot.
type bar struct {
	group, name string // "phase" or "program"
	critical    bool
	detail      string
	spans       []span
}

// bars are the rows of a boot in the order of their start. extent is the length of the boot in
// milliseconds.
func bars(b api.Boot) (rows []bar, extent float64) {
	since := func(t time.Time) float64 { return max(0, float64(t.Sub(b.StartedAt))/float64(time.Millisecond)) }
	extent = 1
	for _, p := range b.Phases {
		from := since(p.StartedAt)
		extent = max(extent, from+p.DurationMS)
		rows = append(rows, bar{
			group: "phase", name: strconv.FormatFloat(p.Number, 'f', -1, 64) + " " + p.Name, detail: p.Detail,
			spans: []span{{from, from + max(0, p.DurationMS), phaseClass(p.Outcome), p.Outcome}},
		})
	}
	for _, p := range b.Programs {
		for _, t := range []*time.Time{p.StartedAt, p.RunningAt, p.ReadyAt} {
			if t != nil {
				extent = max(extent, since(*t))
			}
		}
	}
	if b.SealedAt != nil {
		extent = max(extent, since(*b.SealedAt))
	}
	programs := slices.Clone(b.Programs)
	slices.SortStableFunc(programs, func(x, y api.BootProgram) int { return cmp.Compare(begun(x, since), begun(y, since)) })
	for _, p := range programs {
		rows = append(rows, bar{
			group: "program", name: p.Name, critical: slices.Contains(b.CriticalChain, p.Name), detail: waits(p),
			spans: programSpans(p, since, extent),
		})
	}
	return rows, extent
}

// phaseClass is the style's class for an outcome.
func phaseClass(outcome string) string {
	if slices.Contains([]string{"ok", "warning", "failed"}, outcome) {
		return outcome
	}
	return "running"
}

// begun puts programs that were not started last.
func begun(p api.BootProgram, since func(time.Time) float64) float64 {
	if p.StartedAt == nil {
		return math.Inf(1)
	}
	return since(*p.StartedAt)
}

func waits(p api.BootProgram) string {
	if p.StartedAt == nil {
		return "not started"
	}
	if p.ReadyAt == nil {
		return "not ready"
	}
	return ""
}

// programSpans are the time from the start until RUNNING, and from there until ready.
func programSpans(p api.BootProgram, since func(time.Time) float64, extent float64) []span {
	if p.StartedAt == nil {
		return nil
	}
	from, end := since(*p.StartedAt), extent
	if p.ReadyAt != nil {
		end = max(from, since(*p.ReadyAt))
	}
	running := end
	if p.RunningAt != nil {
		running = min(max(from, since(*p.RunningAt)), end)
	}
	spans := []span{{from, running, "starting", "starting"}}
	if running < end {
		spans = append(spans, span{running, end, "probing", "until ready"})
	}
	return spans
}

// The measures of a waterfall, in pixels and columns.
const (
	labelColumns = 28
	plotLeft     = labelColumns*charWidth + 16
	plotWidth    = 720
	headHeight   = 76
	rowHeight    = 20
)

// Waterfall draws a boot as SVG: a row for each phase and each program, a frame around the critical
// chain, and a line at the seal.
func Waterfall(b api.Boot) string {
	rows, extent := bars(b)
	scale := plotWidth / extent
	height := float64(headHeight + rowHeight*len(rows) + 16)
	d := &drawing{}
	title := "boot " + b.Outcome
	if b.SealedAt != nil {
		title += " after " + Milliseconds(float64(b.SealedAt.Sub(b.StartedAt))/float64(time.Millisecond))
	}
	d.begin(plotLeft+plotWidth+90, height, title)
	d.text(12, 22, "", shorten(title+", begun "+b.StartedAt.UTC().Format(time.RFC3339), 120))
	legend(d)
	for _, at := range ticks(extent) {
		x := plotLeft + at*scale
		d.line(x, headHeight-8, x, height-12, "grid")
		d.text(x+2, headHeight-12, "dim", Milliseconds(at))
	}
	for n, row := range rows {
		y := float64(headHeight + rowHeight*n)
		d.text(12, y+14, "", shorten(row.name, labelColumns))
		drawSpans(d, row, y, scale)
	}
	if b.SealedAt != nil {
		x := plotLeft + float64(b.SealedAt.Sub(b.StartedAt))/float64(time.Millisecond)*scale
		d.line(x, headHeight-8, x, height-12, "seal")
	}
	return d.end()
}

func drawSpans(d *drawing, row bar, y, scale float64) {
	end := float64(plotLeft)
	for _, s := range row.spans {
		class := s.class
		if row.critical {
			class += " critical"
		}
		tip := fmt.Sprintf("%s: %s, +%s to +%s", row.name, s.what, Milliseconds(s.from), Milliseconds(s.to))
		if row.detail != "" {
			tip += ": " + row.detail
		}
		x := plotLeft + s.from*scale
		width := max(1, (s.to-s.from)*scale)
		d.rect(x, y+3, width, rowHeight-6, class, tip)
		end = x + width
	}
	note := row.detail
	if n := len(row.spans); n > 0 {
		note = Milliseconds(row.spans[n-1].to - row.spans[0].from)
		if row.group == "program" && row.detail != "" {
			note = row.detail
		}
	}
	d.text(end+4, y+14, "dim", shorten(note, 11))
}

func legend(d *drawing) {
	x := 12.0
	for _, key := range []struct{ class, text string }{
		{"ok", "phase"}, {"starting", "starting"}, {"probing", "running, not yet ready"}, {"probing critical", "critical chain"},
	} {
		d.rect(x, 34, 12, 12, key.class, key.text)
		d.text(x+17, 44, "dim", key.text)
		x += 17 + charWidth*float64(len(key.text)) + 18
	}
}

// ticks are round times from 0 to extent, at most ten.
func ticks(extent float64) []float64 {
	step := math.Pow(10, math.Floor(math.Log10(extent)))
	for _, part := range []float64{0.1, 0.2, 0.5, 1} {
		if extent/(step*part) <= 10 {
			step *= part
			break
		}
	}
	var out []float64
	for n := range 11 {
		if at := float64(n) * step; at <= extent {
			out = append(out, at)
		}
	}
	return out
}

// Milliseconds writes a time for people. Times below ten milliseconds have tenths, because many
// steps of a boot are that short.
func Milliseconds(ms float64) string {
	if ms < 10 {
		return fmt.Sprintf("%.1fms", max(0, ms))
	}
	return api.Duration(time.Duration(ms * float64(time.Millisecond)))
}

// traceEvent is one event of the Trace Event Format, which chrome://tracing and
// Perfetto read. Times are microseconds.
type traceEvent struct {
	Name      string            `json:"name"`
	Category  string            `json:"cat,omitempty"`
	Phase     string            `json:"ph"` // X complete, M metadata, i instant
	Timestamp float64           `json:"ts"`
	Duration  float64           `json:"dur,omitempty"`
	PID       int               `json:"pid"`
	TID       int               `json:"tid"`
	Scope     string            `json:"s,omitempty"`
	Args      map[string]string `json:"args,omitempty"`
}

// Trace writes a boot in the Trace Event Format (a JSON object). Process 1 has the phases, process
// 2 the programs; each row is a thread.
func Trace(b api.Boot) ([]byte, error) {
	rows, _ := bars(b)
	named := func(kind string, pid, tid int, name string) traceEvent {
		return traceEvent{Name: kind, Phase: "M", PID: pid, TID: tid, Args: map[string]string{"name": name}}
	}
	events := []traceEvent{named("process_name", 1, 0, "phases"), named("process_name", 2, 0, "programs")}
	for n, row := range rows {
		pid := 1
		if row.group == "program" {
			pid = 2
		}
		events = append(events, named("thread_name", pid, n+1, visible(row.name)))
		for _, s := range row.spans {
			e := traceEvent{Name: visible(row.name), Category: s.what, Phase: "X", Timestamp: s.from * 1000, Duration: (s.to - s.from) * 1000, PID: pid, TID: n + 1}
			e.Args = map[string]string{"what": s.what}
			if row.detail != "" {
				e.Args["detail"] = visible(row.detail)
			}
			if row.critical {
				e.Args["critical_chain"] = "true"
			}
			events = append(events, e)
		}
	}
	if b.SealedAt != nil {
		at := float64(b.SealedAt.Sub(b.StartedAt)) / float64(time.Microsecond)
		events = append(events, traceEvent{Name: "sealed", Phase: "i", Timestamp: at, PID: 1, Scope: "g"})
	}
	out, err := json.MarshalIndent(struct {
		Events []traceEvent      `json:"traceEvents"`
		Unit   string            `json:"displayTimeUnit"`
		Other  map[string]string `json:"otherData,omitempty"`
	}{events, "ms", map[string]string{"boot": b.ID, "started_at": b.StartedAt.UTC().Format(time.RFC3339Nano), "outcome": b.Outcome}}, "", " ")
	return append(out, '\n'), err
}
