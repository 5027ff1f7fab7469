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
func refusedAtBoot(d *schema.Document, f Facts) (out []schema.Finding) {
	m := d.Manifest()
	report := func(message, hint string, keys ...string) {
		out = append(out, atKeys(d, keys, schema.Path(keys...)+" "+message+": the box does not start", hint))
	}
	switch m.Federation.Mode {
	case "client":
		switch {
		case m.Federation.ExternalURL == "" && (d.NonEmpty("federation.external_url") || len(externalWithoutMesh(d, f)) > 0):
			// E016 or E001 says so
		case m.Federation.ExternalURL == "":
			out = append(out, at(d, "federation.mode", `federation.mode = "client" needs a federation.external_url: the box does not start`, "write the address of the host"))
		case !webAddress(m.Federation.ExternalURL, false):
			report("is no http or https URL without credentials, query and fragment", "write the address of the host, such as https://mesh.example.org", "federation", "external_url")
		}
	case "host":
		if t := m.Federation.Heartbeat.Std(); t < leastHeartbeat || t > mostHeartbeat {
			report("is "+t.String(), "write 5s to 5m", "federation", "heartbeat")
		}
		for i, key := range m.Federation.AllowedPubkeys {
			if !publicKey().MatchString(key) {
				report("is no public key", "write its 64 hexadecimal digits in lower case, or npub1…", "federation", "allowed_pubkeys", "["+strconv.Itoa(i)+"]")
			}
		}
		if n := len(m.Federation.RelayURLs); n > mostHostRelays {
			report("names "+strconv.Itoa(n)+" relays", "name at most 8", "federation", "relay_urls")
		}
		for i, text := range m.Federation.RelayURLs {
			if u, err := url.Parse(text); err != nil || u.Scheme != "ws" && u.Scheme != "wss" || u.Hostname() == "" || u.User != nil || u.Fragment != "" {
				report("is no address of a relay", "write ws://HOST or wss://HOST, without credentials", "federation", "relay_urls", "["+strconv.Itoa(i)+"]")
			}
		}
	}
	events := m.Slots.Events
	switch m.Adapters.Events {
	case "local-jsonl":
		if events.MaxBytes != 0 && events.MaxBytes < leastJournal {
			report("is less than 1MiB", "write 1MiB or more", "slots", "events", "max_bytes")
		}
	case "external":
		if events.SpoolBytes != 0 && events.SpoolBytes < leastJournal {
			report("is less than 1MiB", "write 1MiB or more", "slots", "events", "spool_bytes")
		}
		if sink := m.Integrations.ExternalEvents.URL; sink != "" && !webAddress(sink, events.Format == "json") {
			report("is no http or https URL without credentials, query and fragment", "a token goes into the variable of slots.events.token_env", "integrations", "external_events", "url")
		}
	}
	if to := m.Integrations.RuvectorExternal.Conninfo; m.Adapters.Memory == "external-pg" && strings.TrimSpace(to) != "" &&
		!strings.Contains(to, "=") && !strings.HasPrefix(to, "postgres://") && !strings.HasPrefix(to, "postgresql://") {
		report("is no PostgreSQL connection string", "write it as in postgres://USER@HOST/DATABASE or host=HOST dbname=DATABASE", "integrations", "ruvector_external", "conninfo")
	}
	if e := m.Slots.Memory.Embedder; e.Kind == "http" && e.URL != "" && (m.Adapters.Memory == "embedded-ruvector" || m.Adapters.Memory == "external-pg") {
		if u, err := url.Parse(e.URL); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			report("is no http or https URL", "write it as in http://ollama:11434", "slots", "memory", "embedder", "url")
		}
	}
	if to := m.Observability.OTLPEndpoint; to != "" && !f.set("AGENTBOX_OTLP_ENDPOINT") {
		if u, err := url.Parse(to); err != nil || u.Hostname() == "" || u.Scheme != "http" && u.Scheme != "https" {
			report("is no http or https URL", "write it as in http://collector:4318", "observability", "otlp_endpoint")
		}
	}
	return out
}

// webAddress reports whether text is the address of a server. With query, it may have a query.
func webAddress(text string, query bool) bool {
	u, err := url.Parse(text)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && u.User == nil && u.Fragment == "" && (query || u.RawQuery == "")
}
