package orchestrator

import "testing"

// A name is secret if one of its words marks a secret. A part of a word does not count.
func TestSecretNames(t *testing.T) {
	for name, want := range map[string]bool{
		"NSEC": true, "MY_NSEC": true, "nostr-nsec": true, "NSEC_FILE": true, "DSN": true, "PG_DSN": true, "PG_DSN_2": true,
		"AGENTBOX_MANAGEMENT_KEY": true, "DEPLOY_PRIVATE_KEY_FILE": true, "RUVECTOR_CONNINFO": true,
		"MAX_CONSECUTIVE_ERRORS": false, "CONSECUTIVE": false, "HANDSNAPS": false, "OPENAI_API_KEY": false, "": false,
	} {
		if got := secret(name); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
