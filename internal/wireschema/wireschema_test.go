package wireschema

import (
	"encoding/json"
	"reflect"
	"testing"
)

type page[T any] struct {
	Items []T `json:"items"`
}

type node struct {
	Name    string            `json:"name"`
	Next    *node             `json:"next"`
	Size    *int              `json:"size"`
	Weight  float64           `json:"weight,omitempty"`
	Count   uint32            `json:"count,omitzero"`
	Raw     []byte            `json:"raw,omitempty"`
	Any     any               `json:"any,omitempty"`
	Own     marshals          `json:"own,omitempty"`
	Labels  map[string]string `json:"labels,omitempty"`
	Hidden  bool              `json:"-"`
	Untyped bool
}

type marshals struct{}

func TestOf(t *testing.T) {
	s := &Schemas{Defs: map[string]any{}, At: "#/$defs/", Special: map[reflect.Type]map[string]any{
		reflect.TypeFor[marshals](): {"type": "string", "format": "own"},
	}}
	for typ, want := range map[reflect.Type]string{
		reflect.TypeFor[page[node]]():       `{"$ref": "#/$defs/pagenode"}`,
		reflect.TypeFor[*node]():            `{"$ref": "#/$defs/node"}`,
		reflect.TypeFor[[]bool]():           `{"type": "array", "items": {"type": "boolean"}}`,
		reflect.TypeFor[map[string]int8]():  `{"type": "object", "additionalProperties": {"type": "integer"}}`,
		reflect.TypeFor[json.RawMessage]():  `{"type": "string", "contentEncoding": "base64"}`,
		reflect.TypeFor[marshals]():         `{"type": "string", "format": "own"}`,
		reflect.TypeFor[map[string]uint8](): `{"type": "object", "additionalProperties": {"type": "integer", "minimum": 0}}`,
	} {
		same(t, typ.String(), s.Of(typ), want)
	}
	same(t, "definitions", s.Defs, `{
		"pagenode": {"type": "object", "required": ["items"], "properties": {"items": {"type": "array", "items": {"$ref": "#/$defs/node"}}}},
		"node": {"type": "object", "required": ["name", "next", "size"], "properties": {
			"name": {"type": "string"},
			"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
			"size": {"type": ["integer", "null"]},
			"weight": {"type": "number"},
			"count": {"type": "integer", "minimum": 0},
			"raw": {"type": "string", "contentEncoding": "base64"},
			"any": {},
			"own": {"type": "string", "format": "own"},
			"labels": {"type": "object", "additionalProperties": {"type": "string"}}
		}}
	}`)
}

// A caller may change the schema of a special type, as Object does for a pointer that may be null.
func TestSpecialIsNotChanged(t *testing.T) {
	type both struct {
		A *marshals `json:"a"`
		B marshals  `json:"b"`
	}
	s := &Schemas{Defs: map[string]any{}, Special: map[reflect.Type]map[string]any{reflect.TypeFor[marshals](): {"type": "string"}}}
	same(t, "both", s.Object(reflect.TypeFor[both]()), `{"type": "object", "required": ["a", "b"],
		"properties": {"a": {"type": ["string", "null"]}, "b": {"type": "string"}}}`)
}

func same(t *testing.T, what string, got any, want string) {
	t.Helper()
	b, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	var g, w any
	if err := json.Unmarshal(b, &g); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(want), &w); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(g, w) {
		t.Errorf("%s: %s, want %s", what, b, want)
	}
}
