package outbound

import (
	"errors"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestRetryAfter(t *testing.T) {
	const noon = "Sat, 01 Jan 2000 12:00:00 GMT"
	for name, c := range map[string]struct {
		value, date string
		want        time.Duration
	}{
		"seconds":              {"17", "", 17 * time.Second},
		"seconds and a Date":   {"17", noon, 17 * time.Second},
		"zero":                 {"0", "", 0},
		"missing":              {"", noon, 0},
		"negative":             {"-1", "", 0},
		"a fraction":           {"1.5", "", 0},
		"far too big":          {"99999999999", "", math.MaxInt32 * time.Second},
		"a date":               {"Sat, 01 Jan 2000 00:00:03 GMT", "", 3 * time.Second},
		"a date in RFC 850":    {"Saturday, 01-Jan-00 00:00:03 GMT", "", 3 * time.Second},
		"a date by their Date": {"Sat, 01 Jan 2000 12:00:09 GMT", noon, 9 * time.Second},
		"a past date":          {"Sat, 01 Jan 2000 11:00:00 GMT", noon, 0},
		"a broken Date":        {"Sat, 01 Jan 2000 00:00:03 GMT", "noon", 3 * time.Second},
		"a word":               {"soon", "", 0},
	} {
		synctest.Test(t, func(t *testing.T) { // the bubble's clock begins at 2000-01-01
			if got := RetryAfter(http.Header{"Retry-After": {c.value}, "Date": {c.date}}); got != c.want {
				t.Errorf("%s: %v, want %v", name, got, c.want)
			}
		})
	}
}

// A redirect is an answer like any other, and an error does not show the URL's password.
func TestClient(t *testing.T) {
	s := httptest.NewServer(http.RedirectHandler("/elsewhere", http.StatusTemporaryRedirect))
	client := &http.Client{Transport: s.Client().Transport, CheckRedirect: NoRedirect}
	address := strings.Replace(s.URL, "://", "://user:secret@", 1) + "/token"
	resp, err := client.Get(address)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusTemporaryRedirect {
		t.Errorf("the answer is %s", resp.Status)
	}
	s.Close()
	_, err = client.Get(address)
	if err == nil || !strings.Contains(err.Error(), "/token") {
		t.Fatalf("net/http reports %v, without the URL", err)
	}
	if bare := WithoutURL(err); strings.Contains(bare.Error(), "/token") {
		t.Errorf("the error shows the URL: %v", bare)
	}
	if plain := errors.New("plain"); WithoutURL(plain) != plain {
		t.Error("another error is changed")
	}
}
