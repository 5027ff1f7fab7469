package rest

import (
	"cmp"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// openAPI writes the route table as an OpenAPI 3.1 document.
func openAPI(table []route, version string) map[string]any {
	s := newSchemas(map[string]any{"Problem": problemSchema()}, "#/components/schemas/")
	paths := make(map[string]map[string]any)
	for _, rt := range slices.Concat(table, elsewhere()) {
		path := strings.Replace(rt.Path, "/*", "/{path}", 1)
		if paths[path] == nil {
			paths[path] = make(map[string]any)
		}
		paths[path][strings.ToLower(rt.Method)] = s.operation(rt)
	}
	return map[string]any{
		"openapi": "3.1.0",
		"info": map[string]any{
			"title": "agentbox management API", "version": version,
			"description": "Slots of a box over HTTP, and what clients ask of it. x-roles says who may.",
			"license":     map[string]any{"name": "MPL-2.0", "url": "https://www.mozilla.org/MPL/2.0/"},
		},
		// A relative URL means the box at the address that the caller has used.
		"servers":  []any{map[string]any{"url": "/", "description": "this box"}},
		"security": []any{map[string]any{"bearer": []string{}}},
		"paths":    paths,
		"components": map[string]any{
			"schemas":         s.Defs,
			"responses":       problemAnswers(s.At),
			"securitySchemes": map[string]any{"bearer": map[string]any{"type": "http", "scheme": "bearer"}},
		},
	}
}

func (s *schemas) operation(rt route) map[string]any {
	id, tag := operationID(rt), strings.TrimPrefix(rt.prefix(), "/v1")
	if rt.Slot != "" {
		tag = string(rt.Slot)
	}
	op := map[string]any{
		"operationId": id, "summary": rt.Doc, "tags": []string{strings.Trim(tag, "/")},
		"responses": s.responses(rt),
	}
	if rt.open {
		op["security"] = []any{}
	} else {
		op["x-roles"] = rt.Roles.names()
	}
	if p := parameters(rt); len(p) > 0 {
		op["parameters"] = p
	}
	if rt.Body != nil || rt.BodyTypes != nil {
		op["requestBody"] = map[string]any{"content": s.bodies(rt), "required": needsBody(rt)}
	}
	return op
}

// operationID is the unique name of a row: its ID, with the slot's name before it for a slot's row.
func operationID(rt route) string {
	if rt.Slot != "" {
		return string(rt.Slot) + "." + rt.ID
	}
	return rt.ID
}

// needsBody tells whether the box refuses a request without a body. The creation of a container in a
// pod needs no body, nor does a JSON body without required members.
func needsBody(rt route) bool {
	if rt.Body == nil {
		return rt.Slot != adapters.SlotPods || rt.ID == "patch"
	}
	return len(requiredMembers(rt.Body)) > 0
}

// requiredMembers are the names of the members that a JSON body must have.
func requiredMembers(body any) []string {
	if body == nil {
		return nil
	}
	t := reflect.TypeOf(body)
	required, ok := looser[t]
	if !ok {
		required, _ = newSchemas(make(map[string]any), "").Object(t)["required"].([]string)
	}
	return required
}

func (s *schemas) bodies(rt route) map[string]any {
	content := make(map[string]any)
	types := rt.BodyTypes
	if types == nil {
		types = []string{jsonType}
	}
	for i, mt := range types {
		media := map[string]any{}
		if i == 0 && rt.Body != nil {
			media["schema"] = s.request(reflect.TypeOf(rt.Body))
			if example := exampleOf(operationID(rt)); example != nil {
				media["example"] = example
			}
		}
		content[mt] = media
	}
	return content
}

func (s *schemas) responses(rt route) map[string]any {
	ok := map[string]any{"description": http.StatusText(rt.status())}
	mt := cmp.Or(rt.ReplyType, jsonType)
	switch {
	case rt.Reply != nil:
		answers := map[string][]any{mt: {s.Of(reflect.TypeOf(rt.Reply))}}
		for _, a := range rt.Also {
			as := cmp.Or(a.Type, mt)
			answers[as] = append(answers[as], s.Of(reflect.TypeOf(a.Body)))
		}
		ok["content"] = contents(answers)
	case rt.ReplyType != "":
		ok["content"] = map[string]any{mt: map[string]any{}}
	}
	if headers := answerHeaders(rt); len(headers) > 0 {
		ok["headers"] = headers
	}
	ref := func(name string) map[string]any { return map[string]any{"$ref": "#/components/responses/" + name} }
	out := map[string]any{strconv.Itoa(rt.status()): ok, "default": ref("Refused")}
	for _, status := range refusals(rt) {
		out[strconv.Itoa(status)] = ref("Status" + strconv.Itoa(status))
	}
	if rt.probe {
		out["503"] = map[string]any{"description": "not now", "content": ok["content"]}
	}
	return out
}

// contents gives each media type its schema, or a oneOf if there are several.
func contents(answers map[string][]any) map[string]any {
	content := make(map[string]any)
	for mt, schemas := range answers {
		if len(schemas) == 1 {
			content[mt] = map[string]any{"schema": schemas[0]}
			continue
		}
		content[mt] = map[string]any{"schema": map[string]any{"oneOf": schemas}}
	}
	return content
}

func parameters(rt route) []any {
	var out []any
	for part := range strings.SplitSeq(rt.Path, "/") {
		name := strings.Trim(part, "{}")
		if part == "*" {
			name = "path"
		} else if name == part {
			continue
		}
		out = append(out, map[string]any{"name": name, "in": "path", "required": true, "schema": map[string]any{"type": "string"}})
	}
	for _, p := range rt.Query {
		out = append(out, map[string]any{"name": p.Name, "in": "query", "description": p.Doc, "schema": map[string]any{"type": p.Type}})
	}
	for _, p := range headersOf(rt) {
		out = append(out, map[string]any{"name": p.Name, "in": "header", "description": p.Doc, "schema": map[string]any{"type": p.Type}})
	}
	return out
}

// problemSchema is the schema of a problem document (RFC 9457) with the members that agentinit adds.
func problemSchema() map[string]any {
	var codes []string
	for _, row := range adapters.Codes() {
		codes = append(codes, string(row.Code))
	}
	text := map[string]any{"type": "string"}
	return map[string]any{
		"type": "object", "required": []string{"type", "title", "status", "detail", "code", "message", "retryable"},
		"properties": map[string]any{
			"type": text, "title": text, "detail": text, "message": text,
			"status": map[string]any{"type": "integer"}, "retryable": map[string]any{"type": "boolean"},
			"code": map[string]any{"type": "string", "enum": codes},
		},
	}
}
