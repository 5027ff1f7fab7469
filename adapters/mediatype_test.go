package adapters

import (
	"net/http"
	"testing"
)

func TestAccepted(t *testing.T) {
	const none, first, second = -1, 0, 1
	for accept, want := range map[string]int{
		"":                                 first,
		"*/*":                              first,
		"a/cloud+json":                     second,
		"A/Cloud+JSON; charset=x":          second,
		"a/json;q=0.5, a/cloud+json;q=0.9": second,
		"a/cloud+json;q=0.2, */*":          first,
		"a/*;q=0.1, a/cloud+json;q=0.2, text/html": second,
		"text/html":                                  none,
		"a/cloud+json;q=none, a/json;q=0":            none,
		"a/cloud+json;q=0":                           none,
		"a/json;q=0.1, */*;q=0.5, a/cloud+json;q=0.": first,
	} {
		if got := Accepted(http.Header{"Accept": {accept}}, "a/json", "a/cloud+json"); got != want {
			t.Errorf("%q: %d, want %d", accept, got, want)
		}
	}
}
