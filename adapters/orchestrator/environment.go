package orchestrator

import (
	"maps"
	"slices"
	"strings"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// inherited are the variables of the box that every agent gets.
var inherited = []string{"PATH", "HOME", "LANG", "TERM", "WORKSPACE", "TZ"}

// The variables that identify an agent. A spec cannot set them.
const (
	EnvAgentID    = "AGENTBOX_AGENT_ID"
	EnvAgentToken = "AGENTBOX_AGENT_TOKEN"
)

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// secretParts mark variables no manifest may grant to agents: the management
// key, private keys and database addresses with their passwords.
var secretParts = []string{"MANAGEMENT_API_KEY", "MANAGEMENT_KEY", "PRIVATE_KEY", "PRIVKEY", "CONNINFO", "DATABASE_URL"}

// secretWords mark them only as a whole word: CONSECUTIVE holds NSEC too.
var secretWords = []string{"NSEC", "DSN"}

func secret(name string) bool {
	upper := strings.ToUpper(name)
	words := strings.FieldsFunc(upper, func(r rune) bool { return (r < 'A' || r > 'Z') && (r < '0' || r > '9') })
	return slices.ContainsFunc(secretWords, func(word string) bool { return slices.Contains(words, word) }) || slices.ContainsFunc(secretParts, func(part string) bool { return strings.Contains(upper, part) })
}

// baseEnvironment picks from the box's environment what agents may have.
func baseEnvironment(environ, granted []string) (map[string]string, error) {
	for _, name := range granted {
		if secret(name) {
			return nil, &adapters.ConfigError{Key: "adapters.orchestrator", Message: name + " must never reach an agent"}
		}
	}
	base := map[string]string{"PATH": defaultPath}
	for _, kv := range environ {
		name, value, ok := strings.Cut(kv, "=")
		if ok && (slices.Contains(inherited, name) || slices.Contains(granted, name)) {
			base[name] = value
		}
	}
	return base, nil
}

// environment is an agent's whole environment, sorted.
func environment(base, spec map[string]string, id, token string) []string {
	all := maps.Clone(base)
	maps.Copy(all, spec)
	all[EnvAgentID], all[EnvAgentToken] = id, token
	env := make([]string, 0, len(all))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		env = append(env, name+"="+all[name])
	}
	return env
}
