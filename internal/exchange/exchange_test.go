package exchange

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestRecorder(t *testing.T) {
	for name, c := range map[string]struct {
		answer func(w http.ResponseWriter)
		want   int
	}{
		"nothing":         {func(http.ResponseWriter) {}, 0},
		"a body alone":    {func(w http.ResponseWriter) { _, _ = io.WriteString(w, "x") }, 200},
		"a status":        {func(w http.ResponseWriter) { w.WriteHeader(404); _, _ = io.WriteString(w, "x") }, 404},
		"hints before it": {func(w http.ResponseWriter) { w.WriteHeader(103); w.WriteHeader(202) }, 202},
		"a switch":        {func(w http.ResponseWriter) { w.WriteHeader(101) }, 101},
		"a flush": {func(w http.ResponseWriter) {
			w.WriteHeader(201)
			if err := http.NewResponseController(w).Flush(); err != nil {
				t.Errorf("flush: %v", err)
			}
		}, 201},
	} {
		t.Run(name, func(t *testing.T) {
			r := &Recorder{ResponseWriter: httptest.NewRecorder()}
			c.answer(r)
			if r.Status != c.want {
				t.Errorf("status %d, want %d", r.Status, c.want)
			}
		})
	}
}
