package plan

import "github.com/dreamlab-ai/agentinit/schema"

// sandboxPresets are the values of sandbox.preset: what programs of a kind need and
// no more. Paths and ports are left to the manifest, which knows where things lie.
var sandboxPresets = map[string]schema.Sandbox{
	// Binds a low port and serves; nginx and Apache as root also change their user.
	"web":    {Capabilities: []string{"NET_BIND_SERVICE", "SETUID", "SETGID", "CHOWN", "DAC_OVERRIDE", "KILL"}, Seccomp: "default"},
	"python": {Capabilities: []string{}, Seccomp: "strict"},
	// The JIT needs nothing that the strict filter forbids.
	"node": {Capabilities: []string{}, Seccomp: "strict"},
	// Runs shells, compilers, debuggers and version control of its own.
	"agent": {Capabilities: []string{}, Seccomp: "default", DenySyscalls: []string{
		"keyctl", "add_key", "request_key", "userfaultfd", "io_uring_setup", "perf_event_open", "bpf",
	}},
}

// withPreset fills in what the table does not say.
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
