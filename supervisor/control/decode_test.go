package control

import (
	"net/url"
	"reflect"
	"strings"
	"testing"

	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/logs"
)

// FuzzRequests decodes any input as every kind of request. The result is within the limits or is a
// refusal with a code.
func FuzzRequests(f *testing.F) {
	for _, seed := range []string{
		`{"names":["web"],"no_wait":true}`, `{"all":true,"signal":"HUP"}`, `{}`, ``, `null`, `[]`, `{"level":"debug"}`,
		"name=a&name=b&follow=true&lines=3&grep=a%2B&since=2026-01-02T03:04:05Z", "since=9&follow=1", "since=b00t.9", "since=a.b", "for=ready&timeout=5s&name=x",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		check := func(err error) bool {
			if err != nil && api.CodeOf(err) != api.CodeBadRequest {
				t.Fatalf("%q: %v has no code for the peer", raw, err)
			}
			return err == nil
		}
		if a, err := decodeAction(strings.NewReader(raw)); check(err) {
			if a.All == (len(a.Names) > 0) || len(a.Names) > maxNames || a.TimeoutMS < 0 {
				t.Fatalf("accepted %+v", a)
			}
		}
		_, err := decode[api.ApplyRequest](strings.NewReader(raw))
		check(err)
		_, err = decode[api.ShutdownRequest](strings.NewReader(raw))
		check(err)
		for _, rt := range routes() {
			check(checkQuery(raw, rt.Query))
		}
		q, err := url.ParseQuery(raw)
		if err != nil {
			return
		}
		if l, err := decodeLogs(q, "b00t"); check(err) && len(l.Programs) > maxNames {
			t.Fatalf("accepted %d names", len(l.Programs))
		}
		_, _, err = decodeEvents(q, "b00t")
		check(err)
		if w, err := decodeWait(q); check(err) && (conditions[w.For] == nil || w.Timeout < 0) {
			t.Fatalf("accepted %+v", w)
		}
	})
}

// lines is the number of old lines: 0 is none, as with agentctl logs -n 0.
func TestLinesOfLogs(t *testing.T) {
	for given, want := range map[string]logs.Query{
		"": {}, "lines=": {}, "lines=0": {Lines: -1}, "lines=-1": {Lines: -1}, "lines=7": {Lines: 7, Files: true}, "lines=all": {Files: true},
	} {
		q, err := url.ParseQuery(given)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := decodeLogs(q, "b00t"); err != nil || got.Lines != want.Lines || got.Files != want.Files {
			t.Errorf("%s: lines %d, files %v, %v", given, got.Lines, got.Files, err)
		}
	}
}

// A text that is not Unicode would run or be recorded as another text.
func TestTextsAreUnicode(t *testing.T) {
	for body, want := range map[string]string{
		`{"program":"web","command":["rm","\ud800"]}`:         "surrogate pair",
		"{\"program\":\"web\",\"command\":[\"rm\",\"\xff\"]}": "not valid UTF-8",
		`{"program":"web","command":["rm","\ud83d\ude00"]}`:   "",
	} {
		req, err := decode[api.SandboxTest](strings.NewReader(body))
		switch {
		case want == "" && (err != nil || req.Command[1] != "\U0001f600"):
			t.Errorf("%q: %v %v", body, req, err)
		case want != "" && (api.CodeOf(err) != api.CodeBadRequest || !strings.Contains(err.Error(), want)):
			t.Errorf("%q: %v", body, err)
		}
	}
}

// TestOpenAPI: each document has every route, and every reference in it points to a schema.
func TestOpenAPI(t *testing.T) {
	for about, table := range map[string][]route{aboutSocket: routes(), aboutRemote: remoteTable()} {
		checkOpenAPI(t, about, table)
	}
	op := openAPI(remoteTable(), aboutRemote, "1")["paths"].(map[string]map[string]any)["/v1/programs/{name}/logs"]["get"].(map[string]any)
	first, second := op["parameters"].([]any)[0].(map[string]any), op["parameters"].([]any)[1].(map[string]any)
	if op["operationId"] != "get_v1_programs_name_logs" || first["name"] != "name" || first["in"] != "path" || second["name"] != "stream" {
		t.Errorf("%v", op)
	}
}

func checkOpenAPI(t *testing.T, about string, table []route) {
	t.Helper()
	doc := openAPI(table, about, "1")
	if doc["info"].(map[string]any)["description"] != about {
		t.Errorf("%v", doc["info"])
	}
	paths := doc["paths"].(map[string]map[string]any)
	for _, rt := range table {
		op, ok := paths[rt.Path][strings.ToLower(rt.Method)].(map[string]any)
		if !ok || op["summary"] != rt.Doc || op["x-access"] != rt.Access.String() {
			t.Errorf("%s %s: %v", rt.Method, rt.Path, op)
		}
	}
	schemas := doc["components"].(map[string]any)["schemas"].(map[string]any)
	var walk func(v reflect.Value)
	walk = func(v reflect.Value) {
		switch v.Kind() {
		case reflect.Interface:
			walk(v.Elem())
		case reflect.Slice:
			for i := range v.Len() {
				walk(v.Index(i))
			}
		case reflect.Map:
			for _, k := range v.MapKeys() {
				if k.String() == "$ref" {
					name := strings.TrimPrefix(v.MapIndex(k).Elem().String(), "#/components/schemas/")
					if schemas[name] == nil {
						t.Errorf("no schema %s", name)
					}
				}
				walk(v.MapIndex(k))
			}
		}
	}
	walk(reflect.ValueOf(doc))
	status := schemas["Status"].(map[string]any)["properties"].(map[string]any)
	if status["time"].(map[string]any)["format"] != "date-time" {
		t.Errorf("Status is %v", status)
	}
}

// Every grep of the permitted length is searched for, unless its repetitions make it long.
func TestGrepIsBounded(t *testing.T) {
	for pattern, good := range map[string]bool{
		"":                              true,
		strings.Repeat("a", maxGrep):    true,
		strings.Repeat("a", maxGrep+1):  false,
		strings.Repeat(".?", maxGrep/2): true,
		strings.Repeat("a|", maxGrep/2): true,
		strings.Repeat(`\d`, maxGrep/2): true,
		`[0-9a-f]{64}\.{3}`:             true,
		`(a{30}){30}`:                   true,
		`(.?){1000}`:                    false,
		`(.?){1000,}`:                   false,
		`((.?){30}){30}`:                false,
		strings.Repeat(`a{1000}`, 100):  false,
		`(`:                             false,
		`a{1001}`:                       false,
	} {
		re, err := compileGrep(pattern)
		if (err == nil) != good || good && (re == nil) != (pattern == "") {
			t.Errorf("%.20q of %d bytes: %v %v", pattern, len(pattern), re, err)
		}
	}
}
