// Package wireschema owns the JSON Schemas (2020-12) of Go types as encoding/json writes them. The
// OpenAPI documents and the contracts of the slots use it, so they cannot differ from the real answers.
// It is pure. It must never know a type of the product: a type that marshals itself is an argument.
package wireschema

import (
	"maps"
	"reflect"
	"strings"
)

// Schemas collects the schemas of structs by their names.
type Schemas struct {
	Defs map[string]any
	// At is the prefix of references, such as "#/$defs/".
	At string
	// Special holds the schemas of types that marshal themselves.
	Special map[reflect.Type]map[string]any
}

// Of returns the schema of a type. For a struct, it returns a reference to a schema in Defs.
func (s *Schemas) Of(t reflect.Type) map[string]any {
	if schema, ok := s.Special[t]; ok {
		return maps.Clone(schema)
	}
	switch t.Kind() {
	case reflect.Pointer:
		return s.Of(t.Elem())
	case reflect.Struct:
		return s.named(t)
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return map[string]any{"type": "string", "contentEncoding": "base64"}
		}
		return map[string]any{"type": "array", "items": s.Of(t.Elem())}
	case reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": s.Of(t.Elem())}
	case reflect.String:
		return map[string]any{"type": "string"}
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.Float32, reflect.Float64:
		return map[string]any{"type": "number"}
	case reflect.Interface:
		return map[string]any{}
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return map[string]any{"type": "integer", "minimum": 0}
	}
	return map[string]any{"type": "integer"}
}

// named stores a placeholder before it makes the schema, so that a recursive type does not recurse
// for ever.
func (s *Schemas) named(t reflect.Type) map[string]any {
	name := Name(t)
	if _, known := s.Defs[name]; !known {
		s.Defs[name] = nil
		s.Defs[name] = s.Object(t)
	}
	return s.Ref(name)
}

// Ref returns a reference to the schema with that name.
func (s *Schemas) Ref(name string) map[string]any { return map[string]any{"$ref": s.At + name} }

// Name returns the name of a Go type without packages: PageBead for Page[adapters.Bead].
func Name(t reflect.Type) string {
	name, arg, generic := strings.Cut(t.Name(), "[")
	if generic {
		arg = strings.TrimSuffix(arg, "]")
		name += arg[strings.LastIndex(arg, ".")+1:]
	}
	return name
}

// Object returns the schema of a struct. A member is required unless its tag has omitempty or omitzero.
// A required pointer may be null.
func (s *Schemas) Object(t reflect.Type) map[string]any {
	properties := make(map[string]any)
	required := []string{}
	for _, f := range reflect.VisibleFields(t) {
		tag, ok := f.Tag.Lookup("json")
		name, options, _ := strings.Cut(tag, ",")
		if !ok || !f.IsExported() || name == "-" {
			continue
		}
		optional := strings.Contains(options, "omitempty") || strings.Contains(options, "omitzero")
		member := s.Of(f.Type)
		if f.Type.Kind() == reflect.Pointer && !optional {
			member = nullable(member)
		}
		properties[name] = member
		if !optional {
			required = append(required, name)
		}
	}
	return map[string]any{"type": "object", "properties": properties, "required": required}
}

func nullable(schema map[string]any) map[string]any {
	if t, ok := schema["type"].(string); ok {
		schema["type"] = []string{t, "null"}
		return schema
	}
	return map[string]any{"anyOf": []any{schema, map[string]any{"type": "null"}}}
}
