package adapters

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestIDs(t *testing.T) {
	for id, ok := range map[string]bool{
		"a": true, "ab-1.2_3:Z": true, strings.Repeat("x", 127): true, strings.Repeat("x", 128): true,
		strings.Repeat("x", 129): false, "": false, "a b": false, "a/b": false, "ä": false, "a\x00": false,
	} {
		if err := CheckID("id", id); (err == nil) != ok {
			t.Errorf("%.20q: %v", id, err)
		}
	}
}

func TestNewIDsAreUUIDv7AndSort(t *testing.T) {
	last := ""
	for range 10_000 { // many a millisecond
		id := NewID()
		if len(id) != 36 || id[14] != '7' || !strings.ContainsRune("89ab", rune(id[19])) {
			t.Fatalf("bad id %s", id)
		}
		if err := CheckID("id", id); err != nil {
			t.Fatal(err)
		}
		if id <= last {
			t.Fatalf("%s came after %s", id, last)
		}
		last = id
	}
}

func TestTimeIsMillisecondsUTCOrNull(t *testing.T) {
	at := At(time.Date(2026, 1, 2, 3, 4, 5, 678_900_000, time.FixedZone("x", -3600)))
	raw, _ := json.Marshal(struct {
		A, B Time
	}{A: at})
	if want := `{"A":"2026-01-02T04:04:05.678Z","B":null}`; string(raw) != want {
		t.Fatalf("got %s", raw)
	}
	var back struct{ A, B Time }
	if err := json.Unmarshal(raw, &back); err != nil || back.A != at || !back.B.IsZero() {
		t.Fatalf("%v %+v", err, back)
	}
	if err := json.Unmarshal([]byte(`{"A":"\u0032026-01-02T04:04:05.678Z"}`), &back); err != nil || back.A != at {
		t.Errorf("escaped: %v %+v", err, back)
	}
	for _, bad := range []string{`12`, `"12"`, `"2026-01-02T04:04:05.678Z `, `{}`, `true`, `"2026-01-02T04:04:05.678Z\""`,
		`"9999-12-31T23:59:59-12:00"`, `"0000-01-01T00:00:00+12:00"`} { // in UTC they are in years that RFC 3339 cannot write
		if json.Unmarshal([]byte(`{"A":`+bad+`}`), &back) == nil {
			t.Errorf("%s was read as a time", bad)
		}
	}
	// Whoever calls it may have checked nothing before.
	for _, bad := range []string{``, `"`, `""2026-01-02T04:04:05.678Z""`, `2026-01-02T04:04:05.678Z`} {
		if new(Time).UnmarshalJSON([]byte(bad)) == nil {
			t.Errorf("%s was read as a time", bad)
		}
	}
}

func TestObjects(t *testing.T) {
	for raw, ok := range map[string]bool{
		`{}`: true, ` {"a":1}`: true, `{"a":"\\u0000"}`: true,
		`[]`: false, `null`: false, `"x"`: false, `{`: false, `{"a":"\u0000"}`: false, `{"a":"\\\u0000"}`: false, "{\"a\":\"\xff\"}": false,
	} {
		if err := CheckObject("payload", json.RawMessage(raw), 100); (err == nil) != ok {
			t.Errorf("%q: %v", raw, err)
		}
	}
	exact := json.RawMessage(`{"a":"` + strings.Repeat("x", 92) + `"}`)
	if len(exact) != 100 || CheckObject("p", exact, 100) != nil {
		t.Errorf("100 of 100 bytes refused")
	}
	if err := CheckObject("p", append(exact, ' '), 100); !errors.Is(err, ErrPayloadTooLarge) {
		t.Errorf("101 of 100 bytes: %v", err)
	}
}

func TestPodPaths(t *testing.T) {
	for path, ok := range map[string]bool{
		"/": true, "/a": true, "/a/": true, "/a/b.ttl": true, "/a/.acl": true, "/a/b.acl": true, "/a%20b": true,
		"/" + strings.Repeat("x", 255): true, "/" + strings.Repeat("x", 256): false,
		"": false, "a": false, "//": false, "/a//b": false, "/..": false, "/a/../b": false, "/%2e%2e/x": false,
		"/%2e/x": false, "/a%00": false, "/a%0a": false, "/a\\b": false, "/a%5Cb": false, "/a%2fb": false, "/.ssh": false,
		"/a%": false, "/a%ff": false, "/" + strings.Repeat("x/", 512): false,
	} {
		if err := CheckPodPath(path); (err == nil) != ok {
			t.Errorf("%.40q: %v", path, err)
		}
	}
}

func TestCursorsAreBoundToTheirList(t *testing.T) {
	c := NewCursors(nil)
	cur := string(c.Seal("ready:tag=x", "2", "2026-01-01", "ab-1"))
	got, err := c.Open("ready:tag=x", cur, 3)
	if err != nil || len(got) != 3 || got[2] != "ab-1" {
		t.Fatalf("%v %v", got, err)
	}
	for name, open := range map[string]func() ([]string, error){
		"other list":  func() ([]string, error) { return c.Open("ready:tag=y", cur, 3) },
		"other count": func() ([]string, error) { return c.Open("ready:tag=x", cur, 2) },
		"other key":   func() ([]string, error) { return NewCursors(nil).Open("ready:tag=x", cur, 3) },
		"altered":     func() ([]string, error) { return c.Open("ready:tag=x", cur[:len(cur)-1]+"A", 3) },
		"an offset":   func() ([]string, error) { return c.Open("ready:tag=x", "100", 3) },
		"too long":    func() ([]string, error) { return c.Open("ready:tag=x", strings.Repeat("A", 600), 3) },
	} {
		if _, err := open(); !errors.Is(err, ErrValidation) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got, err := c.Open("s", "", 3); got != nil || err != nil {
		t.Errorf("no cursor: %v %v", got, err)
	}
	if len(c.Seal("s", strings.Repeat("x", 340))) > maxCursor {
		t.Error("a position of 340 bytes makes a cursor that is too long")
	}
}

func TestVersions(t *testing.T) {
	for _, c := range []struct {
		want, have string
		exact, ok  bool
	}{
		{"1.0", "1.1", true, true}, {"1.1", "1.0", true, false}, {"1.1", "1.0", false, true},
		{"1.1", "v1.4.2", true, true}, {"1.0", "2.0", false, false}, {"1.0", "x", false, false}, {"1.0", "", false, false},
	} {
		err := CheckVersion(SlotBeads, c.want, c.have, c.exact)
		if (err == nil) != c.ok {
			t.Errorf("%+v: %v", c, err)
		}
		if err != nil && !errors.Is(err, ErrContractMismatch) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// An error about JSON names what its sender has written, and nothing of the program that reads it.
func TestUndecodable(t *testing.T) {
	type Part struct {
		Priority int `json:"priority"`
	}
	type inner struct {
		ID string `json:"id"`
	}
	var text struct {
		Part
		Title string  `json:"title"`
		Deps  []inner `json:"deps"`
		At    Time    `json:"at"`
	}
	for raw, want := range map[string]string{
		`{"title":5}`:          "title: must not be a JSON number",
		`{"priority":"1"}`:     "priority: must not be a JSON string",
		`{"deps":[{"id":{}}]}`: "deps.id: must not be a JSON object",
		`[]`:                   "line: must not be a JSON array",
		`{"at":"today"}`:       `line: is not JSON of the contract: "today" is no time of RFC 3339, such as 2026-01-02T15:04:05Z`,
		`{`:                    "line: is not JSON of the contract: unexpected end of JSON input",
	} {
		err := json.Unmarshal([]byte(raw), &text)
		if e := AsError(Undecodable("line", err)); err == nil || e.Code != CodeValidation || e.Message != want {
			t.Errorf("%s: %v, want %s", raw, e, want)
		}
	}
	if coded := NotFound("x", "y"); Undecodable("line", fmt.Errorf("z: %w", coded)) != error(coded) {
		t.Error("an error with a code has lost it")
	}
}
