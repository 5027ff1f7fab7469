package probes

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/event"
)

const statusText = "Name:\tagentinit\nCapInh:\t0000000000000000\nCapEff:\t0000000000200400\nNoNewPrivs:\t1\nSeccomp:\t2\n"

func TestParseStatus(t *testing.T) {
	caps, nnp, err := parseStatus([]byte(statusText))
	if err != nil || !nnp || !slices.Equal(caps, []string{"NET_BIND_SERVICE", "SYS_ADMIN"}) {
		t.Fatalf("%v %v %v", caps, nnp, err)
	}
	if caps, _, _ := parseStatus([]byte("CapEff:\t8000000000000000\nNoNewPrivs:\t0\n")); !slices.Equal(caps, []string{"CAP_63"}) {
		t.Fatalf("got %v", caps)
	}
	for _, bad := range []string{"", "CapEff:\tzz\nNoNewPrivs:\t0\n", "CapEff:\t0\n"} {
		if _, _, err := parseStatus([]byte(bad)); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}

func TestCompare(t *testing.T) {
	bare := Security{ReadOnlyRoot: true, NoNewPrivs: true}
	hard := &Security{ReadOnlyRoot: true, NoNewPrivs: true}
	for _, c := range []struct {
		name string
		want Declared
		is   Actual
		out  []Drift
	}{
		{"nothing promised", Declared{}, Actual{Security: &bare}, nil},
		{"all kept", Declared{MetricsAddress: "0.0.0.0:9091", Profile: hard, ImageRef: "a"},
			Actual{MetricsAddress: "[::]:9091", Security: &bare, ImageRef: "a"}, nil},
		{"metrics not bound", Declared{MetricsAddress: "0.0.0.0:9091"}, Actual{},
			[]Drift{{"metrics_port", "not_bound", "0.0.0.0:9091", "not bound", DriftWarning}}},
		{"capability not dropped", Declared{Profile: hard}, Actual{Security: &Security{Capabilities: []string{"SYS_ADMIN"}, ReadOnlyRoot: true, NoNewPrivs: true}},
			[]Drift{{"capabilities", "not_dropped", "none", "SYS_ADMIN", DriftWarning}}},
		{"capability not dropped, enforced", Declared{Profile: hard, Enforce: true}, Actual{Security: &Security{Capabilities: []string{"SYS_ADMIN"}, ReadOnlyRoot: true, NoNewPrivs: true}},
			[]Drift{{"capabilities", "not_dropped", "none", "SYS_ADMIN", DriftFatal}}},
		{"declared capability", Declared{Profile: &Security{Capabilities: []string{"SYS_ADMIN"}}, Enforce: true}, Actual{Security: &Security{Capabilities: []string{"SYS_ADMIN"}}}, nil},
		{"capability missing", Declared{Profile: &Security{Capabilities: []string{"SYS_ADMIN"}}, Enforce: true}, Actual{Security: &Security{}},
			[]Drift{{"capabilities", "missing", "SYS_ADMIN", "without SYS_ADMIN", DriftWarning}}},
		{"soft root", Declared{Profile: hard}, Actual{Security: &Security{}}, []Drift{
			{"no_new_privs", "not_set", "1", "0", DriftWarning}, {"root_filesystem", "writable", "read-only", "writable", DriftWarning}}},
		{"not known is no drift", Declared{Profile: hard}, Actual{Security: &Security{}, Unknown: map[string]string{"no_new_privs": "x", "root_filesystem": "x"}}, nil},
		{"mount", Declared{WritableMounts: []string{"/workspace", "/projects"}}, Actual{Mounts: map[string]string{"/projects": "read-only"}},
			[]Drift{{"mount:/projects", "not_writable", "writable", "read-only", DriftWarning}}},
		{"image", Declared{ImageRef: "a"}, Actual{ImageRef: "b"}, []Drift{{"image_ref", "different", "a", "b", DriftWarning}}},
		{"image not given", Declared{ImageRef: "a"}, Actual{}, nil},
		{"environment", Declared{Environment: map[string]string{"P": "1", "Q": "2"}}, Actual{Environment: map[string]string{"P": "9"}},
			[]Drift{{"environment:P", "different", "1", "9", DriftWarning}}},
	} {
		if got := compare(c.want, c.is); !slices.Equal(got, c.out) {
			t.Errorf("%s: got %+v", c.name, got)
		}
	}
}

func TestDetectorPublishesChangesAndGatesReadiness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := event.NewBus(64)
		ready := NewReadiness(bus)
		ready.Set(Requirement{ID: SentinelID, Kind: KindSentinel, Met: true})
		var dropped atomic.Bool
		d := NewDriftDetector(bus, ready,
			func() Declared { return Declared{Profile: &Security{}, Enforce: true} },
			func(context.Context, Declared) Actual {
				if dropped.Load() {
					return Actual{Security: &Security{}}
				}
				return Actual{Security: &Security{Capabilities: []string{"SYS_ADMIN"}}}
			})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { d.Run(ctx); close(done) }()
		synctest.Wait()
		if v := ready.Verdict(); v.Ready || v.Missing[0].ID != "contract:capabilities" {
			t.Fatalf("got %+v", v)
		}
		time.Sleep(3 * driftCycle)
		synctest.Wait()
		if n := bus.Counts()[EventContractDrift]; n != 1 {
			t.Fatalf("published %d times", n)
		}
		dropped.Store(true)
		time.Sleep(driftCycle)
		synctest.Wait()
		if !ready.Verdict().Ready || len(d.Current()) != 0 || bus.Counts()[EventContractKept] != 1 {
			t.Fatalf("got %+v, %v", ready.Verdict(), d.Current())
		}
		cancel()
		<-done
	})
}

func TestRealityReadsFilesAndMemory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "status")
	if err := os.WriteFile(file, []byte(statusText), 0o600); err != nil {
		t.Fatal(err)
	}
	ready := NewReadiness(event.NewBus(8), Requirement{ID: "mount:/projects", Kind: KindMount, Reason: "does not exist"},
		Requirement{ID: "mount:/late", Kind: KindMount, Reason: notChecked})
	r := Reality{StatusFile: file, Root: t.TempDir(), Metrics: func() string { return "[::]:9091" },
		ImageRef: func() string { return "img" }, Mounts: ready.MountFaults,
		LookupEnv: func(k string) string { return map[string]string{"P": "1"}[k] }}
	a := r.Read(t.Context(), Declared{Profile: &Security{}, Environment: map[string]string{"P": "1", "Q": "2"}})
	if a.MetricsAddress != "[::]:9091" || a.ImageRef != "img" || a.Mounts["/projects"] != "does not exist" || len(a.Mounts) != 1 ||
		!a.Security.NoNewPrivs || len(a.Security.Capabilities) != 2 || a.Security.ReadOnlyRoot || len(a.Environment) != 1 {
		t.Fatalf("got %+v %+v", a, a.Security)
	}
	r.StatusFile = file + "-none"
	if a := r.Read(t.Context(), Declared{Profile: &Security{}}); a.Unknown["capabilities"] == "" {
		t.Fatal("a file that is not there was read")
	}
}
