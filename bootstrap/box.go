package bootstrap

import (
	"cmp"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/schema/catalog"
)

// Addresses are where the servers listen: host:port, or "off".
type Addresses struct {
	Management string
	Metrics    string
}

// Off as an address opens no listener.
const Off = "off"

// ListenAddresses resolves the addresses. MANAGEMENT_API_HOST is the host of both listeners. It,
// MANAGEMENT_API_PORT and AGENTBOX_METRICS_PORT take precedence over the manifest. If neither the
// environment nor the manifest gives an address, the listener is open to the network when contained
// is true, and on loopback otherwise. A listener that the manifest switches off stays off. The
// error is a *Failure with ExitManifest.
func ListenAddresses(l *Loaded, contained bool, getenv func(string) string) (Addresses, error) {
	m, everywhere := l.Manifest, "127.0.0.1"
	if contained {
		everywhere = "0.0.0.0"
	}
	host := getenv("MANAGEMENT_API_HOST")
	listen := m.Supervisor.Listen
	if _, port, err := net.SplitHostPort(listen); err == nil && !l.Document.NonEmpty("supervisor.listen") {
		listen = net.JoinHostPort(everywhere, port)
	}
	management, err := override("MANAGEMENT_API_PORT", listen, host, getenv("MANAGEMENT_API_PORT"))
	if err != nil {
		return Addresses{}, err
	}
	declared := cmp.Or(m.Supervisor.MetricsListen, net.JoinHostPort(everywhere, strconv.Itoa(m.Observability.MetricsPort)))
	metrics, err := override("AGENTBOX_METRICS_PORT", declared, host, getenv("AGENTBOX_METRICS_PORT"))
	return Addresses{Management: management, Metrics: metrics}, err
}

// containerMarks are files that container engines create in every container. Docker creates the
// first, Podman the second.
var containerMarks = []string{"/.dockerenv", "/run/.containerenv"}

// Contained reports whether this process is in a container, where only published ports can be
// reached from outside. That is the case if it is PID 1, or if it runs without --root and finds the
// mark of an engine (systemd's Container Interface defines the variable "container"). agentinit is
// not PID 1 under "docker run --init" or in a pod with a shared process namespace.
func Contained(pid int, r Roots, getenv func(string) string) bool {
	if pid == 1 {
		return true
	}
	if r.Prefix != "" {
		return false
	}
	return getenv("container") != "" || getenv("KUBERNETES_SERVICE_HOST") != "" || slices.ContainsFunc(containerMarks, func(name string) bool {
		_, err := os.Lstat(name)
		return err == nil
	})
}

// override replaces the host and the port of an address if new ones are given.
func override(variable, address, host, port string) (string, error) {
	if address == Off {
		return Off, nil
	}
	oldHost, oldPort, err := net.SplitHostPort(address)
	if err != nil {
		return "", fail(ExitManifest, err, "the listen address %q is not host:port", address)
	}
	if port != "" {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return "", fail(ExitManifest, nil, "%s is %q, which is no port; write a number from 1 to 65535, or unset it", variable, truncate(port, 40))
		}
	}
	return net.JoinHostPort(cmp.Or(strings.Trim(host, "[]"), oldHost), cmp.Or(port, oldPort)), nil
}

// PublicOrigins are the origins at which the box is reached, in the form of ParseOrigin. If
// MANAGEMENT_API_PUBLIC_URLS (separated by commas) is set, they come from it, otherwise from the
// manifest. The error is a *Failure with ExitManifest.
func PublicOrigins(m *schema.Manifest, getenv func(string) string) ([]string, error) {
	urls, where := m.API.PublicURLs, "api.public_urls"
	if v := getenv("MANAGEMENT_API_PUBLIC_URLS"); v != "" {
		urls, where = strings.Split(v, ","), "MANAGEMENT_API_PUBLIC_URLS"
	}
	origins := make([]string, 0, len(urls))
	for _, u := range urls {
		if u = strings.TrimSpace(u); u == "" {
			continue
		}
		origin, err := schema.ParseOrigin(u)
		if err != nil {
			return nil, fail(ExitManifest, nil, "%s: each entry must be %v, not %q", where, err, truncate(u, 80))
		}
		origins = append(origins, origin)
	}
	return origins, nil
}

// Mounts are the directories that must exist and be writable before the box is ready. There are
// none in a plain container. They are known after Load.
func (b *Boot) Mounts() []string {
	if !b.agentbox() {
		return nil
	}
	r := b.cfg.Roots
	mounts := []string{r.Workspace, r.Projects, r.Ruvector}
	if b.Current().Manifest.Adapters.Pods == "local-solid-rs" {
		mounts = append(mounts, r.SolidPods)
	}
	return mounts
}

// Relays are the relays of NOSTR_RELAYS or, if that is not set, of the manifest, and the box's own
// relay. If wanted is true, at least one of them must answer before the box is ready. They are
// known after Load.
func (b *Boot) Relays() (urls []string, wanted bool) {
	m := b.Current().Manifest
	if !m.SovereignMesh.Enabled || !m.SovereignMesh.PublishAgentEvents {
		return nil, false
	}
	for _, r := range b.MeshRelays() {
		if r.Publish {
			urls = append(urls, r.URL)
		}
	}
	return urls, true
}

// MeshRelay is a relay that the box is connected to.
type MeshRelay struct {
	URL       string
	Own       bool // it is the box's own relay
	Publish   bool // the box's events are published there
	Subscribe bool // events for the box are read from it
}

// MeshRelays are the relays that the box connects to: its own relay and the outside relays. Outside
// relays are included if agent events are published there, if the Nostr bridge is on, or if the
// fan-out of the box's relay needs them. They are known after Load.
func (b *Boot) MeshRelays() []MeshRelay {
	m := b.Current().Manifest
	mesh := m.SovereignMesh
	if !mesh.Enabled {
		return nil
	}
	var out []MeshRelay
	if publish, subscribe := b.Outside(); publish || subscribe {
		for _, url := range b.outsideRelays(m) {
			out = append(out, MeshRelay{URL: url, Publish: publish, Subscribe: subscribe})
		}
	}
	if relay := mesh.Relay; relay.Enabled && (relay.Implementation == RelayEmbedded || relay.Implementation == RelayProgram) {
		out = append(out, MeshRelay{URL: "ws://" + catalog.Dialable(relay.Bind) + ":" + strconv.Itoa(relay.Port), Own: true, Publish: true, Subscribe: true})
	}
	return out
}

// Outside reports what the manifest allows the box to do at relays other than its own. The result
// is known after Load.
func (b *Boot) Outside() (publish, subscribe bool) {
	mesh := b.Current().Manifest.SovereignMesh
	if !mesh.Enabled {
		return false, false
	}
	fanout := "off"
	if mesh.Relay.Enabled {
		fanout = mesh.Relay.ExternalFanout
	}
	publish = mesh.PublishAgentEvents || mesh.NostrBridge || fanout == "bidirectional" || fanout == "publish-only"
	subscribe = mesh.NostrBridge || fanout == "bidirectional" || fanout == "subscribe-only"
	return publish, subscribe
}

// outsideRelays are the relays of NOSTR_RELAYS or, if that is not set, those of the manifest.
func (b *Boot) outsideRelays(m *schema.Manifest) (urls []string) {
	for url := range strings.SplitSeq(b.getenv("NOSTR_RELAYS"), ",") {
		if url = strings.TrimSpace(url); url != "" {
			urls = append(urls, url)
		}
	}
	if len(urls) == 0 {
		urls = append(append(urls, m.SovereignMesh.Operator.RelayURLs...), m.Integrations.ExternalEvents.RelayURLs...)
	}
	return urls
}
