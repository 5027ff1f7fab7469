package rules

import (
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/dreamlab-ai/agentinit/schema"
)

const ld = "linked_data"

// surfaces are the gates of linked data. userSurfaces are those with data that users wrote.
var (
	surfaces = []string{"pods", "events", "credentials", "did_documents", "provenance", "capability_descriptors",
		"skill_metadata", "payments", "memory_catalogue", "architecture_docs", "http_meta"}
	userSurfaces = []string{"pods", "events", "provenance", "payments"}
)

// reservedPrefixes are routes of the management listener.
var reservedPrefixes = []string{"/v1", "/livez", "/ready", "/health", "/metrics", "/agent-events", "/comfyui", "/tasks"}

func linkedDataRules() []Rule {
	return []Rule{
		{Code: "E040", Severity: schema.Error, Check: gatesWithoutSwitch,
			Doc:    "A gate of [linked_data] is open, but linked_data.enabled is not on.",
			Remedy: "Set linked_data.enabled = true, or close the gate."},
		{Code: "E041", Severity: schema.Error, Check: withLinkedData(podsSurface),
			Doc:    `linked_data.pods is open, but adapters.pods is neither "local-solid-rs" nor "external".`,
			Remedy: "Give the slot pods one of the two classes."},
		{Code: "E042", Severity: schema.Error, Check: withLinkedData(eventsSurface),
			Doc:    "linked_data.events is open, but sovereign_mesh.relay.enabled is not on.",
			Remedy: "Enable the relay, or close the gate."},
		{Code: "E043", Severity: schema.Error, Check: withLinkedData(canonicalForm),
			Doc:    `linked_data.credentials or linked_data.payments is open, but canonicalisation is not "jcs".`,
			Remedy: `Set canonicalisation = "jcs".`},
		{Code: "E044", Severity: schema.Error, Check: withLinkedData(didWithoutPod),
			Doc:    "linked_data.did_documents is open, but sovereign_mesh.solid_pod is not on.",
			Remedy: "Set sovereign_mesh.solid_pod = true."},
		{Code: "E045", Severity: schema.Error, Check: withLinkedData(emptyContexts),
			Doc:    "An entry of [linked_data.contexts] is empty or not a string.",
			Remedy: "Write the IRI of the context."},
		{Code: "E046", Severity: schema.Error, Check: withLinkedData(cacheOff),
			Doc:    `linked_data.context_cache_mode is "off" while pods, events, provenance or payments is open.`,
			Remedy: `Use "image" or "bind".`},
		{Code: "W047", Severity: schema.Warning, Check: withLinkedData(failOpen),
			Doc:    `linked_data.unknown_context_policy is "fail-open" while linked_data.pods is "on".`,
			Remedy: `Use "fail-closed".`},
		{Code: "W048", Severity: schema.Warning, Check: withLinkedData(unfilteredSurface),
			Doc:    "A user surface of linked data (pods, events, provenance, payments) is open, but privacy_filter.enabled is not on.",
			Remedy: "Enable the privacy filter."},
		{Code: "E048", Severity: schema.Error, Check: withLinkedData(handoffOrder),
			Doc:    `linked_data.privacy_handoff.order is not "after".`,
			Remedy: `Write "after", or leave the key out.`},
		{Code: "E049", Severity: schema.Error, Check: withLinkedData(didResolverOff),
			Doc:    "linked_data.did_documents is open with method nostr, but integrations.solid_pod_rs.enable_did_nostr is false.",
			Remedy: "Set enable_did_nostr = true, or use another method."},
		{Code: "E050", Severity: schema.Error, Check: viewerWithoutSwitch,
			Doc:    "linked_data.viewer.mode is not off, but linked_data.enabled is not on.",
			Remedy: "Set linked_data.enabled = true, or mode = \"off\"."},
		{Code: "E051", Severity: schema.Error, Check: withLinkedData(viewerWithoutURL),
			Doc:    `linked_data.viewer.mode is "external", but external_url is empty.`,
			Remedy: "Write the address of the viewer."},
		{Code: "E052", Severity: schema.Error, Check: withLinkedData(badIntegrity),
			Doc:    "linked_data.viewer.sri_hash is not an integrity hash (sha256-, sha384- or sha512- and base64).",
			Remedy: "Write the hash as browsers expect it."},
		{Code: "W053", Severity: schema.Warning, Check: withLinkedData(noViewer),
			Doc:    "A user surface of linked data is open, but linked_data.viewer.mode is off: users cannot view the data.",
			Remedy: `Set viewer.mode to "local-linkedobjects" or "external".`},
		{Code: "E054", Severity: schema.Error, Check: withLinkedData(mountOnRoute),
			Doc:    "linked_data.viewer.mount_path is, or lies below, a route of the management listener.",
			Remedy: `Use another prefix; "/lo" is the default.`},
	}
}

// withLinkedData runs a check only if linked data is enabled.
func withLinkedData(check func(*schema.Document) []schema.Finding) func(*schema.Document, Facts) []schema.Finding {
	return func(d *schema.Document, _ Facts) []schema.Finding {
		if !d.On(ld + ".enabled") {
			return nil
		}
		return check(d)
	}
}

// open reports whether a gate is a non-empty string other than off.
func open(d *schema.Document, gate string) bool {
	return d.Or(ld+"."+gate, "off") != "off"
}

// openUserSurface returns the first user surface that is open.
func openUserSurface(d *schema.Document) (string, bool) {
	i := slices.IndexFunc(userSurfaces, func(g string) bool { return open(d, g) })
	if i < 0 {
		return "", false
	}
	return ld + "." + userSurfaces[i], true
}

func viewerMode(d *schema.Document) string { return d.Or(ld+".viewer.mode", "off") }

func gatesWithoutSwitch(d *schema.Document, _ Facts) (out []schema.Finding) {
	if d.On(ld + ".enabled") {
		return nil
	}
	for _, g := range surfaces {
		if open(d, g) {
			key := ld + "." + g
			out = append(out, shown(d, key, key+" = "+said(d, key)+" needs linked_data.enabled = true", "switch it on, or close the gate"))
		}
	}
	return out
}

func podsSurface(d *schema.Document) []schema.Finding {
	if !open(d, "pods") || d.Is("adapters.pods", "local-solid-rs") || d.Is("adapters.pods", "external") {
		return nil
	}
	return one(shown(d, ld+".pods", "linked_data.pods = "+said(d, ld+".pods")+` needs adapters.pods = "local-solid-rs" or "external", and it is `+said(d, "adapters.pods"), "give the slot pods one of the two classes"))
}

func eventsSurface(d *schema.Document) []schema.Finding {
	if !open(d, "events") || d.On("sovereign_mesh.relay.enabled") {
		return nil
	}
	return one(shown(d, ld+".events", "linked_data.events = "+said(d, ld+".events")+" needs sovereign_mesh.relay.enabled = true", "enable the relay, or close the gate"))
}

func canonicalForm(d *schema.Document) []schema.Finding {
	form := d.Or(ld+".canonicalisation", "jcs")
	if !open(d, "credentials") && !open(d, "payments") || form == "jcs" {
		return nil
	}
	return one(shown(d, ld+".canonicalisation", `linked_data.credentials and linked_data.payments need linked_data.canonicalisation = "jcs", and it is `+schema.Quote(form), `use "jcs"`))
}

func didWithoutPod(d *schema.Document) []schema.Finding {
	if !open(d, "did_documents") || d.On("sovereign_mesh.solid_pod") {
		return nil
	}
	return one(shown(d, ld+".did_documents", "linked_data.did_documents = "+said(d, ld+".did_documents")+" needs sovereign_mesh.solid_pod = true", "set it"))
}

func emptyContexts(d *schema.Document) (out []schema.Finding) {
	for _, prefix := range d.Keys(ld, "contexts") {
		v, _ := d.At(ld, "contexts", prefix)
		if s, ok := v.(string); ok && s != "" {
			continue
		}
		keys := []string{ld, "contexts", prefix}
		out = append(out, valued(atKeys(d, keys, schema.Path(keys...)+" must be the IRI of a context, not "+schema.Describe(v), "write the IRI, or remove the prefix"), v))
	}
	return out
}

func cacheOff(d *schema.Document) []schema.Finding {
	gate, some := openUserSurface(d)
	if !some || !d.Is(ld+".context_cache_mode", "off") {
		return nil
	}
	return one(shown(d, ld+".context_cache_mode", `linked_data.context_cache_mode = "off", but `+gate+" is open", `use "image" or "bind"`))
}

func failOpen(d *schema.Document) []schema.Finding {
	if !d.Is(ld+".unknown_context_policy", "fail-open") || !d.Is(ld+".pods", "on") {
		return nil
	}
	return one(shown(d, ld+".unknown_context_policy", `linked_data.unknown_context_policy = "fail-open" while linked_data.pods = "on"`, `use "fail-closed"`))
}

func unfilteredSurface(d *schema.Document) []schema.Finding {
	gate, some := openUserSurface(d)
	if !some || d.On("privacy_filter.enabled") {
		return nil
	}
	return one(shown(d, gate, gate+" is open, but privacy_filter.enabled is not true", "enable the privacy filter"))
}

func handoffOrder(d *schema.Document) []schema.Finding {
	const key = ld + ".privacy_handoff.order"
	order, ok := d.String(key)
	if !ok || order == "after" {
		return nil
	}
	return one(shown(d, key, key+` must be "after"`, `write "after", or leave the key out`))
}

func didResolverOff(d *schema.Document) []schema.Finding {
	const key = "integrations.solid_pod_rs.enable_did_nostr"
	resolver, _ := d.Lookup(key)
	if !open(d, "did_documents") || d.Or(ld+".did.method", "nostr") != "nostr" || resolver != false {
		return nil
	}
	return one(shown(d, key, "linked_data.did_documents with method nostr needs "+key+" = true", "set it, or use another method"))
}

func viewerWithoutSwitch(d *schema.Document, _ Facts) []schema.Finding {
	const key = ld + ".viewer.mode"
	if d.On(ld+".enabled") || viewerMode(d) == "off" {
		return nil
	}
	return one(shown(d, key, key+" = "+said(d, key)+" needs linked_data.enabled = true", `switch it on, or set mode = "off"`))
}

func viewerWithoutURL(d *schema.Document) []schema.Finding {
	if !d.Is(ld+".viewer.mode", "external") || d.NonEmpty(ld+".viewer.external_url") {
		return nil
	}
	return one(shown(d, ld+".viewer.mode", `linked_data.viewer.mode = "external" needs linked_data.viewer.external_url`, "write the address of the viewer"))
}

var integrityHash = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^sha(256|384|512)-[A-Za-z0-9+/]+={0,2}$`)
})

func badIntegrity(d *schema.Document) []schema.Finding {
	const key = ld + ".viewer.sri_hash"
	hash, _ := d.String(key)
	if hash == "" || integrityHash().MatchString(hash) {
		return nil
	}
	return one(shown(d, key, key+" = "+schema.Quote(hash)+" is not an integrity hash", `write it as "sha384-" and base64`))
}

func noViewer(d *schema.Document) []schema.Finding {
	gate, some := openUserSurface(d)
	if !some || viewerMode(d) != "off" {
		return nil
	}
	return one(at(d, ld+".viewer.mode", gate+` is open, but linked_data.viewer.mode is "off"`, `use "local-linkedobjects" or "external"`))
}

func mountOnRoute(d *schema.Document) []schema.Finding {
	const key = ld + ".viewer.mount_path"
	path, _ := d.String(key)
	for _, r := range reservedPrefixes {
		if path == r || strings.HasPrefix(path, r+"/") {
			return one(shown(d, key, key+" = "+schema.Quote(path)+" is a route of the management listener ("+r+")", `use another prefix such as "/lo"`))
		}
	}
	return nil
}
