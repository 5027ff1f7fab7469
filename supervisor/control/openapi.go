package control

import (
	"encoding/json"
	"reflect"
	"strings"
	"time"

	"github.com/dreamlab-ai/agentinit/internal/problem"
	"github.com/dreamlab-ai/agentinit/internal/wireschema"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
)

// The descriptions of the two documents: of the control socket, and of its part over HTTP.
const (
	aboutSocket = "Spoken over the unix socket alone. The kernel names the peer; x-access says what a route asks of it."
	aboutRemote = "The part of the control API that the management listener serves. It takes a bearer token; x-access says what a route asks of its holder."
)

// openAPI writes a route table as an OpenAPI 3.1 document. Reflection makes the schemas from the
// wire types, so the document always agrees with the answers.
func openAPI(table []route, about, version string) map[string]any {
	s := newSchemas()
	paths := make(map[string]map[string]any)
	for _, rt := range table {
		if paths[rt.Path] == nil {
			paths[rt.Path] = make(map[string]any)
		}
		paths[rt.Path][strings.ToLower(rt.Method)] = s.operation(rt)
	}
	s.Of(reflect.TypeFor[api.Error]())
	return map[string]any{
		"openapi": "3.1.0",
		"info": map[string]any{
			"title": "agentinit control API", "version": version, "description": about,
		},
		"paths":      paths,
		"components": map[string]any{"schemas": s.Defs},
	}
}

// schemas makes the named schemas that operations refer to.
type schemas struct{ wireschema.Schemas }

func newSchemas() *schemas {
	s := &schemas{wireschema.Schemas{Defs: map[string]any{"Event": eventSchema()}, At: "#/components/schemas/"}}
	s.Special = map[reflect.Type]map[string]any{
		reflect.TypeFor[time.Time]():       {"type": "string", "format": "date-time"},
		reflect.TypeFor[json.RawMessage](): {}, // any value
		reflect.TypeFor[api.Event]():       s.Ref("Event"),
	}
	return s
}

func (s *schemas) operation(rt route) map[string]any {
	op := map[string]any{
		"summary":     rt.Doc,
		"operationId": strings.ToLower(rt.Method) + strings.NewReplacer("/", "_", ".", "_", "-", "_", "{", "", "}", "").Replace(rt.Path),
		"x-access":    rt.Access.String(),
		"responses":   s.responses(rt),
	}
	if all := parameters(rt); len(all) > 0 {
		op["parameters"] = all
	}
	if rt.Body != nil {
		op["requestBody"] = map[string]any{"content": content("application/json", s.Of(reflect.TypeOf(rt.Body)))}
	}
	return op
}

func (s *schemas) responses(rt route) map[string]any {
	ok := map[string]any{"description": "done"}
	switch {
	case rt.stream != nil:
		ok["description"] = "one JSON object a line; the last is {}, unless the stream was cut off"
		ok["content"] = content("application/x-ndjson", s.Of(reflect.TypeOf(rt.Reply)))
	case rt.Reply != nil:
		ok["content"] = content("application/json", s.Of(reflect.TypeOf(rt.Reply)))
	}
	if rt.plainHeader != "" {
		ok["content"].(map[string]any)["text/plain"] = map[string]any{"schema": s.Of(reflect.TypeFor[string]())}
		ok["headers"] = map[string]any{rt.plainHeader: map[string]any{
			"description": "only in text/plain: whether each program of the answer is running", "schema": s.Of(reflect.TypeFor[bool]()),
		}}
	}
	problem := map[string]any{
		"description": "refused or failed",
		"content":     content(problem.Type, s.Of(reflect.TypeFor[api.Error]())),
	}
	if rt.upgrade != nil {
		return map[string]any{"101": map[string]any{"description": "from here on " + rt.Protocol}, "default": problem}
	}
	return map[string]any{"200": ok, "default": problem}
}

func parameters(rt route) []any {
	var out []any
	if strings.Contains(rt.Path, "{name}") {
		out = append(out, map[string]any{
			"name": "name", "in": "path", "required": true, "description": oneName.Doc, "schema": map[string]any{"type": oneName.Type},
		})
	}
	for _, p := range rt.Query {
		schema := map[string]any{"type": p.Type}
		if p.Repeated {
			schema = map[string]any{"type": "array", "items": schema}
		}
		out = append(out, map[string]any{"name": p.Name, "in": "query", "description": p.Doc, "schema": schema})
	}
	return out
}

func content(mediaType string, schema any) map[string]any {
	return map[string]any{mediaType: map[string]any{"schema": schema}}
}

// eventSchema is the schema of event.Event's flat JSON form.
func eventSchema() map[string]any {
	text, number := map[string]any{"type": "string"}, map[string]any{"type": "integer"}
	return map[string]any{
		"type": "object", "additionalProperties": true,
		"required": []string{"seq", "time", "level", "event"},
		"properties": map[string]any{
			"seq": number, "run": number, "time": map[string]any{"type": "string", "format": "date-time"},
			"level": text, "event": text, "program": text, "agentbox.stage": text, "change": map[string]any{"type": "object"},
		},
	}
}
