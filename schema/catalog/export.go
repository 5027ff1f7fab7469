package catalog

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"

	"github.com/dreamlab-ai/agentinit/schema"
)

// JSON returns the catalogue for tools that are not written in Go. It has the keys of catalog.toml
// and no empty values. "defaults" contains, for every manifest path that a condition or a template
// names, the effective value in an empty manifest. The Nix build reads the result
// (nix/catalogue.json).
func (c *Catalogue) JSON() ([]byte, error) {
	doc := plainValue(reflect.ValueOf(c)).(map[string]any)
	doc["defaults"] = c.defaults()
	out, err := json.MarshalIndent(doc, "", "  ")
	return append(out, '\n'), err
}

func (c *Catalogue) defaults() map[string]any {
	m, _, _ := schema.Load("", nil)
	view := View{Manifest: m}
	out := map[string]any{}
	for _, p := range c.paths() {
		if v, ok := view.Lookup(p); ok && !strings.HasPrefix(p, "@") {
			out[p] = v
		}
	}
	return out
}

// paths lists the manifest paths and facts that the catalogue refers to.
func (c *Catalogue) paths() []string {
	var out []string
	conditions := func(list []string) { out = append(out, Keys(list)...) }
	var texts func(v reflect.Value)
	texts = func(v reflect.Value) {
		switch v.Kind() {
		case reflect.String:
			for _, m := range template().FindAllStringSubmatch(v.String(), -1) {
				if m[0][0] != '$' {
					out = append(out, m[1])
				}
			}
		case reflect.Pointer, reflect.Interface:
			if !v.IsNil() {
				texts(v.Elem())
			}
		case reflect.Struct:
			for i := range v.NumField() {
				if list, ok := v.Field(i).Interface().([]string); ok && v.Type().Field(i).Name == "When" {
					conditions(list)
				}
				texts(v.Field(i))
			}
		case reflect.Slice:
			for i := range v.Len() {
				texts(v.Index(i))
			}
		case reflect.Map:
			for _, k := range v.MapKeys() {
				texts(v.MapIndex(k))
			}
		}
	}
	texts(reflect.ValueOf(c))
	slices.Sort(out)
	return slices.Compact(out)
}

// plainValue turns a value into maps, lists and scalars. The keys are those of the toml tags. Empty
// fields are left out.
func plainValue(v reflect.Value) any {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		return plainValue(v.Elem())
	case reflect.Struct:
		out := map[string]any{}
		for i := range v.NumField() {
			if f := v.Field(i); !f.IsZero() {
				out[v.Type().Field(i).Tag.Get("toml")] = plainValue(f)
			}
		}
		return out
	case reflect.Slice:
		out := make([]any, v.Len())
		for i := range out {
			out[i] = plainValue(v.Index(i))
		}
		return out
	case reflect.Map:
		out := map[string]any{}
		for _, k := range v.MapKeys() {
			out[k.String()] = plainValue(v.MapIndex(k))
		}
		return out
	}
	return v.Interface()
}
