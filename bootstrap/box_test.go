package bootstrap

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

func TestListenAddresses(t *testing.T) {
	for _, c := range []struct {
		listen, metrics string // "": the key is not in the manifest
		contained       bool
		env             []string
		want            Addresses
		code            Code
	}{
		{"", "", true, nil, Addresses{"0.0.0.0:9090", "0.0.0.0:9091"}, ExitOK},
		{"", "", false, nil, Addresses{"127.0.0.1:9090", "127.0.0.1:9091"}, ExitOK},
		{"0.0.0.0:9090", "", false, nil, Addresses{"0.0.0.0:9090", "127.0.0.1:9091"}, ExitOK},
		{"", "0.0.0.0:7", false, nil, Addresses{"127.0.0.1:9090", "0.0.0.0:7"}, ExitOK},
		{"127.0.0.1:1", "127.0.0.1:2", true, nil, Addresses{"127.0.0.1:1", "127.0.0.1:2"}, ExitOK},
		{"", "", true, []string{"MANAGEMENT_API_HOST=127.0.0.1"}, Addresses{"127.0.0.1:9090", "127.0.0.1:9091"}, ExitOK},
		{"", "", false, []string{"MANAGEMENT_API_HOST=0.0.0.0"}, Addresses{"0.0.0.0:9090", "0.0.0.0:9091"}, ExitOK},
		{"", "0.0.0.0:7", true, []string{"MANAGEMENT_API_HOST=::1", "MANAGEMENT_API_PORT=80", "AGENTBOX_METRICS_PORT=81"}, Addresses{"[::1]:80", "[::1]:81"}, ExitOK},
		{"off", "off", true, []string{"MANAGEMENT_API_HOST=::1", "MANAGEMENT_API_PORT=80", "AGENTBOX_METRICS_PORT=81"}, Addresses{"off", "off"}, ExitOK},
		{"", "", true, []string{"AGENTBOX_METRICS_PORT=http"}, Addresses{}, ExitManifest},
		{"", "", true, []string{"MANAGEMENT_API_PORT=0"}, Addresses{}, ExitManifest},
	} {
		text := "[supervisor]\n"
		for key, value := range map[string]string{"listen": c.listen, "metrics_listen": c.metrics} {
			if value != "" {
				text += key + " = '" + value + "'\n"
			}
		}
		m, doc, findings := schema.Load("test.toml", []byte(text))
		if len(findings) > 0 {
			t.Fatal(findings)
		}
		env := EnvironMap(c.env)
		got, err := ListenAddresses(&Loaded{Manifest: m, Document: doc}, c.contained, func(k string) string { return env[k] })
		if ExitCode(err) != c.code || err == nil && got != c.want {
			t.Errorf("%+v: got %+v %v", c, got, err)
		}
	}
}

func TestContained(t *testing.T) {
	none := func(string) string { return "" }
	for _, c := range []struct {
		pid    int
		prefix string
		getenv func(string) string
		want   bool
	}{
		{1, "", none, true},
		{1, "/tmp/box", none, true},
		{7, "/tmp/box", none, false},
		{7, "/tmp/box", func(string) string { return "podman" }, false},
		{7, "", func(string) string { return "podman" }, true},
	} {
		if got := Contained(c.pid, Roots{Prefix: c.prefix}, c.getenv); got != c.want {
			t.Errorf("pid %d, root %q: got %v", c.pid, c.prefix, got)
		}
	}
}

func TestPublicOrigins(t *testing.T) {
	m := &schema.Manifest{API: schema.API{PublicURLs: []string{"https://Box.example.org/"}}}
	for env, want := range map[string][]string{
		"":                              {"https://box.example.org"},
		"http://a:1, https://b:443/ , ": {"http://a:1", "https://b"},
		"http://a,box":                  nil,
	} {
		got, err := PublicOrigins(m, func(name string) string {
			return map[string]string{"MANAGEMENT_API_PUBLIC_URLS": env}[name]
		})
		if !slices.Equal(got, want) || (ExitCode(err) == ExitManifest) != (want == nil) {
			t.Errorf("%q: %q %v", env, got, err)
		}
		if err != nil && !strings.HasPrefix(err.Error(), "MANAGEMENT_API_PUBLIC_URLS: each entry must be an origin such as ") {
			t.Error(err)
		}
	}
}

func TestWhatReadinessAsksFor(t *testing.T) {
	r := newBootRig(t, testRoots(t), agentboxManifest+`
pods = "x"
`)
	if err := r.Load(t.Context()); ExitCode(err) != ExitManifest {
		t.Fatalf("got %v", err)
	}
	r = newBootRig(t, testRoots(t), `
[federation]
mode = "standalone"
[adapters]
pods = "local-solid-rs"
[integrations.solid_pod_rs]
storage_root = "/data/pods"
[sovereign_mesh]
enabled = true
publish_agent_events = true
[sovereign_mesh.operator]
relay_urls = ["wss://op"]
[supervisor.log]
level = "debug"
[security.exceptions.solid-pod-rs]
`)
	if err := r.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	p := r.cfg.Roots.Prefix
	if got := r.Mounts(); !slices.Equal(got, []string{p + "/workspace", p + "/projects", p + "/var/lib/ruvector", p + "/data/pods"}) {
		t.Errorf("got %v", got)
	}
	if err := r.policy.Check(p + "/data/pods/x"); err != nil {
		t.Error(err)
	}
	if urls, wanted := r.Relays(); !wanted || !slices.Equal(urls, []string{"wss://op"}) {
		t.Errorf("got %v %v", urls, wanted)
	}
	r.env["NOSTR_RELAYS"] = " wss://a, ,wss://b"
	if urls, _ := r.Relays(); !slices.Equal(urls, []string{"wss://a", "wss://b"}) {
		t.Errorf("got %v", urls)
	}
	if s := r.Security(); s == nil || !s.ReadOnlyRoot || !s.NoNewPrivs || len(s.Capabilities) != 0 {
		t.Errorf("got %+v", s)
	}
	if e := r.DeclaredEnvironment(); e["AGENTBOX_METRICS_PORT"] != "9091" || e["AGENTBOX_LOG_LEVEL"] != "debug" || e["SOVEREIGN_MESH_ENABLED"] != "true" || e["WORKSPACE"] != "" || e["AGENTBOX_VERSION"] != "" {
		t.Errorf("got %v", e)
	}
	r = newBootRig(t, testRoots(t), plain)
	if err := r.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, wanted := r.Relays(); wanted || r.Mounts() != nil || r.Security() != nil {
		t.Error("a plain container is asked for an agentbox's things")
	}
}

// The box uses outside relays only if the manifest requests it, separately for each direction.
func TestMeshRelays(t *testing.T) {
	const own, outside = "ws://127.0.0.1:7000", "wss://op"
	for name, test := range map[string]struct {
		mesh, relay string
		want        []MeshRelay
	}{
		"identity alone":    {},
		"own relay":         {relay: "enabled = true", want: []MeshRelay{{own, true, true, true}}},
		"relay on IPv6":     {relay: "enabled = true\nbind = '::'", want: []MeshRelay{{"ws://[::1]:7000", true, true, true}}},
		"bridge":            {mesh: "nostr_bridge = true", want: []MeshRelay{{outside, false, true, true}}},
		"agent events":      {mesh: "publish_agent_events = true", want: []MeshRelay{{outside, false, true, false}}},
		"fan-out out":       {relay: "enabled = true\nexternal_fanout = 'publish-only'", want: []MeshRelay{{outside, false, true, false}, {own, true, true, true}}},
		"fan-out in":        {relay: "enabled = true\nexternal_fanout = 'subscribe-only'", want: []MeshRelay{{outside, false, false, true}, {own, true, true, true}}},
		"fan-out both":      {relay: "enabled = true\nexternal_fanout = 'bidirectional'", want: []MeshRelay{{outside, false, true, true}, {own, true, true, true}}},
		"fan-out, no relay": {relay: "external_fanout = 'bidirectional'"},
	} {
		exception := ""
		if strings.HasPrefix(test.relay, "enabled") {
			exception = "[security.exceptions.nostr-relay]\nreason = 'relay'\n"
		}
		r := newBootRig(t, testRoots(t), "[federation]\nmode = 'standalone'\n[adapters]\n[sovereign_mesh]\nenabled = true\n"+test.mesh+
			"\n[sovereign_mesh.operator]\nrelay_urls = ['"+outside+"']\n[sovereign_mesh.relay]\nport = 7000\nimplementation = 'embedded'\n"+test.relay+"\n"+exception)
		if err := r.Load(t.Context()); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := r.MeshRelays(); !slices.Equal(got, test.want) {
			t.Errorf("%s: %+v, want %+v", name, got, test.want)
		}
		at := slices.IndexFunc(test.want, func(m MeshRelay) bool { return m.URL == outside })
		publish, subscribe := r.Outside()
		if want := at >= 0 && test.want[at].Publish; publish != want {
			t.Errorf("%s: publishes outside: %v", name, publish)
		}
		if want := at >= 0 && test.want[at].Subscribe; subscribe != want {
			t.Errorf("%s: subscribes outside: %v", name, subscribe)
		}
	}
}

func TestSecurityProfileIsPublished(t *testing.T) {
	r := newBootRig(t, testRoots(t), agentboxManifest+"[skills.browser]\nplaywright = true\n[security.exceptions.playwright]\ncap_add = [\"SYS_ADMIN\"]\nreason = \"the browser's sandbox\"\n")
	if err := r.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s := r.Security(); !slices.Equal(s.Capabilities, []string{"SYS_ADMIN"}) {
		t.Errorf("got %+v", s)
	}
	r.securityApplied()
	if r.bus.Counts()[EventSecurityApplied] != 1 {
		t.Error("not published")
	}
}

func TestKeyOfAPlainContainer(t *testing.T) {
	for env, want := range map[string]string{"": "", keyPlaceholder: "", keyPlaceholder + "\n": "", "a-key-from-outside": "a-key-from-outside"} {
		r := newBootRig(t, testRoots(t), plain, func(c *Config) { c.Environ = append(c.Environ, "MANAGEMENT_API_KEY="+env) })
		if err := r.boot(t); err != nil {
			t.Fatal(err)
		}
		if got := r.ManagementKey().Reveal(); got != want {
			t.Errorf("%q: got %q", env, got)
		}
	}
}

// Programs get the key that agentinit itself uses.
func TestProgramsGetTheKeyInUse(t *testing.T) {
	for _, env := range []string{"", " ", keyPlaceholder + "\n", "0123456789abcdef", "0123456789abcdef\n"} {
		r := newBootRig(t, testRoots(t), agentboxManifest, func(c *Config) { c.Environ = append(c.Environ, "MANAGEMENT_API_KEY="+env) })
		if err := r.boot(t); err != nil {
			t.Fatal(err)
		}
		key := r.ManagementKey().Reveal()
		if got := r.Current().Specs[0].Env; len(key) < minKey || !slices.Contains(got, "KEY="+key) || !slices.Contains(got, "MANAGEMENT_API_KEY="+key) {
			t.Errorf("%q: the key is %q, the program gets %q", env, key, got)
		}
	}
}

// A workspace of "/" must not allow writes to the image.
func TestImageIsNeverWritten(t *testing.T) {
	r := testRoots(t, "WORKSPACE=/", "SOLID_POD_ROOT=/opt/agentbox/pods")
	p := NewPolicy(r)
	for _, bad := range []string{r.Image, filepath.Join(r.Image, "x"), r.SolidPods} {
		if err := p.Check(bad); !errors.Is(err, ErrForbiddenWrite) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

func TestFirstRunsAreRecordedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := event.NewBus(64)
		sup := newFakeSupervisor(bus)
		specs := []program.Spec{{Name: "a", Autostart: true}, {Name: "b", Autostart: true}, {Name: "manual"}, {Name: "bad", Autostart: true}}
		r := newRecorder(bus, sup, specs)
		done := make(chan struct{})
		go func() { r.follow(t.Context()); close(done) }()
		begin := time.Now()
		say := func(name string, run uint64, c event.Change) {
			bus.Publish(event.Event{Name: event.ProgramStateChanged, Program: name, Run: run, Change: &c})
		}
		say("a", 1, event.Change{To: "STARTING", PID: 5})
		time.Sleep(time.Second)
		say("a", 1, event.Change{To: "RUNNING", PID: 5, Ready: true})
		say("a", 2, event.Change{To: "RUNNING", PID: 6, Ready: true})
		say("bad", 0, event.Change{To: "FATAL"})
		time.Sleep(time.Second)
		say("b", 1, event.Change{To: "STARTING", PID: 7})
		r.finish(bus.Seq())
		say("manual", 1, event.Change{To: "RUNNING", Ready: true}) // the boot is over, so this event is not recorded
		say("b", 1, event.Change{To: "EXITED", Completed: true})
		<-done // the recorder ends by itself
		got := r.Runs()
		if a := got[0]; a.Started != begin || a.Ready.Sub(begin) != time.Second || a.Running != a.Ready {
			t.Errorf("a: %+v", a)
		}
		if b := got[1]; b.Ready.Sub(begin) != 2*time.Second || !b.Running.IsZero() {
			t.Errorf("b: %+v", b)
		}
		if !got[2].Started.IsZero() || !got[3].Ready.IsZero() {
			t.Errorf("got %+v", got[2:])
		}
	})
}

// Until the box is sealed, an operator may repair what blocks the seal. The seal waits for a
// program that an apply, a start request or a later run makes ready, so the recorder records it.
func TestWhatIsMendedBeforeTheSealIsRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := event.NewBus(64)
		added := program.Spec{Name: "added", Required: true, Autostart: true, Needs: []program.Need{{Program: "a"}}}
		sup := newFakeSupervisor(bus, program.Status{Name: "added", Spec: &added})
		r := newRecorder(bus, sup, []program.Spec{{Name: "a", Autostart: true, Required: true}, {Name: "manual"}})
		done := make(chan struct{})
		go func() { r.follow(t.Context()); close(done) }()
		begin := time.Now()
		say := func(name string, run uint64, c event.Change) {
			bus.Publish(event.Event{Name: event.ProgramStateChanged, Program: name, Run: run, Change: &c})
		}
		say("a", 1, event.Change{To: "STARTING", PID: 5})
		say("a", 1, event.Change{To: "FATAL"})
		say("manual", 1, event.Change{To: "RUNNING", PID: 6, Ready: true})
		say("removed", 1, event.Change{To: "RUNNING", PID: 7, Ready: true})
		time.Sleep(time.Second)
		say("added", 1, event.Change{To: "RUNNING", PID: 8, Ready: true})
		say("a", 2, event.Change{To: "RUNNING", PID: 9, Ready: true})
		r.finish(bus.Seq()) // finish is called before the recorder has read the last events
		<-r.complete
		if a := r.Runs()[0]; a.Ready.IsZero() {
			t.Errorf("complete, but %+v", a)
		}
		bus.Publish(event.Event{Name: "Tested"})
		<-done
		got := r.Runs()
		if len(got) != 3 {
			t.Fatalf("got %+v", got)
		}
		if a := got[0]; a.Started != begin || a.Ready.Sub(begin) != time.Second {
			t.Errorf("a: %+v", a)
		}
		if manual := got[1]; manual.Ready != begin {
			t.Errorf("manual: %+v", manual)
		}
		if added := got[2]; added.Name != "added" || !added.Required || len(added.Needs) != 1 || added.Ready.Sub(begin) != time.Second {
			t.Errorf("added: %+v", added)
		}
	})
}

func TestRecorderCatchesUp(t *testing.T) {
	bus := event.NewBus(4)
	sup := newFakeSupervisor(bus, program.Status{Name: "a", State: program.Running, Ready: true, Run: 1, StartedAt: new(at(1)), RunningAt: new(at(3))},
		program.Status{Name: "b", State: program.Running, Ready: true, Run: 3})
	r := newRecorder(bus, sup, []program.Spec{{Name: "a", Autostart: true}, {Name: "b", Autostart: true}})
	bus.Publish(event.Event{Name: "Tested"})
	r.finish(bus.Seq())
	bus.Publish(event.Event{Name: "Tested"})
	r.catchUp()
	<-r.complete
	if got := r.Runs(); r.pending() || !got[0].Ready.Equal(at(3)) || !got[1].Ready.IsZero() {
		t.Fatalf("got %+v", got)
	}
}

// What the recorder reads after lost events means the same as the events would have: a program that
// failed before it was RUNNING, one that was not exec'ed yet, and a schedule that waits or has failed.
func TestRecorderCatchesUpWithoutInventing(t *testing.T) {
	bus := event.NewBus(4)
	sup := newFakeSupervisor(bus,
		program.Status{Name: "failed", State: program.Backoff, Run: 1, StartedAt: new(at(1)), EndedAt: new(at(2))},
		program.Status{Name: "hook", State: program.Starting, Run: 1, StartedAt: new(at(1))},
		program.Status{Name: "job", State: program.Exited, Run: 1, StartedAt: new(at(1)), EndedAt: new(at(2)), Schedule: &program.ScheduleStatus{}},
		program.Status{Name: "once", State: program.Exited, Run: 1, Completed: true, StartedAt: new(at(1)), EndedAt: new(at(2))})
	r := newRecorder(bus, sup, []program.Spec{{Name: "failed"}, {Name: "hook"}, {Name: "job"}, {Name: "once"}})
	r.catchUp()
	got := r.Runs()
	if failed := got[0]; failed.Started != at(1) || !failed.Running.IsZero() || !failed.Ready.IsZero() {
		t.Errorf("it failed before it was RUNNING: %+v", failed)
	}
	if hook := got[1]; !hook.Started.IsZero() {
		t.Errorf("it was not exec'ed: %+v", hook)
	}
	if job := got[2]; !job.Running.IsZero() || !job.Ready.IsZero() {
		t.Errorf("a failed run of a schedule: %+v", job)
	}
	if once := got[3]; !once.Running.IsZero() || once.Ready != at(2) {
		t.Errorf("a completed oneshot: %+v", once)
	}
}

func TestMessagesFitOneLine(t *testing.T) {
	f := Findings{{Code: "E016", File: "f", Line: 1, Column: 2, Message: "a"}, {Code: "E017", Message: "b"}}
	if got := f.Error(); strings.Count(got, "\n") != 1 || !strings.HasPrefix(got, "E016 f:1:2: a") {
		t.Fatalf("got %q", got)
	}
}

// If the image has no relay binary and the manifest names no implementation, agentinit itself is
// the relay. An implementation that the manifest names is used.
func TestRelayOfTheBox(t *testing.T) {
	for name, test := range map[string]struct {
		key     string
		binary  bool
		want    string
		program bool
	}{
		"nothing in the image": {"", false, RelayEmbedded, false},
		"the image has one":    {"", true, "nostr-rs-relay", true},
		"the manifest wants":   {"implementation = \"embedded\"\n", true, RelayEmbedded, false},
		"the manifest insists": {"implementation = \"nostr-rs-relay\"\n", false, "nostr-rs-relay", true},
	} {
		roots := testRoots(t)
		manifest := agentboxManifest + "[sovereign_mesh]\nenabled = true\npublish_agent_events = true\n[sovereign_mesh.relay]\nenabled = true\nport = 7000\n" +
			test.key + "[security.exceptions.nostr-relay]\n"
		r := newBootRig(t, roots, manifest, func(c *Config) {
			bin := t.TempDir()
			if test.binary {
				write(t, filepath.Join(bin, "nostr-rs-relay"), "", 0o755)
			}
			c.Environ = append(c.Environ, "PATH="+bin)
		})
		if err := r.Load(t.Context()); err != nil {
			t.Fatal(err)
		}
		l := r.Current()
		if got := l.Manifest.SovereignMesh.Relay.Implementation; got != test.want {
			t.Errorf("%s: the relay is %s, want %s", name, got, test.want)
		}
		if got := slices.ContainsFunc(l.Specs, func(s program.Spec) bool { return s.Name == "nostr-relay" }); got != test.program {
			t.Errorf("%s: the program is there: %t", name, got)
		}
		if _, declared := r.DeclaredEnvironment()["AGENTBOX_RELAY_IMPL"]; declared != (test.key != "") {
			t.Errorf("%s: AGENTBOX_RELAY_IMPL is declared: %t", name, declared)
		}
		if urls, _ := r.Relays(); !slices.Contains(urls, "ws://127.0.0.1:7000") {
			t.Errorf("%s: /ready asks %v, not the box's own relay", name, urls)
		}
	}
}
