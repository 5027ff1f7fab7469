package relay

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dreamlab-ai/agentinit/internal/foreign"
)

// nostr-tools logs in (NIP-42), publishes events and reads them back. It finds only those private
// messages (NIP-17) that are addressed to it.
func TestWithNostrTools(t *testing.T) {
	_, url := serve(t, func(_ *Config, p *Policy) { p.Ingress = SignedOnly })
	out, err := foreign.NostrTools(t.Context(), strings.NewReader(""), filepath.Join("testdata", "client.cjs"), url)
	foreign.SkipOrFail(t, err)
	var seen struct {
		Refused   string
		Note      bool
		Strangers int
		Messages  []string
	}
	if err := json.Unmarshal(out, &seen); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if !strings.HasPrefix(seen.Refused, "auth-required:") || !seen.Note || seen.Strangers != 1 || !slices.Equal(seen.Messages, []string{"secret hello"}) {
		t.Errorf("nostr-tools saw %+v", seen)
	}
}
