package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/dreamlab-ai/agentinit/bootstrap"
	"github.com/dreamlab-ai/agentinit/bootstrap/identity"
	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// An apply reports new warnings. A warning of the boot that only has another line number is not
// new.
func TestWarningsAreToldOnce(t *testing.T) {
	old := schema.Finding{Code: "W120", Path: "programs.a", Line: 3, Message: "long"}
	moved, fresh := old, old
	moved.Line, fresh.Message = 9, "longer"
	got := newFindings([]schema.Finding{moved, fresh}, []schema.Finding{old})
	if len(got) != 1 || got[0] != fresh {
		t.Errorf("told %v, want %v alone", got, fresh)
	}
}

// /v1/meta names the box's DID and what its own relay speaks. The DID document names a pod only
// where the box has a pod server.
func TestWhoTheBoxIs(t *testing.T) {
	b := &box{}
	b.self = &self{b: b}
	if got := b.metaMesh(&schema.Manifest{}); got != nil {
		t.Errorf("a box without an identity is %+v", got)
	}
	b.self.opened = &identity.Opened{Identity: identity.Identity{DID: "did:nostr:ab"}}
	relayed := &schema.Manifest{SovereignMesh: schema.SovereignMesh{Relay: schema.Relay{Enabled: true, Implementation: bootstrap.RelayEmbedded}}}
	for m, want := range map[*schema.Manifest]string{
		{}:      `{"did":"did:nostr:ab","relay":null}`,
		relayed: `{"did":"did:nostr:ab","relay":{"nips":[1,11,40,42,70]}}`,
	} {
		if got, err := json.Marshal(b.metaMesh(m)); err != nil || string(got) != want {
			t.Errorf("%s, %v; want %s", got, err, want)
		}
	}
	for word, want := range map[string]int{"local-solid-rs": 1, "external": 0, "off": 0} {
		m := &schema.Manifest{Adapters: schema.Adapters{Pods: word}, LinkedData: schema.LinkedData{DID: schema.LinkedDataDID{ServiceEndpoints: []string{"pod"}}}}
		if got := b.self.services(m, "http://127.0.0.1:8484"); len(got) != want {
			t.Errorf("with pods = %q the services are %v", word, got)
		}
	}
}

// Everyone can read the DID document: it names no relay whose address has a password or a token.
func TestDIDDocumentNamesNoCredential(t *testing.T) {
	const manifest = "[sovereign_mesh]\nenabled = true\npublish_agent_events = true\n[adapters]\npods = 'off'\n[federation]\nmode = 'standalone'\n"
	for relays, want := range map[string]string{
		"wss://one.example,wss://two.example":                                                    "wss://one.example",
		"wss://me:secret@one.example, wss://two.example/?token=secret, wss://three.example/path": "wss://three.example/path",
		"wss://me:secret@one.example":                                                            "",
	} {
		file := filepath.Join(t.TempDir(), "agentbox.toml")
		if err := os.WriteFile(file, []byte(manifest), 0o600); err != nil {
			t.Fatal(err)
		}
		b, err := newBox(options{manifest: file, root: t.TempDir()}, []string{"NOSTR_RELAYS=" + relays}, os.Stderr)
		if err != nil {
			t.Fatal(err)
		}
		if err := b.boot.Load(t.Context()); err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, s := range b.self.services(b.manifest(), "") {
			got += s.Endpoint
		}
		if got != want {
			t.Errorf("with %s the document names %q, want %q", relays, got, want)
		}
	}
}

// The group of the control socket is one of the box, as the groups of programs are: below --root, not
// of the machine.
func TestSocketGroup(t *testing.T) {
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "etc/group"), []byte("readers:x:4711:\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	roots, err := bootstrap.NewRoots(root, func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	b := &box{roots: roots}
	for name, want := range map[string]int{"": -1, "readers": 4711, "12": 12, "0": 0} {
		if got, err := b.socketGroup(name); err != nil || got != want {
			t.Errorf("%q: %d, %v; want %d", name, got, err, want)
		}
	}
	for _, name := range []string{"root", "-1", "4294967295"} {
		got, err := b.socketGroup(name)
		failure, ok := errors.AsType[*bootstrap.Failure](err)
		if !ok || failure.Code != bootstrap.ExitManifest || !strings.Contains(err.Error(), "supervisor.socket_group: there is no group") {
			t.Errorf("%q: %d, %v", name, got, err)
		}
	}
}

// Every changed field that an apply names is a key that exists in the manifest.
func TestChangedFieldsAreManifestKeys(t *testing.T) {
	unknown := func(key string) bool {
		_, _, findings := schema.Load("agentbox.toml", []byte("[programs.web]\n"+key+" = 0\n"))
		for _, f := range findings {
			if strings.Contains(f.Message, "unknown key") {
				return true
			}
		}
		return false
	}
	if !unknown("no_such_key") {
		t.Fatal("the manifest accepts every key")
	}
	for _, field := range reflect.VisibleFields(reflect.TypeFor[program.Spec]()) {
		switch field.Name {
		case "Group", "Instance", "Secrets":
			continue // Group and Instance identify an instance; another field reports secrets
		}
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name == "-" {
			name = strings.ToLower(field.Name)
		}
		if key := manifestKeys([]string{name})[0]; unknown(key) {
			t.Errorf("a change of Spec.%s is told as %q, which is no key of a program", field.Name, key)
		}
	}
}
