package rest

import (
	"encoding/json"
	"reflect"
	"strings"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// schemas collects the JSON Schemas (2020-12) of named types. It makes them from the Go types that
// the server marshals, so that the document cannot differ from the real answers.
type schemas struct {
	defs map[string]any
	at   string // prefix of references, such as "#/$defs/"
}

var (
	timeType       = reflect.TypeFor[adapters.Time]()
	nullStringType = reflect.TypeFor[adapters.NullString]()
	rawType        = reflect.TypeFor[json.RawMessage]()
	refType        = reflect.TypeFor[Ref]()
)

// of returns the schema of a type. For a struct, it returns a reference to a named schema.
func (s *schemas) of(t reflect.Type) map[string]any {
	switch t {
	case timeType:
		return map[string]any{"type": []string{"string", "null"}, "format": "date-time"}
	case nullStringType:
		return map[string]any{"type": []string{"string", "null"}}
	case rawType:
		return map[string]any{"type": "object"}
	case refType:
		return map[string]any{"type": []string{"string", "integer", "null"}}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return s.of(t.Elem())
	case reflect.Struct:
		return s.named(t)
	case reflect.Slice:
		return map[string]any{"type": "array", "items": s.of(t.Elem())}
	case reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": s.of(t.Elem())}
	case reflect.String:
		return map[string]any{"type": "string"}
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.Float32, reflect.Float64:
		return map[string]any{"type": "number"}
	case reflect.Interface:
		return map[string]any{}
	case reflect.Uint, reflect.Uint64:
		return map[string]any{"type": "integer", "minimum": 0}
	}
	return map[string]any{"type": "integer"}
}

// named stores a placeholder before it makes the schema, so that a recursive type does not recurse
// for ever.
func (s *schemas) named(t reflect.Type) map[string]any {
	name := typeName(t)
	if _, known := s.defs[name]; !known {
		s.defs[name] = nil
		s.defs[name] = s.object(t)
	}
	return map[string]any{"$ref": s.at + name}
}

// typeName returns the name of a Go type without packages: PageBead for Page[adapters.Bead].
func typeName(t reflect.Type) string {
	name, arg, generic := strings.Cut(t.Name(), "[")
	if generic {
		arg = strings.TrimSuffix(arg, "]")
		name += arg[strings.LastIndex(arg, ".")+1:]
	}
	return name
}

// object returns the schema of a struct as encoding/json writes it. A member is required unless its
// tag has omitempty or omitzero. A required pointer may be null.
func (s *schemas) object(t reflect.Type) map[string]any {
	properties := make(map[string]any)
	required := []string{}
	for _, f := range reflect.VisibleFields(t) {
		tag, ok := f.Tag.Lookup("json")
		name, options, _ := strings.Cut(tag, ",")
		if !ok || !f.IsExported() || name == "-" {
			continue
		}
		optional := strings.Contains(options, "omitempty") || strings.Contains(options, "omitzero")
		member := s.of(f.Type)
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

// looser lists the required members of types that are both requests and answers. In a request, the
// box fills in the other members.
var looser = map[reflect.Type][]string{
	reflect.TypeFor[adapters.Event](): {"kind"},
	reflect.TypeFor[adapters.Dep]():   {"to"},
}

// request returns the schema of the type of a request body.
func (s *schemas) request(t reflect.Type) map[string]any {
	required, ok := looser[t]
	if !ok {
		return s.of(t)
	}
	name := typeName(t) + "Input"
	def := s.object(t)
	def["required"] = required
	s.defs[name] = def
	return map[string]any{"$ref": s.at + name}
}
