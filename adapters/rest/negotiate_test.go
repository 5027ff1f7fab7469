package rest

import (
	"net/http"
	"testing"
)

func TestPreferred(t *testing.T) {
	for accept, want := range map[string]string{
		"":                                 "a/json",
		"*/*":                              "a/json",
		"a/cloud+json":                     "a/cloud+json",
		"A/Cloud+JSON; charset=x":          "a/cloud+json",
		"a/json;q=0.5, a/cloud+json;q=0.9": "a/cloud+json",
		"a/cloud+json;q=0.2, */*":          "a/json",
		"a/*;q=0.1, a/cloud+json;q=0.2, text/html": "a/cloud+json",
		"text/html":                                  "a/json",
		"a/cloud+json;q=none, a/json;q=0":            "a/json",
		"a/cloud+json;q=0":                           "a/json",
		"a/json;q=0.1, */*;q=0.5, a/cloud+json;q=0.": "a/json",
	} {
		if got := preferred(http.Header{"Accept": {accept}}, "a/json", "a/cloud+json"); got != want {
			t.Errorf("%q: %s, want %s", accept, got, want)
		}
	}
}
