package problem

import (
	"encoding/json"
	"net/http/httptest"
	"testing"
)

func TestTable(t *testing.T) {
	seen := map[Code]bool{}
	for _, row := range Codes() {
		if seen[row.Code] || !row.Code.Known() || row.Code.Row() != row || row.HTTP < 400 || row.HTTP > 599 || row.Title == "" {
			t.Errorf("the row %+v", row)
		}
		seen[row.Code] = true
	}
	if c := Code("NEW_ONE"); c.Known() || c.Row().Code != Internal {
		t.Errorf("an unknown code has the row %+v", c.Row())
	}
}

// A further member cannot take the place of one that every document has.
func TestDocument(t *testing.T) {
	body, err := Document(map[string]any{"resource": "bead", "title": "other", "status": "open"}, NotFound, 404, "it is <gone>", false)
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	Write(w, 404, body)
	var doc map[string]any
	if err := json.Unmarshal(w.Body.Bytes(), &doc); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]any{
		"type": "urn:agentbox:error:not_found", "title": "not found", "status": 404.0, "code": "NOT_FOUND",
		"detail": "it is <gone>", "message": "it is <gone>", "retryable": false, "resource": "bead",
	} {
		if doc[name] != want {
			t.Errorf("%s is %v, want %v", name, doc[name], want)
		}
	}
	if w.Code != 404 || w.Header().Get("Content-Type") != Type || len(doc) != 8 {
		t.Errorf("%d %v %v", w.Code, w.Header(), doc)
	}
	if _, err := Document(map[string]any{"f": func() {}}, Internal, 500, "", false); err == nil {
		t.Error("a function was written as JSON")
	}
}
