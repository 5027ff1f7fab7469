package rules

import (
	"slices"
	"strings"

	"github.com/dreamlab-ai/agentinit/internal/capability"
	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/supervisor/proc/filter"
)

// sandboxRules are the rules about guard and sandbox.
func sandboxRules() []Rule {
	return []Rule{
		{Code: "E150", Severity: schema.Error, Check: unknownSandboxNames,
			Doc:    "sandbox.capabilities names a capability, or sandbox.allow_syscalls or deny_syscalls a system call, that Linux does not have.",
			Remedy: "Use a name of capabilities(7), with or without CAP_, or of syscalls(2)."},
		{Code: "E151", Severity: schema.Error, Check: contradictorySandboxes,
			Doc:    "Keys of a sandbox contradict each other: a system call is both allowed and denied; allow_syscalls is written without seccomp, so that there is no filter to open; or no_new_privileges = false stands beside a filter, paths or ports, which an ordinary user may only set with no_new_privileges.",
			Remedy: "Keep one of the two."},
		{Code: "W150", Severity: schema.Warning, Check: withoutGuard,
			Doc:    "A program or template has guard = false. If it runs as agentinit's user or as root, it can stop the box: it can signal agentinit's threads, lower their limits, take the processor from them and trace other programs; and it can gain privileges by exec.",
			Remedy: "Leave guard at true. A program that needs sudo, or that manages other programs by signals, gets a user of its own."},
		{Code: "W151", Severity: schema.Warning, Check: missingSandboxPaths,
			Doc:    "A path of sandbox.read, write or execute does not exist in the box. It is reported at boot and by an apply. If the path does not exist when the program starts either, the program does not start.",
			Remedy: "Create the path, or begin it with \"-\": then it may be missing."},
		{Code: "W152", Severity: schema.Warning, Check: auditedSandboxes,
			Doc:    `A sandbox has mode = "audit" and refuses no system call. agentctl status NAME lists the system calls that would be refused.`,
			Remedy: `Write mode = "enforce" when that list has no call that the program needs.`},
	}
}

// sandboxPlaces are the paths at which a sandbox is allowed. * stands for any name.
var sandboxPlaces = []string{"programs.*.sandbox", "supervisor.defaults.sandbox", "supervisor.agents.sandbox", "templates.*.sandbox"}

// eachSandbox calls f for every sandbox that is on.
func eachSandbox(d *schema.Document, f func(keys []string, s map[string]any)) {
	for _, place := range sandboxPlaces {
		for _, keys := range matches(d, strings.Split(place, ".")) {
			v, _ := d.At(keys...)
			if s, ok := v.(map[string]any); ok && s["mode"] != "off" {
				f(keys, s)
			}
		}
	}
}

// words returns the strings in a list.
func words(v any) (out []string) {
	list, _ := v.([]any)
	for _, e := range list {
		if s, ok := e.(string); ok {
			out = append(out, s)
		}
	}
	return out
}

// below is the path of a key in a table.
func below(keys []string, key string) []string { return append(slices.Clone(keys), key) }

func unknownSandboxNames(d *schema.Document, _ Facts) (out []schema.Finding) {
	eachSandbox(d, func(keys []string, s map[string]any) {
		for _, kind := range []struct {
			key, what string
			known     func(string) bool
		}{
			{"capabilities", "capability", func(name string) bool { _, ok := capability.Number(name); return ok }},
			{"allow_syscalls", "system call", filter.Known},
			{"deny_syscalls", "system call", filter.Known},
		} {
			at := below(keys, kind.key)
			for _, name := range words(s[kind.key]) {
				if kind.known(name) || strings.Contains(name, "$") {
					continue
				}
				out = append(out, valued(atKeys(d, at, schema.Path(at...)+" names "+schema.Quote(name)+", which is no "+kind.what+" of Linux",
					"see capabilities(7) and syscalls(2)"), name))
			}
		}
	})
	return out
}

func contradictorySandboxes(d *schema.Document, _ Facts) (out []schema.Finding) {
	defaults, _ := d.Table("supervisor.defaults")
	eachSandbox(d, func(keys []string, s map[string]any) {
		all := s
		if keys[0] == "programs" {
			all = subtable(schema.MergeProgram(defaults, map[string]any{"sandbox": s}), "sandbox")
		}
		denied := words(all["deny_syscalls"])
		for _, name := range words(s["allow_syscalls"]) {
			if slices.Contains(denied, name) {
				at := below(keys, "allow_syscalls")
				out = append(out, atKeys(d, at, schema.Path(at...)+" and deny_syscalls both name "+schema.Quote(name), "keep one of the two"))
			}
		}
		if s["allow_syscalls"] != nil && all["seccomp"] == nil && all["preset"] == nil {
			at := below(keys, "allow_syscalls")
			out = append(out, atKeys(d, at, schema.Path(at...)+" opens a filter, but seccomp is not written", `write seccomp = "default"`))
		}
		for _, key := range []string{"seccomp", "deny_syscalls", "read", "write", "execute", "tcp_bind", "tcp_connect"} {
			if s["no_new_privileges"] == false && all[key] != nil {
				at := below(keys, "no_new_privileges")
				out = append(out, atKeys(d, at, schema.Path(at...)+" = false contradicts "+key+", which needs it", "drop no_new_privileges = false"))
				break
			}
		}
	})
	return out
}

func withoutGuard(d *schema.Document, _ Facts) (out []schema.Finding) {
	for _, place := range []string{"programs.*.guard", "supervisor.defaults.guard", "supervisor.agents.guard", "templates.*.guard"} {
		for _, keys := range matches(d, strings.Split(place, ".")) {
			if v, _ := d.At(keys...); v == false {
				out = append(out, atKeys(d, keys, schema.Path(keys...)+" = false lets it signal, limit, schedule and trace agentinit and the other programs of its user",
					"leave guard at true, or give it a user of its own"))
			}
		}
	}
	return out
}

func missingSandboxPaths(d *schema.Document, f Facts) (out []schema.Finding) {
	if f.Exists == nil {
		return nil
	}
	eachSandbox(d, func(keys []string, s map[string]any) {
		for _, key := range []string{"read", "write", "execute"} {
			for _, path := range words(s[key]) {
				if !strings.HasPrefix(path, "/") || strings.Contains(path, "$") || f.Exists(path) {
					continue
				}
				at := below(keys, key)
				out = append(out, valued(atKeys(d, at, schema.Path(at...)+" names "+path+", which does not exist", `create it, or write "-`+path+`"`), path))
			}
		}
	})
	return out
}

func auditedSandboxes(d *schema.Document, _ Facts) (out []schema.Finding) {
	eachSandbox(d, func(keys []string, s map[string]any) {
		if s["mode"] == "audit" {
			at := below(keys, "mode")
			out = append(out, atKeys(d, at, schema.Path(at...)+` = "audit": the sandbox refuses no system call`, `write mode = "enforce" when agentctl status NAME lists no refused call that the program needs`))
		}
	})
	return out
}
