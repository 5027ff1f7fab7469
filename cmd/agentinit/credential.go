package main

import (
	"cmp"
	"crypto/sha256"
	"hash"
	"io"
	"net/http"
	"time"

	"github.com/nbd-wtf/go-nostr"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/wire"
	"github.com/dreamlab-ai/agentinit/probes/nip98"
	"github.com/dreamlab-ai/agentinit/schema"
)

// Authorize proves to the host which box registers: by the token of the federation if there is one,
// otherwise by the box's signature.
func (f *member) Authorize(r *http.Request, body []byte) error {
	if token := f.b.tokenIn(federationToken); token != "" {
		return wire.Bearer(func() string { return token }).Authorize(r, body)
	}
	if f.b.self.Signer() == nil {
		return nil
	}
	return signedBy{self: f.b.self}.Authorize(r, body)
}

// credential is how an external class logs in: by the box's signature if the manifest says so,
// otherwise by the token of the session with the host, otherwise by the token in the environment.
func (b *box) credential(slot adapters.Slot, auth, variable string) wire.Authorizer {
	if auth == "nip98" {
		return signedBy{self: b.self}
	}
	environment := wire.TokenOf(slot, variable, b.tokenIn)
	return wire.Bearer(func() string { return cmp.Or(b.member.token(slot), environment()) })
}

// podCredential is how the local class of the pods slot logs in at the pod server of this box: as the manifest or AGENTBOX_PODS_TOKEN
// says, otherwise by the box's signature, which the access list of its pod names. A token for other boxes is the last choice: it
// would belong to the program that listens on the port of the server.
func (b *box) podCredential(m *schema.Manifest, doc *schema.Document) wire.Authorizer {
	own := m.Slots.Pods
	configured := b.credential(adapters.SlotPods, own.Auth, own.TokenEnv)
	if doc.NonEmpty("slots.pods.auth") || doc.NonEmpty("slots.pods.token_env") {
		return configured
	}
	return localPods{wire.Bearer(func() string { return b.tokenIn("AGENTBOX_PODS_TOKEN") }), signedBy{self: b.self, ofPods: true}, configured}
}

// localPods logs in by the first that there is: a token for the slot, the identity of the box, what other slots use.
type localPods struct {
	token     wire.Bearer
	signature signedBy
	otherwise wire.Authorizer
}

func (l localPods) Authorize(r *http.Request, body []byte) error {
	switch {
	case l.token() != "":
		return l.token.Authorize(r, body)
	case l.signature.self.Signer() != nil:
		return l.signature.Authorize(r, body)
	}
	return l.otherwise.Authorize(r, body)
}

// signedBy authorises requests with the box's signature (NIP-98).
type signedBy struct {
	self   *self
	ofPods bool // the server takes the signature of a streamed body after it (nip98.Trailer), and that of headers
}

func (s signedBy) Authorize(r *http.Request, body []byte) error {
	signer := s.self.Signer()
	if signer == nil {
		return errNoIdentity
	}
	streamed := body == nil && r.ContentLength != 0
	if streamed && !s.ofPods {
		return adapters.Unsupported("nip98", "a streamed body cannot be signed")
	}
	now := time.Now()
	var more []nostr.Tag
	if s.ofPods {
		more = append(more, nip98.Headers(r.Header))
	}
	if streamed {
		signAtEnd(signer, r, now, more)
		more = append(more, nip98.AtEnd())
	}
	header, err := nip98.Authorization(signer, r.Method, r.URL.String(), body, now, more...)
	if err != nil {
		return err
	}
	r.Header.Set("Authorization", header)
	return nil
}

// signAtEnd sends the signature of a body after the body, with the time of the request: the peer may be another one than the server
// that listens by then.
func signAtEnd(signer nip98.Signer, r *http.Request, now time.Time, more []nostr.Tag) {
	r.Trailer = http.Header{nip98.Trailer: nil}
	r.ContentLength = -1 // only a body in chunks has trailers (RFC 9112, 7.1)
	r.Body = &signedStream{ReadCloser: r.Body, digest: sha256.New(), sign: func(sum [sha256.Size]byte) error {
		text, err := nip98.AuthorizationFor(signer, r.Method, r.URL.String(), &sum, now, more...)
		r.Trailer.Set(nip98.Trailer, text)
		return err
	}}
}

// signedStream signs what was read from it when it ends.
type signedStream struct {
	io.ReadCloser
	digest hash.Hash
	sign   func(sum [sha256.Size]byte) error
}

func (s *signedStream) Read(b []byte) (int, error) {
	n, err := s.ReadCloser.Read(b)
	s.digest.Write(b[:n])
	if err == io.EOF {
		if failed := s.sign([sha256.Size]byte(s.digest.Sum(nil))); failed != nil {
			return n, failed
		}
	}
	return n, err
}
