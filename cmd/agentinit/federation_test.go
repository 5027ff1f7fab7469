package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/federation"
	mesh "github.com/dreamlab-ai/agentinit/adapters/federation/host"
	"github.com/dreamlab-ai/agentinit/bootstrap"
	"github.com/dreamlab-ai/agentinit/bootstrap/identity"
	"github.com/dreamlab-ai/agentinit/probes"
	"github.com/dreamlab-ai/agentinit/probes/nip98"
	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/schema/rules"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
)

// memberOf is the part of a box that has slots behind a host. Its bootstrap is complete.
func memberOf(t *testing.T, slots string, env map[string]string) *member {
	t.Helper()
	m, doc := manifestOf(t, "[federation]\nmode = \"client\"\nexternal_url = \"http://127.0.0.1:1\"\n"+slots)
	roots, err := bootstrap.NewRoots(t.TempDir(), func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	b := &box{bus: event.NewBus(64), roots: roots, env: env, registry: prometheus.NewRegistry(), core: &core{}, servers: &servers{}, stopped: t.Context()}
	b.self = &self{b: b}
	b.readiness = probes.NewReadiness(b.bus)
	b.readiness.Set(probes.Requirement{ID: probes.SentinelID, Kind: probes.KindSentinel, Met: true})
	resolved, err := adapters.Resolve(slotsConfig(m, doc), b.slotsTable(m, doc))
	if err != nil {
		t.Fatal(err)
	}
	b.resolved, b.slots = resolved, adapters.NewSet(resolved, adapters.Options{})
	if b.member, err = b.newMember(m); err != nil {
		t.Fatal(err)
	}
	return b.member
}

// If a slot of a box needs the host, the box is ready only while its host accepts it.
func TestReadinessOfASession(t *testing.T) {
	const beads = "[adapters]\nbeads = \"external\"\n"
	for _, c := range []struct {
		slots   string
		env     map[string]string
		state   federation.State
		noHost  bool
		missing string // reason of the requirement; "": the box is ready
	}{
		{beads, nil, federation.Registering, false, "registering: why"},
		{beads, nil, federation.Connecting, false, "connecting: why"},
		{beads, nil, federation.Refused, false, "refused: why"},
		{beads, nil, federation.Evicted, false, "evicted: why"},
		{beads, nil, federation.Quarantined, false, "quarantined: why"},
		{beads, nil, federation.Lost, false, "lost: why"},
		{beads, nil, federation.Active, false, ""},
		{beads, nil, federation.Suspect, false, ""},
		// This slot is not behind the host.
		{"[adapters]\nbeads = \"local-sqlite\"\n", nil, federation.Refused, false, ""},
		// The slot has its own credential.
		{beads, map[string]string{"AGENTBOX_BEADS_TOKEN": "x"}, federation.Refused, false, ""},
		{beads, map[string]string{"AGENTBOX_EVENTS_TOKEN": "x"}, federation.Refused, false, "refused: why"},
		{beads + "events = \"external\"\n", map[string]string{"AGENTBOX_BEADS_TOKEN": "x"}, federation.Refused, false, "refused: why"},
		{beads + "[slots.beads]\ntoken_env = \"MINE\"\n", map[string]string{"MINE": "x"}, federation.Refused, false, ""},
		{beads + "[slots.beads]\nauth = \"nip98\"\n", nil, federation.Refused, false, ""},
		// The registration token also opens the slots of a server that is no host. It does not open
		// those of a host.
		{beads, map[string]string{federationToken: "x"}, federation.Refused, false, "refused: why"},
		{beads, map[string]string{federationToken: "x"}, federation.Refused, true, ""},
		{beads, nil, federation.Refused, true, "refused: why"},
	} {
		f := memberOf(t, c.slots, c.env)
		f.Show(federation.Session{State: c.state, Reason: "why", NoHost: c.noHost, Since: time.Now()})
		missing := ""
		if v := f.b.readiness.Verdict(); len(v.Missing) > 0 {
			missing = v.Missing[0].Reason
		}
		if missing != c.missing {
			t.Errorf("%s, no host %v, with %v in\n%s: %q, want %q", c.state, c.noHost, c.env, c.slots, missing, c.missing)
		}
		// A box that stops reports that separately. A box that is accepted is ready.
		f.Show(federation.Session{State: federation.Deregistering})
		if v := f.b.readiness.Verdict(); v.Ready != (c.missing == "") {
			t.Errorf("the stop of a box in state %s has changed its readiness", c.state)
		}
		if f.Show(federation.Session{State: federation.Active}); !f.b.readiness.Verdict().Ready {
			t.Errorf("%s, then accepted: %+v", c.state, f.b.readiness.Verdict().Missing)
		}
	}
}

// Boxes that are refused repeatedly do not fill the log. Refusals that are not logged are counted.
func TestRefusalsOfBoxesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &box{bus: event.NewBus(4096)}
		h := &hosting{b: b, refusals: refusalEvents()}
		for range 1000 {
			h.tellRefused("box", errors.New("no"))
		}
		time.Sleep(time.Second)
		h.tellRefused("box", errors.New("no"))
		told, last := 0, event.Event{}
		for w := b.bus.Watch(0); ; told++ {
			e, ok := w.TryNext()
			if !ok {
				break
			}
			last = e
		}
		if told != 51 || last.Fields["suppressed"] != uint64(950) {
			t.Errorf("%d events, the last %v", told, last.Fields)
		}
	})
}

// What a box writes of itself comes into the log of the host as a short line.
func TestTextsOfBoxesAreShort(t *testing.T) {
	host, err := mesh.Open(t.Context(), mesh.Config{File: filepath.Join(t.TempDir(), registryFile), Endpoints: func() federation.Endpoints { return federation.Endpoints{} }})
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	h := &hosting{b: &box{bus: event.NewBus(64)}, refusals: refusalEvents()}
	h.set(host)
	long := strings.Repeat("x\x1b[31m", 500)
	grant, err := h.Register(t.Context(), "member", federation.Registration{BoxID: "box", BootID: "boot", Nonce: "n", Version: long})
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Deregister(t.Context(), "box", federation.Farewell{SessionID: long}); !errors.Is(err, adapters.ErrValidation) {
		t.Errorf("a session that is no id: %v", err)
	}
	if err := h.Deregister(t.Context(), "box", federation.Farewell{SessionID: grant.SessionID, Reason: long}); err != nil {
		t.Fatal(err)
	}
	w := h.b.bus.Watch(0)
	for _, name := range []string{"FederationBoxRegistered", "FederationBoxLeft"} {
		e, _ := w.TryNext()
		if e.Name != name {
			t.Fatalf("%s, want %s", e.Name, name)
		}
		for key, v := range e.Fields {
			if text := v.(string); len(text) > maxBoxText || strings.Contains(text, "\x1b") {
				t.Errorf("%s: %s has %d bytes", name, key, len(text))
			}
		}
	}
}

func TestRelaysThatNoHostMayName(t *testing.T) {
	for text, ok := range map[string]bool{
		`[]`: true, `["wss://relay.example"]`: true,
		`["https://relay.example"]`: false, `["wss://me:secret@relay.example"]`: false, `["wss://a","wss://b","wss://c","wss://d","wss://e","wss://f","wss://g","wss://h","wss://i"]`: false,
	} {
		m, _ := manifestOf(t, "[federation]\nmode = \"host\"\nrelay_urls = "+text+"\n")
		h, err := (&box{}).newHosting(m)
		failure, isFailure := errors.AsType[*bootstrap.Failure](err)
		switch {
		case ok && (err != nil || len(h.m.Federation.RelayURLs) != len(m.Federation.RelayURLs)):
			t.Errorf("%s: %v", text, err)
		case !ok && (!isFailure || failure.Code != bootstrap.ExitManifest || !strings.Contains(err.Error(), "federation.relay_urls")):
			t.Errorf("%s: %v", text, err)
		}
	}
}

// What a manifest of a federation says wrong is refused before anything is dialled, by its key.
func TestFederationThatIsRefused(t *testing.T) {
	for text, want := range map[string]string{
		"mode = \"client\"\nexternal_url = \"ftp://host\"": "this box cannot be a client of a host: federation.external_url: must be an http or https URL",
		"mode = \"client\"": "this box cannot be a client of a host: federation.external_url: must be an http or https URL",
		"mode = \"host\"\nrelay_urls = [\"http://relay\"]":  "federation.relay_urls cannot be given to boxes: ",
		"mode = \"host\"\nheartbeat = \"301s\"":             "federation.heartbeat is 5m1s; write 5s to 5m",
		"mode = \"host\"\nallowed_pubkeys = [\"79be667e\"]": "federation.allowed_pubkeys[0] is no public key: ",
		"mode = \"host\"\nheartbeat = \"1s\"":               "federation.heartbeat is 1s; write 5s to 5m",
	} {
		m, doc := manifestOf(t, "[federation]\n"+text+"\n")
		if !slices.ContainsFunc(rules.Run(doc, rules.Facts{}), func(f schema.Finding) bool { return f.Code == "W115" }) {
			t.Errorf("%s: the validation does not warn", text)
		}
		b := &box{}
		_, clientErr := b.newMember(m)
		_, hostErr := b.newHosting(m)
		err := errors.Join(clientErr, hostErr)
		if failure, ok := errors.AsType[*bootstrap.Failure](err); !ok || failure.Code != bootstrap.ExitManifest || !strings.HasPrefix(failure.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// The host gets an address that leads to the box. That of a listener on all addresses would lead a
// host to itself.
func TestMetaURL(t *testing.T) {
	for _, c := range []struct{ public, listener, want string }{
		{"https://box.example", "[::]:9090", "https://box.example/v1/meta"},
		{"", "10.1.2.3:9090", "http://10.1.2.3:9090/v1/meta"},
		{"", "[fd00::1]:9090", "http://[fd00::1]:9090/v1/meta"},
		{"", "[fe80::1%eth0]:9090", ""}, {"", "[::]:9090", ""}, {"", "0.0.0.0:9090", ""}, {"", "", ""},
	} {
		if got := metaURL(c.public, c.listener); got != c.want {
			t.Errorf("public %q, listener %q: %q, want %q", c.public, c.listener, got, c.want)
		}
	}
}

// A token of a secret file ends with a newline, which cannot be sent.
func TestTokenWithANewline(t *testing.T) {
	b := &box{core: &core{}, env: map[string]string{"MESH_TOKEN": "token\n", federationToken: "shared\n"}}
	for variable, want := range map[string]string{"MESH_TOKEN": "Bearer token", "": "Bearer shared"} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		if err := b.credential(adapters.SlotBeads, "bearer", variable).Authorize(r, nil); err != nil || r.Header.Get("Authorization") != want {
			t.Errorf("%q: %q, %v", variable, r.Header.Get("Authorization"), err)
		}
	}
	if p, err := (&hosting{b: b}).principal("shared"); err != nil || p.ID != "federation-token" {
		t.Errorf("%+v, %v", p, err)
	}
}

// The local pod server gets the box's signature, also of a body that is streamed, and a token only if it is for the slot. It never
// gets the token of the federation: the program that listens on its port would have it.
func TestCredentialOfTheLocalPods(t *testing.T) {
	key, err := identity.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	const url = "http://127.0.0.1:8484/x"
	verify := func(header string, hasBody bool) nip98.Token {
		t.Helper()
		token, err := nip98.Verify(header, nip98.Request{Method: "PUT", URL: url, HasBody: hasBody}, time.Now())
		if err != nil || token.Pubkey != string(key.Public()) {
			t.Fatalf("%q: %v", header, err)
		}
		return token
	}
	for _, c := range []struct {
		manifest string
		env      map[string]string
		signer   *identity.Signer
		bearer   string // "" means a signature
	}{
		{"", map[string]string{federationToken: "shared"}, identity.NewSigner(key), ""},
		{"", map[string]string{"AGENTBOX_PODS_TOKEN": "own"}, identity.NewSigner(key), "own"},
		{"", map[string]string{federationToken: "shared"}, nil, "shared"},
		{"[slots.pods]\nauth = \"nip98\"\n", map[string]string{"AGENTBOX_PODS_TOKEN": "own"}, identity.NewSigner(key), ""},
		{"[slots.pods]\ntoken_env = \"T\"\n", map[string]string{"T": "mine"}, identity.NewSigner(key), "mine"},
	} {
		m, doc := manifestOf(t, c.manifest)
		b := &box{core: &core{}, env: c.env}
		b.self = &self{b: b, signer: c.signer}
		auth := b.podCredential(m, doc)
		r := httptest.NewRequest(http.MethodPut, url, nil)
		if err := auth.Authorize(r, []byte("hello")); err != nil {
			t.Fatal(err)
		}
		if header := r.Header.Get("Authorization"); c.bearer != "" {
			if header != "Bearer "+c.bearer {
				t.Errorf("%q, %v: %s", c.manifest, c.env, header)
			}
			continue
		} else if !verify(header, true).Matches(sha256.Sum256([]byte("hello"))) {
			t.Error("the signature is not for the body")
		}
		if c.manifest != "" {
			continue
		}
		r = httptest.NewRequest(http.MethodPut, url, strings.NewReader("streamed"))
		if err := auth.Authorize(r, nil); err != nil {
			t.Fatal(err)
		}
		header := r.Header.Get("Authorization")
		token, err := nip98.Verify(header, nip98.Request{Method: "PUT", URL: url, HasBody: true, AtEnd: true}, time.Now())
		if err != nil || r.ContentLength != -1 || r.Trailer.Get(nip98.Trailer) != "" {
			t.Errorf("a streamed body is signed before it is known: %v", err)
		}
		if _, err := nip98.Verify(header, nip98.Request{Method: "PUT", URL: url}, time.Now()); err == nil {
			t.Error("the signature before the body is good without that after it")
		}
		if _, err := io.ReadAll(r.Body); err != nil {
			t.Fatal(err)
		}
		if end := verify(r.Trailer.Get(nip98.Trailer), true); !end.Matches(sha256.Sum256([]byte("streamed"))) || !end.Created.Equal(token.Created) {
			t.Error("the signature after the body is not for it, or of another time")
		}
	}
}

// The session token goes to the host and to servers that the host names. It never goes to a server
// from the manifest or to a program in the box.
func TestTokenOfTheSession(t *testing.T) {
	const own = "[integrations.external_events]\nurl = \"http://sink.example\"\n"
	relayed := federation.Endpoints{Events: federation.EventsEndpoint{Endpoint: federation.Endpoint{URL: "http://host/events"}}}
	tokened := relayed
	tokened.Events.Token = "another"
	for _, c := range []struct {
		manifest  string
		slot      adapters.Slot
		endpoints federation.Endpoints
		want      string
	}{
		{"[adapters]\nbeads = \"external\"\n", adapters.SlotBeads, federation.Endpoints{}, "session"},
		{"[adapters]\nbeads = \"local-sqlite\"\n", adapters.SlotBeads, federation.Endpoints{}, ""},
		{"[adapters]\npods = \"external\"\n", adapters.SlotPods, federation.Endpoints{}, "session"},
		{"[adapters]\npods = \"local-solid-rs\"\n", adapters.SlotPods, federation.Endpoints{}, ""},
		{"[adapters]\npods = \"local-solid-rs\"\n", adapters.SlotPods, federation.Endpoints{Pods: federation.Endpoint{URL: "http://host", Token: "t"}}, ""},
		{"[adapters]\nevents = \"external\"\n", adapters.SlotEvents, federation.Endpoints{}, "session"},
		{"[adapters]\nevents = \"external\"\n" + own, adapters.SlotEvents, federation.Endpoints{}, ""},
		{"[adapters]\nevents = \"external\"\n" + own, adapters.SlotEvents, relayed, "session"},
		{"[adapters]\nevents = \"external\"\n" + own, adapters.SlotEvents, tokened, "another"},
	} {
		f := memberOf(t, c.manifest, nil)
		f.runner = federation.NewRunner(granting{c.endpoints}, idle{}, 1)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { f.runner.Run(ctx); close(done) }()
		<-f.runner.Registered()
		if got := f.token(c.slot); got != c.want {
			t.Errorf("the %s slot of\n%swith %+v sends %q, want %q", c.slot, c.manifest, c.endpoints, got, c.want)
		}
		cancel()
		<-done
	}
}

// A slot that the host names no longer goes back to its own address. A slot that could not be moved
// comes back into service as soon as it can.
func TestSlotComesBackFromTheHost(t *testing.T) {
	type delivery struct{ sink, body string }
	took := make(chan delivery, 64)
	sink := func(name, contract string) *httptest.Server {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet {
				w.Header().Set("Content-Type", "application/json")
				fmt.Fprintf(w, `{"adapter_contract_versions":{"events":%q}}`, contract)
				return
			}
			body, err := io.ReadAll(r.Body)
			if err != nil {
				return // the carrier has ended, and the next one delivers the event again
			}
			took <- delivery{name, string(body)}
			w.WriteHeader(http.StatusAccepted)
		}))
		t.Cleanup(s.Close)
		return s
	}
	own, host, strange := sink("own", "1.1"), sink("host", "1.1"), sink("strange", "9.0")
	at := func(s *httptest.Server) federation.Endpoints {
		return federation.Endpoints{Events: federation.EventsEndpoint{Endpoint: federation.Endpoint{URL: s.URL}}}
	}
	f := memberOf(t, "[adapters]\nevents = \"external\"\n[integrations.external_events]\nurl = \""+own.URL+"\"\n", nil)
	f.runner = federation.NewRunner(granting{at(host)}, idle{}, 1)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { f.runner.Run(ctx); close(done) }()
	defer func() { cancel(); <-done }()
	<-f.runner.Registered()
	if err := f.b.slots.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.ready()
	sent := 0
	check := func(step, want string) {
		t.Helper()
		sent++
		id := fmt.Sprintf("event-%d", sent)
		_, err := f.b.slots.Events().Dispatch(t.Context(), adapters.Event{ID: id, Kind: "test", Payload: []byte("{}")})
		if want == "" {
			if err == nil {
				t.Errorf("%s: the slot is in service", step)
			}
			return
		}
		if err != nil {
			t.Fatalf("%s: %v", step, err)
		}
		for got := range took { // earlier events may come a second time
			if strings.Contains(got.body, id) {
				if got.sink != want {
					t.Errorf("%s: the event went to %s, want %s", step, got.sink, want)
				}
				return
			}
		}
	}
	check("before the session", "own")
	f.Connect(t.Context(), at(host))
	check("the host names a sink", "host")
	f.Connect(t.Context(), federation.Endpoints{})
	check("the host names no sink", "own")
	f.Connect(t.Context(), at(host))
	f.Degrade(t.Context(), "lost")
	check("the host is lost", "")
	f.Connect(t.Context(), at(strange))
	check("the host names a sink that cannot be used", "")
	f.Connect(t.Context(), at(host))
	check("the host names the former sink", "host")
	f.Degrade(t.Context(), "lost")
	f.Connect(t.Context(), federation.Endpoints{})
	check("the host is back and names no sink", "own")
	if err := f.b.slots.Disconnect(t.Context()); err != nil {
		t.Error(err)
	}
}

// granting is a host that accepts every box.
type granting struct{ endpoints federation.Endpoints }

func (g granting) Register(_ context.Context, call uint64, _ federation.Registration) federation.Event {
	return federation.Registered{Call: call, ID: "s", Token: "session", Endpoints: g.endpoints}
}

func (granting) Heartbeat(_ context.Context, call uint64, _ federation.Beat, _ string) federation.Event {
	return federation.Beaten{Call: call}
}

func (granting) Deregister(_ context.Context, call uint64, _ federation.Farewell, _ string) federation.Event {
	return federation.Deregistered{Call: call}
}

// idle is a box without slots.
type idle struct{}

func (idle) Registration() federation.Registration         { return federation.Registration{} }
func (idle) Beat() federation.Beat                         { return federation.Beat{} }
func (idle) Connect(context.Context, federation.Endpoints) {}
func (idle) Degrade(context.Context, string)               {}
func (idle) Show(federation.Session)                       {}
func (idle) Tell(string, string, federation.Session)       {}
func (idle) Fatal(string)                                  {}
func (idle) Counted(string)                                {}

// Messages of strangers that the mailbox refuses do not fill the log.
func TestTroublesOfTheMeshAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &box{bus: event.NewBus(4096)}
		b.mesh.troubles = troubleEvents()
		for range 1000 {
			b.meshTrouble("MessageRefused", nil)
		}
		b.meshTrouble("MailboxUnavailable", nil) // another kind is still reported
		time.Sleep(time.Second)
		b.meshTrouble("MessageRefused", nil)
		told := map[string]int{}
		for w := b.bus.Watch(0); ; {
			e, ok := w.TryNext()
			if !ok {
				break
			}
			told[e.Name]++
		}
		if told["MessageRefused"] != 21 || told["MailboxUnavailable"] != 1 {
			t.Errorf("%v", told)
		}
	})
}
