package schema

import (
	"maps"
	"reflect"
	"slices"
	"sync"
)

// Load parses and checks a document. The findings are one E000, or any number of E016 in document
// order. With E000 the manifest is nil. With E016 the manifest is incomplete: a value of a wrong
// type counts as absent, and no program may be started from it.
func Load(name string, data []byte) (*Manifest, *Document, []Finding) {
	d, bad := Parse(name, data)
	if bad != nil {
		return nil, nil, []Finding{*bad}
	}
	return d.Manifest(), d, slices.Clone(d.Violations())
}

// Manifest is the document as a typed value, with defaults. It is decoded once and shared, and must
// not be changed.
func (d *Document) Manifest() *Manifest {
	d.decoded.Do(func() { d.manifest = d.decode() })
	return d.manifest
}

func (d *Document) decode() *Manifest {
	m := new(Manifest)
	decodeTable(reflect.ValueOf(m).Elem(), manifestShape(), d.raw)
	return m
}

// ProgramTable is the table of one program. It is shared and must not be changed.
type ProgramTable struct {
	Name   string
	Own    map[string]any // as written
	Merged map[string]any // the table merged over [supervisor.defaults]
}

// Programs returns the tables below [programs] in document order. They are merged once, because
// many rules ask for them.
func (d *Document) Programs() []ProgramTable {
	d.merged.Do(func() {
		defaults, _ := d.Table("supervisor.defaults")
		for _, name := range d.Keys("programs") {
			v, _ := d.At("programs", name)
			if own, ok := v.(map[string]any); ok {
				d.programs = append(d.programs, ProgramTable{name, own, MergeProgram(defaults, own)})
			}
		}
	})
	return d.programs
}

var programTable = whileUsed(programShape)

// DecodeProgram checks and decodes one merged program table, and adds the schema's defaults.
// Findings are E016 without a position. Their Path begins at the program's own keys. A missing
// command is a finding. The program may be used only if there are no findings.
func DecodeProgram(merged map[string]any) (Program, []Finding) {
	v := validator{}
	s := programTable()
	v.check(s, merged, nil)
	if _, ok := merged["command"]; !ok {
		v.path = []string{"command"}
		v.report(nil, true, nil, false, "command is missing: an array of strings or one string is required", "")
	}
	return decodeProgram(merged), v.findings
}

// untouched is a program with only default values. Most programs set few keys, so decoding starts
// from a copy of it. Values that it points to are never changed.
var untouched = sync.OnceValue(func() Program {
	var p Program
	decodeTable(reflect.ValueOf(&p).Elem(), programTable(), nil)
	return p
})

func decodeProgram(merged map[string]any) Program {
	p := untouched()
	s := programTable()
	dst := reflect.ValueOf(&p).Elem()
	fields := FieldsOf(dst.Type())
	for name, v := range merged {
		if k := s.fixed(name); k != nil {
			decodeValue(dst.Field(fields[name]), k, v)
		}
	}
	if _, written := merged["start_timeout"]; !written {
		p.StartTimeout = startTimeout(p)
	}
	p.Stop = stopLadder(p, merged)
	return p
}

// startTimeout is the default of start_timeout, which leaves the start the time that other keys give it.
func startTimeout(p Program) Duration {
	if p.Type != "service" {
		return 0
	}
	limit, needed := p.StartTimeout, p.StartSeconds
	if p.Ready != nil {
		needed = p.Ready.Deadline
	}
	if needed >= limit {
		return limit + needed
	}
	return limit
}

// stopLadder applies stop_signal and stop_timeout, and adds KILL at the end of every ladder.
func stopLadder(p Program, merged map[string]any) StopLadder {
	ladder := p.Stop
	_, long := merged["stop"]
	_, signal := merged["stop_signal"]
	_, timeout := merged["stop_timeout"]
	if !long && (signal || timeout) {
		step := StopStep{Signal: "TERM", Wait: p.StopTimeout}
		if parsed, err := ParseStopStep(p.StopSignal); err == nil {
			step.Signal = parsed.Signal
		}
		ladder = StopLadder{step}
	}
	if n := len(ladder); n == 0 || ladder[n-1].Signal != "KILL" {
		ladder = append(slices.Clone(ladder), StopStep{Signal: "KILL"})
	}
	return ladder
}

// defaultOf is the default of a key. The default of a table is built from the defaults of its keys.
func defaultOf(s *shape) any {
	if s.value != nil || s.kinds != kTable || s.optional || s.entry != nil {
		return s.value
	}
	t := map[string]any{}
	for _, k := range s.keys {
		if v := defaultOf(k.shape); v != nil {
			t[k.name] = v
		}
	}
	return t
}

// mergedByKey are the program tables that are merged key by key. Any other value replaces that of a
// lower layer.
var mergedByKey = map[string]bool{
	"environment": true, "backoff": true, "restart_limit": true, "limits": true, "logs": true, "hooks": true, "sandbox": true,
}

// stopKeys are two forms of the same setting. The highest layer that sets one of them decides which
// form is used.
var stopKeys = map[string][]string{
	"stop":         {"stop_signal", "stop_timeout"},
	"stop_signal":  {"stop"},
	"stop_timeout": {"stop"},
}

// withLogFile sets logs.to to "file" if only a path is given, because the user then wants the
// output in that file.
func withLogFile(v any) any {
	logs, ok := v.(map[string]any)
	path, _ := logs["path"].(string)
	if _, said := logs["to"]; !ok || said || path == "" {
		return v
	}
	logs = maps.Clone(logs)
	logs["to"] = "file"
	return logs
}

// MergeProgram merges program tables. For each key, the last layer that has it takes precedence.
// The layers are not changed, and a layer may be nil.
func MergeProgram(layers ...map[string]any) map[string]any {
	out := map[string]any{}
	for _, layer := range layers {
		for name := range layer {
			for _, hidden := range stopKeys[name] {
				if _, here := layer[hidden]; !here {
					delete(out, hidden)
				}
			}
		}
		for name, v := range layer {
			if name == "logs" {
				v = withLogFile(v)
			}
			below, ok1 := out[name].(map[string]any)
			above, ok2 := v.(map[string]any)
			if ok1 && ok2 && mergedByKey[name] {
				both := maps.Clone(below)
				maps.Copy(both, above)
				v = both
			}
			out[name] = v
		}
	}
	return out
}
