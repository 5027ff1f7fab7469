package bootstrap

import (
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"

	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/schema/catalog"
)

// relay generates the relay's configuration and parses it. It returns nil if there is none.
func relay(t *testing.T, text string, own ...string) map[string]any {
	t.Helper()
	m, _, findings := schema.Load("agentbox.toml", []byte("[sovereign_mesh.relay]\n"+text))
	if len(findings) > 0 {
		t.Fatal(findings)
	}
	files, err := configurations(catalog.View{Manifest: m}, Roots{}, own)
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		return nil
	}
	var out map[string]any
	if err := toml.Unmarshal(files[0].content, &out); err != nil || files[0].path != relayConfiguration {
		t.Fatalf("%s: %v\n%s", files[0].path, err, files[0].content)
	}
	return out
}

func TestRelayConfiguration(t *testing.T) {
	if c := relay(t, "enabled = false"); c != nil {
		t.Errorf("a relay that is off has %v", c)
	}
	if c := relay(t, "enabled = true\nimplementation = 'external'"); c != nil {
		t.Errorf("a relay elsewhere has %v", c)
	}
	c := relay(t, "enabled = true\nport = 7000\nbind = '::1'\nallowed_pubkeys = ['aa']\nmax_event_bytes = 2048\ninfo_description = \"a\\n[b]\"", "bb", "aa")
	limits, auth := c["limits"].(map[string]any), c["authorization"].(map[string]any)
	if limits["max_event_bytes"] != int64(2048) || limits["max_ws_frame_bytes"] != int64(2048) || limits["messages_per_sec"] != int64(5) {
		t.Errorf("limits %v", limits)
	}
	kinds := limits["event_kind_allowlist"].([]any)
	for _, k := range []int64{1, 1059, 30078, 38000, 38099, 38100, 38199} {
		if !slices.Contains(kinds, any(k)) {
			t.Errorf("kind %d is refused", k)
		}
	}
	if slices.Contains(kinds, any(int64(4))) || slices.Contains(kinds, any(int64(38200))) {
		t.Error("kinds that nobody allowed")
	}
	if keys := auth["pubkey_whitelist"].([]any); len(keys) != 2 || keys[0] != "bb" || keys[1] != "aa" {
		t.Errorf("writers %v", keys)
	}
	if auth["nip42_auth"] != true || auth["nip42_dms"] != true {
		t.Errorf("authorization %v", auth)
	}
	if n := c["network"].(map[string]any); n["address"] != "::1" || n["port"] != int64(7000) {
		t.Errorf("network %v", n)
	}
	if c["info"].(map[string]any)["description"] != "a\n[b]" || c["retention"].(map[string]any)["persist_days"] != int64(30) {
		t.Errorf("%v", c)
	}
}

// An empty list means that no client may write, not that all may.
func TestRelayWithoutWriters(t *testing.T) {
	auth := relay(t, "enabled = true")["authorization"].(map[string]any)
	if keys, ok := auth["pubkey_whitelist"].([]any); !ok || len(keys) != 0 {
		t.Errorf("writers %v", auth)
	}
	open := relay(t, "enabled = true\ningress_policy = 'open'\nallow_nip04 = true\nretention_days = 0")
	if auth := open["authorization"].(map[string]any); auth["nip42_auth"] != false || auth["pubkey_whitelist"] != nil {
		t.Errorf("open: %v", auth)
	}
	if open["retention"] != nil || !slices.Contains(open["limits"].(map[string]any)["event_kind_allowlist"].([]any), any(int64(4))) {
		t.Errorf("open: %v", open)
	}
}

// The catalogue's relay program can read the generated configuration.
func TestTheRelayReadsItsConfiguration(t *testing.T) {
	for _, f := range catalog.Load().Features {
		if p, ok := f.Programs["nostr-relay"]; ok {
			var words []string
			for _, w := range p["command"].([]any) {
				words = append(words, w.(string))
			}
			if !strings.Contains(strings.Join(words, " "), "--config ${AGENTBOX_RUNTIME_DIR:-"+path.Dir(relayConfiguration)+"}/"+path.Base(relayConfiguration)) {
				t.Errorf("the program runs %q", words)
			}
			return
		}
	}
	t.Error("no nostr-relay in the catalogue")
}
