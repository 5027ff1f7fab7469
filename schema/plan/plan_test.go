package plan_test

import (
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/schema/plan"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

var update = flag.Bool("update", false, "write the golden files")

func resolve(t *testing.T, text string, facts plan.Facts) (*plan.Plan, []schema.Finding) {
	t.Helper()
	m, doc, findings := schema.Load("agentbox.toml", []byte(text))
	if len(findings) > 0 {
		t.Fatalf("the manifest does not load: %v", findings)
	}
	return plan.Resolve(m, doc, facts)
}

func mustResolve(t *testing.T, text string, facts plan.Facts) *plan.Plan {
	t.Helper()
	p, findings := resolve(t, text, facts)
	for _, f := range findings {
		if f.Code != "W120" { // most chains take longer than the default budget
			t.Errorf("unexpected finding: %v", f)
		}
	}
	return p
}

func find(t *testing.T, p *plan.Plan, name string) plan.Program {
	t.Helper()
	for _, prog := range p.Programs {
		if prog.Spec.Name == name {
			return prog
		}
	}
	t.Fatalf("no program %s in the plan", name)
	return plan.Program{}
}

func env(p plan.Program) map[string]string {
	out := map[string]string{}
	for _, e := range p.Spec.Env {
		name, value, _ := strings.Cut(e, "=")
		out[name] = value
	}
	return out
}

func TestDefaultsAreFilledIn(t *testing.T) {
	p := mustResolve(t, `[programs.web]
command = "server --listen ':80' a\\ b"
`, plan.Facts{})
	got := find(t, p, "web").Spec
	if want := []string{"server", "--listen", ":80", "a b"}; !slices.Equal(got.Argv, want) {
		t.Errorf("argv %q, want %q", got.Argv, want)
	}
	if got.Type != program.Service || got.Priority != 999 || !got.Autostart || got.Required || got.Restart != program.RestartOnFailure ||
		got.RunningAfter != time.Second || got.StartTimeout != time.Minute || got.StartRetries != -1 || got.Umask != -1 ||
		got.Kill != program.KillTree || got.OnFatal != program.FatalIgnore || got.Stdin != program.StdinNull || got.Logs.To != program.LogConsole {
		t.Errorf("defaults: %+v", got)
	}
	if want := (program.BackoffPolicy{Initial: 500 * time.Millisecond, Factor: 2, Max: 10 * time.Second, Jitter: 0.1, ResetAfter: 30 * time.Second}); got.Backoff != want {
		t.Errorf("backoff %+v, want %+v", got.Backoff, want)
	}
	if want := (program.RestartLimit{Count: 10, Window: 5 * time.Minute}); got.RestartLimit != want {
		t.Errorf("restart limit %+v", got.RestartLimit)
	}
	if want := []program.StopStep{{Signal: "TERM", Wait: 10 * time.Second}, {Signal: "KILL"}}; !slices.Equal(got.Stop, want) {
		t.Errorf("stop %+v", got.Stop)
	}
	if !slices.Equal(got.ExitCodes, []int{0}) {
		t.Errorf("exit codes %v", got.ExitCodes)
	}
	if p.Profile != "none" {
		t.Errorf("profile %s for a manifest without agentbox sections", p.Profile)
	}
}

func TestLayersOverrideKeyByKey(t *testing.T) {
	p := mustResolve(t, `
[supervisor.defaults]
restart = "never"
environment = { SHARED = "all", HOME = "/default" }
[desktop]
enabled = true
resolution = "800x600"
[security.exceptions.desktop]
[programs.xvnc]
priority = 7
environment = { EXTRA = "1" }
[programs.plain]
command = ["x"]
`, plan.Facts{})
	x := find(t, p, "xvnc")
	if x.Spec.Priority != 7 || x.Spec.Restart != program.RestartAlways || x.Origin != "catalogue+manifest" || x.Feature != "desktop" {
		t.Errorf("xvnc: %+v", x)
	}
	if !slices.Contains(x.Spec.Argv, "800x600") {
		t.Errorf("the resolution did not reach %q", x.Spec.Argv)
	}
	if e := env(x); e["EXTRA"] != "1" || e["SHARED"] != "all" {
		t.Errorf("environment %v", e)
	}
	i3 := find(t, p, "i3wm")
	if e := env(i3); e["HOME"] != "/workspace" || e["DISPLAY"] != ":1" {
		t.Errorf("i3wm environment %v", e)
	}
	if want := []program.Need{{Program: "xvnc", Condition: program.NeedReady}}; !slices.Equal(i3.Spec.Needs, want) {
		t.Errorf("i3wm needs %v", i3.Spec.Needs)
	}
	if got := find(t, p, "plain"); got.Spec.Restart != program.RestartNever || got.Origin != "manifest" {
		t.Errorf("plain: %+v", got)
	}
	if p.Profile != "agentbox" {
		t.Errorf("profile %s", p.Profile)
	}
}

func TestEnvironment(t *testing.T) {
	facts := plan.Facts{
		Env: map[string]string{
			"PATH": "/bin", "HOME": "/root", "LANG": "C", "MANAGEMENT_API_KEY": "k", "ANTHROPIC_KEY": "a", "SESSION_TOKEN": "s",
			"NOTIFY_SOCKET": "/run/outer", "EMBED": "e",
		},
		Account: func(user string) (string, string, bool) { return "/home/" + user, user, user == "app" },
		ReadFile: func(path string) ([]byte, error) {
			if path == "/etc/web.env" {
				return []byte("# comment\nFROM_FILE=f\nLANG=\"de\"\n"), nil
			}
			return nil, fs.ErrNotExist
		},
	}
	head := `[providers.x]
enabled = true
env_var = "ANTHROPIC_KEY"
[slots.memory.embedder]
key_env = "EMBED"
[programs.web]
command = ["web"]
`
	for name, c := range map[string]struct {
		keys     string
		want     map[string]string
		withheld string
	}{
		"safe": {"", map[string]string{"PATH": "/bin", "HOME": "/root", "LANG": "C"}, "ANTHROPIC_KEY EMBED MANAGEMENT_API_KEY SESSION_TOKEN"},
		"all": {`pass_environment = "all"`, map[string]string{
			"PATH": "/bin", "HOME": "/root", "LANG": "C", "MANAGEMENT_API_KEY": "k", "ANTHROPIC_KEY": "a", "SESSION_TOKEN": "s", "EMBED": "e",
		}, ""},
		"none": {`pass_environment = "none"`, map[string]string{"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, "ANTHROPIC_KEY EMBED MANAGEMENT_API_KEY SESSION_TOKEN"},
		"list": {`pass_environment = ["L*", "*_TOKEN", "ANTHROPIC_KEY", "PATH"]`, map[string]string{"PATH": "/bin", "LANG": "C", "ANTHROPIC_KEY": "a"}, "EMBED MANAGEMENT_API_KEY SESSION_TOKEN"},
		"asked by name": {`pass_environment = "none"
environment = { KEY = "${MANAGEMENT_API_KEY}", PATH = "/opt:${PATH}" }`, map[string]string{"KEY": "k", "PATH": "/opt:/bin"}, "ANTHROPIC_KEY EMBED MANAGEMENT_API_KEY SESSION_TOKEN"},
		"user": {`user = "app"
pass_environment = ["PATH"]`, map[string]string{"PATH": "/bin", "HOME": "/home/app", "USER": "app", "LOGNAME": "app"}, "ANTHROPIC_KEY EMBED MANAGEMENT_API_KEY SESSION_TOKEN"},
		"file": {`env_file = ["/etc/web.env", "-/etc/none"]
pass_environment = ["PATH", "LANG"]
environment = { TWICE = "${FROM_FILE}${FROM_FILE}" }`, map[string]string{"PATH": "/bin", "LANG": "de", "FROM_FILE": "f", "TWICE": "ff"}, "ANTHROPIC_KEY EMBED MANAGEMENT_API_KEY SESSION_TOKEN"},
	} {
		t.Run(name, func(t *testing.T) {
			got := find(t, mustResolve(t, head+c.keys, facts), "web")
			if fmt.Sprint(env(got)) != fmt.Sprint(c.want) {
				t.Errorf("environment\n got %v\nwant %v", env(got), c.want)
			}
			if strings.Join(got.Withheld, " ") != c.withheld {
				t.Errorf("withheld %v, want %s", got.Withheld, c.withheld)
			}
		})
	}
}

// The pod server uses the directory that SOLID_POD_ROOT names, as bootstrap and /ready do.
func TestPodServerDirectory(t *testing.T) {
	text := "[sovereign_mesh]\nenabled = true\n[adapters]\npods = \"local-solid-rs\"\n[integrations.solid_pod_rs]\nstorage_root = \"/pods\"\n"
	for root, want := range map[string]string{"": "/pods", "/data/pods": "/data/pods"} {
		p := find(t, mustResolve(t, text, plan.Facts{Env: map[string]string{"SOLID_POD_ROOT": root}}), "solid-pod")
		if p.Spec.Directory != want || env(p)["JSS_STORAGE_ROOT"] != want {
			t.Errorf("SOLID_POD_ROOT=%q: directory %s, JSS_STORAGE_ROOT %s", root, p.Spec.Directory, env(p)["JSS_STORAGE_ROOT"])
		}
	}
}

// A secret reaches a program that names it in any form, and no other program.
func TestSecretsAreNamed(t *testing.T) {
	facts := plan.Facts{
		Env:      map[string]string{"PGPASSWORD": "s3cret", "AWS_SECRET_ACCESS_KEY": "s3cret", "db_pass": "s3cret", "PATH": "/bin"},
		ReadFile: func(string) ([]byte, error) { return []byte("PGPASSWORD=s3cret\n"), nil },
	}
	for keys, want := range map[string]bool{
		"": false, `pass_environment = ["*"]`: false, `pass_environment = ["PG*"]`: false, `pass_environment = true`: false,
		`pass_environment = ["PGPASSWORD"]`: true, `pass_environment = "all"`: true, `env_file = "/env"`: true,
		`environment = { PGPASSWORD = "${PGPASSWORD}" }`: true, `environment = { PGPASSWORD = "s3cret" }`: true,
	} {
		got := find(t, mustResolve(t, "[programs.web]\ncommand = 'web'\n"+keys, facts), "web")
		if has := env(got)["PGPASSWORD"] == "s3cret"; has != want {
			t.Errorf("%s: passed %v", keys, has)
		}
		if shown := slices.Contains(got.Withheld, "PGPASSWORD"); shown == want {
			t.Errorf("%s: withheld %v", keys, got.Withheld)
		}
		if text := fmt.Sprint(env(got)); keys != `pass_environment = "all"` && strings.Count(text, "s3cret") > 1 {
			t.Errorf("%s: %s", keys, text)
		}
	}
}

// A command of one string is split before its variables are replaced. A default or a message with
// blanks stays in one word, and a value becomes one argument.
func TestBracesHoldACommandTogether(t *testing.T) {
	text := "[programs.w]\ncommand = 'run ${X:-a  b} --to=${Y:?please set Y} \"${Z:-c d}\"'\n"
	got := find(t, mustResolve(t, text, plan.Facts{Env: map[string]string{"Y": "y z"}}), "w")
	if want := []string{"run", "a  b", "--to=y z", "c d"}; !slices.Equal(got.Spec.Argv, want) {
		t.Errorf("argv %q, want %q", got.Spec.Argv, want)
	}
	_, findings := resolve(t, text, plan.Facts{})
	if len(findings) != 1 || findings[0].Code != "E120" || !strings.Contains(findings[0].Message, "please set Y") {
		t.Errorf("%v", findings)
	}
	_, findings = resolve(t, "[programs.w]\ncommand = 'run ${X:-a b'\n", plan.Facts{})
	if len(findings) != 1 || findings[0].Code != "E121" {
		t.Errorf("not closed: %v", findings)
	}
}

func TestExpansionReachesTheWholeTable(t *testing.T) {
	p := mustResolve(t, `[programs.w]
command = ["run-${INSTANCE}", "${PORT}", "$$HOME", "cost $5 ${A:-${B:-c}}"]
instances = 2
directory = "/srv/${INSTANCE}"
environment = { PORT = "80${INSTANCE}" }
ready = { http = "http://localhost:${PORT}/" }
logs = { to = "file", path = "/log/${INSTANCE}.log" }
hooks = { pre_start = "prepare '${INSTANCE}'" }
user = "${WHO}"
`, plan.Facts{Env: map[string]string{"WHO": "1000"}})
	for i, name := range []string{"w:0", "w:1"} {
		n := fmt.Sprint(i)
		got := find(t, p, name)
		if want := []string{"run-" + n, "80" + n, "$HOME", "cost $5 c"}; !slices.Equal(got.Spec.Argv, want) {
			t.Errorf("argv %q, want %q", got.Spec.Argv, want)
		}
		if got.Spec.Directory != "/srv/"+n || got.Spec.Readiness.Probes[0].Target != "http://localhost:80"+n+"/" ||
			got.Spec.Logs.Path != "/log/"+n+".log" || got.Spec.Hooks.PreStart.Argv[1] != n || got.User != "1000" ||
			got.Spec.Group != "w" || got.Spec.Instance != i {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestNeedsOfInstances(t *testing.T) {
	p := mustResolve(t, `
[programs.db]
command = ["db"]
instances = 2
[programs.one]
command = ["one"]
needs = ["db:1:started"]
[programs.all]
command = ["all"]
needs = ["db"]
`, plan.Facts{})
	if got := find(t, p, "one").Spec.Needs; !slices.Equal(got, []program.Need{{Program: "db:1", Condition: "started"}}) {
		t.Errorf("one needs %v", got)
	}
	if got := find(t, p, "all").Spec.Needs; !slices.Equal(got, []program.Need{{Program: "db:0", Condition: "ready"}, {Program: "db:1", Condition: "ready"}}) {
		t.Errorf("all needs %v", got)
	}
}

// Each code has a manifest that triggers it, and a similar one that does not.
func TestFindings(t *testing.T) {
	for _, c := range []struct {
		code, trigger, miss string
		says                []string
	}{
		{"E120", `[programs.a]
command = ["a", "${NONE}", "${OTHER:?the other one}"]
environment = { X = "${NONE}" }
[programs.b]
command = ["b"]
directory = "${DIR}"
instances = 3`, `[programs.a]
command = ["a", "${NONE:-}", "$${NONE}", "${OTHER:-x}"]`,
			[]string{"DIR in programs.b.directory", "NONE in programs.a.environment.X, programs.a.command[1]", "OTHER (the other one)"}},
		{"E121", "[programs.a]\ncommand = [\"a\", \"${X\"]\nenvironment = {X = \"${X/a/b}\"}", "[programs.a]\ncommand = [\"a\", \"$X $ {X\"]", []string{"programs.a.command[1]", "not closed"}},
		{"E121", "[programs.a]\ncommand = [\"a\", \"${1}\"]", "[programs.a]\ncommand = [\"a\", \"$${1}\"]", []string{`"1" is not the name of a variable; a literal "${" is written "$${"`}},
		{"E122", "[programs.a]\ncommand=['a']\nneeds=['b']\n[programs.b]\ncommand=['b']\nneeds=['c:started']\n[programs.c]\ncommand=['c']\nneeds=['a']",
			"[programs.a]\ncommand=['a']\nneeds=['b', 'c']\n[programs.b]\ncommand=['b']\nneeds=['c']\n[programs.c]\ncommand=['c']", []string{"a → b → c → a"}},
		{"E123", "[programs.web]\ncommand=['a']\nneeds=['daatbase']\n[programs.database]\ncommand=['b']", "[programs.web]\ncommand=['a']\nneeds=['database']\n[programs.database]\ncommand=['b']", []string{"daatbase", "did you mean database?"}},
		{"E124", "[programs.web]\ncommand=['a']\nneeds=['db']\n[programs.db]\ncommand=['b']\nenabled=false", "[programs.web]\ncommand=['a']\nneeds=['db']\nenabled=false\n[programs.db]\ncommand=['b']\nenabled=false", []string{"web needs db, which is off: enabled = false"}},
		{"E124", "[programs.web]\ncommand=['a']\nneeds=['xvnc']", "[desktop]\nenabled=true\n[security.exceptions.desktop]\n[programs.web]\ncommand=['a']\nneeds=['xvnc']", []string{"desktop.enabled"}},
		{"E126", "[programs.a]\ncommand=['a']\nwhen='gpu.backend'", "[programs.a]\ncommand=['a']\nwhen='desktop.enabled'", []string{"gpu.backend"}},
		{"E126", "[programs.a]\ncommand=['a']\nwhen='desktop.enabld'", "[programs.a]\ncommand=['a']\nwhen='providers.x.enabled'", []string{"desktop.enabld"}},
		{"E127", "[programs.a]\ncommand=['a']\nenv_file='/none'", "[programs.a]\ncommand=['a']\nenv_file='-/none'", []string{"cannot read /none: file does not exist", `(mount or create the file, or write "-" before its path if it may be missing)`}},
		{"E127", "[programs.a]\ncommand=['a']\nenv_file='/bad'", "[programs.a]\ncommand=['a']\nenv_file='/good'", []string{"line 1: NAME=value", "(write NAME= before each value; "}},
		{"W127", "[programs.a]\ncommand=['a', '${OF_FILE}']\nenv_file='/none'", "[programs.a]\ncommand=['a']\nenv_file='-/none'", []string{"/none"}},
		{"W140", "[supervisor]\nsocket_group='none'", "[supervisor]\nsocket_group='some'", []string{"supervisor.socket_group", `no group "none"`, "agentbox.toml:2:"}},
		{"W140", "[programs.a]\ncommand=['a']\nuser='none'\ngroup='none'\ngroups=['some', 'none']", "[programs.a]\ncommand=['a']\nuser='some'", []string{`no user "none"`, `no group "none"`}},
		{"E142", "[programs.a]\ncommand=['a']\nready={http='${U:-localhost:80/}'}\nhealth={tcp='${U:-80}'}", "[programs.a]\ncommand=['a']\nready={http='${U:-http://localhost:80/}'}", []string{"ready must be a URL", "health must be host and port"}},
		{"E143", "[programs.a]\ncommand=['a']\ndirectory='/none'\nhooks.pre_start='mkdir /none'", "[programs.a]\ncommand=['a']\ndirectory='/none'\nneeds=['b']\n[programs.b]\ncommand=['mkdir', '/none']\ntype='oneshot'", []string{`"/none"`, "a oneshot that the program needs"}},
		{"W143", "[supervisor.defaults]\ndirectory='/none'\n[programs.a]\ncommand=['a']", "[programs.a]\ncommand=['a']\ndirectory='/none'\nneeds=['b']\n[programs.b]\ncommand=['mkdir', '/none']\ntype='oneshot'", []string{`agentbox.toml:2:1`}},
		{"E128", "[programs.a]\ncommand=['${E:-}']", "[programs.a]\ncommand=['a', '']", []string{"empty"}},
		{"E129", "[programs.management-api]\ncommand=['a']", "[programs.management]\ncommand=['a']", []string{"agentinit itself"}},
		{"E130", "[programs.a]\ncommand=['a']\nenabled=false\nrequired=true", "[programs.a]\ncommand=['a']\nwhen='desktop.enabled'\nrequired=true", []string{"required and disabled"}},
		{"E131", "[programs.a]\ncommand=['a']\nautostart=false\nrequired=true", "[programs.a]\ncommand=['a']\nautostart=false", []string{"does not start by itself"}},
		{"E141", "[programs.a]\ncommand=['a']\ninstances=10000\n[programs.b]\ncommand=['a']\ninstances=10000\n[programs.c]\ncommand=['a']",
			"[programs.a]\ncommand=['a']\ninstances=10000\n[programs.b]\ncommand=['a']\ninstances=10000", []string{"program c", "20000"}},
		{"E141", "[programs.a]\ncommand=['a']\ninstances=201\nneeds=['b']\n[programs.b]\ncommand=['a']\ninstances=1000",
			"[programs.a]\ncommand=['a']\ninstances=200\nneeds=['b']\n[programs.b]\ncommand=['a']\ninstances=1000", []string{"need one another", "200000"}},
		{"W120", "[programs.a]\ncommand=['a']\nstop=['TERM 15s']\npriority=1\n[programs.b]\ncommand=['b']\nstop=['INT 5s', 'TERM 5s']", "[programs.a]\ncommand=['a']\nstop=['TERM 15s']\n[programs.b]\ncommand=['b']\nstop=['INT 5s', 'TERM 5s']", []string{"b → a", "25s", "23s", `"27s"`}},
		{"W120", "[programs.a]\ncommand=['a']\n[programs.b]\ncommand=['b']\nneeds=['a']\n[programs.c]\ncommand=['c']\nneeds=['b']", "[programs.a]\ncommand=['a']\n[programs.b]\ncommand=['b']\nneeds=['a']\n[programs.c]\ncommand=['c']\nneeds=['a']", []string{"c → b → a", "30s", "23s", `"32s"`, "agentbox.toml:1:"}},
		{"W120", "[programs.a]\ncommand=['a']\n[programs.b]\ncommand=['b']\ntype='oneshot'\nneeds=['a']\n[programs.c]\ncommand=['c']\nneeds=['b:started']", "[programs.a]\ncommand=['a']\n[programs.b]\ncommand=['b']\ntype='oneshot'\nneeds=['a']\n[programs.c]\ncommand=['c']\nneeds=['b:completed']", []string{"c → b → a", "30s"}},
		{"W120", "[programs.a]\ncommand=['a']\nstop='TERM 40s'", "[programs.a]\ncommand=['a']\nstop='TERM 20s'", []string{"the stop of a may take 40s", "23s"}},
		{"W121", "[programs.a]\ncommand=['a']\nstart_timeout=0\nready={notify=true}", "[programs.a]\ncommand=['a']\nready={notify=true}", []string{"for ever"}},
		{"W122", "[programs.a]\ncommand=['a']\nrestart='always'\n[programs.b]\ncommand=['b']\nneeds=['a:completed']", "[programs.a]\ncommand=['a']\ntype='oneshot'\n[programs.b]\ncommand=['b']\nneeds=['a:completed']", []string{"a:completed", "oneshot"}},
		{"W140", "[adapters]\norchestrator='local-process-manager'\n[supervisor.agents]\nuser='none'\n[templates.t]\ncommand='a'\nuser='x'\ngroup='none'", "[supervisor.agents]\nuser='none'", []string{"supervisor.agents.user: ", "templates.t.group: ", "agentbox.toml:4:"}},
		{"W123", "[programs.a]\ncommand='a'\nstop_command='b; c ; d'\nhooks.pre_start='a && b'\nready.exec='a | b'", "[programs.a]\ncommand='a'\nhooks.pre_start=['sh', '-c', 'a && b']", []string{"programs.a.stop_command", "programs.a.hooks.pre_start", "programs.a.ready.exec", `(write pre_start = ["sh", "-c", "…"])`}},
		{"W123", "[programs.a]\ncommand='a | b'", "[programs.a]\ncommand='sh -c \"a | b\"'", []string{`"|"`}},
		{"W125", "[programs.a]\ncommand='a --home %(ENV_HOME)s'", "[programs.a]\ncommand=['a', '--access-logformat', '%(h)s %(message)s']", []string{`"%(ENV_HOME)s"`, "${HOME}"}},
		{"W125", "[programs.a]\ncommand=['a']\nenvironment={N='%(process_num)02d'}", "[programs.a]\ncommand=['a']\nenvironment={N='${INSTANCE}'}", []string{"programs.a.environment", "${INSTANCE}"}},
		{"W125", "[programs.a]\ncommand='%(here)s/a'", "[programs.a]\ncommand='/here/a'", []string{"itself"}},
		{"W128", "[programs.a]\ncommand=['a']\nstart_seconds=90\nstart_timeout=60", "[programs.a]\ncommand=['a']\nstart_seconds=90\n[programs.b]\ncommand=['b']\ntype='oneshot'\nstart_seconds=90\nstart_timeout=5", []string{`programs.a.start_seconds = "1m30s"`, `start_timeout = "1m"`, "agentbox.toml:3:"}},
		{"W128", "[programs.a]\ncommand=['a']\nstart_timeout='1m'\nready={notify=true,deadline='90s'}", "[programs.a]\ncommand=['a']\nstart_seconds=90\nstart_timeout='90s'\nready={notify=true,deadline='90s'}", []string{`programs.a.ready.deadline = "1m30s"`, "before the deadline"}},
		{"W126", "[programs.web]\ncommand=['a']\n[supervisor.log.forward.l]\ntype='loki'\nurl='http://l'\nprograms=['web', 'wev', 'z*']",
			"[programs.web]\ncommand=['a']\ninstances=2\n[programs.off]\ncommand=['a']\nenabled=false\n[supervisor.log.forward.l]\ntype='loki'\nurl='http://l'\nprograms=['web', 'web:1', 'w*', 'off', 'main', 'xvnc']",
			[]string{`the collector l names "wev"`, "did you mean web?", `"z*"`}},
		{"W144", "[supervisor.log.forward.l]\ntype='loki'\nurl='https://l'\nca_file='/none'\n[supervisor.log.forward.m]\ntype='syslog'\nurl='tls://m'\nca_file='/none'",
			"[supervisor.log.forward.l]\ntype='loki'\nurl='https://l'\nca_file='/some'\n[supervisor.log.forward.m]\ntype='syslog'\nurl='tcp://m'\nca_file='/none'",
			[]string{`the ca_file "/none" of the collector l does not exist`, "collector m", "agentbox.toml:4:"}},
		{"W125", "[programs.a]\ncommand='a -n %(numprocs)d'", "[programs.a]\ncommand='a -n 3'", []string{"the number of instances"}},
	} {
		t.Run(c.code, func(t *testing.T) {
			facts := plan.Facts{
				Env: map[string]string{}, InBox: c.code[0] == 'E',
				ReadFile: func(path string) ([]byte, error) {
					text, ok := map[string]string{"/bad": "X", "/good": "X=1"}[path]
					if !ok {
						return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
					}
					return []byte(text), nil
				},
				Lacks: func(_ plan.Thing, name string) bool { return strings.HasSuffix(name, "none") },
			}
			_, findings := resolve(t, c.trigger, facts)
			var hits []schema.Finding
			for _, f := range findings {
				if f.Code == c.code {
					hits = append(hits, f)
				}
			}
			if len(hits) == 0 || len(hits) != len(findings) && c.code[0] == 'W' {
				t.Fatalf("no %s, or more: %v", c.code, findings)
			}
			all := fmt.Sprint(hits)
			for _, want := range c.says {
				if !strings.Contains(all, want) {
					t.Errorf("%s does not say %q", all, want)
				}
			}
			for _, f := range hits {
				if strings.ContainsAny(f.Message, "\n\r") {
					t.Errorf("%q spans lines", f.Message)
				}
				if f.Path == "" || f.Line == 0 {
					t.Errorf("%+v has no place", f)
				}
			}
			if c.code == "E120" && len(hits) != 1 {
				t.Errorf("%d findings of missing variables, want one that lists all", len(hits))
			}
			_, findings = resolve(t, c.miss, facts)
			for _, f := range findings {
				if f.Code == c.code {
					t.Errorf("the near miss draws %v", f)
				}
			}
		})
	}
}

// Of several texts of supervisord in one table, the finding always names the first by its key.
func TestSupervisordTextIsTheFirst(t *testing.T) {
	for range 20 {
		_, findings := resolve(t, "[programs.a]\ncommand = ['a']\nenvironment = {A = 'x', B = '%(here)s', C = '%(numprocs)d', D = '%(program_name)s'}", plan.Facts{})
		if len(findings) != 1 || findings[0].Value != "%(here)s" {
			t.Fatalf("%v", findings)
		}
	}
}

// E120 is reported at the first key that uses the variable, in the program's table or in the
// defaults.
func TestMissingVariablesStandAtTheKey(t *testing.T) {
	for _, c := range []struct {
		text         string
		line, column int
	}{
		{"[programs.a]\ncommand = ['a', '${NO}']\n", 2, 17},
		{"[programs.a]\ncommand = 'a ${NO}'\n", 2, 1},
		{"[programs.a]\ncommand = 'a'\nready = {http = 'http://${NO}/'}\n", 3, 10},
		{"[programs.a]\ncommand = 'a'\n[programs.a.environment]\nX = '${NO}'\n", 4, 1},
		{"[supervisor.defaults]\ndirectory = '/${NO}'\n[programs.a]\ncommand = 'a'\n", 2, 1},
		{"[programs.b]\ncommand = 'b'\ndirectory = '${LATER}'\n[programs.a]\ncommand = 'a ${NO}'\n", 3, 1},
	} {
		_, findings := resolve(t, c.text, plan.Facts{})
		if len(findings) != 1 || findings[0].Code != "E120" || findings[0].Line != c.line || findings[0].Column != c.column {
			t.Errorf("%q: findings %v, want one E120 at %d:%d", c.text, findings, c.line, c.column)
		}
	}
}

// The printed plan and its findings contain the names of secrets, never their values. The started
// program gets the values.
func TestSecretsAreNotShown(t *testing.T) {
	text := `[programs.a]
command = ["a", "--pw=${DB_PASSWORD}", "${FROM_FILE}", "${DERIVED}", "${DSN_LIKE}", "${PORT}", "$$${PORT}"]
env_file = "/f"
environment = { DERIVED = "x:${DB_PASSWORD}" }
ready = { http = "http://localhost:${PORT}/?t=${API_TOKEN}", exec = ["check", "${API_TOKEN}"] }
hooks.pre_start = "login ${API_TOKEN}"
directory = "/${DB_PASSWORD}"
user = "${API_TOKEN}"
[programs.b]
command = "b"
needs = ["${API_TOKEN}"]
health = { http = "${DSN_LIKE}" }
`
	facts := plan.Facts{
		Env:      map[string]string{"DB_PASSWORD": "s3cret-1", "API_TOKEN": "s3cret-2", "PORT": "8080", "DSN_LIKE": "pg://u:s3cret-3@db/"},
		ReadFile: func(string) ([]byte, error) { return []byte("FROM_FILE=s3cret-4\n"), nil },
		Lacks:    func(plan.Thing, string) bool { return true },
	}
	p, findings := resolve(t, text, facts)
	if len(findings) < 3 {
		t.Errorf("findings %v: the user, the need and the probe are wrong", findings)
	}
	printed, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	for what, said := range map[string]string{"the plan": string(printed), "the findings": fmt.Sprint(findings)} {
		if strings.Contains(said, "s3cret") {
			t.Errorf("%s shows a secret: %s", what, said)
		}
	}
	a := find(t, p, "a")
	if want := []string{"a", "--pw=s3cret-1", "s3cret-4", "x:s3cret-1", "pg://u:s3cret-3@db/", "8080", "$8080"}; !slices.Equal(a.Spec.Argv, want) {
		t.Errorf("argv %q, want %q", a.Spec.Argv, want)
	}
	shown := a.Shown()
	if want := []string{"a", "--pw=${DB_PASSWORD}", "${FROM_FILE}", "${DERIVED}", "${DSN_LIKE}", "8080", "$8080"}; !slices.Equal(shown.Spec.Argv, want) {
		t.Errorf("shown as %q, want %q", shown.Spec.Argv, want)
	}
	if got := a.Spec.Hide("cannot exec --pw=s3cret-1: http http://localhost:8080/?t=s3cret-2"); strings.Contains(got, "s3cret") {
		t.Errorf("a reason says %q", got)
	}
}

func TestEveryCodeIsDocumentedOnce(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range plan.Codes {
		if seen[c.Code] || c.Doc == "" {
			t.Errorf("%s: twice or undocumented", c.Code)
		}
		seen[c.Code] = true
		if (c.Code[0] == 'W') != (c.Severity == schema.Warning) {
			t.Errorf("%s has severity %s", c.Code, c.Severity)
		}
	}
	source, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for code := range seen {
		used := code == plan.UnknownAccount // bootstrap reports it, because it knows the accounts
		for _, file := range source {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			used = used || file != "codes.go" && !strings.HasSuffix(file, "_test.go") && strings.Contains(string(text), `"`+code+`"`)
		}
		if !used {
			t.Errorf("%s is documented and never reported", code)
		}
	}
}

func TestCommandLineProgram(t *testing.T) {
	p := mustResolve(t, "[programs.db]\ncommand=['db']\n[programs.main]\nuser='7'\ncommand=['other']", plan.Facts{Main: []string{"app", "${X}", "$$"}})
	got := find(t, p, "main")
	if want := []string{"app", "${X}", "$$"}; !slices.Equal(got.Spec.Argv, want) {
		t.Errorf("argv %q, want %q taken literally", got.Spec.Argv, want)
	}
	if !got.Spec.Essential || got.Spec.Restart != program.RestartNever || got.Spec.Stdin != program.StdinInherit || got.User != "7" {
		t.Errorf("main: %+v", got)
	}
	if last := p.Waves[len(p.Waves)-1]; !slices.Equal(last, []string{"main"}) {
		t.Errorf("waves %v: main starts last", p.Waves)
	}
}

func TestProfile(t *testing.T) {
	for text, want := range map[string]string{
		"":                                        "none",
		"[observability]\nlog_level='debug'":      "none",
		"[security]\nenforce=true":                "none",
		"[programs.a]\ncommand=['a']":             "none",
		"[core]":                                  "agentbox",
		"[toolchains]\nrust=false":                "agentbox",
		"[bootstrap]\nprofile='agentbox'":         "agentbox",
		"[core]\n[bootstrap]\nprofile='none'":     "none",
		"[adapters]\n[bootstrap]\nprofile='auto'": "agentbox",
	} {
		if p := mustResolve(t, text, plan.Facts{}); p.Profile != want {
			t.Errorf("%q: profile %s, want %s", text, p.Profile, want)
		}
	}
}

func TestArtifacts(t *testing.T) {
	p := mustResolve(t, `
[skills.docs]
latex = true
report_builder = true
[privacy_filter]
enabled = true
mode = "local-cpu"
[linked_data]
enabled = true
context_catalogue = "/ctx"
[[artifacts]]
id = "ours"
class = "B"
entry = "/bin/ours"
command = ["/bin/ours", "--version"]
timeout = "3s"
required = true
[[artifacts]]
id = "report-builder"
class = "C"
entry = "/elsewhere"
`, plan.Facts{})
	got := map[string]plan.Artifact{}
	for _, a := range p.Artifacts {
		if _, twice := got[a.ID]; twice {
			t.Errorf("%s twice", a.ID)
		}
		got[a.ID] = a
	}
	if a := got["latex"]; !a.Required || !slices.Equal(a.Features, []string{"latex", "report-builder"}) || a.Timeout != 10*time.Second {
		t.Errorf("latex: %+v", a)
	}
	if a := got["opf-model"]; a.Required {
		t.Errorf("opf-model: %+v", a)
	}
	if a := got["ours"]; !a.Required || a.Timeout != 3*time.Second || len(a.Features) != 0 {
		t.Errorf("ours: %+v", a)
	}
	if a := got["report-builder"]; a.Entry != "/elsewhere" {
		t.Errorf("report-builder: %+v", a)
	}
	if a := got["linked-data-contexts"]; a.Entry != "/ctx" {
		t.Errorf("linked-data-contexts: %+v", a)
	}
}

// A value of the manifest that contains a dollar must not be expanded, except in program tables.
func TestManifestValuesAreNotExpanded(t *testing.T) {
	p := mustResolve(t, `
[adapters]
pods = "local-solid-rs"
[sovereign_mesh]
enabled = true
[integrations.solid_pod_rs]
storage_root = "/pods/${MANAGEMENT_API_KEY}"
[security.exceptions.solid-pod-rs]
`, plan.Facts{Env: map[string]string{"MANAGEMENT_API_KEY": "secret"}})
	if got := find(t, p, "solid-pod").Spec.Directory; got != "/pods/${MANAGEMENT_API_KEY}" {
		t.Errorf("directory %q", got)
	}
}

func TestResolveIsDeterministic(t *testing.T) {
	text, err := os.ReadFile("testdata/all.toml")
	if err != nil {
		t.Fatal(err)
	}
	m, doc, findings := schema.Load("all.toml", text)
	if len(findings) > 0 {
		t.Fatal(findings)
	}
	var first string
	for range 5 {
		p, findings := plan.Resolve(m, doc, plan.Facts{Env: map[string]string{"PATH": "/bin"}})
		out, err := json.Marshal([]any{p, findings})
		if err != nil {
			t.Fatal(err)
		}
		first = cmp.Or(first, string(out))
		if string(out) != first {
			t.Fatal("two resolutions of the same manifest differ")
		}
	}
}

// The golden file has only a few lines for each program, so that a new field of Spec does not
// change it.
func TestGoldenAllFeatures(t *testing.T) {
	text, err := os.ReadFile("testdata/all.toml")
	if err != nil {
		t.Fatal(err)
	}
	p := mustResolve(t, string(text), plan.Facts{Env: map[string]string{}})
	var b strings.Builder
	fmt.Fprintf(&b, "profile %s, barrier %s\nstop %s, %v\n", p.Profile, p.Barrier, strings.Join(p.StopPath, " "), p.StopTime)
	for n, wave := range p.Waves {
		fmt.Fprintf(&b, "wave %d: %s\n", n, strings.Join(wave, " "))
	}
	for _, prog := range p.Programs {
		s := prog.Spec
		fmt.Fprintf(&b, "\n%s (%s %s) priority %d required %v restart %s start_seconds %v\n", s.Name, prog.Origin, prog.Feature, s.Priority, s.Required, s.Restart, s.RunningAfter)
		fmt.Fprintf(&b, "  argv %q\n  directory %q needs %v ready %+v\n", s.Argv, s.Directory, s.Needs, s.Readiness.Probes)
		for _, e := range s.Env {
			fmt.Fprintf(&b, "  %s\n", e)
		}
	}
	b.WriteString("\n")
	for _, a := range p.Artifacts {
		fmt.Fprintf(&b, "artifact %s %s %s assets %q command %q timeout %v required %v for %v\n", a.Class, a.ID, a.Entry, a.Assets, a.Command, a.Timeout, a.Required, a.Features)
	}
	const golden = "testdata/all.golden"
	if *update {
		if err := os.WriteFile(golden, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if b.String() != string(want) {
		t.Errorf("the plan of all features changed; go test -update and git diff show how\n%s", b.String())
	}
}

func FuzzResolve(f *testing.F) {
	for _, text := range []string{
		"", "[programs.a]\ncommand='a ${X:-${Y}}'\nneeds=['b:completed']\n[programs.b]\ncommand=['b']\ninstances=2",
		"[supervisor.defaults]\nrestart='never'\n[programs.a]\ncommand='x'\nenv_file='f'",
		"[desktop]\nenabled=true\n[programs.xvnc]\nenabled=false",
	} {
		f.Add(text, "K=v\n")
	}
	f.Fuzz(func(t *testing.T, text, file string) {
		m, doc, findings := schema.Load("f.toml", []byte(text))
		if m == nil {
			return
		}
		// With E016 no program may be started, but Resolve must not crash.
		p, more := plan.Resolve(m, doc, plan.Facts{
			Env: map[string]string{"X": "x", "PATH": "/bin"}, ReadFile: func(string) ([]byte, error) { return []byte(file), nil },
		})
		if slices.ContainsFunc(slices.Concat(findings, more), func(f schema.Finding) bool { return f.Severity == schema.Error }) {
			return
		}
		if n := len(slices.Concat(p.Waves...)); n != len(p.Programs) {
			t.Errorf("%d programs in the waves, %d in the plan", n, len(p.Programs))
		}
		for _, prog := range p.Programs {
			if len(prog.Spec.Argv) == 0 || prog.Spec.Argv[0] == "" {
				t.Errorf("%s has no command", prog.Spec.Name)
			}
		}
	})
}

var errDenied = errors.New("denied")

func TestUnreadableEnvFileIsNotOptional(t *testing.T) {
	_, findings := resolve(t, "[programs.a]\ncommand=['a']\nenv_file='-/f'", plan.Facts{InBox: true, ReadFile: func(string) ([]byte, error) { return nil, errDenied }})
	if len(findings) != 1 || findings[0].Code != "E127" {
		t.Errorf("findings %v: a file that is there and cannot be read is a mistake", findings)
	}
}

// Similar names are searched at most a hundred times. All mistakes are reported.
func TestHintsOfUnknownNeedsAreBounded(t *testing.T) {
	var needs []string
	for i := range 150 {
		needs = append(needs, fmt.Sprintf("'database%d'", i))
	}
	_, findings := resolve(t, "[programs.database]\ncommand=['b']\n[programs.web]\ncommand=['a']\nneeds=["+strings.Join(needs, ",")+"]", plan.Facts{})
	hinted := 0
	for _, f := range findings {
		if f.Hint == "did you mean database?" {
			hinted++
		}
	}
	if len(findings) != 150 || hinted != 100 {
		t.Errorf("%d findings, %d with the name; want 150 and 100", len(findings), hinted)
	}
}

// TestTheOnlyInstanceHasANumberToo: needs may name the only instance "NAME" or "NAME:0".
func TestTheOnlyInstanceHasANumberToo(t *testing.T) {
	p := mustResolve(t, `
[programs.db]
command = ["db"]
instances = 1
[programs.web]
command = ["web"]
needs = ["db:0"]
`, plan.Facts{})
	if got := find(t, p, "web").Spec.Needs; !slices.Equal(got, []program.Need{{Program: "db", Condition: "ready"}}) {
		t.Errorf("web needs %v", got)
	}
}

// TestSchedulesAreNotRestarted: a schedule is restarted only if its own table asks for it.
func TestSchedulesAreNotRestarted(t *testing.T) {
	p := mustResolve(t, `
[supervisor.defaults]
restart = "always"
[programs.plain]
type = "schedule"
schedule = "@hourly"
command = ["plain"]
[programs.asks]
type = "schedule"
schedule = "@hourly"
command = ["asks"]
restart = "on-failure"
[programs.counts]
type = "schedule"
schedule = "@hourly"
command = ["counts"]
start_retries = 2
[programs.service]
command = ["service"]
`, plan.Facts{})
	for name, want := range map[string]program.RestartPolicy{
		"plain": program.RestartNever, "asks": program.RestartOnFailure, "counts": program.RestartAlways, "service": program.RestartAlways,
	} {
		if got := find(t, p, name).Spec.Restart; got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

// TestSchedulesKeepTheirKeys: overlap and timezone reach the supervisor, and only with a schedule.
func TestSchedulesKeepTheirKeys(t *testing.T) {
	p := mustResolve(t, `
[supervisor.defaults]
overlap = "queue"
timezone = "Europe/Berlin"
[programs.nightly]
type = "schedule"
schedule = "30 2 * * *"
overlap = "kill"
command = ["nightly"]
[programs.service]
command = ["service"]
`, plan.Facts{})
	for name, want := range map[string]program.Spec{
		"nightly": {Schedule: "30 2 * * *", Overlap: program.OverlapKill, Timezone: "Europe/Berlin"},
		"service": {},
	} {
		got := find(t, p, name).Spec
		if got.Schedule != want.Schedule || got.Overlap != want.Overlap || got.Timezone != want.Timezone {
			t.Errorf("%s: %q, %q, %q", name, got.Schedule, got.Overlap, got.Timezone)
		}
	}
}

// TestNeverFatal: W124 says why a required program does not become FATAL.
func TestNeverFatal(t *testing.T) {
	for text, want := range map[string]string{
		"restart_limit = {count = 0}":                                               "the required program web is never FATAL, however often it fails: restart_limit.count = 0 sets no limit",
		"start_retries = 1000000\nbackoff = {max = '1000h', factor = 10}":           "the required program web needs decades of failed starts to be FATAL",
		"restart_limit = {count = 1000000}\nbackoff = {max = '1000h', factor = 10}": "the required program web needs decades of failed starts to be FATAL",
	} {
		_, findings := resolve(t, "[programs.web]\ncommand = ['web']\nrequired = true\n"+text, plan.Facts{})
		if len(findings) != 1 || findings[0].Code != "W124" || findings[0].Message != want {
			t.Errorf("%s: %v", text, findings)
		}
	}
}

// TestFatalFitsIntoTheSeal: if a program becomes FATAL only after the seal timeout, W124 is
// reported.
func TestFatalFitsIntoTheSeal(t *testing.T) {
	for _, c := range []struct {
		text, want string
		seal       time.Duration
	}{
		{"", "", 2 * time.Minute},
		{"required = true", "", 2 * time.Minute},
		{"required = true\nbackoff = {max = '30s'}", "", 179 * time.Second},
		{"required = true\nstart_timeout = '10m'", "", 10 * time.Minute},
		{"required = true\n[bootstrap]\nseal_timeout = '1m'", "W124", time.Minute},
		{"[bootstrap]\nseal_timeout = '1m'", "", time.Minute},
		{"required = true\nrestart_limit = {count = 0}", "W124", 2 * time.Minute},
		{"required = true\nrestart_limit = {count = 0}\n[bootstrap]\non_seal_timeout = 'exit'", "", 2 * time.Minute},
		{"required = true\nrestart_limit = {window = '30s'}", "", 2 * time.Minute},
		{"required = true\nready = {tcp = ':80'}\nstop = ['TERM 10s']", "", 11*70*time.Second + 73*time.Second},
		{"required = true\nready = {tcp = ':80', deadline = '2s'}\nstop = ['TERM 2s']", "", 2 * time.Minute},
		{"required = true\nready = {tcp = ':80'}\n[bootstrap]\nseal_timeout = '2m'", "", 2 * time.Minute},
	} {
		p, findings := resolve(t, "[programs.web]\ncommand = ['web']\n"+c.text, plan.Facts{})
		got := ""
		for _, f := range findings {
			got += f.Code
		}
		if got != c.want || p.SealTimeout != c.seal {
			t.Errorf("%s: %q %v, want %q %v", c.text, got, p.SealTimeout, c.want, c.seal)
		}
	}
}
