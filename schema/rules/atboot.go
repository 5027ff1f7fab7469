package rules

import (
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/dreamlab-ai/agentinit/schema"
)

// Limits of the parts that refuse such a manifest at boot.
const (
	leastHeartbeat = 5 * time.Second
	mostHeartbeat  = 5 * time.Minute
	mostHostRelays = 8
	leastJournal   = 1 << 20
)

var publicKey = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(did:nostr:)?([0-9a-f]{64}|npub1[02-9ac-hj-np-z]{58})$`)
})

// refusedAtBoot reports values that the schema accepts, and with which the federation, a slot or the
// exporter of spans refuses to start. It is a warning because the older validator accepts these
// manifests (TestMultiplicity). It only looks at values that are in use, and does not show addresses,
// because they may hold a password.
func refusedAtBoot(d *schema.Document, f Facts) []schema.Finding {
	r := bootRefusals{d: d, facts: f, m: d.Manifest()}
	switch r.m.Federation.Mode {
	case "client":
		r.client()
	case "host":
		r.host()
	}
	r.events()
	r.memory()
	if to := r.m.Observability.OTLPEndpoint; to != "" && !f.set("AGENTBOX_OTLP_ENDPOINT") {
		u := httpURL(to)
		r.unless(u != nil && u.Hostname() != "", "is no http or https URL", "write it as in http://collector:4318", "observability", "otlp_endpoint")
	}
	return r.found
}

// bootRefusals collects the findings of refusedAtBoot.
type bootRefusals struct {
	d     *schema.Document
	facts Facts
	m     *schema.Manifest
	found []schema.Finding
}

// unless reports the value at keys if it is not good.
func (r *bootRefusals) unless(good bool, message, hint string, keys ...string) {
	if !good {
		r.found = append(r.found, atKeys(r.d, keys, schema.Path(keys...)+" "+message+": the box does not start", hint))
	}
}

func (r *bootRefusals) client() {
	to := r.m.Federation.ExternalURL
	switch {
	case to != "":
		r.unless(webAddress(to, false), "is no http or https URL without credentials, query and fragment", "write the address of the host, such as https://mesh.example.org", "federation", "external_url")
	case r.d.NonEmpty("federation.external_url") || len(externalWithoutMesh(r.d, r.facts)) > 0:
		// E016 or E001 says so
	default:
		r.found = append(r.found, at(r.d, "federation.mode", `federation.mode = "client" needs a federation.external_url: the box does not start`, "write the address of the host"))
	}
}

func (r *bootRefusals) host() {
	fed := r.m.Federation
	t := fed.Heartbeat.Std()
	r.unless(t >= leastHeartbeat && t <= mostHeartbeat, "is "+t.String(), "write 5s to 5m", "federation", "heartbeat")
	for i, key := range fed.AllowedPubkeys {
		r.unless(publicKey().MatchString(key), "is no public key", "write its 64 hexadecimal digits in lower case, or npub1…", "federation", "allowed_pubkeys", "["+strconv.Itoa(i)+"]")
	}
	n := len(fed.RelayURLs)
	r.unless(n <= mostHostRelays, "names "+strconv.Itoa(n)+" relays", "name at most 8", "federation", "relay_urls")
	for i, text := range fed.RelayURLs {
		u, err := url.Parse(text)
		r.unless(err == nil && (u.Scheme == "ws" || u.Scheme == "wss") && u.Hostname() != "" && u.User == nil && u.Fragment == "",
			"is no address of a relay", "write ws://HOST or wss://HOST, without credentials", "federation", "relay_urls", "["+strconv.Itoa(i)+"]")
	}
}

func (r *bootRefusals) events() {
	slot := r.m.Slots.Events
	enough := func(n schema.Size) bool { return n == 0 || n >= leastJournal }
	switch r.m.Adapters.Events {
	case "local-jsonl":
		r.unless(enough(slot.MaxBytes), "is less than 1MiB", "write 1MiB or more", "slots", "events", "max_bytes")
	case "external":
		r.unless(enough(slot.SpoolBytes), "is less than 1MiB", "write 1MiB or more", "slots", "events", "spool_bytes")
		sink := r.m.Integrations.ExternalEvents.URL
		r.unless(sink == "" || webAddress(sink, slot.Format == "json"),
			"is no http or https URL without credentials, query and fragment", "a token goes into the variable of slots.events.token_env", "integrations", "external_events", "url")
	}
}

func (r *bootRefusals) memory() {
	class := r.m.Adapters.Memory
	if to := r.m.Integrations.RuvectorExternal.Conninfo; class == "external-pg" && strings.TrimSpace(to) != "" {
		r.unless(strings.Contains(to, "=") || strings.HasPrefix(to, "postgres://") || strings.HasPrefix(to, "postgresql://"),
			"is no PostgreSQL connection string", "write it as in postgres://USER@HOST/DATABASE or host=HOST dbname=DATABASE", "integrations", "ruvector_external", "conninfo")
	}
	if e := r.m.Slots.Memory.Embedder; e.Kind == "http" && e.URL != "" && (class == "embedded-ruvector" || class == "external-pg") {
		u := httpURL(e.URL)
		r.unless(u != nil && u.Host != "", "is no http or https URL", "write it as in http://ollama:11434", "slots", "memory", "embedder", "url")
	}
}

// webAddress reports whether text is the address of a server. With query, it may have a query.
func webAddress(text string, query bool) bool {
	u := httpURL(text)
	return u != nil && u.Host != "" && u.User == nil && u.Fragment == "" && (query || u.RawQuery == "")
}

// httpURL parses an http or https URL. It returns nil for any other text.
func httpURL(text string) *url.URL {
	if u, err := url.Parse(text); err == nil && (u.Scheme == "http" || u.Scheme == "https") {
		return u
	}
	return nil
}
