package schema

import "slices"

// A name holds a secret when it ends in one of these words, in capitals or not.
// Those that are the end of other words too (MONKEY, COMPASS), or that are a
// word without meaning harm alone (PWD), want something before them.
const (
	secretName = `(?i)(PASSWORDS?|PASSWD|PASSPHRASE|SECRETS?|TOKEN|API_?KEYS?|(^|[_.-])(KEY|PRIVATE_?KEYS?|NSEC|DSN|CONNINFO|` +
		`CONNECTION_?STRING|CREDENTIALS?|PASS|SSHPASS|PW|PAT|AUTHORIZATION|SECRET_KEY_BASE)|[_.-]PWD)$`
	// publicName is a key that everybody may have.
	publicName = `(?i)PUBLIC_?KEY$`
)

// SecretName reports whether a variable of this name holds a secret. It is the
// one answer to that question: what is withheld from programs is what is not
// shown.
func SecretName(name string) bool {
	return regular(secretName).MatchString(name) && !regular(publicName).MatchString(name)
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
