package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"
)

// described is what a container description says about the box, for the checks of the chain from
// [observability] to the box.
type described struct {
	Environment map[string]string // the variables that the description itself sets
	Ports       []int             // of the container, sorted
	// Unread are ports whose text contains no number on this machine.
	Unread []string
}

// composeService is one service of a compose file; both keys have two forms.
type composeService struct {
	Environment yaml.Node   `yaml:"environment"`
	Ports       []yaml.Node `yaml:"ports"`
}

// readCompose reads the service agentbox of a compose file
// (https://github.com/compose-spec/compose-spec). It resolves variables with lookup, as compose
// does.
func readCompose(text []byte, lookup func(string) (string, bool)) (described, error) {
	var file struct {
		Services map[string]composeService `yaml:"services"`
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		return described{}, err
	}
	service, ok := file.Services["agentbox"]
	if !ok {
		return described{}, errors.New("it has no service agentbox")
	}
	d := described{Environment: map[string]string{}}
	if err := d.environment(&service.Environment, lookup); err != nil {
		return described{}, err
	}
	for i := range service.Ports {
		text, err := portText(&service.Ports[i])
		if err != nil {
			return described{}, err
		}
		d.port(interpolate(text, lookup))
	}
	slices.Sort(d.Ports)
	d.Ports = slices.Compact(d.Ports)
	return d, nil
}

// environment accepts the mapping form and the list form. A name without a value is passed through
// from the operator's environment, so it is ignored.
func (d *described) environment(n *yaml.Node, lookup func(string) (string, bool)) error {
	switch n.Kind {
	case 0:
		return nil
	case yaml.SequenceNode:
		var list []string
		if err := n.Decode(&list); err != nil {
			return err
		}
		for _, entry := range list {
			if name, value, ok := strings.Cut(entry, "="); ok {
				d.Environment[name] = interpolate(value, lookup)
			}
		}
		return nil
	}
	var values map[string]*string
	if err := n.Decode(&values); err != nil {
		return err
	}
	for name, value := range values {
		if value != nil {
			d.Environment[name] = interpolate(*value, lookup)
		}
	}
	return nil
}

// portText is the container's part of a port in its short or its long form.
func portText(n *yaml.Node) (string, error) {
	if n.Kind != yaml.MappingNode {
		return n.Value, nil
	}
	var long struct {
		Target string `yaml:"target"`
	}
	err := n.Decode(&long)
	return long.Target, err
}

// port takes "[[IP:]HOST:]CONTAINER[-LAST][/PROTOCOL]".
func (d *described) port(text string) {
	container, _, _ := strings.Cut(text[strings.LastIndexByte(text, ':')+1:], "/")
	first, last, ranged := strings.Cut(container, "-")
	if !ranged {
		last = first
	}
	from, err := strconv.ParseUint(first, 10, 16)
	to, errTo := strconv.ParseUint(last, 10, 16)
	if err != nil || errTo != nil || to < from {
		d.Unread = append(d.Unread, text)
		return
	}
	for n := from; n <= to; n++ {
		d.Ports = append(d.Ports, int(n))
	}
}

// variable matches $$, ${NAME}, ${NAME:-fallback}, ${NAME-fallback} and $NAME.
var variable = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`\$(?:\$|\{([A-Za-z_][A-Za-z0-9_]*)(:?-([^}]*))?\}|([A-Za-z_][A-Za-z0-9_]*))`)
})

func interpolate(text string, lookup func(string) (string, bool)) string {
	return variable().ReplaceAllStringFunc(text, func(match string) string {
		if match == "$$" {
			return "$"
		}
		part := variable().FindStringSubmatch(match)
		value, set := lookup(part[1] + part[4])
		if !set || value == "" && strings.HasPrefix(part[2], ":") {
			return part[3]
		}
		return value
	})
}

// imageConfig is the part of an image description that contains the ports. It is at the top in
// agentctl generate image and image/oci.json, under config in an OCI configuration, and under
// Config in the engines' inspect.
type imageConfig struct {
	ExposedPorts map[string]struct{} `json:"ExposedPorts"`
	OCI          *imageConfig        `json:"config"`
}

// readImage reads the exposed TCP ports of an image configuration, or of the list that `podman
// image inspect` and `docker image inspect` print.
func readImage(text []byte) (ports []int, err error) {
	var config imageConfig
	if list := []imageConfig(nil); json.Unmarshal(text, &list) == nil && len(list) == 1 {
		config = list[0]
	} else if err := json.Unmarshal(text, &config); err != nil {
		return nil, err
	}
	if config.OCI != nil {
		config = *config.OCI
	}
	for text := range config.ExposedPorts {
		number, protocol, _ := strings.Cut(text, "/")
		n, err := strconv.ParseUint(number, 10, 16)
		if err != nil {
			return nil, fmt.Errorf("the exposed port %q is not a valid port", text)
		}
		if protocol == "" || protocol == "tcp" {
			ports = append(ports, int(n))
		}
	}
	slices.Sort(ports)
	return ports, nil
}
