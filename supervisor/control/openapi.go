package control

import (
	"encoding/json"
	"reflect"
	"strings"
	"time"

	"github.com/dreamlab-ai/agentinit/internal/problem"
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
	s := schemas{}
	paths := make(map[string]map[string]any)
	for _, rt := range table {
		if paths[rt.Path] == nil {
			paths[rt.Path] = make(map[string]any)
		}
		paths[rt.Path][strings.ToLower(rt.Method)] = s.operation(rt)
	}
	s.of(reflect.TypeFor[api.Error]())
	return map[string]any{
		"openapi": "3.1.0",
		"info": map[string]any{
			"title": "agentinit control API", "version": version, "description": about,
		},
		"paths":      paths,
		"components": map[string]any{"schemas": map[string]any(s)},
	}
}

// schemas collects the named schemas that operations refer to.
type schemas map[string]any

func (s schemas) operation(rt route) map[string]any {
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
		op["requestBody"] = map[string]any{"content": content("application/json", s.of(reflect.TypeOf(rt.Body)))}
	}
	return op
}

func (s schemas) responses(rt route) map[string]any {
	ok := map[string]any{"description": "done"}
	switch {
	case rt.stream != nil:
		ok["description"] = "one JSON object a line; the last is {}, unless the stream was cut off"
		ok["content"] = content("application/x-ndjson", s.of(reflect.TypeOf(rt.Reply)))
	case rt.Reply != nil:
		ok["content"] = content("application/json", s.of(reflect.TypeOf(rt.Reply)))
	}
	if rt.plainHeader != "" {
		ok["content"].(map[string]any)["text/plain"] = map[string]any{"schema": s.of(reflect.TypeFor[string]())}
		ok["headers"] = map[string]any{rt.plainHeader: map[string]any{
			"description": "only in text/plain: whether each program of the answer is running", "schema": s.of(reflect.TypeFor[bool]()),
		}}
	}
	problem := map[string]any{
		"description": "refused or failed",
		"content":     content(problem.Type, s.of(reflect.TypeFor[api.Error]())),
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

var (
	timeType  = reflect.TypeFor[time.Time]()
	rawType   = reflect.TypeFor[json.RawMessage]()
	eventType = reflect.TypeFor[api.Event]()
)

// of returns the schema of a type. A struct becomes a named schema and a reference to it.
func (s schemas) of(t reflect.Type) map[string]any {
	switch t {
	case timeType:
		return map[string]any{"type": "string", "format": "date-time"}
	case rawType:
		return map[string]any{}
	case eventType:
		return s.named("Event", eventSchema)
	}
	switch t.Kind() {
	case reflect.Pointer:
		return s.of(t.Elem())
	case reflect.Struct:
		return s.named(t.Name(), func() map[string]any { return s.object(t) })
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return map[string]any{"type": "string", "contentEncoding": "base64"}
		}
		return map[string]any{"type": "array", "items": s.of(t.Elem())}
	case reflect.String:
		return map[string]any{"type": "string"}
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.Float64:
		return map[string]any{"type": "number"}
	}
	return map[string]any{"type": "integer"}
}

// named first stores a placeholder, so that a type that contains itself does not recurse for ever.
func (s schemas) named(name string, build func() map[string]any) map[string]any {
	if _, known := s[name]; !known {
		s[name] = nil
		s[name] = build()
	}
	return map[string]any{"$ref": "#/components/schemas/" + name}
}

func (s schemas) object(t reflect.Type) map[string]any {
	properties := make(map[string]any)
	var required []string
	for _, f := range reflect.VisibleFields(t) {
		tag, ok := f.Tag.Lookup("json")
		if !ok || !f.IsExported() {
			continue
		}
		name, options, _ := strings.Cut(tag, ",")
		properties[name] = s.of(f.Type)
		if !strings.Contains(options, "omitempty") {
			required = append(required, name)
		}
	}
	out := map[string]any{"type": "object", "properties": properties}
	if len(required) > 0 {
		out["required"] = required
	}
	return out
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
