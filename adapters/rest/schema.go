package rest

import (
	"encoding/json"
	"reflect"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/internal/wireschema"
)

// schemas makes the schemas of requests and answers.
type schemas struct{ wireschema.Schemas }

// newSchemas starts from the schemas in defs; at is the prefix of references.
func newSchemas(defs map[string]any, at string) *schemas {
	return &schemas{wireschema.Schemas{Defs: defs, At: at, Special: map[reflect.Type]map[string]any{
		reflect.TypeFor[adapters.Time]():       {"type": []string{"string", "null"}, "format": "date-time"},
		reflect.TypeFor[adapters.NullString](): {"type": []string{"string", "null"}},
		reflect.TypeFor[json.RawMessage]():     {"type": "object"},
		reflect.TypeFor[Ref]():                 {"type": []string{"string", "integer", "null"}},
	}}}
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
		return s.Of(t)
	}
	name := wireschema.Name(t) + "Input"
	def := s.Object(t)
	def["required"] = required
	s.Defs[name] = def
	return s.Ref(name)
}
