package identity

import (
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/btcsuite/btcd/btcec/v2"
	"github.com/btcsuite/btcd/btcec/v2/schnorr"
	"github.com/btcsuite/btcd/btcutil/bech32"
	"github.com/nbd-wtf/go-nostr"
	"github.com/nbd-wtf/go-nostr/nip44"
)

// keySize is the size of a private key and of an x-only public key (BIP-340).
const keySize = 32

// redacted is printed instead of a private key.
const redacted = "[redacted]"

// ErrNotAKey means that the input is not a secp256k1 key. The error never quotes the input.
var ErrNotAKey = errors.New("not a secp256k1 key")

// PublicKey is an x-only public key (BIP-340) as 64 lower-case hexadecimal
// digits, the form of NIP-01. Make one with ParsePublicKey.
type PublicKey string

// ParsePublicKey reads 64 hexadecimal digits, an npub (NIP-19) or a did:nostr name. It refuses a
// value that is not a point of the curve.
func ParsePublicKey(text string) (PublicKey, error) {
	const did = "did:nostr:"
	if len(text) > len(did) && text[:len(did)] == did {
		text = text[len(did):]
	}
	var raw []byte
	var err error
	if len(text) > 5 && text[:5] == "npub1" {
		raw, err = decodeBech32("npub", text)
	} else {
		raw, err = decodeLowerHex(text)
	}
	if err != nil {
		return "", err
	}
	if _, err := schnorr.ParsePubKey(raw); err != nil {
		return "", fmt.Errorf("public key: %w", ErrNotAKey)
	}
	return PublicKey(hex.EncodeToString(raw)), nil
}

// decodeLowerHex reads 64 lower-case hexadecimal digits. NIP-01 has no other form, and a second
// spelling would give one key two names.
func decodeLowerHex(text string) ([]byte, error) {
	if len(text) != 2*keySize {
		return nil, fmt.Errorf("%w: want 64 hexadecimal digits", ErrNotAKey)
	}
	for _, c := range []byte(text) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return nil, fmt.Errorf("%w: want 64 lower-case hexadecimal digits", ErrNotAKey)
		}
	}
	return hex.DecodeString(text)
}

func decodeBech32(prefix, text string) ([]byte, error) {
	got, raw, err := bech32.DecodeToBase256(text)
	if err != nil || got != prefix || len(raw) != keySize {
		return nil, fmt.Errorf("%w: want %s1 and 58 characters (NIP-19)", ErrNotAKey, prefix)
	}
	return raw, nil
}

func encodeBech32(prefix string, raw []byte) string {
	text, err := bech32.EncodeFromBase256(prefix, raw)
	if err != nil {
		panic("identity: bech32 of 32 bytes always works: " + err.Error())
	}
	return text
}

// Npub is the key in the form of NIP-19: "npub1" and 58 characters.
func (p PublicKey) Npub() string {
	raw, err := hex.DecodeString(string(p))
	if err != nil {
		return ""
	}
	return encodeBech32("npub", raw)
}

// DID is the DID of the key's holder: "did:nostr:" and 64 hexadecimal digits.
func (p PublicKey) DID() string { return "did:nostr:" + string(p) }

// String is the 64 hexadecimal digits.
func (p PublicKey) String() string { return string(p) }

// Key is a private key. Formatting or marshalling it gives [redacted]; only Nsec returns it. A Key
// is immutable and may be used by any goroutine.
type Key struct {
	private *btcec.PrivateKey
	public  PublicKey
}

// NewKey makes a random key.
func NewKey() (*Key, error) {
	private, err := btcec.NewPrivateKey()
	if err != nil {
		return nil, fmt.Errorf("cannot make a private key: %w", err)
	}
	return newKey(private), nil
}

func newKey(private *btcec.PrivateKey) *Key {
	return &Key{private: private, public: PublicKey(hex.EncodeToString(schnorr.SerializePubKey(private.PubKey())))}
}

// KeyFromBytes reads the 32 bytes of a private key: a number from 1 to the order of the curve minus
// 1 (BIP-340).
func KeyFromBytes(raw []byte) (*Key, error) {
	if len(raw) != keySize {
		return nil, fmt.Errorf("private key of %d bytes: %w", len(raw), ErrNotAKey)
	}
	var scalar btcec.ModNScalar
	if overflow := scalar.SetByteSlice(raw); overflow || scalar.IsZero() {
		return nil, fmt.Errorf("private key: %w", ErrNotAKey)
	}
	return newKey(btcec.PrivKeyFromScalar(&scalar)), nil
}

// ParseKey reads an nsec (NIP-19) or 64 hexadecimal digits.
func ParseKey(text string) (*Key, error) {
	var raw []byte
	var err error
	if len(text) > 5 && text[:5] == "nsec1" {
		raw, err = decodeBech32("nsec", text)
	} else {
		raw, err = decodeLowerHex(text)
	}
	if err != nil {
		return nil, err
	}
	return KeyFromBytes(raw)
}

// Public is the public key.
func (k *Key) Public() PublicKey { return k.public }

// Nsec returns the private key itself in the form of NIP-19. Only Spellings and an export that an
// operator has requested may call it.
func (k *Key) Nsec() string {
	raw := k.private.Key.Bytes()
	return encodeBech32("nsec", raw[:])
}

// Spellings returns the private key in every form in which a program may print it. The log plane
// uses them to mask the key.
func (k *Key) Spellings() []string {
	raw := k.bytes()
	digits := hex.EncodeToString(raw)
	return []string{k.Nsec(), strings.ToUpper(k.Nsec()), digits, strings.ToUpper(digits), string(raw)}
}

func (k *Key) bytes() []byte {
	raw := k.private.Key.Bytes()
	return raw[:]
}

// Sign fills in the event's public key, id and signature (NIP-01). It does not change CreatedAt, so
// signing the same event again gives the same id.
func (k *Key) Sign(e *nostr.Event) error {
	if e.Tags == nil {
		e.Tags = nostr.Tags{} // in JSON, null is not a list of tags
	}
	e.PubKey = string(k.public)
	hash := sha256.Sum256(e.Serialize())
	sig, err := schnorr.Sign(k.private, hash[:])
	if err != nil {
		return fmt.Errorf("cannot sign an event of kind %d: %w", e.Kind, err)
	}
	e.ID, e.Sig = hex.EncodeToString(hash[:]), hex.EncodeToString(sig.Serialize())
	return nil
}

// Encrypt encrypts text (1 to 65535 bytes) for the holder of the other key
// (NIP-44, version 2).
func (k *Key) Encrypt(text string, to PublicKey) (string, error) {
	shared, err := k.conversation(to)
	if err != nil {
		return "", err
	}
	return nip44.Encrypt(text, shared)
}

// Decrypt decrypts a text that the holder of the other key has encrypted for this key (NIP-44,
// version 2).
func (k *Key) Decrypt(payload string, from PublicKey) (string, error) {
	// encoding/base64 skips line breaks, and nip44.Decrypt panics if the payload has only line breaks.
	if strings.ContainsAny(payload, "\r\n") {
		return "", errors.New("the payload is not base64")
	}
	shared, err := k.conversation(from)
	if err != nil {
		return "", err
	}
	return nip44.Decrypt(payload, shared)
}

// conversation is the conversation key of NIP-44. go-nostr's own function needs the private key as
// a string, and a string cannot be redacted.
func (k *Key) conversation(other PublicKey) (out [32]byte, err error) {
	raw, err := decodeLowerHex(string(other))
	if err != nil {
		return out, err
	}
	point, err := schnorr.ParsePubKey(raw)
	if err != nil {
		return out, fmt.Errorf("public key: %w", ErrNotAKey)
	}
	x := btcec.GenerateSharedSecret(k.private, point)
	secret, err := hkdf.Extract(sha256.New, x, []byte("nip44-v2"))
	copy(out[:], secret)
	return out, err
}

// String implements fmt.Stringer.
func (*Key) String() string { return redacted }

// Format implements fmt.Formatter. Without it, verbs such as %d or %#v would print the fields.
func (Key) Format(f fmt.State, _ rune) { io.WriteString(f, redacted) }

// MarshalJSON implements json.Marshaler.
func (Key) MarshalJSON() ([]byte, error) { return []byte(`"` + redacted + `"`), nil }

// MarshalText implements encoding.TextMarshaler.
func (Key) MarshalText() ([]byte, error) { return []byte(redacted), nil }
