package schema

import (
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"
)

func load(t *testing.T, text string) (*Manifest, *Document, []Finding) {
	t.Helper()
	return Load("agentbox.toml", []byte(text))
}

// supervisor.log.level takes precedence over observability.log_level, but only if it is written.
func TestLogLevel(t *testing.T) {
	for text, want := range map[string]string{
		"": "info", "[observability]\nlog_level = 'warn'": "warn", "[supervisor.log]\nlevel = 'debug'": "debug",
		"[observability]\nlog_level = 'warn'\n[supervisor.log]\nlevel = 'info'": "info",
	} {
		m, _, findings := Load("agentbox.toml", []byte(text))
		if len(findings) > 0 {
			t.Fatal(findings)
		}
		if got := m.LogLevel(); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

func TestEmptyManifestHasDefaults(t *testing.T) {
	m, _, findings := load(t, "")
	if len(findings) != 0 {
		t.Fatalf("findings in an empty file: %v", findings)
	}
	checks := map[string][2]any{
		"core.orchestration":       {m.Core.Orchestration, "ruflo-v3"},
		"federation.mode":          {m.Federation.Mode, ""},
		"adapters.pods":            {m.Adapters.Pods, "off"},
		"quota":                    {m.Integrations.SolidPodRS.QuotaDefaultBytes, int64(10737418240)},
		"kinds":                    {len(m.SovereignMesh.Relay.AllowedKinds), 6},
		"supervisor.stop_grace":    {m.Supervisor.StopGrace.Std(), 25 * time.Second},
		"supervisor.socket_mode":   {m.Supervisor.SocketMode, Mode(0o660)},
		"bootstrap.seal_timeout":   {m.Bootstrap.SealTimeout.Std(), 2 * time.Minute},
		"slots.events.spool_bytes": {m.Slots.Events.SpoolBytes, Size(64 << 20)},
		"slots.memory.embedder":    {m.Slots.Memory.Embedder.Kind, "hash-v1"},
		"consultants.codex.model":  {m.Consultants.Codex.Model, "gpt-5.4"},
		"policy.pods":              {m.PrivacyFilter.Policy.Pods, "strict"},
	}
	for name, c := range checks {
		if !reflect.DeepEqual(c[0], c[1]) {
			t.Errorf("%s = %v, want %v", name, c[0], c[1])
		}
	}
}

// The longest line and the flush time have bounds. A value outside the bounds is refused.
func TestLineBounds(t *testing.T) {
	for text, ok := range map[string]bool{
		`max_line = "1KiB"`: true, `max_line = "16MiB"`: true, `max_line = 1000`: false, `max_line = "17MiB"`: false,
		`flush_after = "10ms"`: true, `flush_after = 0`: true, `flush_after = "1h"`: true,
		`flush_after = "9ms"`: false, `flush_after = "61m"`: false,
	} {
		_, _, findings := load(t, "[programs.web]\ncommand = \"x\"\nlogs."+text+"\n")
		if (len(findings) == 0) != ok {
			t.Errorf("%s: %v", text, findings)
		}
	}
}

// The embedded relay's database always has a limit, so 0 ("no limit") is refused.
func TestRelaySizeBounds(t *testing.T) {
	for value, want := range map[string]Size{`"1MiB"`: 1 << 20, `1048576`: 1 << 20, `"2GiB"`: 2 << 30, `1048575`: 0, `"1023KiB"`: 0, `0`: 0, `-1`: 0} {
		m, _, findings := load(t, "[sovereign_mesh.relay]\nmax_bytes = "+value+"\n")
		if want == 0 && len(findings) == 0 || want > 0 && (len(findings) > 0 || m.SovereignMesh.Relay.MaxBytes != want) {
			t.Errorf("max_bytes = %s: %v", value, findings)
		}
	}
	if m, _, findings := load(t, ""); len(findings) > 0 || m.SovereignMesh.Relay.MaxBytes != 256<<20 {
		t.Errorf("without the key: %d bytes, %v", m.SovereignMesh.Relay.MaxBytes, findings)
	}
}

func TestProgramForms(t *testing.T) {
	_, d, findings := load(t, `
[supervisor.defaults]
restart = "always"
[programs.web]
command = "server --port '80 80' \"a b\""
stop = ["INT 5s", "TERM"]
needs = ["db:started", "worker:2", "migrate:completed"]
start_timeout = 2.5
backoff = { initial = 0 }
limits = { nofile = "1024:4096", core = "unlimited", cpus = "0-2,5", nice = -5 }
ready = [{ http = "http://x/", tcp = ":80", deadline = "30s" }, { notify = true, any = true }]
health = { exec = "check it", failures = 2, watchdog = "30s" }
umask = "022"
user = 1000
env_file = "x"
logs = { to = "file", path = "/x", max_bytes = "1MiB" }
hooks.pre_start = ["a", "b"]
hooks.post_exit = { command = "c d", timeout = "3s" }
pass_environment = ["PATH"]
sandbox = { read = ["/usr"] }
[programs.filed]
command = "x"
logs.path = "/y"
[programs.once]
type = "oneshot"
command = ["true"]
stop_signal = "SIGINT"
restart = "never"
[programs.nightly]
type = "schedule"
schedule = "0 2 * * *"
command = ["backup"]
[programs.hourly]
type = "schedule"
schedule = "@hourly"
command = ["report"]
start_timeout = "5m"
[programs.heavy]
command = ["heavy"]
start_seconds = "90s"
[programs.warm]
command = ["warm"]
start_seconds = "90s"
ready = { notify = true, deadline = "5m" }
`)
	if len(findings) != 0 {
		t.Fatal(findings)
	}
	programs := map[string]Program{}
	for _, table := range d.Programs() {
		programs[table.Name], _ = DecodeProgram(table.Merged)
	}
	web, once := programs["web"], programs["once"]
	nice := -5
	mask := Mode(0o22)
	want := map[string][2]any{
		"log file":  {programs["filed"].Logs.To, "file"},
		"command":   {web.Command, Command{"server", "--port", "80 80", "a b"}},
		"restart":   {web.Restart, "always"},
		"stop":      {web.Stop, StopLadder{{"INT", Duration(5 * time.Second)}, {"TERM", 0}, {"KILL", 0}}},
		"needs":     {web.Needs, []Need{{"db", "started"}, {"worker:2", "ready"}, {"migrate", "completed"}}},
		"timeout":   {web.StartTimeout, Duration(2500 * time.Millisecond)},
		"initial":   {web.Backoff.Initial, Duration(0)},
		"factor":    {web.Backoff.Factor, 2.0},
		"nofile":    {web.Limits.NoFile, &Limit{1024, 4096}},
		"core":      {web.Limits.Core, &Limit{Infinity, Infinity}},
		"cpus":      {web.Limits.CPUs, CPUList{0, 1, 2, 5}},
		"nice":      {web.Limits.Nice, &nice},
		"umask":     {web.Umask, &mask},
		"user":      {web.User, "1000"},
		"env_file":  {web.EnvFile, Strings{"x"}},
		"logs":      {web.Logs, Logs{To: "file", Path: "/x", MaxBytes: 1 << 20, Backups: 10, RateInterval: Duration(time.Second), MaxLine: 1 << 20, FlushAfter: Duration(time.Second)}},
		"pre_start": {web.Hooks.PreStart, &Hook{Command{"a", "b"}, Duration(10 * time.Second)}},
		"post_exit": {web.Hooks.PostExit, &Hook{Command{"c", "d"}, Duration(3 * time.Second)}},
		"pass":      {web.PassEnvironment, PassEnvironment{"list", []string{"PATH"}}},
		"sandbox":   {web.Sandbox, &Sandbox{NoNewPrivileges: true, Read: []string{"/usr"}, Mode: "enforce"}},
		"probes":    {len(web.Ready.Probes), 3},
		"any":       {web.Ready.Any, true},
		"deadline":  {web.Ready.Deadline, Duration(30 * time.Second)},
		"interval":  {web.Ready.Probes[2].Interval, Duration(250 * time.Millisecond)},
		"health":    {web.Health.Probes, []Probe{{Dialect: "exec", Argv: Command{"check", "it"}, Interval: Duration(10 * time.Second), Timeout: Duration(5 * time.Second), Successes: 1}}},
		"failures":  {web.Health.Failures, 2},
		"action":    {web.Health.Action, "restart"},
		"watchdog":  {web.Health.Watchdog, Duration(30 * time.Second)},
		"once.stop": {once.Stop, StopLadder{{"INT", Duration(10 * time.Second)}, {"KILL", 0}}},
		"once.time": {once.StartTimeout, Duration(0)},
		"unbounded": {programs["nightly"].StartTimeout, Duration(0)},
		"bounded":   {programs["hourly"].StartTimeout, Duration(5 * time.Minute)},
		"heavy":     {programs["heavy"].StartTimeout, Duration(150 * time.Second)},
		"warm":      {programs["warm"].StartTimeout, Duration(6 * time.Minute)},
		"once.rest": {once.Restart, "never"},
		"once.pass": {once.PassEnvironment.Mode, "safe"},
	}
	for name, c := range want {
		if !reflect.DeepEqual(c[0], c[1]) {
			t.Errorf("%s = %#v, want %#v", name, c[0], c[1])
		}
	}
}

// Every key of the shape has a field in the struct into which it is decoded, and every field has a
// key. So no accepted key is lost.
func TestStructsAndShapeAgree(t *testing.T) {
	var walk func(path string, s *shape, typ reflect.Type)
	walk = func(path string, s *shape, typ reflect.Type) {
		for typ.Kind() == reflect.Pointer {
			typ = typ.Elem()
		}
		if reflect.PointerTo(typ).Implements(reflect.TypeFor[valueDecoder]()) {
			return
		}
		switch {
		case s.kinds == kArray && typ.Kind() == reflect.Slice:
			walk(path+"[]", s.items, typ.Elem())
		case s.entry != nil && typ.Kind() == reflect.Map:
			walk(path+".*", s.entry, typ.Elem())
		case len(s.keys) > 0 && typ.Kind() == reflect.Struct:
			fields := FieldsOf(typ)
			for _, k := range s.keys {
				i, ok := fields[k.name]
				if !ok {
					if path == "security.exceptions" || strings.HasPrefix(path, "consultants.") || path == "" && k.name == "programs" {
						continue
					}
					t.Errorf("%s.%s has no field in %s", path, k.name, typ)
					continue
				}
				walk(strings.TrimPrefix(path+"."+k.name, "."), k.shape, typ.Field(i).Type)
			}
			for name := range fields {
				if s.fixed(name) == nil && typ != reflect.TypeFor[Exception]() && typ != reflect.TypeFor[Consultant]() {
					t.Errorf("%s has a field %s that %s does not allow", typ, name, path)
				}
			}
		}
	}
	walk("", manifestShape(), reflect.TypeFor[Manifest]())
	walk("programs.*", programShape(), reflect.TypeFor[Program]())
}

func TestPositions(t *testing.T) {
	_, d, findings := load(t, "[core]\n  orchestration = \"x\"\n[[artifacts]]\nid='a'\n[[artifacts]]\nid = 'b'\nassets = [ 'x',\n 'y', 3 ]\n\"we\\nird\" = 1\n")
	if p := d.ValuePos("core", "orchestration"); p != (Position{2, 19}) {
		t.Errorf("value at %v", p)
	}
	if p := d.KeyPos("artifacts", "[1]", "id"); p != (Position{6, 1}) {
		t.Errorf("key at %v", p)
	}
	if len(findings) != 2 {
		t.Fatal(findings)
	}
	if f := findings[0]; f.Line != 8 || f.Column != 7 || f.Path != "artifacts[1].assets[2]" {
		t.Errorf("%+v", f)
	}
	if f := findings[1]; f.Line != 9 || strings.Contains(f.Message, "\n") {
		t.Errorf("%+v", f)
	}
	_, _, findings = load(t, "[providers]\n'é𝄞' = { enabled = true, 'ключ' = 1, env_var = 3 }\n")
	if len(findings) != 2 || findings[0].Column != 26 || findings[1].Column != 48 {
		t.Errorf("columns count characters, got %+v", findings)
	}
}

// The pattern matches exactly the numbers up to 65535.
func TestPortPattern(t *testing.T) {
	for n := range 100000 {
		if text := strconv.Itoa(n); regular("^"+portPattern+"$").MatchString(text) != (n <= 65535) {
			t.Fatalf("port %d", n)
		}
	}
}

func TestDecimalPermissionBits(t *testing.T) {
	for written, hint := range map[string]string{"22": `write "022"`, "660": `write "0660"`, "1777": `write "1777"`, "29": "", "+22": "", "0b1000": ""} {
		_, _, findings := load(t, "[programs.a]\ncommand = 'a'\numask = "+written+" # why\n")
		if len(findings) != 1 || findings[0].Hint != hint || findings[0].Line != 3 || !strings.Contains(findings[0].Message, "0o660") {
			t.Errorf("%s: %+v", written, findings)
		}
		if _, quoted, ok := strings.Cut(hint, " "); ok {
			if _, _, findings := load(t, "[programs.a]\ncommand = 'a'\numask = "+quoted); len(findings) > 0 {
				t.Errorf("%s is advised: %v", quoted, findings)
			}
		}
	}
}
