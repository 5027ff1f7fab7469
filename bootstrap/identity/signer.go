package identity

import (
	"sync/atomic"

	"github.com/nbd-wtf/go-nostr"
)

// Signer holds the present key of the box. A rotation replaces that key. All methods may be called
// from any goroutine.
type Signer struct{ key atomic.Pointer[Key] }

// NewSigner returns a Signer that holds k.
func NewSigner(k *Key) *Signer {
	s := new(Signer)
	s.key.Store(k)
	return s
}

// Key is the present key. To sign several things that belong together, call Key only once.
func (s *Signer) Key() *Key { return s.key.Load() }

// Replace makes k the present key.
func (s *Signer) Replace(k *Key) { s.key.Store(k) }

// Public, Sign, Encrypt and Decrypt use the present key.

func (s *Signer) Public() PublicKey                                 { return s.Key().Public() }
func (s *Signer) Sign(e *nostr.Event) error                         { return s.Key().Sign(e) }
func (s *Signer) Encrypt(text string, to PublicKey) (string, error) { return s.Key().Encrypt(text, to) }
func (s *Signer) Decrypt(payload string, from PublicKey) (string, error) {
	return s.Key().Decrypt(payload, from)
}
