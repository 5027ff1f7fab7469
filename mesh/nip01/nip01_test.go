package nip01

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nbd-wtf/go-nostr"
)

// event returns an event that is signed with the private key 1.
func event(t testing.TB, change func(*nostr.Event)) *nostr.Event {
	t.Helper()
	e := &nostr.Event{Kind: 1, CreatedAt: 1_700_000_000, Content: "a\n\"b\" <c> \u2028 \x7f", Tags: nostr.Tags{{"p", "x"}, {"-"}}}
	if change != nil {
		change(e)
	}
	if err := e.Sign(strings.Repeat("0", 63) + "1"); err != nil {
		t.Fatal(err)
	}
	return e
}

func TestParseEventKeepsWhatIsSigned(t *testing.T) {
	e := event(t, nil)
	for name, raw := range map[string]string{"easyjson": e.String(), "json": string(Message(e)[1 : len(Message(e))-1])} {
		got, err := ParseEvent([]byte(raw))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := Verify(got); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestRefusedEvents(t *testing.T) {
	good := event(t, nil).String()
	for name, raw := range map[string]string{
		"nothing": "", "null": "null", "array": "[]", "cut": good[:len(good)-1], "more": good + "{}",
		"twice":            strings.Replace(good, `{`, `{"kind":1,`, 1),
		"no kind":          strings.Replace(good, `"kind":1,`, ``, 1),
		"kind text":        strings.Replace(good, `"kind":1,`, `"kind":"1",`, 1),
		"kind fraction":    strings.Replace(good, `"kind":1,`, `"kind":1.0,`, 1),
		"kind exponent":    strings.Replace(good, `"kind":1,`, `"kind":1e0,`, 1),
		"kind too high":    strings.Replace(good, `"kind":1,`, `"kind":65536,`, 1),
		"kind negative":    strings.Replace(good, `"kind":1,`, `"kind":-1,`, 1),
		"kind null":        strings.Replace(good, `"kind":1,`, `"kind":null,`, 1),
		"upper case":       strings.Replace(good, `"id":"`, `"id":"A`, 1),
		"tags null":        strings.Replace(good, `"tags":[["p","x"],["-"]]`, `"tags":null`, 1),
		"tag empty":        strings.Replace(good, `["-"]`, `[]`, 1),
		"tag of null":      strings.Replace(good, `["-"]`, `[null]`, 1),
		"tag of number":    strings.Replace(good, `["-"]`, `[1]`, 1),
		"content null":     strings.Replace(good, `"content":"`, `"content":null,"x":"`, 1),
		"no UTF-8":         strings.Replace(good, `"x"`, "\"\xff\"", 1),
		"case of a key":    strings.Replace(good, `"kind"`, `"Kind"`, 1),
		"too many tags":    strings.Replace(good, `["-"]`, strings.Repeat(`["-"],`, MaxTags)+`["-"]`, 1),
		"too many strings": strings.Replace(good, `["-"]`, `[`+strings.Repeat(`"-",`, maxTagItems)+`"-"]`, 1),
	} {
		if raw == good {
			t.Fatalf("%s changes nothing", name)
		}
		if e, err := ParseEvent([]byte(raw)); err == nil {
			t.Errorf("%s gave %v", name, e)
		}
	}
	// A field that is not signed is dropped.
	e, err := ParseEvent([]byte(strings.Replace(good, `{`, `{"extra":1,`, 1)))
	if err != nil || strings.Contains(e.String(), "extra") {
		t.Errorf("%v, %v", e, err)
	}
}

func TestVerifyComputes(t *testing.T) {
	for name, change := range map[string]func(*nostr.Event){
		"content": func(e *nostr.Event) { e.Content += "." },
		"id":      func(e *nostr.Event) { e.ID = strings.Repeat("0", 64) },
		"sig":     func(e *nostr.Event) { e.Sig = strings.Repeat("0", 128) },
		"pubkey":  func(e *nostr.Event) { e.PubKey = strings.Repeat("0", 63) + "5"; e.ID = e.GetID() }, // not a point of the curve
		"short":   func(e *nostr.Event) { e.ID = e.ID[:10] },
	} {
		e := event(t, nil)
		change(e)
		if err := Verify(e); err == nil {
			t.Errorf("a changed %s verifies", name)
		}
	}
}

func TestParseRumor(t *testing.T) {
	e := event(t, nil)
	e.Sig = ""
	raw, err := json.Marshal(map[string]any{"id": e.ID, "pubkey": e.PubKey, "created_at": e.CreatedAt, "kind": e.Kind, "tags": e.Tags, "content": e.Content})
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseRumor(raw)
	if err != nil || got.ID != e.ID || got.Sig != "" {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := ParseRumor([]byte(strings.Replace(string(raw), e.ID, strings.Repeat("1", 64), 1))); err == nil {
		t.Error("a rumor with another id was read")
	}
}

func TestFilters(t *testing.T) {
	e := event(t, func(e *nostr.Event) {
		e.Kind, e.CreatedAt, e.Tags = 7, 50, nostr.Tags{{"p", "x"}, {"e", "y", "z"}, {"x"}}
	})
	s := NewSubject(e)
	for raw, want := range map[string]bool{
		`{}`: true, `{"kinds":[7]}`: true, `{"kinds":[]}`: false, `{"kinds":[1]}`: false, `{"ids":["` + e.ID + `"]}`: true,
		`{"authors":["` + e.PubKey + `"],"kinds":[7]}`: true, `{"authors":["` + e.ID + `"]}`: false,
		`{"since":50,"until":50}`: true, `{"since":51}`: false, `{"until":49}`: false,
		`{"#p":["x"],"#e":["y"]}`: true, `{"#e":["z"]}`: false, `{"#p":["x","q"],"#e":["q"]}`: false, `{"#x":["y"]}`: false, `{"limit":0}`: true,
	} {
		f, err := parseFilter([]byte(raw))
		if err != nil {
			t.Errorf("%s: %v", raw, err)
			continue
		}
		if f.Matches(s) != want {
			t.Errorf("%s: Matches is %t", raw, !want)
		}
		again, err := json.Marshal(f)
		if g, err2 := parseFilter(again); err != nil || err2 != nil || g.Matches(s) != want {
			t.Errorf("%s becomes %s", raw, again)
		}
	}
	for _, raw := range []string{
		`[]`, `{"kinds":null}`, `{"kinds":["1"]}`, `{"kinds":[1.5]}`, `{"ids":["ab"]}`, `{"authors":[1]}`, `{"since":-1}`, `{"since":"1"}`,
		`{"limit":-1}`, `{"#pp":["x"]}`, `{"#p":"x"}`, `{"#p":[null]}`, `{"search":"x"}`, `{"kinds":[1],"kinds":[2]}`,
		`{"#p":[` + strings.Repeat(`"x",`, maxFilterItems) + `"x"]}`,
	} {
		if f, err := parseFilter([]byte(raw)); err == nil {
			t.Errorf("%.60s gave %+v", raw, f)
		}
	}
}

// A filter must not read the tags again: with hundreds of filters, the many tags of one event would
// keep a processor busy for seconds.
func TestFiltersUseTheIndexOfTags(t *testing.T) {
	e := event(t, func(e *nostr.Event) { e.Tags = nostr.Tags{{"t", "indexed"}} })
	s := NewSubject(e)
	e.Tags[0][1] = "later"
	for value, want := range map[string]bool{"indexed": true, "later": false} {
		if got := MatchesAny([]Filter{{Tags: map[string][]string{"t": {value}}}}, s); got != want {
			t.Errorf("%s: MatchesAny is %t", value, got)
		}
	}
}

func TestExpiration(t *testing.T) {
	now := time.Unix(1000, 0)
	for value, want := range map[string]bool{"999": true, "1000": true, "1001": false, "x": false, "": false, "-5": false} {
		e := &nostr.Event{Tags: nostr.Tags{{"expiration", value}}}
		if Expired(e, now) != want {
			t.Errorf("expiration %q: expired is %t", value, !want)
		}
	}
}

func TestAllowedKinds(t *testing.T) {
	allowed := []int{1, 38000, 38100}
	var got []int
	for kind := range 40000 {
		if KindAllowed(allowed, kind) {
			got = append(got, kind)
		}
	}
	if len(got) != 201 || got[0] != 1 || got[1] != 38000 || got[200] != 38199 {
		t.Errorf("%d kinds are allowed: %v", len(got), got)
	}
	if KindAllowed([]int{38050}, 38051) {
		t.Error("only the first of a range stands for it")
	}
}

func FuzzFromClient(f *testing.F) {
	for _, seed := range []string{`["EVENT",{"id":"x"}]`, `["REQ","a",{"kinds":[1],"#p":["x"],"limit":3}]`, `["CLOSE","a"]`, `["AUTH",{}]`, `[]`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		m, err := ParseFromClient(raw)
		if err != nil {
			return
		}
		if !slices.Contains([]string{VerbEvent, VerbReq, VerbClose, VerbAuth}, m.Verb) {
			t.Fatalf("verb %q", m.Verb)
		}
		for _, filter := range m.Filters {
			again, err := json.Marshal(filter)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := parseFilter(again); err != nil {
				t.Fatalf("%s: %v", again, err)
			}
		}
	})
}

func FuzzFromRelay(f *testing.F) {
	f.Add([]byte(`["EVENT","a",` + event(f, nil).String() + `]`))
	for _, seed := range []string{`["OK","` + strings.Repeat("a", 64) + `",true,""]`, `["EOSE","a"]`, `["CLOSED","a","b"]`, `["NOTICE","x"]`, `["AUTH","x"]`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		m, err := ParseFromRelay(raw)
		if err != nil || m.Event == nil {
			return
		}
		// An event that is written and read again keeps its id.
		again, err := ParseEvent([]byte(m.Event.String()))
		if err != nil || again.GetID() != m.Event.GetID() {
			t.Fatalf("%s is read again as %v, %v", m.Event, again, err)
		}
	})
}

// An event is written as short as it can be, so that a relay that took it can pass it on.
func TestEventTextIsShort(t *testing.T) {
	e := &nostr.Event{ID: "1", PubKey: "2", Kind: 3, CreatedAt: 4, Content: "<&>\x01é\"\n", Sig: "5"}
	const want = `{"kind":3,"id":"1","pubkey":"2","created_at":4,"tags":[],"content":"<&>\u0001é\"\n","sig":"5"}`
	if got := string(EventText(e)); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	for _, part := range []any{e, *e} {
		if got := string(Message(VerbEvent, part)); got != `["EVENT",`+want+`]` {
			t.Errorf("%s", got)
		}
	}
	var back nostr.Event
	if err := json.Unmarshal(EventText(e), &back); err != nil || back.Content != e.Content {
		t.Errorf("%+v, %v", back, err)
	}
}
