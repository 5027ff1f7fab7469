package schema

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"reflect"
	"strings"
	"sync"
)

var errProbeURL = errors.New(`a URL that begins with http:// or https://, such as "http://127.0.0.1:8000/healthz"`)

// decodesProbeURL refuses an address that no HTTP probe can ask. A text with
// variables is checked after their expansion, by CheckProbe.
func decodesProbeURL(v any) error {
	text := v.(string)
	if strings.Contains(text, "$") {
		return nil
	}
	u, err := url.Parse(text)
	if err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Hostname() != "" {
		return nil
	}
	if with := "http://" + text; !strings.Contains(text, "://") {
		if u, err := url.Parse(with); err == nil && u.Hostname() != "" {
			return errors.New("a URL that begins with http:// or https://, such as " + Quote(with))
		}
	}
	return errProbeURL
}

// decodesProbeAddress refuses what a TCP or gRPC probe cannot dial.
func decodesProbeAddress(v any) error {
	text := v.(string)
	if strings.Contains(text, "$") {
		return nil
	}
	address, _, _ := strings.Cut(text, "/")
	if _, port, err := net.SplitHostPort(address); err != nil || port == "" {
		return errors.New(`host and port, such as "127.0.0.1:5432"`)
	}
	return nil
}

// CheckProbe says what is wrong with a probe whose variables are expanded; nil:
// it can be asked. A dollar that is left stands for itself.
func CheckProbe(p Probe) error {
	literal := func(text string) any { return strings.ReplaceAll(text, "$", "_") }
	switch {
	case p.HTTP != "" && decodesProbeURL(literal(p.HTTP)) != nil:
		return errProbeURL // the address itself may hold a secret
	case p.TCP != "":
		return decodesProbeAddress(literal(p.TCP))
	case p.GRPC != "":
		return decodesProbeAddress(literal(p.GRPC))
	}
	return nil
}

// probeTable is one table of ready or health as written: it may state several
// kinds at once, each of which becomes a Probe.
type probeTable struct {
	probe    Probe
	kinds    []string
	any      bool
	deadline Duration
	failures int
	action   string
	watchdog Duration
}

var (
	readyTable  = sync.OnceValue(readyShape)
	healthTable = sync.OnceValue(healthShape)
)

// readProbeTable applies the shape's defaults to one table and reads it.
func readProbeTable(s *shape, v any) (probeTable, error) {
	raw, ok := v.(map[string]any)
	if !ok {
		return probeTable{}, errors.New("a table")
	}
	full := defaultOf(s.asTable()).(map[string]any)
	maps.Copy(full, raw)
	var t probeTable
	decodeTable(reflect.ValueOf(&t.probe).Elem(), s, full)
	for _, kind := range []string{"notify", "fd", "http", "tcp", "unix", "grpc", "exec", "log", "file"} {
		if v, ok := raw[kind]; ok && v != false {
			t.kinds = append(t.kinds, kind)
		}
	}
	t.any, _ = full["any"].(bool)
	t.action, _ = full["action"].(string)
	if n, ok := full["failures"].(int64); ok {
		t.failures = int(n)
	}
	for name, dst := range map[string]*Duration{"deadline": &t.deadline, "watchdog": &t.watchdog} {
		if v, ok := full[name]; ok {
			if err := dst.fromTOML(v); err != nil {
				return t, fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	return t, nil
}

// split makes one Probe of each kind stated.
func (t probeTable) split() []Probe {
	var out []Probe
	for _, kind := range t.kinds {
		p := Probe{Interval: t.probe.Interval, Timeout: t.probe.Timeout, Successes: t.probe.Successes}
		switch kind {
		case "notify":
			p.Notify = t.probe.Notify
		case "fd":
			p.FD = t.probe.FD
		case "http":
			p.HTTP = t.probe.HTTP
		case "tcp":
			p.TCP = t.probe.TCP
		case "unix":
			p.Unix = t.probe.Unix
		case "grpc":
			p.GRPC = t.probe.GRPC
		case "exec":
			p.Exec = t.probe.Exec
		case "log":
			p.Log = t.probe.Log
		case "file":
			p.File = t.probe.File
		}
		out = append(out, p)
	}
	return out
}

func tablesOf(v any) []any {
	if list, ok := v.([]any); ok {
		return list
	}
	return []any{v}
}

// fromTOML reads one table or an array of them. any in one of them counts for
// all, and the longest deadline holds.
func (r *Ready) fromTOML(v any) error {
	for _, e := range tablesOf(v) {
		t, err := readProbeTable(readyTable(), e)
		if err != nil {
			return err
		}
		r.Probes = append(r.Probes, t.split()...)
		r.Any = r.Any || t.any
		r.Deadline = max(r.Deadline, t.deadline)
	}
	return nil
}

// fromTOML reads one table or an array of them. failures, action and watchdog
// hold for all: the fewest failures, the shortest watchdog, the last action
// that is written.
func (h *Health) fromTOML(v any) error {
	h.Action = "restart"
	for _, e := range tablesOf(v) {
		t, err := readProbeTable(healthTable(), e)
		if err != nil {
			return err
		}
		h.Probes = append(h.Probes, t.split()...)
		if h.Failures == 0 || t.failures < h.Failures {
			h.Failures = t.failures
		}
		if raw, ok := e.(map[string]any); ok && raw["action"] != nil {
			h.Action = t.action
		}
		if t.watchdog > 0 && (h.Watchdog == 0 || t.watchdog < h.Watchdog) {
			h.Watchdog = t.watchdog
		}
	}
	return nil
}
