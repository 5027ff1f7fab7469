package schema

import (
	"bytes"
	"encoding/json"
	"sync"
)

// schemaID is where editors find the schema if a manifest names none.
const schemaID = "https://github.com/dreamlab-ai/agentinit/schema/agentbox.toml.schema.json"

// member is one entry of an ordered JSON object.
type member struct {
	name  string
	value any
}

type object []member

func (o object) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, m := range o {
		if i > 0 {
			b.WriteByte(',')
		}
		name, err := json.Marshal(m.name)
		if err != nil {
			return nil, err
		}
		value, err := marshalPlain(m.value)
		if err != nil {
			return nil, err
		}
		b.Write(name)
		b.WriteByte(':')
		b.Write(value)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// marshalPlain does not escape <, > and &, because people read the schema.
func marshalPlain(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimRight(b.Bytes(), "\n"), nil
}

// JSONSchema is the JSON Schema (draft-07) of the manifest, indented. It covers every check of the
// validator except two: it accepts a float at an integer key (9090.0), and it cannot express the
// form of some strings as a pattern.
var JSONSchema = sync.OnceValue(func() []byte {
	root := object{
		{"$schema", "http://json-schema.org/draft-07/schema#"},
		{"$id", schemaID},
		{"title", "agentbox.toml"},
	}
	root = append(root, jsonShape(manifestShape())...)
	raw, err := root.MarshalJSON()
	if err != nil {
		panic("schema: the shape holds a value that JSON has no form for: " + err.Error())
	}
	var out bytes.Buffer
	if err := json.Indent(&out, raw, "", "  "); err != nil {
		panic("schema: " + err.Error())
	}
	out.WriteByte('\n')
	return out.Bytes()
})

func jsonShape(s *shape) object {
	var o object
	add := func(name string, value any) { o = append(o, member{name, value}) }
	if doc := describedShape(s); doc != "" {
		add("description", doc)
	}
	if types := jsonTypes(s.kinds); len(types) == 1 {
		add("type", types[0])
	} else {
		add("type", types)
	}
	if s.enum != nil {
		add("enum", s.enum)
	}
	if s.value != nil {
		add("default", s.value)
	}
	if s.also != nil {
		add("examples", s.also)
	}
	if s.pattern != "" {
		add("pattern", s.pattern)
	}
	if s.minLen > 0 {
		add("minLength", s.minLen)
	}
	if s.min != nil {
		add("minimum", *s.min)
	}
	if s.max != nil {
		add("maximum", *s.max)
	}
	if s.minItem > 0 {
		add("minItems", s.minItem)
	}
	if s.items != nil {
		add("items", jsonShape(s.items))
	}
	if s.kinds&kTable != 0 {
		o = append(o, jsonTable(s)...)
	}
	return o
}

func jsonTable(s *shape) (o object) {
	var required []string
	if len(s.keys) > 0 {
		properties := make(object, len(s.keys))
		for i, k := range s.keys {
			properties[i] = member{k.name, jsonShape(k.shape)}
			if k.required {
				required = append(required, k.name)
			}
		}
		o = append(o, member{"properties", properties})
	}
	if required != nil {
		o = append(o, member{"required", required})
	}
	if s.names != nil {
		o = append(o, member{"propertyNames", object{{"pattern", s.names.pattern}}})
	}
	if s.entry == nil {
		return append(o, member{"additionalProperties", false})
	}
	return append(o, member{"additionalProperties", jsonShape(s.entry)})
}

func describedShape(s *shape) string {
	doc := s.doc
	if s.env != "" {
		doc += " The environment wins: " + s.env + "."
	}
	return doc
}

func jsonTypes(k kind) []string {
	if k&kNumber != 0 {
		k &^= kInteger // a number includes integers
	}
	var out []string
	for _, n := range []struct {
		kind kind
		name string
	}{{kString, "string"}, {kInteger, "integer"}, {kNumber, "number"}, {kBool, "boolean"}, {kArray, "array"}, {kTable, "object"}} {
		if k&n.kind != 0 {
			out = append(out, n.name)
		}
	}
	return out
}
