package bootstrap

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/dreamlab-ai/agentinit/schema"
)

// pathKeys are the manifest's keys that contain paths. For each key that agentinit itself writes
// to, a function returns the resulting path, which must lie below the root. The other paths are
// only read, or belong to programs.
var pathKeys = map[string]func(r Roots, l *Loaded) string{
	"supervisor.socket":                      func(r Roots, l *Loaded) string { return r.Socket(l.Manifest) },
	"programs.*.logs.path":                   func(_ Roots, l *Loaded) string { return l.Specs[0].Logs.Path },
	"programs.*.logs.stderr_path":            func(_ Roots, l *Loaded) string { return l.Specs[0].Logs.StderrPath },
	"supervisor.defaults.logs.path":          func(_ Roots, l *Loaded) string { return l.Specs[1].Logs.Path },
	"slots.beads.path":                       func(r Roots, l *Loaded) string { return r.Beads(l.Manifest) },
	"slots.memory.dir":                       func(r Roots, l *Loaded) string { return r.Memory(l.Manifest) },
	"consultants.log_dir":                    func(r Roots, _ *Loaded) string { return r.Consultations },
	"integrations.solid_pod_rs.storage_root": func(r Roots, _ *Loaded) string { return r.SolidPods },

	"consultants.codex.home": nil, "consultants.gemini.home": nil, "consultants.zai.home": nil,
	"sovereign_mesh.relay.data_dir": nil, "linked_data.context_catalogue": nil,
	"linked_data.viewer.bundle_path": nil, "linked_data.viewer.mount_path": nil, // the latter is a route
	"artifacts.*.entry": nil, "artifacts.*.assets": nil, "templates.*.directory": nil,
	"api.keys.*.file": nil, "programs.*.directory": nil, "programs.*.env_file": nil, "programs.*.sandbox.read": nil,
	"supervisor.agents.sandbox.read": nil, "supervisor.agents.sandbox.write": nil, "supervisor.agents.sandbox.execute": nil,
	"programs.*.volumes": nil, "programs.*.writable": nil, "supervisor.volumes": nil, "supervisor.writable": nil,
	"programs.*.sandbox.write": nil, "programs.*.sandbox.execute": nil,
	"programs.*.ready.unix": nil, "programs.*.ready.file": nil, "programs.*.health.unix": nil, "programs.*.health.file": nil,
}

// likeProgram maps keys with the same meaning as a program's key to that key.
var likeProgram = strings.NewReplacer("supervisor.defaults.", "programs.*.", "templates.*.sandbox", "programs.*.sandbox",
	"ready.*.", "ready.", "health.*.", "health.")

const everyPath = `
[federation]
mode = "standalone"
[adapters]
beads = "local-sqlite"
memory = "embedded-ruvector"
pods = "local-solid-rs"
[consultants]
log_dir = "/data/consultants.log_dir"
[integrations.solid_pod_rs]
storage_root = "/data/integrations.solid_pod_rs.storage_root"
[security.exceptions.solid-pod-rs]
[slots.beads]
path = "/data/slots.beads.path"
[slots.memory]
dir = "/data/slots.memory.dir"
[supervisor]
socket = "/data/supervisor.socket"
[supervisor.defaults.logs]
to = "file"
path = "/data/supervisor.defaults.logs.path"
[programs.a]
command = ["/bin/true"]
priority = 1
logs = { to = "file", path = "/data/programs.*.logs.path", stderr_path = "/data/programs.*.logs.stderr_path" }
[programs.b]
command = ["/bin/true"]
priority = 2
`

func TestWrittenPathsLieBelowTheRoot(t *testing.T) {
	for name, prefixed := range map[string]bool{"with a root": true, "in a container": false} {
		t.Run(name, func(t *testing.T) {
			r := newBootRig(t, testRoots(t), everyPath)
			if !prefixed {
				manifest := r.cfg.Roots.Manifest
				roots, err := NewRoots("", func(string) string { return "" })
				if err != nil {
					t.Fatal(err)
				}
				r = newBootRig(t, testRoots(t), "", func(c *Config) { c.Roots, c.ManifestFile = roots, manifest })
			}
			if err := r.Load(t.Context()); err != nil {
				t.Fatal(err)
			}
			for key, written := range pathKeys {
				if written == nil {
					continue
				}
				if got, want := written(r.cfg.Roots, r.Current()), r.cfg.Roots.Prefix+"/data/"+key; got != want {
					t.Errorf("%s: %s, want %s", key, got, want)
				}
			}
		})
	}
}

// Every key that contains a path must be in the table above, so that the author of a new key must
// decide whether agentinit writes there.
func TestEveryPathKeyIsKnown(t *testing.T) {
	var root map[string]any
	if err := json.Unmarshal(schema.JSONSchema(), &root); err != nil {
		t.Fatal(err)
	}
	paths := regexp.MustCompile(`(?i)\bpaths?\b|director|\bfiles?\b|\bsocket\b`)
	other := regexp.MustCompile(`Manifest path|WebSocket|file descriptor|socket_|_bytes\b|\.(max_age|umask|limits\.\w+) `)
	found := map[string]bool{}
	var walk func(key []string, node map[string]any)
	walk = func(key []string, node map[string]any) {
		help, _ := node["description"].(string)
		name := strings.Join(key, ".")
		if node["properties"] == nil && paths.MatchString(name+" "+help) && !other.MatchString(name+" "+help) && holdsText(node) {
			found[name] = true
		}
		for word, child := range children(node) {
			step := append(slices.Clone(key), word)
			if word == "" {
				step = key
			}
			walk(step, child)
		}
	}
	walk(nil, root)
	for key := range found {
		_, known := pathKeys[key]
		_, same := pathKeys[likeProgram.Replace(key)]
		if !known && !same {
			t.Errorf("%s holds a path: say in pathKeys who writes there", key)
		}
	}
	for key, written := range pathKeys {
		if written != nil && !found[key] {
			t.Errorf("%s is not found in the schema", key)
		}
	}
}

// holdsText reports whether a node can be a string or a list of strings.
func holdsText(node map[string]any) bool {
	is := func(v any, want string) bool {
		if list, ok := v.([]any); ok {
			return slices.Contains(list, any(want))
		}
		return v == want
	}
	if is(node["type"], "string") {
		return true
	}
	items, ok := node["items"].(map[string]any)
	return ok && is(items["type"], "string")
}

// children are the nodes below one node; "" stands for nodes without a key of their own.
func children(node map[string]any) map[string]map[string]any {
	out := map[string]map[string]any{}
	if properties, ok := node["properties"].(map[string]any); ok {
		for name, p := range properties {
			out[name] = p.(map[string]any)
		}
	}
	for _, word := range []string{"additionalProperties", "items"} {
		one, ok := node[word].(map[string]any)
		if !ok {
			continue
		}
		name := "*"
		if _, table := one["properties"]; word == "items" && !table {
			continue // plain values have no keys of their own
		}
		out[name] = one
	}
	return out
}

func TestPathsBelowTheRootStay(t *testing.T) {
	r := Roots{Prefix: "/box"}
	for path, want := range map[string]string{
		"/data": "/box/data", "/box/data": "/box/data", "/box": "/box", "/boxes": "/box/boxes",
		"/box/../etc": "/box/etc", "/../etc": "/box/etc", "../etc": "/box/etc", "data": "/box/data",
	} {
		if got := r.Path(path); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
	for path, want := range map[string]string{
		"": "", "/dev/stdout": "/dev/stdout", "/proc/self/fd/1": "/proc/self/fd/1", "/dev/null": "/dev/null",
		"/dev/shm/x": "/box/dev/shm/x", "/var/log/x": "/box/var/log/x", "/device": "/box/device",
	} {
		if got := r.Output(path); got != want {
			t.Errorf("output %s: %s, want %s", path, got, want)
		}
	}
	none := func(string) string { return "" }
	if got := r.TerminationLog(none); got != "/box/dev/termination-log" {
		t.Errorf("termination log: %s", got)
	}
	if got := (Roots{}).TerminationLog(none); got != "/dev/termination-log" {
		t.Errorf("termination log of a container: %s", got)
	}
}
