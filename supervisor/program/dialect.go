package program

import (
	"encoding/json"
	"errors"
	"net"
	"net/url"
	"strconv"
	"strings"
)

// Dialect is one way to find out whether a program is ready or healthy: a row of the table below. A
// new dialect needs a row here and a row in supervisor/ready. The row here gives the manifest its
// key, check, documentation and words. The row in supervisor/ready makes the probe.
type Dialect struct {
	// Name is the key in the manifest.
	Name string
	// Health says that it may also be used while the program runs. Other dialects can report
	// success only once.
	Health bool
	// Value is the type of the key's value.
	Value DialectValue
	// Doc and Example are for the manifest's reference.
	Doc     string
	Example any
	// Words say what the program waits for; %s stands for the target.
	Words string
	// Check says what is wrong with a target; nil accepts all targets.
	Check func(target string) error
}

// DialectValue is the type of a dialect's key.
type DialectValue int

// The types of a dialect's key.
const (
	TextValue       DialectValue = iota // a text, the target
	FlagValue                           // true
	DescriptorValue                     // a file descriptor from 3 to 255
	CommandValue                        // an argument vector or a string to split
	PatternValue                        // a regular expression (RE2)
)

// Dialects is every dialect, in the order of the manifest's reference.
var Dialects = []Dialect{
	{Name: "http", Health: true, Doc: "URL that answers 2xx or 3xx; it begins with http:// or https://. The certificate is not verified.", Example: "http://127.0.0.1:8000/healthz", Words: "HTTP %s", Check: checkURL},
	{Name: "tcp", Health: true, Doc: "host:port that accepts.", Example: "127.0.0.1:5432", Words: "TCP %s", Check: checkAddress},
	{Name: "unix", Health: true, Doc: "Socket path that accepts.", Example: "/run/db/.s.PGSQL.5432", Words: "the socket %s"},
	{Name: "grpc", Health: true, Doc: "host:port or host:port/service, grpc.health.v1.", Example: "127.0.0.1:50051", Words: "gRPC health of %s", Check: checkAddress},
	{Name: "exec", Health: true, Value: CommandValue, Doc: "Exits 0. While it fails, the last line that it prints is shown as the reason.", Example: []any{"pg_isready", "-h", "127.0.0.1"}, Words: "the command %s"},
	{Name: "file", Health: true, Doc: "Path that exists.", Example: "/run/web/ready", Words: "the file %s"},
	{Name: DialectNotify, Value: FlagValue, Doc: "READY=1 on $NOTIFY_SOCKET (sd_notify).", Example: true, Words: "READY=1 on its notify socket"},
	{Name: "fd", Value: DescriptorValue, Doc: "A newline on this descriptor (s6), among the first 64 KiB.", Example: 3, Words: "a newline on descriptor %s"},
	{Name: "log", Value: PatternValue, Doc: "Regular expression (RE2) on a line of output.", Example: "listening on .*:8000", Words: "a line of output that matches %s"},
}

// DialectNotify is sd_notify(3). Its messages come through one socket that all programs with this
// dialect share.
const DialectNotify = "notify"

// DialectNames are the names of all dialects, or of those that health may use.
func DialectNames(health bool) []string {
	var names []string
	for _, d := range Dialects {
		if d.Health || !health {
			names = append(names, d.Name)
		}
	}
	return names
}

// DialectOf finds the row of a probe; ok is false if the probe has no dialect.
func (p Probe) DialectOf() (d Dialect, ok bool) {
	for _, d := range Dialects {
		if d.Name == p.Dialect {
			return d, true
		}
	}
	return Dialect{}, false
}

// String says what the probe waits for.
func (p Probe) String() string {
	d, _ := p.DialectOf()
	target := p.Shown()
	switch d.Value {
	case CommandValue:
		target = strings.Join(p.Argv, " ")
	case PatternValue:
		target = strconv.Quote(p.Target)
	}
	return strings.Replace(d.Words, "%s", target, 1)
}

// Shown is the target without the secrets that a URL may contain: its password, and its query, which often
// is a token. /ready shows the target to everyone.
func (p Probe) Shown() string {
	address, hidden := p.Target, ""
	if p.Dialect == "http" {
		var found bool
		if address, _, found = strings.Cut(address, "?"); found {
			hidden = "?…"
		}
	}
	if u, err := url.Parse(address); err == nil && u.User != nil {
		address = u.Redacted()
	}
	return address + hidden
}

// MarshalJSON writes the target without secrets, because every reader of a plan may read it.
func (p Probe) MarshalJSON() ([]byte, error) {
	type plain Probe
	p.Target = p.Shown()
	return json.Marshal(plain(p))
}

// ReadyBy is what a program declares as its readiness, in words and without secrets; "" if it
// declares none, or if s is nil.
func (s *Spec) ReadyBy() string {
	if s == nil {
		return ""
	}
	parts := make([]string, len(s.Readiness.Probes))
	for i, probe := range s.Readiness.Probes {
		parts[i] = s.Hide(probe.String())
	}
	if s.Readiness.Any {
		return strings.Join(parts, " or ")
	}
	return strings.Join(parts, " and ")
}

// Descriptor is the file descriptor of the dialect fd; 0 for other dialects.
func (p Probe) Descriptor() int {
	if d, _ := p.DialectOf(); d.Value != DescriptorValue {
		return 0
	}
	n, err := strconv.Atoi(p.Target)
	if err != nil {
		return 0
	}
	return n
}

var errProbeURL = errors.New(`a URL that begins with http:// or https://, such as "http://127.0.0.1:8000/healthz"`)

// checkURL refuses an address that an HTTP probe cannot use.
func checkURL(target string) error {
	u, err := url.Parse(target)
	if err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Hostname() != "" {
		if u.Port() != "" && !canListen(u.Port()) {
			return errPortNumber
		}
		return nil
	}
	// A password or a query is not repeated.
	if with := "http://" + target; !strings.Contains(target, "://") && !strings.ContainsAny(target, "@?#") {
		if u, err := url.Parse(with); err == nil && u.Hostname() != "" {
			return errors.New("a URL that begins with http:// or https://, such as " + strconv.Quote(with))
		}
	}
	return errProbeURL
}

// checkAddress refuses an address that a TCP or gRPC probe cannot dial.
func checkAddress(target string) error {
	address, _, _ := strings.Cut(target, "/")
	_, port, err := net.SplitHostPort(address)
	if err != nil || port == "" {
		return errors.New(`host and port, such as "127.0.0.1:5432"`)
	}
	if !canListen(port) {
		return errPortNumber
	}
	return nil
}

var errPortNumber = errors.New("an address with a port from 1 to 65535")

// canListen reports whether a program can listen on the port. A word may be the name of a service.
func canListen(port string) bool {
	n, err := strconv.Atoi(port)
	return err != nil && !errors.Is(err, strconv.ErrRange) || n > 0 && n <= 65535
}
