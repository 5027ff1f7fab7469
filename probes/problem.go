package probes

import (
	"net/http"
	"strconv"

	"github.com/dreamlab-ai/agentinit/internal/problem"
)

// fail answers with an error document; pairs are further members.
func fail(w http.ResponseWriter, status int, code problem.Code, detail string, pairs ...string) {
	doc := make(map[string]any)
	for i := 0; i+1 < len(pairs); i += 2 {
		doc[pairs[i]] = pairs[i+1]
	}
	body, _ := problem.Document(doc, code, status, detail, code.Row().Retryable) // texts are always JSON
	noCache(w, problem.Type)
	problem.Write(w, status, body)
}

// busy is fail for a client that may try again after some seconds.
func busy(w http.ResponseWriter, status int, code problem.Code, after int, detail string) {
	w.Header().Set("Retry-After", strconv.Itoa(after))
	fail(w, status, code, detail)
}
