package rest_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/xeipuuv/gojsonschema"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/rest"
)

var update = flag.Bool("update", false, "write the generated schemas anew")

func schemaFile(slot adapters.Slot) string {
	return filepath.Join("contracts", rest.ContractFile(slot))
}

// The committed schemas match the Go types. An incompatible change needs a new MAJOR version, and so
// a new file: -update does not write it to the old file.
func TestSchemasAreCurrentAndOnlyGrow(t *testing.T) {
	for _, slot := range adapters.Slots() {
		now := plain(t, rest.Contract(slot))
		raw, err := os.ReadFile(schemaFile(slot))
		if err != nil && !*update {
			t.Fatalf("%v: write it with -update", err)
		}
		if err == nil {
			var old map[string]any
			if err := json.Unmarshal(raw, &old); err != nil {
				t.Fatal(err)
			}
			for _, b := range breaks(old, now) {
				t.Errorf("%s: %s: that needs a new MAJOR of the contract", rest.ContractFile(slot), b)
			}
		}
		text, err := json.MarshalIndent(now, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		text = append(text, '\n')
		if string(text) == string(raw) || t.Failed() {
			continue
		}
		if !*update {
			t.Errorf("%s is not current: run the test with -update", rest.ContractFile(slot))
			continue
		}
		if err := os.WriteFile(schemaFile(slot), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// plain returns a document as it would be read from a file.
func plain(t *testing.T, v any) map[string]any {
	t.Helper()
	raw, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var out map[string]any
	if err := json.Unmarshal(raw, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// breaks lists the incompatible changes between two documents: a removed or changed type, member or
// operation, a new required member of a request, and a member that an answer may now omit.
func breaks(old, now map[string]any) []string {
	var out []string
	defs := object(now["$defs"])
	for name, d := range object(old["$defs"]) {
		if defs[name] == nil {
			out = append(out, "type "+name+" is gone")
			continue
		}
		out = append(out, typeBreaks(name, object(d), object(defs[name]), isRequest(old, name))...)
	}
	operations := object(now["x-operations"])
	for name, op := range object(old["x-operations"]) {
		for member, v := range object(op) {
			if !reflect.DeepEqual(v, object(operations[name])[member]) {
				out = append(out, fmt.Sprintf("operation %s has another %s", name, member))
			}
		}
	}
	slices.Sort(out)
	return out
}

func typeBreaks(name string, old, now map[string]any, request bool) []string {
	var out []string
	members := object(now["properties"])
	for member, schema := range object(old["properties"]) {
		switch {
		case members[member] == nil:
			out = append(out, name+"."+member+" is gone")
		case !reflect.DeepEqual(schema, members[member]):
			out = append(out, name+"."+member+" is of another type")
		}
	}
	was, is := list(old["required"]), list(now["required"])
	for _, member := range is {
		if request && !slices.Contains(was, member) {
			out = append(out, name+"."+member+" must be sent now")
		}
	}
	for _, member := range was {
		if !request && !slices.Contains(is, member) {
			out = append(out, name+"."+member+" may be missing now")
		}
	}
	return out
}

// isRequest tells whether a type is the body of a request.
func isRequest(doc map[string]any, name string) bool {
	for _, op := range object(doc["x-operations"]) {
		if object(object(op)["request"])["$ref"] == "#/$defs/"+name {
			return true
		}
	}
	return false
}

func object(v any) map[string]any { m, _ := v.(map[string]any); return m }

func list(v any) []string {
	var out []string
	all, _ := v.([]any)
	for _, one := range all {
		out = append(out, fmt.Sprint(one))
	}
	return out
}

// breaks must find each kind of incompatible change, and must accept additions.
func TestIncompatibleSchemasAreSeen(t *testing.T) {
	for name, c := range map[string]struct {
		change func(doc map[string]any)
		want   string
	}{
		"nothing":       {func(map[string]any) {}, ""},
		"new member":    {func(d map[string]any) { props(d, "Bead")["colour"] = map[string]any{"type": "string"} }, ""},
		"new operation": {func(d map[string]any) { object(d["x-operations"])["paint"] = map[string]any{} }, ""},
		"member gone":   {func(d map[string]any) { delete(props(d, "Bead"), "title") }, "Bead.title is gone"},
		"other type":    {func(d map[string]any) { props(d, "Bead")["title"] = map[string]any{"type": "integer"} }, "Bead.title is of another type"},
		"type gone":     {func(d map[string]any) { delete(object(d["$defs"]), "Bead") }, "type Bead is gone"},
		"other path":    {func(d map[string]any) { object(object(d["x-operations"])["show"])["path"] = "/x" }, "operation show has another path"},
		"must be sent":  {func(d map[string]any) { require(d, "NewBead", "kind") }, "NewBead.kind must be sent now"},
		"may be missing": {func(d map[string]any) {
			def := object(object(d["$defs"])["Bead"])
			def["required"] = slices.DeleteFunc(def["required"].([]any), func(v any) bool { return v == "id" })
		}, "Bead.id may be missing now"},
	} {
		t.Run(name, func(t *testing.T) {
			old, now := plain(t, rest.Contract(adapters.SlotBeads)), plain(t, rest.Contract(adapters.SlotBeads))
			c.change(now)
			if got := strings.Join(breaks(old, now), "; "); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

func props(doc map[string]any, name string) map[string]any {
	return object(object(object(doc["$defs"])[name])["properties"])
}

func require(doc map[string]any, name, member string) {
	def := object(object(doc["$defs"])[name])
	def["required"] = append(def["required"].([]any), member)
}

// The real answers of the server fit its published schemas.
func TestAnswersFitTheSchemas(t *testing.T) {
	b := newBox(t)
	var epic adapters.Bead
	b.do("admin", "POST", "/v1/beads/epics", `{"title":"x","tags":["a"]}`).is(201).into(&epic)
	b.do("admin", "POST", "/v1/events", `{"kind":"x"}`).is(202)
	b.do("admin", "POST", "/v1/agents", `{"command":"x"}`).is(201)
	b.do("admin", "PUT", "/v1/memory/n/k", `{"value":"x"}`).is(201)
	doc := b.do("", "GET", "/openapi.json", "").is(200).fields()
	for path, from := range map[string]string{
		"/v1/beads/" + epic.ID: "/v1/beads/{id}", "/v1/beads": "/v1/beads", "/v1/beads/ready": "/v1/beads/ready",
		"/v1/events": "/v1/events", "/v1/agents": "/v1/agents", "/v1/agents/agent-1": "/v1/agents/{id}",
		"/v1/memory/n/k": "/v1/memory/{ns}/{key}", "/v1/memory/n": "/v1/memory/{ns}", "/v1/adapters": "/v1/adapters",
		"/v1/agent-events": "/v1/agent-events", "/v1/agent-events/types": "/v1/agent-events/types", "/v1/status": "/v1/status",
	} {
		op := object(object(object(doc["paths"])[from])["get"])
		content := object(object(object(op["responses"])["200"])["content"])
		schema := object(object(content["application/json"])["schema"])
		if schema == nil {
			t.Errorf("%s has no schema", from)
			continue
		}
		schema["components"] = doc["components"]
		res, err := gojsonschema.Validate(gojsonschema.NewGoLoader(schema), gojsonschema.NewBytesLoader(b.do("admin", "GET", path, "").is(200).body))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range res.Errors() {
			t.Errorf("%s: %s", path, e)
		}
	}
}

// The server serves each operation of the document, with the roles of the document.
func TestOpenAPIIsWhatIsServed(t *testing.T) {
	b := newBox(t)
	doc := b.do("", "GET", "/openapi.json", "").is(200).fields()
	if doc["openapi"] != "3.1.0" || object(doc["info"])["version"] != "1.2.3" {
		t.Errorf("%v", doc["info"])
	}
	ids := map[string]bool{}
	for path, ops := range object(doc["paths"]) {
		for method, op := range object(ops) {
			id := fmt.Sprint(object(op)["operationId"])
			if ids[id] {
				t.Errorf("operation %s is there twice", id)
			}
			ids[id] = true
			roles := list(object(op)["x-roles"])
			if object(op)["security"] != nil {
				refs(t, doc, op)
				continue // open to all callers; the routes of package probes have their own tests
			}
			if !slices.Contains(roles, "admin") {
				t.Errorf("%s %s: roles %v", method, path, roles)
			}
			refs(t, doc, op)
			checkRoles(t, b, strings.ToUpper(method), fill.Replace(path), roles)
		}
	}
	if len(ids) < 45 {
		t.Errorf("only %d operations", len(ids))
	}
}

// fill gives the parameters of a path values.
var fill = strings.NewReplacer("{id}", "nobody", "{ns}", "n", "{key}", "k", "{path}", "p", "{urn}", "urn:x")

// missingBody sends a request that lacks its required body, and Content-Type with it. The box must refuse it
// and name a member.
func missingBody(t *testing.T, b *box, id, method, path string) {
	t.Helper()
	a := b.do("admin", method, path, "")
	if a.status == http.StatusNotImplemented {
		return // this box lacks the part
	}
	m := a.is(400).problem(adapters.CodeValidation)
	if field := fmt.Sprint(m["field"]); m["field"] == nil || !strings.Contains(fmt.Sprint(m["detail"]), "send a JSON object with "+field) {
		t.Errorf("%s without a body: %v", id, m)
	}
}

// checkRoles sends a request without a credential and one as each role that the document does not
// list. The box must refuse them all.
func checkRoles(t *testing.T, b *box, method, path string, roles []string) {
	t.Helper()
	if a := b.do("", method, path, ""); a.status != http.StatusUnauthorized {
		t.Errorf("%s %s without a credential: %d", method, path, a.status)
	}
	for _, who := range []string{"agent", "host", "reader"} {
		// Do not ask as a listed role: a stream would stay open.
		if slices.Contains(roles, who) {
			continue
		}
		token := map[string]string{"agent": "agent-1", "host": "host", "reader": "reader"}[who]
		if a := b.do(token, method, path, ""); a.status != http.StatusForbidden {
			t.Errorf("%s %s as %s: %d, the document says %v", method, path, who, a.status, roles)
		}
	}
}

// refs fails the test if v contains a reference to a missing component.
func refs(t *testing.T, doc map[string]any, v any) {
	t.Helper()
	switch v := v.(type) {
	case map[string]any:
		if ref, ok := v["$ref"].(string); ok {
			kind, name, _ := strings.Cut(strings.TrimPrefix(ref, "#/components/"), "/")
			if object(object(doc["components"])[kind])[name] == nil {
				t.Errorf("%s leads nowhere", ref)
			}
		}
		for _, key := range slices.Sorted(maps.Keys(v)) {
			refs(t, doc, v[key])
		}
	case []any:
		for _, one := range v {
			refs(t, doc, one)
		}
	}
}

// The document satisfies redocly's recommended rules. Each JSON body has an example that fits its
// schema.
func TestOpenAPITellsTheWholeTruth(t *testing.T) {
	b := newBox(t)
	doc := b.do("", "GET", "/openapi.json", "").is(200).fields()
	if servers, _ := doc["servers"].([]any); len(servers) != 1 || object(servers[0])["url"] != "/" {
		t.Errorf("servers %v", doc["servers"])
	}
	paths := object(doc["paths"])
	for _, path := range []string{"/livez", "/ready", "/health", "/health/pods", "/health/relay", "/metrics", "/v1/meta", "/"} {
		if paths[path] == nil {
			t.Errorf("%s is not told of", path)
		}
	}
	for path, ops := range paths {
		for method, v := range object(ops) {
			op := object(v)
			id, answers := fmt.Sprint(op["operationId"]), object(op["responses"])
			if !slices.ContainsFunc(slices.Collect(maps.Keys(answers)), func(s string) bool { return strings.HasPrefix(s, "4") }) {
				t.Errorf("%s has no 4xx answer", id)
			}
			if op["security"] == nil && (answers["401"] == nil || answers["403"] == nil) {
				t.Errorf("%s %s does not say that it refuses", method, path)
			}
			body := object(op["requestBody"])
			if body == nil {
				continue
			}
			media := object(object(body["content"])["application/json"])
			if media["schema"] == nil {
				continue
			}
			schema := object(media["schema"])
			schema["components"] = doc["components"]
			res, err := gojsonschema.Validate(gojsonschema.NewGoLoader(schema), gojsonschema.NewGoLoader(media["example"]))
			if err != nil || media["example"] == nil {
				t.Errorf("%s has no example: %v", id, err)
				continue
			}
			for _, e := range res.Errors() {
				t.Errorf("%s: the example: %s", id, e)
			}
			if required := body["required"] == true; path == "/v1/beads/epics" || path == "/v1/events" || path == "/v1/agents" || required {
				if !required {
					t.Errorf("%s does not require its body", id)
				}
				missingBody(t, b, id, strings.ToUpper(method), fill.Replace(path))
			}
		}
	}
	header := func(path, method, name string) bool {
		all, _ := object(object(paths[path])[method])["parameters"].([]any)
		return slices.ContainsFunc(all, func(p any) bool { return object(p)["name"] == name && object(p)["in"] == "header" })
	}
	for _, c := range [][3]string{
		{"/v1/beads/epics", "post", "Idempotency-Key"}, {"/v1/events", "post", "Idempotency-Key"}, {"/v1/tasks", "post", "Idempotency-Key"},
		{"/v1/agents", "post", "Idempotency-Key"}, {"/v1/beads/{id}", "patch", "If-Match"}, {"/pods/{path}", "put", "If-Match"}, {"/pods/{path}", "post", "Slug"},
	} {
		if !header(c[0], c[1], c[2]) {
			t.Errorf("%v is not told of", c)
		}
	}
}
