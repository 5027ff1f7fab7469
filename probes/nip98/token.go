package nip98

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/nbd-wtf/go-nostr"
)

// Signer signs events with a key of its own.
type Signer interface{ Sign(*nostr.Event) error }

// Authorization is the value of the header for one request: method, absolute URL
// with its query, and the exact bytes of the body. It is good for one request
// within 60 s.
func Authorization(s Signer, method, url string, body []byte, now time.Time) (string, error) {
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
	if len(body) > 0 {
		sum := sha256.Sum256(body)
		e.Tags = append(e.Tags, nostr.Tag{"payload", hex.EncodeToString(sum[:])})
	}
	if err := s.Sign(e); err != nil {
		return "", err
	}
	return "Nostr " + base64.StdEncoding.EncodeToString([]byte(e.String())), nil
}
