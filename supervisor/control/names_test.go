package control

import (
	"context"
	"iter"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/dreamlab-ai/agentinit/supervisor"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/logs"
)

func programsNamed(names ...string) []supervisor.Status {
	out := make([]supervisor.Status, len(names))
	for i, n := range names {
		group, _, _ := strings.Cut(n, ":")
		out[i] = supervisor.Status{Name: n, Group: group}
	}
	return out
}

func TestResolve(t *testing.T) {
	programs := programsNamed("postgres", "web", "web-admin", "worker:0", "worker:1", "a.b")
	cases := []struct {
		names string
		want  string
		code  api.Code
		hint  string
	}{
		{names: "web", want: "web"}, // an exact name takes precedence over a prefix
		{names: "worker", want: "worker:0 worker:1"},
		{names: "worker:1", want: "worker:1"},
		{names: "worker:*", want: "worker:0 worker:1"},
		{names: "*:0", want: "worker:0"},
		{names: "*", want: "postgres web web-admin worker:0 worker:1 a.b"},
		{names: "post", want: "postgres"},
		{names: "wor", want: "worker:0 worker:1"}, // a prefix of one group
		{names: "web-", want: "web-admin"},
		{names: "worker:1 web post web", want: "postgres web worker:1"}, // start order, each once
		{names: "[wp]*s", want: "postgres"},
		{names: "w", code: api.CodeAmbiguous, hint: "web, web-admin, worker:0, worker:1"},
		{names: "[", code: api.CodeBadRequest},
		{names: "wbe", code: api.CodeUnknownProgram, hint: "did you mean web?"},
		{names: "postgers", code: api.CodeUnknownProgram, hint: "did you mean postgres?"},
		{names: "wroker", code: api.CodeUnknownProgram, hint: "did you mean worker?"},
		{names: "zzz", code: api.CodeUnknownProgram},
		{names: "zzz*", code: api.CodeUnknownProgram},
		{names: "web zzz", code: api.CodeUnknownProgram},
		{names: "aXb", code: api.CodeUnknownProgram, hint: "a.b"},
	}
	for _, c := range cases {
		t.Run(c.names, func(t *testing.T) {
			got, err := resolve(strings.Fields(c.names), programs)
			if api.CodeOf(err) != c.code {
				t.Fatalf("error %v, want code %q", err, c.code)
			}
			if err != nil && !strings.Contains(err.Error(), c.hint) {
				t.Fatalf("%q does not say %q", err, c.hint)
			}
			if names := strings.Join(namesOf(got), " "); err == nil && names != c.want {
				t.Fatalf("got %q, want %q", names, c.want)
			}
		})
	}
}

func TestResolveOne(t *testing.T) {
	programs := programsNamed("worker:0", "worker:1")
	if _, err := resolveOne("worker", programs); api.CodeOf(err) != api.CodeAmbiguous {
		t.Errorf("a group of two is one program: %v", err)
	}
	if p, err := resolveOne("worker:0", programs); err != nil || p.Name != "worker:0" {
		t.Errorf("%v %v", p, err)
	}
}

// A reader that follows goes on when an apply adds a program, an instance, or takes instances away.
func TestLaterPrograms(t *testing.T) {
	programs := programsNamed("postgres", "web", "web-admin", "worker:0", "worker:1")
	for _, c := range []struct{ names, later, others string }{
		{"web", "web web:0 web:3", "web2 web-admin postgres"},
		{"web:0", "web:0 web", "web:1 web2"}, // the only instance
		{"worker", "worker worker:2", "worker2 web"},
		{"worker:1", "worker:1", "worker worker:0 worker:2"},
		{"worker:0", "worker:0 worker", "worker:1"},
		{"w*", "web worker:2 web2 worker2", "postgres other"},
		{"wor", "worker worker:2", "workshop web"}, // a prefix of one group
		{"post web", "postgres postgres:1 web:1", "web-admin worker:0 posts"},
	} {
		asked := strings.Fields(c.names)
		found, err := resolve(asked, programs)
		if err != nil {
			t.Fatal(err)
		}
		wanted := laterPrograms(asked, found)
		for name := range strings.FieldsSeq(c.later) {
			if !wanted(name) {
				t.Errorf("%q does not mean %q", c.names, name)
			}
		}
		for name := range strings.FieldsSeq(c.others) {
			if wanted(name) {
				t.Errorf("%q means %q", c.names, name)
			}
		}
	}
}

func FuzzResolve(f *testing.F) {
	programs := programsNamed("postgres", "web", "worker:0", "worker:1")
	for _, seed := range []string{"web", "w*", "[a-", "worker", "\\", "*[*", "\xff"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, name string) {
		got, err := resolve([]string{name}, programs)
		if (err == nil) == (len(got) == 0) {
			t.Fatalf("%q: %d programs, error %v", name, len(got), err)
		}
		for _, p := range got {
			if !slices.Contains(namesOf(programs), p.Name) {
				t.Fatalf("%q is %q", name, p.Name)
			}
		}
	})
}

// formerLogs has one line, of the program web.
type formerLogs struct{ Logs }

func (formerLogs) Read(_ context.Context, q logs.Query) iter.Seq[logs.Line] {
	return func(yield func(logs.Line) bool) {
		if slices.Contains(q.Programs, "web") {
			yield(logs.Line{Seq: 1, Program: "web", Run: q.Run, Text: "last words"})
		}
	}
}

// A program was "web" and is the instance "web:0" now. What it printed under its former name is
// found: its run before, and its last lines.
func TestOutputUnderFormerName(t *testing.T) {
	p := supervisor.Status{Name: "web:0", Former: []string{"web"}, PID: 17, Run: 3}
	if got, want := previousRuns([]supervisor.Status{p}), map[string]uint64{"web": 2, "web:0": 2}; !maps.Equal(got, want) {
		t.Errorf("previous runs %v, want %v", got, want)
	}
	s := &Server{cfg: Config{Logs: formerLogs{}}}
	if got := s.lastOutput(t.Context(), p); len(got) != 1 || got[0].Text != "last words" {
		t.Errorf("last output %+v", got)
	}
}
