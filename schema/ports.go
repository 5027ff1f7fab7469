package schema

import (
	"errors"
	"net"
	"path"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"unicode"
)

// Port is a port that a box publishes. It is written as 8080, "80:8080", "127.0.0.1:80:8080" or
// "53/udp".
type Port struct {
	// Address is the host's address to listen on. Empty means every address.
	Address  string `json:"address,omitempty"`
	Host     int    `json:"host"`     // port on the host
	Box      int    `json:"box"`      // port inside the box
	Protocol string `json:"protocol"` // tcp or udp
}

var errPort = errors.New(`a port such as 8080, "80:8080" (host and box), "127.0.0.1:80:8080" or "53/udp"`)

// ParsePort reads the text form of a port.
func ParsePort(text string) (Port, error) {
	p := Port{Protocol: "tcp"}
	rest, protocol, stated := strings.Cut(text, "/")
	if stated {
		p.Protocol = protocol
	}
	box := rest
	if i := strings.LastIndexByte(rest, ':'); i >= 0 {
		host := rest[:i]
		box = rest[i+1:]
		if j := strings.LastIndexByte(host, ':'); j >= 0 {
			p.Address, host = strings.Trim(host[:j], "[]"), host[j+1:]
			if net.ParseIP(p.Address) == nil {
				return Port{}, errPort
			}
		}
		p.Host = portNumber(host)
	} else {
		p.Host = portNumber(box)
	}
	p.Box = portNumber(box)
	if p.Host == 0 || p.Box == 0 || p.Protocol != "tcp" && p.Protocol != "udp" {
		return Port{}, errPort
	}
	return p, nil
}

// portNumber is the number of a port, or 0 if the text is not a port.
func portNumber(text string) int {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return 0
	}
	return int(n)
}

// String writes the port in the syntax of container engines.
func (p Port) String() string {
	text := strconv.Itoa(p.Host) + ":" + strconv.Itoa(p.Box)
	if p.Address != "" {
		address := p.Address
		if strings.Contains(address, ":") {
			address = "[" + address + "]"
		}
		text = address + ":" + text
	}
	if p.Protocol == "udp" {
		text += "/udp"
	}
	return text
}

func (p *Port) fromTOML(v any) (err error) {
	switch v := v.(type) {
	case int64:
		*p, err = ParsePort(strconv.FormatInt(v, 10))
		return err
	case string:
		*p, err = ParsePort(v)
		return err
	}
	return errPort
}

// Volume is a mount of a box. It is written as "data:/var/lib/data" or "./conf:/etc/app:ro".
type Volume struct {
	Source   string `json:"source"` // name of a volume, or a path on the host
	Target   string `json:"target"` // absolute path in the box
	ReadOnly bool   `json:"read_only,omitempty"`
}

var errVolume = errors.New(`a volume's name of two or more letters, digits, "_", "." and "-", or a path that begins with "/", "./", "../" or "~", and where it is mounted, such as "data:/var/lib/data" or "./conf:/etc/app:ro"`)

// ParseVolume reads the text form of a volume.
func ParseVolume(text string) (Volume, error) {
	source, rest, ok := strings.Cut(text, ":")
	target, mode, moded := strings.Cut(rest, ":")
	if !ok || !volumeSource(source) || !cleanPath(target) || moded && mode != "ro" && mode != "rw" || strings.ContainsAny(text, "$\n") {
		return Volume{}, errVolume
	}
	return Volume{Source: source, Target: target, ReadOnly: mode == "ro"}, nil
}

// volumeSource reports whether a text is a path on the host or the name of a volume as docker and
// podman accept it. Both refuse any other name when the box is started; compose takes a single letter
// for a drive of Windows.
func volumeSource(s string) bool {
	if s != "" && strings.ContainsAny(s[:1], "./~") {
		return strings.IndexFunc(s, unicode.IsControl) < 0
	}
	return volumeName().MatchString(s)
}

var volumeName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]+$`) })

func (v *Volume) fromTOML(value any) (err error) {
	text, ok := value.(string)
	if !ok {
		return errVolume
	}
	*v, err = ParseVolume(text)
	return err
}

// cleanPath reports whether a text is an absolute path in canonical form.
func cleanPath(p string) bool {
	return strings.HasPrefix(p, "/") && p != "/" && path.Clean(p) == p && !strings.ContainsAny(p, "$:,\n")
}

func decodesWritable(v any) error {
	if !cleanPath(v.(string)) {
		return errors.New(`an absolute path such as "/var/cache/nginx", without "..", ":" or a trailing "/"`)
	}
	return nil
}

func portsShape(doc string) *shape {
	item := (&shape{kinds: kString | kInteger}).between(1, 65535).formOf(decodes[Port])
	return list(doc, item).def([]string{}).eg([]any{int64(8080), "127.0.0.1:80:8080", "53/udp"})
}

// deploymentKeys are keys for a description of the container around the box. agentinit itself
// ignores them.
func deploymentKeys(of string) []key {
	return []key{
		field("ports", portsShape("Ports that "+of+" listens on and that agentctl generate publishes: a number, or the ports of the host and of the box (\"80:8080\"). An address may stand before them, and \"/udp\" behind them. agentinit's own listeners need no entry.")),
		field("volumes", list("What "+of+" keeps, for the files of agentctl generate: the name of a volume or a path of the host, then where it is mounted. \":ro\" behind it makes it read-only.", text("").formOf(decodes[Volume])).def([]string{}).eg([]any{"data:/var/lib/app", "./nginx.conf:/etc/nginx/nginx.conf:ro"})),
		field("writable", list("Directories that "+of+" writes and that need not last: the files of agentctl generate mount a tmpfs there, because the rest of the box is read-only.", text("").formOf(decodesWritable)).def([]string{}).eg([]any{"/var/cache/nginx"})),
	}
}
