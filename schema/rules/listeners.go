package rules

import (
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/schema/catalog"
)

// listener is one port on which a part of the box listens.
type listener struct {
	path  string // the path at which the port is or would be written
	label string
	port  int64
	keys  []string // the keys of a program's port
}

func portOf(address string) int64 {
	_, p, err := net.SplitHostPort(address)
	if err != nil {
		return 0
	}
	n, err := strconv.ParseUint(p, 10, 16)
	if err != nil {
		return 0
	}
	return int64(n)
}

// listeners are the ports of the enabled features of the box, including defaults.
func listeners(d *schema.Document) []listener {
	m := d.Manifest()
	all := []struct {
		listener
		on bool
	}{
		{listener{path: "supervisor.listen", label: "the management listener", port: portOf(m.Supervisor.Listen)}, true},
		{metricsListener(m), true},
		{listener{path: podPort, label: "the pod server", port: int64(m.Integrations.SolidPodRS.Port)}, m.SovereignMesh.Enabled && m.Adapters.Pods == "local-solid-rs"},
		{listener{path: relayPort, label: "the relay", port: int64(m.SovereignMesh.Relay.Port)}, m.SovereignMesh.Relay.Enabled && slices.Contains([]string{"nostr-rs-relay", "embedded"}, m.SovereignMesh.Relay.Implementation)},
		{listener{path: filterPort, label: "the privacy filter", port: int64(m.PrivacyFilter.Port)}, m.PrivacyFilter.Enabled},
		{listener{path: "desktop.enabled", label: "desktop VNC", port: 5901}, m.Desktop.Enabled},
		{listener{path: "toolchains.code_server", label: "code-server", port: 8080}, m.Toolchains.CodeServer},
		{listener{path: "skills.data_science.jupyter", label: "Jupyter", port: 8888}, m.Skills.DataScience.Jupyter},
		{listener{path: "skills.media.comfyui_builtin", label: "ComfyUI", port: 8188}, m.Skills.Media.ComfyUIBuiltin},
	}
	var out []listener
	for _, l := range all {
		if l.on && l.port != 0 {
			out = append(out, l.listener)
		}
	}
	return append(out, programListeners(d)...)
}

func metricsListener(m *schema.Manifest) listener {
	if m.Supervisor.MetricsListen != "" {
		return listener{path: "supervisor.metrics_listen", label: "the metrics listener", port: portOf(m.Supervisor.MetricsListen)}
	}
	return listener{path: metricsPort, label: "the metrics listener", port: int64(m.Observability.MetricsPort)}
}

// programListeners are the ports that programs declare, and the local ports in their readiness
// probes.
func programListeners(d *schema.Document) (out []listener) {
	for p := range programs(d) {
		if p.isDefaults {
			continue
		}
		var ports []int64
		declared, _ := p.table["ports"].([]any)
		for i, e := range declared {
			text := fmt.Sprint(e)
			if port, err := schema.ParsePort(text); err == nil && port.Protocol == "tcp" && !slices.Contains(ports, int64(port.Box)) {
				ports = append(ports, int64(port.Box))
				path := p.path("ports", "["+strconv.Itoa(i)+"]")
				out = append(out, listener{schema.Path(path...), "program " + schema.Quote(p.name), int64(port.Box), path})
			}
		}
		probeTables(p, "ready", func(t map[string]any, keys ...string) {
			for _, kind := range []string{"tcp", "http"} {
				text, _ := t[kind].(string)
				if n := localPort(text); n != 0 && !slices.Contains(ports, n) {
					ports = append(ports, n)
					path := p.path(append(keys, kind)...)
					out = append(out, listener{schema.Path(path...), "program " + schema.Quote(p.name), n, path})
				}
			}
		})
	}
	return out
}

// localPort is the port of an address or URL of this machine. For any other address it is 0.
func localPort(text string) int64 {
	if strings.Contains(text, "://") {
		u, err := url.Parse(text)
		if err != nil || u.Port() == "" {
			return 0
		}
		text = u.Host
	}
	host, _, err := net.SplitHostPort(text)
	if err != nil {
		return 0
	}
	ip := net.ParseIP(host)
	if host == "" || host == "localhost" || ip != nil && (ip.IsLoopback() || ip.IsUnspecified()) {
		return portOf(text)
	}
	return 0
}

// reportedElsewhere reports whether E013, E025 or E028 covers this pair.
func reportedElsewhere(d *schema.Document, a, b listener) bool {
	ruled := []string{metricsPort, filterPort, relayPort}
	for _, l := range []listener{a, b} {
		if slices.Contains(ruled, l.path) && d.Has(l.path) && slices.ContainsFunc(reservedPorts, func(r reservedPort) bool { return r.port == l.port }) {
			return true
		}
	}
	pair := append(ruled, podPort)
	return slices.Contains(pair, a.path) && slices.Contains(pair, b.path) && d.Has(a.path) && d.Has(b.path) &&
		!(a.path == metricsPort && b.path == podPort || a.path == podPort && b.path == metricsPort)
}

func ownPair(a, b listener) bool {
	return a.path == "supervisor.listen" && b.path == "supervisor.metrics_listen"
}

// listenersCollide reports each listener at most once, together with the first listener on the same
// port. Otherwise the number of findings could grow with the square of the number of listeners.
func listenersCollide(d *schema.Document, _ Facts) (out []schema.Finding) {
	byPort := map[int64][]listener{}
	for _, b := range listeners(d) {
		for _, a := range byPort[b.port] {
			if ownPair(a, b) || reportedElsewhere(d, a, b) {
				continue
			}
			keys := b.keys
			if keys == nil {
				keys = keysOf(b.path)
			}
			out = append(out, atKeys(d, keys, fmt.Sprintf("port %d is taken twice: by %s (%s) and by %s (%s)", a.port, a.label, a.path, b.label, b.path),
				"give one of them another port"))
			break
		}
		byPort[b.port] = append(byPort[b.port], b)
	}
	return out
}

func ownListenersCollide(d *schema.Document, _ Facts) []schema.Finding {
	s := d.Manifest().Supervisor
	n := portOf(s.Listen)
	if n == 0 || n != portOf(s.MetricsListen) {
		return nil
	}
	return one(shown(d, "supervisor.metrics_listen", fmt.Sprintf("supervisor.listen and supervisor.metrics_listen both have port %d", n), "give one of them another port"))
}

// published is one port of the host, and the key that publishes it.
type published struct {
	schema.Port
	path string
	keys []string
}

// everyAddress reports whether the port is published at all addresses of the host.
func (p published) everyAddress() bool {
	ip := net.ParseIP(p.Address)
	return ip == nil || ip.IsUnspecified()
}

// hostPorts are the ports that descriptions publish: those of agentinit's listeners, the box's and
// the programs'.
func hostPorts(d *schema.Document) (out []published) {
	m := d.Manifest()
	metrics := metricsListener(m)
	for _, l := range []struct {
		path, address string
		port          int64
	}{
		{"supervisor.listen", m.Supervisor.Listen, portOf(m.Supervisor.Listen)},
		{metrics.path, m.Supervisor.MetricsListen, metrics.port},
	} {
		// A listener on loopback is not published.
		if host, _, _ := net.SplitHostPort(l.address); l.port != 0 && !catalog.Loopback(host) {
			out = append(out, published{schema.Port{Host: int(l.port), Box: int(l.port), Protocol: "tcp"}, l.path, nil})
		}
	}
	eachDeclared(d, "ports", func(entry any, keys []string) {
		if port, err := schema.ParsePort(fmt.Sprint(entry)); err == nil {
			out = append(out, published{port, schema.Path(keys...), keys})
		}
	})
	return out
}

// eachDeclared calls f for every entry of a list that the box and its programs can have.
func eachDeclared(d *schema.Document, list string, f func(entry any, keys []string)) {
	declared := func(v any, path func(...string) []string) {
		entries, _ := v.([]any)
		for i, e := range entries {
			f(e, path(list, "["+strconv.Itoa(i)+"]"))
		}
	}
	ofBox, _ := d.Lookup("supervisor." + list)
	declared(ofBox, func(keys ...string) []string { return append([]string{"supervisor"}, keys...) })
	for p := range programs(d) {
		if !p.isDefaults {
			declared(p.table[list], p.path)
		}
	}
}

// mountsCollide reports volumes of the box and of its programs that hide another one.
func mountsCollide(d *schema.Document, _ Facts) (out []schema.Finding) {
	type mount struct{ source, path string }
	taken := map[string]mount{} // by the place in the box
	eachDeclared(d, "volumes", func(entry any, keys []string) {
		text, _ := entry.(string)
		volume, err := schema.ParseVolume(text)
		if err != nil {
			return // E016
		}
		m := mount{volume.Source, schema.Path(keys...)}
		if first, ok := taken[volume.Target]; ok && first.source != m.source {
			out = append(out, valued(atKeys(d, keys, m.path+" and "+first.path+" are both mounted at "+schema.Quote(volume.Target)+": only one of them is there",
				"mount one of them at another place"), text))
		}
		taken[volume.Target] = m
	})
	return out
}

// placesCollide reports each entry at most once. Its time does not grow with the square of the
// number of entries.
func placesCollide(d *schema.Document, _ Facts) (out []schema.Finding) {
	taken := map[string]published{} // by port; by port and address
	for _, p := range hostPorts(d) {
		port := strconv.Itoa(p.Host) + "/" + p.Protocol
		every, here := port+" every", port+" "+p.Address
		first, clash := taken[every]
		if !clash {
			first, clash = taken[here]
		}
		if !clash && p.everyAddress() {
			first, clash = taken[port]
		}
		if clash && (first.Box != p.Box || first.Address != p.Address) && p.keys != nil {
			out = append(out, atKeys(d, p.keys, fmt.Sprintf("port %s of the host is taken twice: %s leads to port %d of the box, %s to port %d", port, first.path, first.Box, p.path, p.Box),
				"give one of them another port of the host"))
		}
		for _, key := range []string{port, here} {
			if _, ok := taken[key]; !ok {
				taken[key] = p
			}
		}
		if _, ok := taken[every]; !ok && p.everyAddress() {
			taken[every] = p
		}
	}
	return out
}
