package nip98_test

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nbd-wtf/go-nostr"
	"pgregory.net/rapid"

	"github.com/dreamlab-ai/agentinit/bootstrap/identity"
	"github.com/dreamlab-ai/agentinit/internal/foreign"
	"github.com/dreamlab-ai/agentinit/probes/nip98"
)

const (
	secret = "67dea2ed018072d675f5415ecfaed7d2597555e202d85b3d65ea4e58d2d92ffa"
	pubkey = "7e7e9c42a91bfef19fa929e5fda1b72e0ebc1a4c1141673e2794234d86addf4e"
	target = "http://127.0.0.1:9090/v1/beads?limit=5"
)

func key(t testing.TB) *identity.Key {
	t.Helper()
	k, err := identity.ParseKey(secret)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// good is the event of a token for GET target at the time.
func good(now time.Time) *nostr.Event {
	return &nostr.Event{Kind: nip98.Kind, CreatedAt: nostr.Timestamp(now.Unix()), Tags: nostr.Tags{{"u", target}, {"method", "GET"}}}
}

func encode(raw string) string { return "Nostr " + base64.StdEncoding.EncodeToString([]byte(raw)) }

var now = time.Unix(1_795_332_191, 0)

// What nostr-tools 2.25.2 made: method as the caller wrote it, payload of
// JSON.stringify.
func TestTokensOfNostrTools(t *testing.T) {
	raw, err := os.ReadFile("testdata/nostr-tools-2.25.2.txt")
	if err != nil {
		t.Fatal(err)
	}
	verifyNostrTools(t, string(raw))
	out, err := foreign.NostrTools(t.Context(), strings.NewReader(
		`{"url":"http://127.0.0.1:9090/v1/beads?limit=5","method":"get"}`+"\n"+
			`{"url":"http://127.0.0.1:9090/v1/beads/epics","method":"POST","payload":{"title":"a bead €"}}`+"\n"), "testdata/tokens.mjs", secret)
	foreign.SkipOrFail(t, err)
	verifyNostrTools(t, string(out))
}

func verifyNostrTools(t *testing.T, lines string) {
	t.Helper()
	tokens := strings.Split(strings.TrimSpace(lines), "\n")
	if len(tokens) != 2 {
		t.Fatalf("%d tokens", len(tokens))
	}
	body := []byte(`{"title":"a bead €"}`)
	for i, r := range []nip98.Request{
		{Method: "GET", URL: target},
		{Method: "POST", URL: "http://127.0.0.1:9090/v1/beads/epics", HasBody: true},
	} {
		at := timeOf(t, tokens[i])
		token, err := nip98.Verify(tokens[i], r, at)
		if err != nil || token.Pubkey != pubkey {
			t.Fatalf("token %d: %v %v", i, token, err)
		}
		if i == 1 && (!token.Matches(sha256.Sum256(body)) || token.Matches(sha256.Sum256(body[1:]))) {
			t.Error("the payload is not that of the body")
		}
		if _, err := nip98.Verify(tokens[i], nip98.Request{Method: r.Method, URL: r.URL + "&x", HasBody: r.HasBody}, at); nip98.ReasonOf(err) != nip98.ReasonURL {
			t.Errorf("token %d is good for another URL: %v", i, err)
		}
	}
}

func timeOf(t *testing.T, token string) time.Time {
	t.Helper()
	raw, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(token, "Nostr "))
	var e nostr.Event
	if err = errors.Join(err, json.Unmarshal(raw, &e)); err != nil {
		t.Fatal(err)
	}
	return e.CreatedAt.Time()
}

func TestOwnTokenVerifies(t *testing.T) {
	body := []byte(`{"a": 1}`)
	header, err := nip98.Authorization(key(t), "PUT", "https://Box.example:443/v1/x?a=%2F", body, now)
	if err != nil {
		t.Fatal(err)
	}
	token, err := nip98.Verify(header, nip98.Request{Method: "PUT", URL: "https://box.example/v1/x?a=%2F", HasBody: true}, now.Add(59*time.Second))
	if err != nil || token.Pubkey != pubkey || !token.Matches(sha256.Sum256(body)) {
		t.Fatalf("%+v %v", token, err)
	}
	second, err := nip98.Authorization(key(t), "PUT", "https://box.example/v1/x?a=%2F", body, now)
	if err != nil || second == header {
		t.Error("two requests of one second are one event")
	}
}

// Each row spoils one thing of a good token; the reason says which. The first row
// is the twin that shows that the rest is good.
func TestEachCheck(t *testing.T) {
	signed := func(change func(e *nostr.Event)) string {
		e := good(now)
		change(e)
		if err := key(t).Sign(e); err != nil {
			t.Fatal(err)
		}
		return e.String()
	}
	after := func(change func(e *nostr.Event)) string {
		e := good(now)
		if err := key(t).Sign(e); err != nil {
			t.Fatal(err)
		}
		change(e)
		return e.String()
	}
	plain := signed(func(*nostr.Event) {})
	with := func(old, new string) string { return strings.Replace(plain, old, new, 1) }
	get := nip98.Request{Method: "GET", URL: target}
	post := nip98.Request{Method: "GET", URL: target, HasBody: true}
	sum := sha256.Sum256([]byte("body"))
	for name, c := range map[string]struct {
		header  string
		request nip98.Request
		want    nip98.Reason
	}{
		"good":                  {encode(plain), get, ""},
		"scheme in any case":    {"nOSTR " + base64.StdEncoding.EncodeToString([]byte(plain)), get, ""},
		"no padding":            {"Nostr " + base64.RawStdEncoding.EncodeToString([]byte(plain)), get, ""},
		"method in lower case":  {encode(signed(func(e *nostr.Event) { e.Tags[1][1] = "get" })), get, ""},
		"host in upper case":    {encode(signed(func(e *nostr.Event) { e.Tags[0][1] = "HTTP://127.0.0.1:9090/v1/beads?limit=5" })), get, ""},
		"payload":               {encode(signed(func(e *nostr.Event) { e.Tags = append(e.Tags, nostr.Tag{"payload", hex.EncodeToString(sum[:])}) })), post, ""},
		"white space in JSON":   {encode(strings.ReplaceAll(plain, ",", " ,\n")), get, ""},
		"another scheme":        {"Bearer " + base64.StdEncoding.EncodeToString([]byte(plain)), get, nip98.ReasonMalformed},
		"no scheme":             {base64.StdEncoding.EncodeToString([]byte(plain)), get, nip98.ReasonMalformed},
		"empty":                 {"Nostr ", get, nip98.ReasonMalformed},
		"URL-safe base64":       {"Nostr " + strings.Map(urlSafe, base64.StdEncoding.EncodeToString([]byte(plain+"???>>>"))), get, nip98.ReasonMalformed},
		"padding too long":      {encode(plain) + "====", get, nip98.ReasonMalformed},
		"base64 with a newline": {"Nostr " + base64.StdEncoding.EncodeToString([]byte(plain))[:40] + "\n" + base64.StdEncoding.EncodeToString([]byte(plain))[40:], get, nip98.ReasonMalformed},
		"too long":              {encode(signed(func(e *nostr.Event) { e.Content = strings.Repeat("x", 9000) })), get, nip98.ReasonMalformed},
		"an array":              {encode("[" + plain + "]"), get, nip98.ReasonMalformed},
		"two objects":           {encode(plain + plain), get, nip98.ReasonMalformed},
		"member twice":          {encode(with(`{`, `{"kind":27235,`)), get, nip98.ReasonMalformed},
		"id twice":              {encode(with(`{`, `{"id":"00",`)), get, nip98.ReasonMalformed},
		"unknown member":        {encode(with(`{`, `{"x":1,`)), get, nip98.ReasonMalformed},
		"member in upper case":  {encode(with(`"kind"`, `"Kind"`)), get, nip98.ReasonMalformed},
		"kind is text":          {encode(with(`:27235`, `:"27235"`)), get, nip98.ReasonMalformed},
		"kind with exponent":    {encode(with(`:27235`, `:27235e0`)), get, nip98.ReasonMalformed},
		"kind with fraction":    {encode(with(`:27235`, `:27235.0`)), get, nip98.ReasonMalformed},
		"time is null":          {encode(with(`"created_at":1795332191`, `"created_at":null`)), get, nip98.ReasonMalformed},
		"tags is an object":     {encode(with(`"tags":[["u","http://127.0.0.1:9090/v1/beads?limit=5"],["method","GET"]]`, `"tags":{}`)), get, nip98.ReasonMalformed},
		"tag of numbers":        {encode(with(`"GET"`, `1`)), get, nip98.ReasonMalformed},
		"33 tags":               {encode(signed(func(e *nostr.Event) { e.Tags = append(e.Tags, make([]nostr.Tag, 31)...) })), get, nip98.ReasonMalformed},
		"not UTF-8":             {encode(with(`"content":""`, "\"content\":\"\xff\"")), get, nip98.ReasonMalformed},
		"kind 1":                {encode(signed(func(e *nostr.Event) { e.Kind = 1 })), get, nip98.ReasonKind},
		"61 s old":              {encode(signed(func(e *nostr.Event) { e.CreatedAt -= 61 })), get, nip98.ReasonTime},
		"61 s ahead":            {encode(signed(func(e *nostr.Event) { e.CreatedAt += 61 })), get, nip98.ReasonTime},
		"time beyond all":       {encode(signed(func(e *nostr.Event) { e.CreatedAt = 1 << 53 })), get, nip98.ReasonTime},
		"no u":                  {encode(signed(func(e *nostr.Event) { e.Tags = e.Tags[1:] })), get, nip98.ReasonURL},
		"u without value":       {encode(signed(func(e *nostr.Event) { e.Tags[0] = nostr.Tag{"u"} })), get, nip98.ReasonURL},
		"u twice":               {encode(signed(func(e *nostr.Event) { e.Tags = append(e.Tags, e.Tags[0]) })), get, nip98.ReasonURL},
		"u that ends alike":     {encode(signed(func(e *nostr.Event) { e.Tags[0][1] = "http://evil.example/?" + target })), get, nip98.ReasonURL},
		"u without query":       {encode(signed(func(e *nostr.Event) { e.Tags[0][1] = strings.TrimSuffix(target, "?limit=5") })), get, nip98.ReasonURL},
		"u with slash":          {encode(signed(func(e *nostr.Event) { e.Tags[0][1] += "/" })), get, nip98.ReasonURL},
		"u with fragment":       {encode(signed(func(e *nostr.Event) { e.Tags[0][1] += "#x" })), get, nip98.ReasonURL},
		"u with user":           {encode(signed(func(e *nostr.Event) { e.Tags[0][1] = "http://127.0.0.1:9090@127.0.0.1:9090/v1/beads?limit=5" })), get, nip98.ReasonURL},
		"u is a path":           {encode(signed(func(e *nostr.Event) { e.Tags[0][1] = "/v1/beads?limit=5" })), get, nip98.ReasonURL},
		"u with https":          {encode(signed(func(e *nostr.Event) { e.Tags[0][1] = strings.Replace(target, "http:", "https:", 1) })), get, nip98.ReasonURL},
		"no method":             {encode(signed(func(e *nostr.Event) { e.Tags = e.Tags[:1] })), get, nip98.ReasonMethod},
		"another method":        {encode(plain), nip98.Request{Method: "DELETE", URL: target}, nip98.ReasonMethod},
		"method twice":          {encode(signed(func(e *nostr.Event) { e.Tags = append(e.Tags, nostr.Tag{"method", "DELETE"}) })), get, nip98.ReasonMethod},
		"body without payload":  {encode(plain), post, nip98.ReasonPayload},
		"payload is no digest":  {encode(signed(func(e *nostr.Event) { e.Tags = append(e.Tags, nostr.Tag{"payload", "zz"}) })), get, nip98.ReasonPayload},
		"payload is too long":   {encode(signed(func(e *nostr.Event) { e.Tags = append(e.Tags, nostr.Tag{"payload", strings.Repeat("ab", 33)}) })), get, nip98.ReasonPayload},
		"payload twice": {encode(signed(func(e *nostr.Event) {
			e.Tags = append(e.Tags, nostr.Tag{"payload", hex.EncodeToString(sum[:])}, nostr.Tag{"payload", "00"})
		})), post, nip98.ReasonPayload},
		"content was changed":     {encode(after(func(e *nostr.Event) { e.Content = "x" })), get, nip98.ReasonID},
		"id in upper case":        {encode(after(func(e *nostr.Event) { e.ID = strings.ToUpper(e.ID) })), get, nip98.ReasonID},
		"id is short":             {encode(after(func(e *nostr.Event) { e.ID = "00" })), get, nip98.ReasonID},
		"key of another":          {encode(after(reidentified(strings.Repeat("ab", 32)))), get, nip98.ReasonSignature},
		"key off the curve":       {encode(after(reidentified(strings.Repeat("0", 63) + "5"))), get, nip98.ReasonKey},
		"key in upper case":       {encode(after(reidentified(strings.ToUpper(pubkey)))), get, nip98.ReasonKey},
		"key with prefix":         {encode(after(reidentified("02" + pubkey))), get, nip98.ReasonKey},
		"another's valid key":     {encode(after(reidentified("dff1d77f2a671c5f36183726db2341be58feae1da2deced843240f7b502ba659"))), get, nip98.ReasonSignature},
		"signature of zeros":      {encode(after(func(e *nostr.Event) { e.Sig = strings.Repeat("0", 128) })), get, nip98.ReasonSignature},
		"signature is cut":        {encode(after(func(e *nostr.Event) { e.Sig = e.Sig[:126] })), get, nip98.ReasonSignature},
		"signature in upper case": {encode(after(func(e *nostr.Event) { e.Sig = strings.ToUpper(e.Sig) })), get, nip98.ReasonSignature},
	} {
		_, err := nip98.Verify(c.header, c.request, now)
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.want != "" && (err == nil || nip98.ReasonOf(err) != c.want):
			t.Errorf("%s: got %v (%s), want %s", name, err, nip98.ReasonOf(err), c.want)
		}
	}
}

func urlSafe(r rune) rune {
	switch r {
	case '+':
		return '-'
	case '/':
		return '_'
	}
	return r
}

// reidentified gives the event another key and the id that belongs to it.
func reidentified(pubkey string) func(*nostr.Event) {
	return func(e *nostr.Event) {
		e.PubKey = pubkey
		e.ID = e.GetID()
	}
}

func TestCanonicalURL(t *testing.T) {
	for in, want := range map[string]string{
		"http://a":                    "http://a/",
		"HTTP://A:80/B?C=D":           "http://a/B?C=D",
		"https://a:443":               "https://a/",
		"https://a:80/":               "https://a:80/",
		"http://a:8080?x":             "http://a:8080/?x",
		"http://[::1]:80/x":           "http://[::1]/x",
		"http://a/%2f%2F/../x//y?a+b": "http://a/%2f%2F/../x//y?a+b",
		"http://a:/":                  "http://a/",
	} {
		if got, err := nip98.CanonicalURL(in); err != nil || got != want {
			t.Errorf("%q: %q, %v; want %q", in, got, err, want)
		}
	}
	for _, in := range []string{"", "a", "/x", "ftp://a/", "http:///x", "http://u@a/", "http://u:p@a/", "http://a/#", "http://a/ b", "http://a\\b/", "http://a/\n", "http://%zz/", "//a/"} {
		if got, err := nip98.CanonicalURL(in); err == nil {
			t.Errorf("%q is taken as %q", in, got)
		}
	}
}

func TestReplay(t *testing.T) {
	var r nip98.Replay
	use := func(id string, created, at time.Duration) nip98.Reason {
		err := r.Use(nip98.Token{ID: id, Created: now.Add(created)}, now.Add(at))
		if err == nil {
			return ""
		}
		return nip98.ReasonOf(err)
	}
	// A token that is ahead of the clock is used as early as it can be.
	if got := use("a", nip98.Window, 0); got != "" {
		t.Fatal(got)
	}
	for _, at := range []time.Duration{0, time.Second, 119 * time.Second} {
		if got := use("a", nip98.Window, at); got != nip98.ReasonReplay {
			t.Errorf("after %v: %q", at, got)
		}
	}
	// Another token has the old ones forgotten. Then the clock is set back.
	for at, want := range map[time.Duration]nip98.Reason{179 * time.Second: nip98.ReasonReplay, 200 * time.Second: ""} {
		r = nip98.Replay{}
		if got := use("a", nip98.Window, 0) + use("b", at, at); got != "" {
			t.Fatal(got)
		}
		if got := use("a", nip98.Window, at-nip98.Window); got != want {
			t.Errorf("at %v, set back by %v: %q, want %q", at, nip98.Window, got, want)
		}
	}
}

// The memory is bounded: when it is full a token is refused, never let in twice,
// and two minutes later there is room again.
func TestReplayIsBounded(t *testing.T) {
	var r nip98.Replay
	var err error
	n := 0
	for ; err == nil && n < 200_000; n++ {
		err = r.Use(nip98.Token{ID: string(rune(n)) + "-" + hex.EncodeToString([]byte{byte(n), byte(n >> 8), byte(n >> 16)}), Created: now}, now)
	}
	if nip98.ReasonOf(err) != nip98.ReasonFull || n < 100_000 {
		t.Fatalf("after %d tokens: %v", n, err)
	}
	if err := r.Use(nip98.Token{ID: "later"}, now.Add(3*time.Minute)); err != nil {
		t.Errorf("no room after three minutes: %v", err)
	}
}

// A key cannot fill the memory for others, and no number of keys that for who has room of its own.
func TestReplayHasShares(t *testing.T) {
	var r nip98.Replay
	n := 0
	use := func(key string, use func(nip98.Token, time.Time) error) (held int) {
		for {
			n++
			if err := use(nip98.Token{ID: strconv.Itoa(n), Pubkey: key, Created: now}, now); err != nil {
				if nip98.ReasonOf(err) != nip98.ReasonFull {
					t.Fatal(err)
				}
				return held
			}
			held++
		}
	}
	for i := range 10 {
		if got := use(strconv.Itoa(i), r.UseShared); got != 10_000 {
			t.Errorf("key %d has room for %d tokens", i, got)
		}
	}
	if got := use("one more", r.UseShared); got != 0 {
		t.Errorf("beyond all shares is room for %d tokens", got)
	}
	if got := use("0", r.Use); got != 100_000 {
		t.Errorf("outside of shares is room for %d tokens", got)
	}
	if err := r.Use(nip98.Token{ID: "1", Created: now}, now); nip98.ReasonOf(err) != nip98.ReasonReplay {
		t.Errorf("a token of a share, used outside of it: %v", err)
	}
	if err := r.UseShared(nip98.Token{ID: "later", Pubkey: "0"}, now.Add(3*time.Minute)); err != nil {
		t.Errorf("no room after three minutes: %v", err)
	}
}

// Property: a token is good for its own request and for no other.
func TestTokenIsForOneRequest(t *testing.T) {
	k := key(t)
	rapid.Check(t, func(t *rapid.T) {
		requests := rapid.SliceOfNDistinct(rapid.Custom(func(t *rapid.T) nip98.Request {
			return nip98.Request{
				Method: rapid.SampledFrom([]string{"GET", "POST", "DELETE"}).Draw(t, "method"),
				URL:    "http://" + rapid.SampledFrom([]string{"a", "b:1"}).Draw(t, "host") + rapid.SampledFrom([]string{"/", "/x", "/x/", "/x?y", "/x?y=1", "/X"}).Draw(t, "path"),
			}
		}), 2, 2, rapid.ID[nip98.Request]).Draw(t, "requests")
		header, err := nip98.Authorization(k, requests[0].Method, requests[0].URL, nil, now)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := nip98.Verify(header, requests[0], now); err != nil {
			t.Errorf("for its own request: %v", err)
		}
		if _, err := nip98.Verify(header, requests[1], now); err == nil {
			t.Errorf("a token for %v lets %v in", requests[0], requests[1])
		}
	})
}

// A token for a body that is signed at its end holds only together with that signature, and no other token does. Signed headers are
// compared where the server knows them.
func TestFurtherTags(t *testing.T) {
	k := key(t)
	sum := sha256.Sum256([]byte("x"))
	signed := http.Header{"If-None-Match": {"*"}, "Accept": {"a/b"}}
	same := nip98.HeaderDigest(http.Header{"If-None-Match": {" * "}, "Accept": {"c/d"}})
	for name, c := range map[string]struct {
		payload *[sha256.Size]byte
		more    nostr.Tags
		r       nip98.Request
		ok      bool
	}{
		"at its end":             {nil, nostr.Tags{nip98.AtEnd()}, nip98.Request{HasBody: true, AtEnd: true}, true},
		"without the end":        {nil, nostr.Tags{nip98.AtEnd()}, nip98.Request{HasBody: true}, false},
		"without a body":         {nil, nostr.Tags{nip98.AtEnd()}, nip98.Request{}, false},
		"not marked":             {nil, nil, nip98.Request{AtEnd: true}, false},
		"for a whole body":       {&sum, nil, nip98.Request{HasBody: true, AtEnd: true}, false},
		"the headers":            {nil, nostr.Tags{nip98.Headers(signed)}, nip98.Request{HeaderDigest: same}, true},
		"other headers":          {nil, nostr.Tags{nip98.Headers(signed)}, nip98.Request{HeaderDigest: nip98.HeaderDigest(nil)}, false},
		"headers unknown here":   {nil, nostr.Tags{nip98.Headers(signed)}, nip98.Request{}, true},
		"headers without a word": {nil, nil, nip98.Request{HeaderDigest: same}, true},
	} {
		header, err := nip98.AuthorizationFor(k, "PUT", target, c.payload, now, c.more...)
		if err != nil {
			t.Fatal(err)
		}
		c.r.Method, c.r.URL = "PUT", target
		if _, err := nip98.Verify(header, c.r, now); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzVerify(f *testing.F) {
	e := good(now)
	if err := key(f).Sign(e); err != nil {
		f.Fatal(err)
	}
	f.Add(encode(e.String()))
	f.Add("Nostr e30=")
	f.Add("Nostr " + strings.Repeat("=", 9))
	f.Fuzz(func(t *testing.T, header string) {
		token, err := nip98.Verify(header, nip98.Request{Method: "GET", URL: target}, now)
		if err == nil && token.Pubkey != pubkey {
			t.Errorf("a token nobody signed is taken as %s", token.Pubkey)
		}
		if _, ok := errors.AsType[*nip98.Refusal](err); err != nil && !ok {
			t.Errorf("an error without a reason: %v", err)
		}
	})
}

func FuzzCanonicalURL(f *testing.F) {
	f.Add(target)
	f.Add("https://A:443?x#y")
	f.Add("http://:") // no host is left
	f.Fuzz(func(t *testing.T, in string) {
		once, err := nip98.CanonicalURL(in)
		if err != nil {
			return
		}
		if twice, err := nip98.CanonicalURL(once); err != nil || twice != once {
			t.Errorf("%q becomes %q, then %q, %v", in, once, twice, err)
		}
	})
}
