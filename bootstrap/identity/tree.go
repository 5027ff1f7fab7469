package identity

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// podNames matches the directory names of pods: an npub, including the overlong ones of the older
// runtime. isPodName checks the length separately: a length in the expression would cost 3400
// allocations at every start.
var podNames = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^npub1[02-9ac-hj-np-z]+$`) })

const podNameMost = len("npub1") + 200

func isPodName(name string) bool { return len(name) <= podNameMost && podNames().MatchString(name) }

// podDirectories are the directories of a pod; docs: the mailbox lives below events.
var podDirectories = []string{
	"memory/episodic", "memory/semantic", "system/adrs", "system/prds", "events/inbox", "events/outbox", "events/intent-queue",
}

// PodDir is the directory of the pod of an identity.
func (s *Store) PodDir(npub string) string { return filepath.Join(s.cfg.Layout.Pods, "pods", npub) }

// prepareTree makes the pod's directories and documents. Existing files stay unchanged, except that
// a rotated key is replaced in the documents by the new key.
func (s *Store) prepareTree(o *Opened) error {
	if o.Previous != "" {
		if err := s.renamePod(o.Previous.Npub(), o.Npub); err != nil {
			return err
		}
	}
	if err := s.prepareRoot(o); err != nil {
		return fmt.Errorf("cannot write the access list of all pods: %w", err)
	}
	dir := s.PodDir(o.Npub)
	for _, sub := range podDirectories {
		if err := s.cfg.Files.MkdirAll(filepath.Join(dir, sub), 0o750); err != nil {
			return fmt.Errorf("cannot make the pod directory: %w", err)
		}
	}
	for _, d := range s.documents(o.Identity) {
		path := filepath.Join(dir, d.name)
		if o.Previous != "" {
			if err := s.succeed(path, o.Previous, o.PublicKey); err != nil {
				return fmt.Errorf("cannot bring the pod's %s up to date: %w", d.name, err)
			}
		}
		if err := s.cfg.Files.CreateFile(path, d.content, 0o640); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("cannot write the pod's %s: %w", d.name, err)
		}
	}
	return nil
}

// prepareRoot gives the box the rights to a tree that has no pods yet, beside its own pod: without an access list, a Solid server
// refuses everything. In a tree that has pods, an operator may have left the list out on purpose.
func (s *Store) prepareRoot(o *Opened) error {
	list := filepath.Join(s.cfg.Layout.Pods, ".acl")
	if o.Previous != "" {
		if err := s.succeed(list, o.Previous, o.PublicKey); err != nil {
			return err
		}
	}
	if _, err := s.cfg.Files.Lstat(filepath.Join(s.cfg.Layout.Pods, "pods")); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := s.cfg.Files.MkdirAll(s.cfg.Layout.Pods, 0o755); err != nil {
		return err
	}
	if err := s.cfg.Files.CreateFile(list, o.acl(), 0o640); !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// succeed replaces the old key in a document by the new key. An access list with the old key would
// lock out its owner.
func (s *Store) succeed(path string, old, new PublicKey) error {
	text, _, err := s.cfg.Files.ReadFile(path, maxFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	next := strings.NewReplacer(string(old), string(new), old.Npub(), new.Npub()).Replace(string(text))
	if next == string(text) {
		return nil
	}
	return s.cfg.Files.WriteFile(path, []byte(next), 0o640)
}

// Bounds of ListsNaming, because pods may have any number of files: how many files and directories it looks
// at, and how many lists it names.
const (
	mostEntries = 20_000
	mostLists   = 200
)

// ListsNaming returns the access lists of all pods that name a key, by their paths below the directory of
// the pods. These are lists that agentinit did not write. all is false if there was more to read, or if
// something could not be read. A link is not followed.
func (s *Store) ListsNaming(key PublicKey) (lists []string, all bool) {
	all = true
	seen := 0
	for dirs := []string{"."}; len(dirs) > 0; {
		dir := dirs[0]
		dirs = dirs[1:]
		names, err := s.cfg.Files.ReadDir(filepath.Join(s.cfg.Layout.Pods, dir))
		if err != nil {
			all = all && errors.Is(err, fs.ErrNotExist)
			continue
		}
		slices.Sort(names)
		for _, name := range names {
			if seen++; seen > mostEntries || len(lists) == mostLists {
				return lists, false
			}
			rel := filepath.Join(dir, name)
			path := filepath.Join(s.cfg.Layout.Pods, rel)
			info, err := s.cfg.Files.Lstat(path)
			switch {
			case err != nil:
				all = all && errors.Is(err, fs.ErrNotExist)
			case info.IsDir():
				dirs = append(dirs, rel)
			case info.Mode().IsRegular() && strings.HasSuffix(name, ".acl"):
				text, _, err := s.cfg.Files.ReadFile(path, maxFile)
				if err != nil {
					all = all && errors.Is(err, fs.ErrNotExist)
				} else if bytes.Contains(text, []byte(key)) || bytes.Contains(text, []byte(key.Npub())) {
					lists = append(lists, rel)
				}
			}
		}
	}
	return lists, all
}

type document struct {
	name    string
	content []byte
}

func (s *Store) documents(i Identity) []document {
	out := []document{
		{"profile.json", encode(i.Profile(s.cfg.PodBase))},
		{"did-nostr.json", encode(i.DIDDocument(s.cfg.PodBase, s.cfg.Services))},
		{".acl", i.acl()},
	}
	if s.cfg.QuotaBytes > 0 {
		out = append(out, document{".quota.json", []byte(`{"limit": ` + strconv.FormatInt(s.cfg.QuotaBytes, 10) + "}\n")})
	}
	return out
}

// Service is one service endpoint of a DID document.
type Service struct {
	Type     string // SolidPod, NostrRelay
	Endpoint string // URL
}

// profileURL is the WebID; empty if there is no pod server.
func (i Identity) profileURL(podBase string) string {
	if podBase == "" {
		return ""
	}
	return strings.TrimSuffix(podBase, "/") + "/pods/" + i.Npub + "/profile.json#me"
}

// Profile is the profile document, JSON-LD.
func (i Identity) Profile(podBase string) map[string]any {
	id := cmp.Or(i.profileURL(podBase), "#me")
	return map[string]any{
		"@context": map[string]any{
			"foaf": "http://xmlns.com/foaf/0.1/", "owl": "http://www.w3.org/2002/07/owl#", "schema": "https://schema.org/",
			"name": "foaf:name", "sameAs": map[string]string{"@id": "owl:sameAs", "@type": "@id"},
		},
		"@id": id, "@type": "foaf:Agent", "name": i.AgentID, "sameAs": i.DID, "schema:identifier": i.Npub,
	}
}

// DIDDocument is the DID document of the identity (DID Core 1.0). It has one Schnorr key, for
// authentication and assertion.
func (i Identity) DIDDocument(podBase string, services []Service) map[string]any {
	key := i.DID + "#key-0"
	doc := map[string]any{
		"@context": []string{"https://www.w3.org/ns/did/v1", "https://w3id.org/security/suites/secp256k1-2019/v1"},
		"id":       i.DID,
		"verificationMethod": []any{map[string]any{
			"id": key, "type": "SchnorrSecp256k1VerificationKey2019", "controller": i.DID, "publicKeyHex": string(i.PublicKey),
		}},
		"authentication":  []string{key},
		"assertionMethod": []string{key},
	}
	if url := i.profileURL(podBase); url != "" {
		doc["alsoKnownAs"] = []string{url}
	}
	var list []any
	for _, s := range services {
		list = append(list, map[string]any{"id": i.DID + "#" + strings.ToLower(s.Type), "type": s.Type, "serviceEndpoint": s.Endpoint})
	}
	if list != nil {
		doc["service"] = list
	}
	return doc
}

// acl gives all rights to the owner of the key, and none to others (Solid WAC). Messages enter
// events/ only through the relay, where signatures are checked.
func (i Identity) acl() []byte {
	return []byte(`@prefix acl: <http://www.w3.org/ns/auth/acl#>.

<#owner> a acl:Authorization;
    acl:agent <` + i.DID + `>;
    acl:accessTo <./>;
    acl:default <./>;
    acl:mode acl:Read, acl:Write, acl:Append, acl:Control.
`)
}

// encode writes JSON with indentation for human readers.
func encode(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		panic("identity: strings, times and maps of them always encode: " + err.Error())
	}
	return b.Bytes()
}
