package compose

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Env writes the environment of the image in the form of --env-file: one NAME=value a line. A value
// with several lines cannot be written and gives an error.
func (b *Box) Env() ([]byte, error) {
	var out strings.Builder
	out.WriteString(b.header())
	for _, name := range slices.Sorted(maps.Keys(b.Environment)) {
		value := b.Environment[name]
		if strings.ContainsAny(value, "\n\r\x00") {
			return nil, fmt.Errorf("the value of %s spans lines, which an environment file cannot hold", name)
		}
		out.WriteString(name + "=" + value + "\n")
	}
	return []byte(out.String()), nil
}

// Image writes the part of an OCI image configuration that is derived from the manifest: the
// environment and the exposed ports.
func (b *Box) Image() ([]byte, error) {
	config := struct {
		Env          []string            `json:"Env"`
		ExposedPorts map[string]struct{} `json:"ExposedPorts"`
	}{ExposedPorts: map[string]struct{}{}}
	for _, name := range slices.Sorted(maps.Keys(b.Environment)) {
		config.Env = append(config.Env, name+"="+b.Environment[name])
	}
	for _, p := range b.Ports {
		if p.Exposed {
			config.ExposedPorts[fmt.Sprintf("%d/%s", p.Number, p.protocol())] = struct{}{}
		}
	}
	out, err := json.MarshalIndent(config, "", "  ")
	if err != nil {
		return nil, err
	}
	return append(out, '\n'), nil
}
