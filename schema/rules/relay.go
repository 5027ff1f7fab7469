package rules

import (
	"regexp"
	"strconv"
	"sync"

	"github.com/dreamlab-ai/agentinit/schema"
)

const relay = "sovereign_mesh.relay"

func relayRules() []Rule {
	return []Rule{
		{Code: "E026", Severity: schema.Error, Check: withRelay(relayAlone),
			Doc:    "sovereign_mesh.relay.enabled is on without sovereign_mesh.enabled or sovereign_mesh.solid_pod.",
			Remedy: "Switch one of the two on."},
		{Code: "E027", Severity: schema.Error, Check: withRelay(externalRelay),
			Doc:    `sovereign_mesh.relay.implementation is "external", but federation.mode is not "client" or federation.external_url is empty.`,
			Remedy: `Set both, or use "nostr-rs-relay".`},
		{Code: "E029", Severity: schema.Error, Check: withRelay(relayEverywhere),
			Doc:    `sovereign_mesh.relay.bind is "0.0.0.0", but sovereign_mesh.relay.expose is not on.`,
			Remedy: `Bind to "127.0.0.1", or set expose = true.`},
		{Code: "E030", Severity: schema.Error, Check: withRelay(openBothWays),
			Doc:    `sovereign_mesh.relay.ingress_policy is "open" and external_fanout is "bidirectional": any client of the relay could make the box publish.`,
			Remedy: `Use "signed-only" or "allowlist", or another fan-out.`},
		{Code: "W030", Severity: schema.Warning, Check: withRelay(openIngress),
			Doc:    `sovereign_mesh.relay.ingress_policy is "open": every client may write. With external_fanout = "bidirectional" the finding is E030 instead.`,
			Remedy: `Use "signed-only" or "allowlist".`},
		{Code: "W031", Severity: schema.Warning, Check: withRelay(nip04),
			Doc:    "sovereign_mesh.relay.allow_nip04 is on: the older direct messages leak who talks with whom.",
			Remedy: "Switch it off."},
		{Code: "W039", Severity: schema.Warning, Check: withRelay(emptyAllowlist),
			Doc:    `sovereign_mesh.relay.ingress_policy is written as "allowlist", but allowed_pubkeys is empty: only the key of the box may write.`,
			Remedy: "List the keys that may write."},
		{Code: "W116", Severity: schema.Warning, Check: withRelay(keysOfNobody),
			Doc:    "Each entry of sovereign_mesh.relay.allowed_pubkeys must be 64 hexadecimal digits in lower case. The relay ignores any other entry, for example an npub.",
			Remedy: "Write the key as 64 hexadecimal digits."},
	}
}

// withRelay runs a check only if the relay is enabled.
func withRelay(check func(*schema.Document) []schema.Finding) func(*schema.Document, Facts) []schema.Finding {
	return func(d *schema.Document, _ Facts) []schema.Finding {
		if !d.On(relay + ".enabled") {
			return nil
		}
		return check(d)
	}
}

func relayAlone(d *schema.Document) []schema.Finding {
	if d.On("sovereign_mesh.enabled") || d.On("sovereign_mesh.solid_pod") {
		return nil
	}
	return one(shown(d, relay+".enabled", relay+".enabled = true needs sovereign_mesh.enabled or sovereign_mesh.solid_pod", "switch one of the two on"))
}

func externalRelay(d *schema.Document) []schema.Finding {
	lacks, hint := clientLacks(d)
	if lacks == "" || !d.Is(relay+".implementation", "external") {
		return nil
	}
	return one(shown(d, relay+".implementation", relay+`.implementation = "external" `+lacks, hint+`, or use "nostr-rs-relay"`))
}

func relayEverywhere(d *schema.Document) []schema.Finding {
	if !d.Is(relay+".bind", "0.0.0.0") || d.On(relay+".expose") {
		return nil
	}
	return one(shown(d, relay+".bind", relay+`.bind = "0.0.0.0" needs `+relay+".expose = true", `bind to "127.0.0.1", or set expose = true`))
}

func openAndBidirectional(d *schema.Document) bool {
	return d.Is(relay+".ingress_policy", "open") && d.Is(relay+".external_fanout", "bidirectional")
}

func openBothWays(d *schema.Document) []schema.Finding {
	if !openAndBidirectional(d) {
		return nil
	}
	return one(shown(d, relay+".ingress_policy", relay+`.ingress_policy = "open" must not go with `+relay+`.external_fanout = "bidirectional"`, `use "signed-only" or "allowlist"`))
}

func openIngress(d *schema.Document) []schema.Finding {
	if !d.Is(relay+".ingress_policy", "open") || openAndBidirectional(d) {
		return nil
	}
	return one(shown(d, relay+".ingress_policy", relay+`.ingress_policy = "open" lets every client write`, `use "signed-only" or "allowlist"`))
}

func nip04(d *schema.Document) []schema.Finding {
	if !d.On(relay + ".allow_nip04") {
		return nil
	}
	return one(shown(d, relay+".allow_nip04", relay+".allow_nip04 = true accepts the older direct messages, which leak who talks with whom", "switch it off"))
}

func emptyAllowlist(d *schema.Document) []schema.Finding {
	if !d.Is(relay+".ingress_policy", "allowlist") || isNonEmptyList(d, relay+".allowed_pubkeys") {
		return nil
	}
	return one(shown(d, relay+".ingress_policy", relay+`.ingress_policy = "allowlist" with an empty `+relay+".allowed_pubkeys leaves only the own key", "list the keys that may write"))
}

var hexKey = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[0-9a-f]{64}$`) })

func keysOfNobody(d *schema.Document) (out []schema.Finding) {
	for i, key := range d.Manifest().SovereignMesh.Relay.AllowedPubkeys {
		if !hexKey().MatchString(key) {
			keys := []string{"sovereign_mesh", "relay", "allowed_pubkeys", "[" + strconv.Itoa(i) + "]"}
			out = append(out, atKeys(d, keys, schema.Path(keys...)+" is not 64 hexadecimal digits in lower case, so the relay ignores it", "write the key in this form"))
		}
	}
	return out
}
