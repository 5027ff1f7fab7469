package program

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
)

// prog parses "name priority needs,needs wait-seconds".
func prog(text string) Spec {
	var s Spec
	var wait int
	f := strings.Fields(text)
	s.Name = f[0]
	fmt.Sscan(f[1], &s.Priority)
	if f[2] != "-" {
		for n := range strings.SplitSeq(f[2], ",") {
			s.Needs = append(s.Needs, Need{Program: n, Condition: NeedReady})
		}
	}
	fmt.Sscan(f[3], &wait)
	s.Stop = []StopStep{{Signal: "TERM", Wait: time.Duration(wait) * time.Second}}
	return s
}

func progs(text ...string) []Spec {
	var specs []Spec
	for _, t := range text {
		specs = append(specs, prog(t))
	}
	return specs
}

func TestOrders(t *testing.T) {
	for _, c := range []struct {
		name     string
		specs    []Spec
		waves    string
		critical string
		total    time.Duration
	}{
		{"nothing", nil, "[]", "[]", 0},
		{
			"priorities ascend, equal ones keep their order",
			progs("c 30 - 1", "b 10 - 2", "a 10 - 3"),
			"[[b a] [c]]", "[c a]", 4 * time.Second,
		},
		{
			"edges inside a wave",
			progs("web 999 db,cache 1", "db 999 - 5", "cache 999 - 2", "alone 999 - 3"),
			"[[db cache alone web]]", "[web db]", 6 * time.Second,
		},
		{
			"an edge to a later wave moves the dependent there",
			progs("early 1 late 1", "middle 5 - 1", "late 9 - 1", "after 1 early 1"),
			"[[middle] [late early after]]", "[after early late middle]", 4 * time.Second,
		},
		{
			"an edge to an earlier wave changes nothing",
			progs("a 1 - 1", "b 2 a 1"),
			"[[a] [b]]", "[b a]", 2 * time.Second,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			waves, err := Waves(Pointers(c.specs))
			if err != nil {
				t.Fatal(err)
			}
			critical, total, err := criticalStop(Pointers(c.specs), false)
			if err != nil {
				t.Fatal(err)
			}
			got := fmt.Sprint(waves, critical, total)
			if want := fmt.Sprint(c.waves, " ", c.critical, " ", c.total); got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		})
	}
}

// A oneshot that completes before its dependents start never runs at the same time as they do. The
// planned stop does not add their times.
func TestPlannedStop(t *testing.T) {
	specs := func(condition Condition, kind Type, text ...string) []Spec {
		all := progs(text...)
		for i := range all {
			if all[i].Name == "migrate" {
				all[i].Type = kind
			}
			for k := range all[i].Needs {
				if all[i].Needs[k].Program == "migrate" {
					all[i].Needs[k].Condition = condition
				}
			}
		}
		return all
	}
	chain := []string{"db 1 - 5", "migrate 1 db 3", "web 1 migrate 4"}
	waves := []string{"migrate 1 - 3", "web 2 migrate 4"}
	for _, c := range []struct {
		name  string
		specs []Spec
		want  string
	}{
		{"completed", specs(NeedCompleted, Oneshot, chain...), "[web db] 9s"},
		{"ready, which is completed of a oneshot", specs(NeedReady, Oneshot, chain...), "[web db] 9s"},
		{"started: both may run", specs(NeedStarted, Oneshot, chain...), "[web migrate db] 12s"},
		{"no oneshot", specs(NeedCompleted, Service, chain...), "[web migrate db] 12s"},
		{"the oneshot takes longer than its dependent", specs(NeedCompleted, Oneshot, "db 1 - 5", "migrate 1 db 6", "web 1 migrate 4"), "[migrate db] 11s"},
		{"nobody needs it", specs(NeedCompleted, Oneshot, "db 1 - 5", "migrate 1 db 3"), "[migrate db] 8s"},
		{"in an earlier wave", specs(NeedCompleted, Oneshot, waves...), "[web] 4s"},
		{"in an earlier wave, both may run", specs(NeedStarted, Oneshot, waves...), "[web migrate] 7s"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path, total, err := PlannedStop(Pointers(c.specs))
			if got := fmt.Sprint(path, " ", total); err != nil || got != c.want {
				t.Errorf("got %s, %v; want %s", got, err, c.want)
			}
		})
	}
	// criticalStop plans the stop of running programs: an operator may have started the oneshot
	// again.
	if path, total, err := criticalStop(Pointers(specs(NeedCompleted, Oneshot, chain...)), false); err != nil || fmt.Sprint(path, " ", total) != "[web migrate db] 12s" {
		t.Errorf("of running programs: %v, %v, %v", path, total, err)
	}
}

func TestOrderErrors(t *testing.T) {
	_, err := Waves(Pointers(progs("x 1 a 1", "a 1 b 1", "b 1 c 1", "c 1 a 1")))
	if cycle, ok := errors.AsType[*CycleError](err); !ok || fmt.Sprint(cycle.Cycles) != "[[a b c a]]" {
		t.Errorf("%v", err)
	}
	_, err = Waves(Pointers(progs("a 1 a 1")))
	if cycle, ok := errors.AsType[*CycleError](err); !ok || fmt.Sprint(cycle.Cycles) != "[[a a]]" {
		t.Errorf("%v", err)
	}
	// b and c are a cycle on the way of that of a and d; e and f are one apart.
	_, err = Waves(Pointers(progs("x 1 a 1", "a 1 b,d 1", "b 1 c 1", "c 1 b 1", "d 1 a 1", "e 1 f,x 1", "f 1 e 1")))
	if cycle, ok := errors.AsType[*CycleError](err); !ok || fmt.Sprint(cycle.Cycles) != "[[b c b] [a d a] [e f e]]" {
		t.Errorf("%v", err)
	}
	_, _, err = criticalStop(Pointers(progs("a 1 nosuch 1")), false)
	if unknown, ok := errors.AsType[*UnknownNeedError](err); !ok || unknown.Need != "nosuch" {
		t.Errorf("%v", err)
	}
	_, err = StopScale(Pointers(progs("a 1 - 1", "a 1 - 1")), 0)
	if _, ok := errors.AsType[*DuplicateError](err); !ok {
		t.Errorf("%v", err)
	}
}

func TestLongChain(t *testing.T) {
	const n = 20000
	specs := make([]Spec, n)
	for i := range specs {
		specs[i].Name = fmt.Sprint(i)
		if i+1 < n {
			specs[i].Needs = []Need{{Program: fmt.Sprint(i + 1)}}
		}
	}
	waves, err := Waves(Pointers(specs))
	if err != nil || len(waves) != 1 || waves[0][0] != fmt.Sprint(n-1) {
		t.Errorf("%v, %d waves", err, len(waves))
	}
}

func TestStopScaleFits(t *testing.T) {
	specs := progs("web 999 db 10", "db 999 - 20")
	specs[0].StopCommand = &Hook{Timeout: 10 * time.Second}
	for budget, want := range map[time.Duration]float64{20 * time.Second: 0.5, 40 * time.Second: 1, time.Minute: 1} {
		if scale, err := StopScale(Pointers(specs), budget); err != nil || scale != want {
			t.Errorf("%v: %v, %v", budget, scale, err)
		}
	}
	if scale, _ := StopScale(Pointers(specs), 0); scale <= 0 {
		t.Errorf("scale %v", scale)
	}
}

func TestStopBudget(t *testing.T) {
	for _, c := range []struct{ grace, drain, want time.Duration }{
		{25 * time.Second, 0, 23 * time.Second},
		{25 * time.Second, 20 * time.Second, 3 * time.Second},
		{5 * time.Second, 3500 * time.Millisecond, 500 * time.Millisecond},
		{5 * time.Second, 4 * time.Second, 0},
		{5 * time.Second, time.Minute, 0},
	} {
		got := StopBudget(c.grace, c.drain)
		if got != c.want {
			t.Errorf("%v less %v leaves %v", c.grace, c.drain, got)
		}
		if got > 0 && GraceFor(got, c.drain) != c.grace {
			t.Errorf("%v after %v fit into %v", got, c.drain, GraceFor(got, c.drain))
		}
	}
}

func TestDiff(t *testing.T) {
	base := func(name string) Spec {
		return Spec{Name: name, Argv: []string{"x"}, Env: []string{"A=1"}, Priority: 1}
	}
	same, live, restart, gone := base("same"), base("live"), base("restart"), base("gone")
	live2, restart2, same2 := live, restart, same
	same2.Needs = []Need{}
	live2.Priority, live2.Stop = 2, []StopStep{{Signal: "INT"}}
	restart2.Env, restart2.Priority = []string{"A=2"}, 5
	got := Diff([]Spec{gone, same, live, restart}, []Spec{same2, live2, restart2, base("new")})
	want := []SpecChange{
		{Program: "same", Kind: Unchanged},
		{Program: "live", Kind: Live, Fields: []string{"priority", "stop"}},
		{Program: "restart", Kind: Restart, Fields: []string{"priority", "env"}},
		{Program: "new", Kind: Add},
		{Program: "gone", Kind: Remove},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

// TestDiffKnowsEveryField: for every field of Spec, diff.go must say what a change requires.
func TestDiffKnowsEveryField(t *testing.T) {
	spec := reflect.TypeFor[Spec]()
	for field := range spec.Fields() {
		if _, ok := effect[field.Name]; !ok {
			t.Errorf("diff.go does not say what a change of %s takes", field.Name)
		}
	}
	if len(effect) != spec.NumField() {
		t.Errorf("%d effects for %d fields", len(effect), spec.NumField())
	}
}

func TestGiveUpTime(t *testing.T) {
	manifest := Spec{
		Type: Service, Restart: RestartOnFailure, StartRetries: -1, RunningAfter: time.Second,
		Backoff:      BackoffPolicy{Initial: 500 * time.Millisecond, Factor: 2, Max: 10 * time.Second, Jitter: 0.1},
		RestartLimit: RestartLimit{Count: 10, Window: 5 * time.Minute},
	}
	probed := func(s *Spec) { s.Readiness.Probes = []Probe{{Dialect: "tcp", Target: ":1"}} }
	for name, c := range map[string]struct {
		change func(*Spec)
		want   time.Duration
		ok     bool
	}{
		"the manifest's defaults":   {func(*Spec) {}, 83050 * time.Millisecond, true},
		"readiness":                 {probed, 72050 * time.Millisecond, true},
		"never restarted":           {func(s *Spec) { s.Restart = RestartNever }, time.Second, true},
		"without limit":             {func(s *Spec) { s.RestartLimit.Count = 0 }, 0, false},
		"whatever the window":       {func(s *Spec) { s.RestartLimit.Window = time.Minute }, 83050 * time.Millisecond, true},
		"supervisord's counting":    {func(s *Spec) { s.StartRetries, s.RestartLimit.Count = 2, 0 }, 4650 * time.Millisecond, true},
		"at once, without back-off": {func(s *Spec) { s.Backoff.Initial, s.RunningAfter = 0, 0 }, 0, true},
		"for ages":                  {func(s *Spec) { s.Backoff.Max, s.StartRetries = 0, 1000000 }, 0, false},
	} {
		s := manifest
		c.change(&s)
		if got, ok := GiveUpTime(&s, false); got != c.want || ok != c.ok {
			t.Errorf("%s: %v %v, want %v", name, got, ok, c.want)
		}
	}
	for name, c := range map[string]struct {
		change func(*Spec)
		want   time.Duration
	}{
		"no readiness":           {func(*Spec) {}, 83050 * time.Millisecond},
		"start_timeout and stop": {probed, 11*70*time.Second + 72050*time.Millisecond},
		"deadline":               {func(s *Spec) { probed(s); s.Readiness.Deadline = 20 * time.Second }, 11*30*time.Second + 72050*time.Millisecond},
		"long deadline":          {func(s *Spec) { probed(s); s.Readiness.Deadline = time.Hour }, 11*70*time.Second + 72050*time.Millisecond},
		"no limit":               {func(s *Spec) { probed(s); s.StartTimeout = 0 }, 72050 * time.Millisecond},
		"oneshot":                {func(s *Spec) { s.Type = Oneshot }, 11*70*time.Second + 72050*time.Millisecond},
	} {
		s := manifest
		s.StartTimeout, s.Stop = time.Minute, []StopStep{{Signal: "TERM", Wait: 10 * time.Second}}
		c.change(&s)
		if got, ok := GiveUpTime(&s, true); got != c.want || !ok {
			t.Errorf("slow, %s: %v %v, want %v", name, got, ok, c.want)
		}
	}
	// With the defaults, a required program is FATAL before the time for the seal is over. Longer
	// settings of a program also make the time for the seal longer.
	manifest.Required = true
	if got := SealTimeout([]*Spec{&manifest}); got != DefaultSealTimeout {
		t.Errorf("got %v", got)
	}
	manifest.Backoff.Max = 30 * time.Second
	if got, ok := GiveUpTime(&manifest, true); !ok || SealTimeout([]*Spec{&manifest}) <= got || got < DefaultSealTimeout {
		t.Errorf("%v", got)
	}
}
