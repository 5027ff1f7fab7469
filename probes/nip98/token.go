package nip98

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/textproto"
	"time"

	"github.com/nbd-wtf/go-nostr"
)

// Signer signs events with a key of its own.
type Signer interface{ Sign(*nostr.Event) error }

// Trailer is the field after a body (RFC 9110, 6.5) that holds the token for it, where the sender does not know the body
// before it sends it. The token in the header then has the tag AtEnd and is good for nothing without this one. Both have the
// same time. It is understood by the pod server of the box alone.
const Trailer = "Nostr-Authorization"

// AtEnd is the tag that says that the Trailer has the token for the body. It is no digest, so a server that does not know it refuses it.
func AtEnd() nostr.Tag { return nostr.Tag{"payload", atEnd} }

const (
	atEnd      = "trailer"
	headersTag = "headers"
)

// covered are the headers that change what a request does, in the order in which they are signed.
var covered = []string{"Content-Type", "If-Match", "If-None-Match", "If-Unmodified-Since", "Link", "Range", "Slug"}

// Headers is a tag with the SHA-256 of the headers that change what a request does. NIP-98 has none; a server that does not know it
// passes over it.
func Headers(h http.Header) nostr.Tag { return nostr.Tag{headersTag, HeaderDigest(h)} }

// HeaderDigest is that SHA-256 in hexadecimal.
func HeaderDigest(h http.Header) string {
	d := sha256.New()
	for _, name := range covered {
		for _, value := range h.Values(name) {
			fmt.Fprintf(d, "%s: %s\n", name, textproto.TrimString(value)) // as they are sent
		}
	}
	return hex.EncodeToString(d.Sum(nil))
}

// Authorization is the value of the header for one request: method, absolute URL
// with its query, and the exact bytes of the body. It is good for one request
// within 60 s. more are further tags.
func Authorization(s Signer, method, url string, body []byte, now time.Time, more ...nostr.Tag) (string, error) {
	if len(body) == 0 {
		return AuthorizationFor(s, method, url, nil, now, more...)
	}
	sum := sha256.Sum256(body)
	return AuthorizationFor(s, method, url, &sum, now, more...)
}

// AuthorizationFor is Authorization for a body with that SHA-256, nil if there is none, and with further tags.
func AuthorizationFor(s Signer, method, url string, payload *[sha256.Size]byte, now time.Time, more ...nostr.Tag) (string, error) {
	if _, err := CanonicalURL(url); err != nil {
		return "", fmt.Errorf("cannot sign a request to %q: %w", url, err)
	}
	// Two equal requests within a second would otherwise be one event, and the
	// second one a replay.
	nonce := make([]byte, 8)
	rand.Read(nonce) // never fails: it ends the program rather than return an error
	e := &nostr.Event{Kind: Kind, CreatedAt: nostr.Timestamp(now.Unix()), Tags: nostr.Tags{
		{"u", url}, {"method", method}, {"nonce", hex.EncodeToString(nonce)},
	}}
	if payload != nil {
		e.Tags = append(e.Tags, nostr.Tag{"payload", hex.EncodeToString(payload[:])})
	}
	e.Tags = append(e.Tags, more...)
	if err := s.Sign(e); err != nil {
		return "", err
	}
	return "Nostr " + base64.StdEncoding.EncodeToString([]byte(e.String())), nil
}
