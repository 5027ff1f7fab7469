package schema

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"strconv"
	"strings"

	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// checkUnexpanded checks a target as written. A target with variables is checked after their
// expansion, by CheckProbe.
func checkUnexpanded(d program.Dialect, v any) error {
	target, ok := v.(string)
	if !ok || strings.Contains(target, "$") {
		return nil
	}
	return d.Check(target)
}

// CheckProbe checks a probe after the expansion of its variables. It returns nil if the probe is
// valid. A dollar that is left is an ordinary character. The error does not repeat the target,
// which may contain a secret.
func CheckProbe(p Probe) error {
	d, ok := program.Probe{Dialect: p.Dialect}.DialectOf()
	if !ok || d.Check == nil || d.Check(strings.ReplaceAll(p.Target, "$", "_")) == nil {
		return nil
	}
	return d.Check("") // Check describes what is expected
}

// probeTable is one table of ready or health as written. It may set several dialects at once. Each
// of them becomes a Probe.
type probeTable struct {
	timing   Probe
	stated   map[string]any // the keys of dialects, as written
	any      bool
	deadline Duration
	failures int
	action   string
	watchdog Duration
	wedge    Wedge
}

var (
	readyTable  = whileUsed(readyShape)
	healthTable = whileUsed(healthShape)
)

// readProbeTable reads one table and adds the shape's defaults.
func readProbeTable(s *shape, v any) (probeTable, error) {
	raw, ok := v.(map[string]any)
	if !ok {
		return probeTable{}, errors.New("a table")
	}
	full := defaultOf(s.asTable()).(map[string]any)
	maps.Copy(full, raw)
	var t probeTable
	decodeTable(reflect.ValueOf(&t.timing).Elem(), s, full)
	t.stated = raw
	t.any, _ = full["any"].(bool)
	t.action, _ = full["action"].(string)
	if n, ok := full["failures"].(int64); ok {
		t.failures = int(n)
	}
	t.wedge.StackSignal, _ = full["stack_signal"].(string)
	for name, dst := range map[string]*Duration{
		"deadline": &t.deadline, "watchdog": &t.watchdog,
		"no_output": &t.wedge.NoOutput, "spinning": &t.wedge.Spinning, "blocked": &t.wedge.Blocked,
	} {
		if v, ok := full[name]; ok {
			if err := dst.fromTOML(v); err != nil {
				return t, fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	return t, nil
}

// split makes one Probe of each dialect in the table. A value of a wrong type is skipped, because
// the validator reports it.
func (t probeTable) split() []Probe {
	var out []Probe
	for _, d := range program.Dialects {
		v, ok := t.stated[d.Name]
		if !ok || v == false {
			continue
		}
		p := t.timing
		p.Dialect = d.Name
		switch d.Value {
		case program.FlagValue:
			ok = v == true
		case program.DescriptorValue:
			var n int64
			n, ok = v.(int64)
			p.Target = strconv.FormatInt(n, 10)
		case program.CommandValue:
			ok = p.Argv.fromTOML(v) == nil
		default:
			p.Target, ok = v.(string)
		}
		if ok {
			out = append(out, p)
		}
	}
	return out
}

func tablesOf(v any) []any {
	if list, ok := v.([]any); ok {
		return list
	}
	return []any{v}
}

// fromTOML reads one table or an array of tables. If any is true in one table, it applies to all
// probes. The longest deadline is used.
func (r *Ready) fromTOML(v any) error {
	for _, e := range tablesOf(v) {
		t, err := readProbeTable(readyTable(), e)
		if err != nil {
			return err
		}
		r.Probes = append(r.Probes, t.split()...)
		r.Any = r.Any || t.any
		r.Deadline = max(r.Deadline, t.deadline)
	}
	return nil
}

// fromTOML reads one table or an array of tables. Settings that do not belong to one probe are
// combined: the smallest number of failures, the shortest of each duration, and the last action and
// signal that are written.
func (h *Health) fromTOML(v any) error {
	h.Action = "restart"
	for _, e := range tablesOf(v) {
		t, err := readProbeTable(healthTable(), e)
		if err != nil {
			return err
		}
		h.Probes = append(h.Probes, t.split()...)
		if h.Failures == 0 || t.failures < h.Failures {
			h.Failures = t.failures
		}
		if raw, ok := e.(map[string]any); ok && raw["action"] != nil {
			h.Action = t.action
		}
		for dst, d := range map[*Duration]Duration{
			&h.Watchdog: t.watchdog, &h.Wedge.NoOutput: t.wedge.NoOutput, &h.Wedge.Spinning: t.wedge.Spinning, &h.Wedge.Blocked: t.wedge.Blocked,
		} {
			if d > 0 && (*dst == 0 || d < *dst) {
				*dst = d
			}
		}
		if t.wedge.StackSignal != "" {
			h.Wedge.StackSignal = t.wedge.StackSignal
		}
	}
	return nil
}
