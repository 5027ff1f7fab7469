package plan

import "github.com/dreamlab-ai/agentinit/schema"

// sandboxPresets are the values of sandbox.preset: the minimum for a kind of program. Paths and
// ports are not included, because only the manifest knows them.
var sandboxPresets = map[string]schema.Sandbox{
	// Serves on a low port. nginx and Apache start as root and change their user.
	"web":    {Capabilities: []string{"NET_BIND_SERVICE", "SETUID", "SETGID", "CHOWN", "DAC_OVERRIDE", "KILL"}, Seccomp: "default"},
	"python": {Capabilities: []string{}, Seccomp: "strict"},
	// A JIT compiler works under the strict filter.
	"node": {Capabilities: []string{}, Seccomp: "strict"},
	// Runs its own shells, compilers, debuggers and version control.
	"agent": {Capabilities: []string{}, Seccomp: "default", DenySyscalls: []string{
		"keyctl", "add_key", "request_key", "userfaultfd", "io_uring_setup", "perf_event_open", "bpf",
	}},
}

// withPreset sets the keys that the table does not set.
func withPreset(s *schema.Sandbox) *schema.Sandbox {
	preset, ok := sandboxPresets[s.Preset]
	if !ok {
		return s
	}
	out := *s
	if out.Capabilities == nil {
		out.Capabilities = preset.Capabilities
	}
	if out.Seccomp == "" {
		out.Seccomp = preset.Seccomp
	}
	out.DenySyscalls = append(out.DenySyscalls[:len(out.DenySyscalls):len(out.DenySyscalls)], preset.DenySyscalls...)
	return &out
}
