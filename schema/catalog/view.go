package catalog

import (
	"cmp"
	"fmt"
	"net"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/dreamlab-ai/agentinit/schema"
)

// View gives the catalogue the values that it refers to: the effective manifest by dotted path, and
// a few facts that are not in the manifest.
type View struct {
	Manifest *schema.Manifest
	Profile  string // "agentbox" or "none"
	Version  string // version of agentinit
	System   string // x86_64-linux, aarch64-linux
}

// System is Nix's name of the system that this binary was built for.
func System() string {
	arch := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]
	return cmp.Or(arch, runtime.GOARCH) + "-" + runtime.GOOS
}

// Lookup returns the effective value at a dotted path of the manifest, or of
// one of the facts @profile, @version, @system.
func (v View) Lookup(path string) (any, bool) {
	switch path {
	case "@profile":
		return v.Profile, true
	case "@version":
		return v.Version, true
	case "@system":
		return v.System, true
	}
	at := reflect.ValueOf(v.Manifest).Elem()
	for name := range strings.SplitSeq(path, ".") {
		var ok bool
		if at, ok = child(at, name); !ok {
			return nil, false
		}
	}
	return at.Interface(), true
}

// child returns the value of one key of a table.
func child(at reflect.Value, name string) (reflect.Value, bool) {
	for at.Kind() == reflect.Pointer {
		if at.IsNil() {
			return reflect.Value{}, false
		}
		at = at.Elem()
	}
	switch at.Kind() {
	case reflect.Struct:
		if i, ok := schema.FieldsOf(at.Type())[name]; ok {
			return at.Field(i), true
		}
	case reflect.Map:
		if at.Type().Key().Kind() == reflect.String {
			e := at.MapIndex(reflect.ValueOf(name).Convert(at.Type().Key()))
			return e, e.IsValid()
		}
	}
	return reflect.Value{}, false
}

// Holds reports whether all conditions hold. The forms are "a.b" (is true), "!a.b" (is not true),
// "a.b = x | y" and "a.b != x | y". A path that does not exist is not true and equals no value.
func (v View) Holds(conditions []string) bool {
	return !slices.ContainsFunc(conditions, func(c string) bool { return !v.holds(c) })
}

func (v View) holds(condition string) bool {
	if left, right, ok := strings.Cut(condition, "!="); ok {
		return !v.equals(left, right)
	}
	if left, right, ok := strings.Cut(condition, "="); ok {
		return v.equals(left, right)
	}
	name, negated := strings.CutPrefix(strings.TrimSpace(condition), "!")
	value, _ := v.Lookup(name)
	on, _ := value.(bool)
	return on != negated
}

func (v View) equals(left, right string) bool {
	value, ok := v.Lookup(strings.TrimSpace(left))
	if !ok {
		return false
	}
	text := format(value)
	for want := range strings.SplitSeq(right, "|") {
		if strings.TrimSpace(want) == text {
			return true
		}
	}
	return false
}

// Keys lists the manifest paths in the conditions, in order.
func Keys(conditions []string) []string {
	var out []string
	for _, c := range conditions {
		c, _, _ = strings.Cut(c, "=")
		out = append(out, strings.Trim(c, "! "))
	}
	return out
}

// Describe writes conditions for human readers: `a.b`, `a.b = "x" or "y"`.
func Describe(conditions []string) string {
	parts := make([]string, len(conditions))
	for i, c := range conditions {
		left, right, ok := strings.Cut(c, "=")
		if !ok {
			parts[i] = c
			continue
		}
		var values []string
		for v := range strings.SplitSeq(right, "|") {
			values = append(values, strconv.Quote(strings.TrimSpace(v)))
		}
		parts[i] = left + "= " + strings.Join(values, " or ")
	}
	return strings.Join(parts, " and ")
}

// template matches {a.b} and {a.b|filter}. A name behind a dollar is a variable of the environment,
// and the catalogue does not fill it.
var template = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\$?\{(@?[a-z][a-z0-9_.-]*)(?:\|([a-z]+))?\}`) })

// Fill replaces {a.b} by the manifest's value. An unknown path or filter is a mistake in the
// catalogue and gives an error.
func (v View) Fill(text string) (string, error) {
	return v.fill(text, func(s string) string { return s })
}

// FillEscaped is Fill for text that is expanded later: a dollar in a manifest value is escaped, so
// that it stays a dollar.
func (v View) FillEscaped(text string) (string, error) {
	return v.fill(text, func(s string) string { return strings.ReplaceAll(s, "$", "$$") })
}

func (v View) fill(text string, escape func(string) string) (string, error) {
	if !strings.Contains(text, "{") {
		return text, nil
	}
	var failed error
	out := template().ReplaceAllStringFunc(text, func(match string) string {
		if match[0] == '$' {
			return match
		}
		parts := template().FindStringSubmatch(match)
		value, ok := v.Lookup(parts[1])
		if !ok {
			failed = fmt.Errorf("the catalogue speaks of %s, which the manifest does not know", parts[1])
			return match
		}
		s, err := filter(parts[2], format(value))
		if err != nil {
			failed = err
		}
		return escape(s)
	})
	return out, failed
}

func filter(name, s string) (string, error) {
	switch name {
	case "":
		return s, nil
	case "port":
		_, port := SplitAddress(s)
		return port, nil
	case "host":
		host, _ := SplitAddress(s)
		return host, nil
	case "dial":
		return Dialable(s), nil
	}
	return "", fmt.Errorf("the catalogue has no filter %q", name)
}

// SplitAddress splits "host:port", ":port" or "port". For any other text, such as "off", host and
// port are empty.
func SplitAddress(addr string) (host, port string) {
	if _, err := strconv.ParseUint(addr, 10, 16); err == nil {
		return "", addr
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", ""
	}
	return host, port
}

// Loopback reports whether only the box itself can reach a listener at host.
func Loopback(host string) bool {
	host = strings.Trim(host, "[]")
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// Dialable is the host with which a program inside the box reaches a listener at host.
func Dialable(host string) string {
	host = strings.Trim(host, "[]")
	ip := net.ParseIP(host)
	switch {
	case host == "" || ip != nil && ip.Equal(net.IPv4zero):
		return "127.0.0.1"
	case ip != nil && ip.Equal(net.IPv6unspecified):
		return "[::1]"
	case ip != nil && ip.To4() == nil:
		return "[" + host + "]"
	}
	return host
}

// format writes a manifest value in the form of an environment variable. Lists are joined by
// commas.
func format(value any) string {
	v := reflect.ValueOf(value)
	if v.IsValid() && v.Kind() == reflect.Slice {
		parts := make([]string, v.Len())
		for i := range parts {
			parts[i] = format(v.Index(i).Interface())
		}
		return strings.Join(parts, ",")
	}
	return fmt.Sprint(value)
}
