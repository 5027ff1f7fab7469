package program

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
)

// prog reads "name priority needs,needs wait-seconds".
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
		stop     string
		critical string
		total    time.Duration
	}{
		{"nothing", nil, "[]", "[]", "[]", 0},
		{
			"priorities ascend, equal ones keep their order",
			progs("c 30 - 1", "b 10 - 2", "a 10 - 3"),
			"[[b a] [c]]", "[[c] [b a]]", "[c a]", 4 * time.Second,
		},
		{
			"edges inside a wave",
			progs("web 999 db,cache 1", "db 999 - 5", "cache 999 - 2", "alone 999 - 3"),
			"[[db cache alone web]]", "[[alone web] [db cache]]", "[web db]", 6 * time.Second,
		},
		{
			"an edge to a later wave moves the dependent there",
			progs("early 1 late 1", "middle 5 - 1", "late 9 - 1", "after 1 early 1"),
			"[[middle] [late early after]]", "[[after] [early] [late] [middle]]", "[after early late middle]", 4 * time.Second,
		},
		{
			"an edge to an earlier wave changes nothing",
			progs("a 1 - 1", "b 2 a 1"),
			"[[a] [b]]", "[[b] [a]]", "[b a]", 2 * time.Second,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			waves, err := Waves(c.specs)
			if err != nil {
				t.Fatal(err)
			}
			stop, err := StopOrder(c.specs)
			if err != nil {
				t.Fatal(err)
			}
			critical, total, err := CriticalStop(c.specs)
			if err != nil {
				t.Fatal(err)
			}
			got := fmt.Sprint(waves, stop, critical, total)
			if want := fmt.Sprint(c.waves, " ", c.stop, " ", c.critical, " ", c.total); got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		})
	}
}

func TestOrderErrors(t *testing.T) {
	_, err := Waves(progs("x 1 a 1", "a 1 b 1", "b 1 c 1", "c 1 a 1"))
	var cycle *CycleError
	if !errors.As(err, &cycle) || fmt.Sprint(cycle.Cycle) != "[a b c a]" {
		t.Errorf("%v", err)
	}
	_, err = StopOrder(progs("a 1 a 1"))
	if !errors.As(err, &cycle) || fmt.Sprint(cycle.Cycle) != "[a a]" {
		t.Errorf("%v", err)
	}
	_, _, err = CriticalStop(progs("a 1 nosuch 1"))
	var unknown *UnknownNeedError
	if !errors.As(err, &unknown) || unknown.Need != "nosuch" {
		t.Errorf("%v", err)
	}
	_, err = StopScale(progs("a 1 - 1", "a 1 - 1"), 0)
	var twice *DuplicateError
	if !errors.As(err, &twice) {
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
	waves, err := Waves(specs)
	if err != nil || len(waves) != 1 || waves[0][0] != fmt.Sprint(n-1) {
		t.Errorf("%v, %d waves", err, len(waves))
	}
}

func TestShrinkLadders(t *testing.T) {
	hook := &Hook{Timeout: 10 * time.Second}
	specs := progs("web 999 db 10", "db 999 - 20")
	specs[0].StopCommand = hook
	ladders, err := ShrinkLadders(specs, 20*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string][]StopStep{
		"web": {{Signal: "TERM", Wait: 5 * time.Second}, {Signal: "KILL"}},
		"db":  {{Signal: "TERM", Wait: 10 * time.Second}, {Signal: "KILL"}},
	}
	if !reflect.DeepEqual(ladders, want) {
		t.Errorf("%v", ladders)
	}
	if ladders, _ = ShrinkLadders(specs, time.Minute); ladders["db"][0].Wait != 20*time.Second {
		t.Errorf("shrunk although it fits: %v", ladders)
	}
	if scale, _ := StopScale(specs, 0); scale <= 0 {
		t.Errorf("scale %v", scale)
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

// TestDiffKnowsEveryField makes a new field of Spec say what its change takes.
func TestDiffKnowsEveryField(t *testing.T) {
	spec := reflect.TypeFor[Spec]()
	for i := range spec.NumField() {
		if _, ok := effect[spec.Field(i).Name]; !ok {
			t.Errorf("diff.go does not say what a change of %s takes", spec.Field(i).Name)
		}
	}
	if len(effect) != spec.NumField() {
		t.Errorf("%d effects for %d fields", len(effect), spec.NumField())
	}
}
