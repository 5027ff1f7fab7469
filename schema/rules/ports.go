package rules

import (
	"fmt"

	"github.com/dreamlab-ai/agentinit/schema"
)

// reservedPort is a port that no other key may use.
type reservedPort struct {
	port  int64
	label string
}

var reservedPorts = []reservedPort{{5901, "desktop VNC"}, {8080, "code-server"}, {8484, "solid-pod-rs"}, {9090, "management-api"}}

const (
	metricsPort = "observability.metrics_port"
	filterPort  = "privacy_filter.port"
	podPort     = "integrations.solid_pod_rs.port"
	relayPort   = "sovereign_mesh.relay.port"
)

func portRules() []Rule {
	return []Rule{
		{Code: "E013", Severity: schema.Error,
			Doc:    "observability.metrics_port is a reserved port (5901, 8080, 8484, 9090).",
			Remedy: "Take another one; 9091 is the default.",
			Check: func(d *schema.Document, _ Facts) []schema.Finding {
				return collisions(d, metricsPort)
			}},
		{Code: "E025", Severity: schema.Error,
			Doc:    "privacy_filter.enabled is on, and privacy_filter.port is a reserved port, or another key of the manifest has the same port.",
			Remedy: "Take another one; 9092 is the default.",
			Check: func(d *schema.Document, _ Facts) []schema.Finding {
				if !d.On("privacy_filter.enabled") {
					return nil
				}
				return collisions(d, filterPort, metricsPort, podPort)
			}},
		{Code: "E028", Severity: schema.Error,
			Doc:    "sovereign_mesh.relay.enabled is on, and sovereign_mesh.relay.port is a reserved port, or another key of the manifest has the same port.",
			Remedy: "Take another one; 7777 is the default.",
			Check: func(d *schema.Document, _ Facts) []schema.Finding {
				if !d.On("sovereign_mesh.relay.enabled") {
					return nil
				}
				return collisions(d, relayPort, metricsPort, filterPort, podPort)
			}},
	}
}

// collisions compares the port at path with the reserved ports and with the ports at others.
func collisions(d *schema.Document, path string, others ...string) (out []schema.Finding) {
	port, ok := d.Int(path)
	if !ok {
		return nil
	}
	clash := func(with string) {
		out = append(out, shown(d, path, fmt.Sprintf("%s = %d collides with %s", path, port, with), "take another port"))
	}
	for _, r := range reservedPorts {
		if r.port == port {
			clash(r.label)
		}
	}
	for _, other := range others {
		if n, ok := d.Int(other); ok && n == port {
			clash(other)
		}
	}
	return out
}
