package schema

import (
	"slices"
	"strings"
)

// A variable holds a secret if its name ends in one of these, in any case. This is not a pattern,
// because a regular expression would be slow: every variable is checked before the first program
// starts.
var secretEnds = []string{
	"PASSWORD", "PASSWORDS", "PASSWD", "PASSPHRASE", "SECRET", "SECRETS", "TOKEN", "API_KEY", "APIKEY", "API_KEYS", "APIKEYS",
}

// secretWords are also the end of harmless words (MONKEY, COMPASS). So they must be the whole name,
// or follow a separator. loginWord alone is the name of a directory.
var secretWords = []string{
	"KEY", "PRIVATE_KEY", "PRIVATEKEY", "PRIVATE_KEYS", "PRIVATEKEYS", "NSEC", "DSN", "CONNINFO", "CONNECTION_STRING",
	"CONNECTIONSTRING", "CREDENTIAL", "CREDENTIALS", "PASS", "SSHPASS", "PW", "PAT", "AUTHORIZATION", "SECRET_KEY_BASE",
}

const (
	loginWord = "PWD"
	marks     = "_.-"
)

// publicEnds are the ends of names with a public value.
var publicEnds = []string{"PUBLIC_KEY", "PUBLICKEY"}

// SecretName reports whether a variable of this name holds a secret. All code uses this function,
// so that the variables withheld from programs are the same as the variables that are not shown.
func SecretName(name string) bool {
	name = strings.ToUpper(name)
	ends := func(with string) bool { return strings.HasSuffix(name, with) }
	word := func(w string) bool {
		before, ok := strings.CutSuffix(name, w)
		return ok && (before == "" || strings.ContainsRune(marks, rune(before[len(before)-1])))
	}
	if slices.ContainsFunc(publicEnds, ends) {
		return false
	}
	return slices.ContainsFunc(secretEnds, ends) || slices.ContainsFunc(secretWords, word) || name != loginWord && word(loginWord)
}

// IsSecret reports whether programs inherit the variable only by name. That is the case if its name
// marks it as a secret, or if the manifest says that it contains a credential.
func (m *Manifest) IsSecret(name string) bool {
	if SecretName(name) {
		return true
	}
	for _, p := range m.Providers {
		if name != "" && p.EnvVar == name {
			return true
		}
	}
	return name != "" && slices.Contains(m.OwnCredentials(), name)
}

// OwnCredentials are the variables from which agentinit itself takes a credential: the tokens of
// slots and log collectors, and the keys of [api.keys]. Names that are not written are empty.
func (m *Manifest) OwnCredentials() []string {
	names := []string{
		m.Slots.Beads.TokenEnv, m.Slots.Pods.TokenEnv, m.Slots.Memory.TokenEnv, m.Slots.Memory.Embedder.KeyEnv,
		m.Slots.Events.TokenEnv, m.Slots.Orchestrator.TokenEnv,
	}
	for _, collector := range m.Supervisor.Log.Forward {
		names = append(names, collector.TokenEnv)
	}
	for _, key := range m.API.Keys {
		names = append(names, key.Env)
	}
	return names
}
