package main

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dreamlab-ai/agentinit/bootstrap"
	"github.com/dreamlab-ai/agentinit/bootstrap/identity"
	"github.com/dreamlab-ai/agentinit/internal/sleep"
	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
)

// Events of the identity.
const (
	eventIdentityReady   = "IdentityReady"
	eventIdentityWarning = "IdentityWarning"
	eventKeyRotated      = "AgentKeyRotated"
	eventKeyExported     = "AgentKeyExported"
)

// self is the box's own identity from phase 3 on. Its methods may be called from
// any goroutine.
type self struct {
	b *box

	mu      sync.Mutex // one change at a time; guards the fields below
	store   *identity.Store
	opened  *identity.Opened // nil if there is no identity
	signer  *identity.Signer // nil if there is no identity
	podBase string
}

// Prepare is phase 3: it implements bootstrap.IdentityPreparer.
func (s *self) Prepare(_ context.Context, m *schema.Manifest, r bootstrap.Roots) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	doc := s.b.boot.Current().Document
	s.podBase = podBase(m.Integrations.SolidPodRS, doc)
	files := bootstrap.NewPolicy(r)
	store, err := identity.NewStore(identity.Config{
		Files: files, AgentID: s.b.getenv("AGENTBOX_AGENT_ID"), PodBase: s.podBase, Services: s.services(m, s.podBase),
		QuotaBytes: m.Integrations.SolidPodRS.QuotaDefaultBytes,
		Layout: identity.Layout{
			Identities: r.Identities, Profile: filepath.Dir(r.ManagementKey()), Pods: r.SolidPods,
			Environment: filepath.Join(r.Runtime, "identity.env"),
		},
	})
	if err != nil {
		return "", err
	}
	older, err := formerKeys(files, r, s.b.getenv)
	if err != nil {
		return "", err
	}
	s.b.plane.Redact(older...)
	opened, err := store.Open(s.b.boot.ManagementKey().Reveal(), older...)
	if err != nil {
		return "", err
	}
	s.b.plane.Redact(opened.Key.Spellings()...)
	s.store, s.opened, s.signer = store, opened, identity.NewSigner(opened.Key)
	s.tell(opened)
	s.forgetFormerKeys(files, r)
	s.b.background(func() { s.prune(s.b.stopped) })
	s.b.publishIdentity(event.Info, eventIdentityReady, map[string]any{
		"agent_id": opened.AgentID, "npub": opened.Npub, "did": opened.DID, "created": opened.Created,
	})
	return string(opened.PublicKey), nil
}

func (b *box) publishIdentity(level event.Level, name string, fields map[string]any) {
	b.bus.Publish(event.Event{Level: level, Stage: "identity", Name: name, Fields: fields})
}

func (s *self) tell(o *identity.Opened) {
	for _, note := range o.Notes {
		s.b.publishIdentity(event.Warn, eventIdentityWarning, map[string]any{"message": note})
	}
}

// services are the service endpoints of the DID document: of those that the manifest lists, the ones
// that the box has. Everyone can read the document, so it names the first relay whose address has no
// password and no token.
func (s *self) services(m *schema.Manifest, podBase string) []identity.Service {
	var out []identity.Service
	for _, name := range m.LinkedData.DID.ServiceEndpoints {
		switch {
		case name == "pod" && m.Adapters.Pods == "local-solid-rs":
			out = append(out, identity.Service{Type: "SolidPod", Endpoint: podBase})
		case name == "relay":
			relays, _ := s.b.boot.Relays()
			if i := slices.IndexFunc(relays, shareable); i >= 0 {
				out = append(out, identity.Service{Type: "NostrRelay", Endpoint: relays[i]})
			}
		}
	}
	return out
}

// formerKeys are the management keys with which the identity may still be encrypted:
// MANAGEMENT_API_KEY_PREVIOUS, and those of an interrupted change of the key file.
func formerKeys(files *bootstrap.Policy, r bootstrap.Roots, getenv func(string) string) ([]string, error) {
	keys := []string{strings.TrimSpace(getenv(identity.PreviousKeyVariable))}
	for _, path := range []string{r.NextManagementKey(), r.PreviousManagementKey()} {
		text, _, err := files.ReadFile(path, 4096)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		keys = append(keys, strings.TrimSpace(string(text)))
	}
	return keys, nil
}

// forgetFormerKeys removes the files of an interrupted change of the management key after it was
// completed: no file is encrypted with those keys any more.
func (s *self) forgetFormerKeys(files *bootstrap.Policy, r bootstrap.Roots) {
	for _, path := range []string{r.NextManagementKey(), r.PreviousManagementKey()} {
		if err := files.Remove(path); err != nil {
			s.tell(&identity.Opened{Notes: []string{"the former management key could not be removed: " + err.Error()}})
		}
	}
}

// Signer signs in the box's name; it is nil before phase 3 and if there is no identity.
func (s *self) Signer() *identity.Signer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.signer
}

// current is the identity; ok is false if there is none.
func (s *self) current() (identity.Identity, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.opened == nil {
		return identity.Identity{}, false
	}
	return s.opened.Identity, true
}

// podDir is the directory of the identity's pod. After a rotation, its former path is a link.
func (s *self) podDir() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.store.PodDir(s.opened.Npub)
}

// listsNaming are the access lists of the pods that name a key. The walk through the pods can take seconds, so
// it holds up no other question.
func (s *self) listsNaming(key identity.PublicKey) (lists []string, all bool) {
	s.mu.Lock()
	store := s.store
	s.mu.Unlock()
	return store.ListsNaming(key)
}

// errNoIdentity answers every question about an identity in a box that has none.
var errNoIdentity = errors.New("this box has no identity: sovereign_mesh.enabled is false, or boot has not reached phase 3")

// Rotate replaces the key.
func (s *self) Rotate() (identity.Identity, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.opened == nil {
		return identity.Identity{}, errNoIdentity
	}
	old := s.opened.PublicKey
	next, err := s.store.Rotate(s.opened, s.b.boot.ManagementKey().Reveal())
	if next == nil {
		return identity.Identity{}, err
	}
	if err != nil {
		next.Notes = append(next.Notes, "the new key is in force, but: "+err.Error())
	}
	s.opened = next
	s.b.plane.Redact(next.Key.Spellings()...)
	s.signer.Replace(next.Key)
	s.b.mesh.rotated()
	s.tell(next)
	s.b.publishIdentity(event.Info, eventKeyRotated, map[string]any{
		"agent_id": next.AgentID, "npub": next.Npub, "did": next.DID, "previous": old.DID(),
	})
	return next.Identity, nil
}

// Rekey makes a new management key, for a box whose key is in a file. It encrypts the identity with
// the new key first. After a crash in between, the next boot finds the right key (formerKeys).
func (s *self) Rekey() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.boot.RotateManagementKey(func(next bootstrap.Secret) error {
		if s.opened == nil {
			return nil
		}
		return s.store.Reseal(s.opened.Key, next.Reveal())
	})
}

// pruneEvery is how often prune checks the encrypted file that was kept from before a change of the
// management key.
const pruneEvery = time.Hour

// prune removes that file when its retention is over.
func (s *self) prune(ctx context.Context) {
	for sleep.For(ctx, pruneEvery) {
		s.mu.Lock()
		err := s.store.Prune()
		s.mu.Unlock()
		if err != nil {
			s.b.publishIdentity(event.Warn, eventIdentityWarning, map[string]any{"message": "the old encrypted key could not be removed: " + err.Error()})
		}
	}
}
