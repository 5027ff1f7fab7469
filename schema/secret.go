package schema

import (
	"slices"
	"strings"
)

// A name holds a secret when it ends in one of these, in capitals or not. No
// pattern: every variable is asked about before the first program starts.
var secretEnds = []string{
	"PASSWORD", "PASSWORDS", "PASSWD", "PASSPHRASE", "SECRET", "SECRETS", "TOKEN", "API_KEY", "APIKEY", "API_KEYS", "APIKEYS",
}

// secretWords are the end of other words too (MONKEY, COMPASS): they must be all of
// the name or stand behind a mark. loginWord is a directory when it stands alone.
var secretWords = []string{
	"KEY", "PRIVATE_KEY", "PRIVATEKEY", "PRIVATE_KEYS", "PRIVATEKEYS", "NSEC", "DSN", "CONNINFO", "CONNECTION_STRING",
	"CONNECTIONSTRING", "CREDENTIAL", "CREDENTIALS", "PASS", "SSHPASS", "PW", "PAT", "AUTHORIZATION", "SECRET_KEY_BASE",
}

const (
	loginWord = "PWD"
	marks     = "_.-"
)

// publicEnds are ends of names whose values are public.
var publicEnds = []string{"PUBLIC_KEY", "PUBLICKEY"}

// SecretName reports whether a variable of this name holds a secret. It is the
// one answer to that question: what is withheld from programs is what is not
// shown.
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

// IsSecret tells whether programs inherit the variable only by name: its name
// says so, or the manifest says that it holds a credential.
func (m *Manifest) IsSecret(name string) bool {
	if SecretName(name) {
		return true
	}
	for _, p := range m.Providers {
		if name != "" && p.EnvVar == name {
			return true
		}
	}
	return name != "" && slices.Contains([]string{
		m.Slots.Beads.TokenEnv, m.Slots.Pods.TokenEnv, m.Slots.Memory.TokenEnv, m.Slots.Memory.Embedder.KeyEnv,
		m.Slots.Events.TokenEnv, m.Slots.Orchestrator.TokenEnv,
	}, name)
}
