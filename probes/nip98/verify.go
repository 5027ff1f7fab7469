package nip98

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/btcsuite/btcd/btcec/v2/schnorr"
	"github.com/nbd-wtf/go-nostr"
)

// Kind is the kind of the event in a token.
const Kind = 27235

// Window is how far the time of a token may be from now.
const Window = 60 * time.Second

// Reason is why a token is refused: one word of a fixed set, which is a label of a metric.
type Reason string

// The reasons, in the order of the checks.
const (
	ReasonMalformed Reason = "malformed"
	ReasonKind      Reason = "kind"
	ReasonTime      Reason = "stale"
	ReasonURL       Reason = "url"
	ReasonMethod    Reason = "method"
	ReasonPayload   Reason = "payload"
	ReasonID        Reason = "id"
	ReasonKey       Reason = "pubkey"
	ReasonSignature Reason = "signature"
	ReasonReplay    Reason = "replay"
	ReasonFull      Reason = "replay_full"
)

// Refusal is the error for a token that is not accepted.
type Refusal struct {
	Reason Reason
	Detail string // for the caller; quotes nothing of the token
}

func (r *Refusal) Error() string { return "NIP-98: " + r.Detail }

func refuse(reason Reason, detail string) error { return &Refusal{reason, detail} }

// ReasonOf is the reason of a Refusal; "malformed" for any other error.
func ReasonOf(err error) Reason {
	if r, ok := errors.AsType[*Refusal](err); ok {
		return r.Reason
	}
	return ReasonMalformed
}

// Request is the request for which a token must have been signed.
type Request struct {
	Method string
	// URL is the absolute request URL with its query, as the server knows it.
	URL string
	// HasBody says that the body is not empty. Then its digest must be in the token.
	HasBody bool
	// AtEnd says that the token for the body is in the Trailer. Then this token must say so too.
	AtEnd bool
	// HeaderDigest is compared with the one in the token, if that has one (Headers); "" = it is not compared.
	HeaderDigest string
}

// Token is a token with a valid signature.
type Token struct {
	ID      string // of the event
	Pubkey  string // who signed it, 64 lower-case hexadecimal digits
	Created time.Time
	// Payload is the SHA-256 of the signed body; nil if the token has none.
	Payload *[sha256.Size]byte
}

// Matches tells whether the signed body has this digest.
func (t Token) Matches(body [sha256.Size]byte) bool {
	return t.Payload != nil && subtle.ConstantTimeCompare(t.Payload[:], body[:]) == 1
}

// BodyMismatch is the refusal for a body that was not signed.
func BodyMismatch() error {
	return refuse(ReasonPayload, "the payload tag is not the SHA-256 of the body")
}

// Verify checks what can be checked before the body is read and without memory of other requests.
// The signature comes last, because it is expensive to check. The error is a *Refusal.
func Verify(authorization string, r Request, now time.Time) (Token, error) {
	e, err := parse(authorization)
	if err != nil {
		return Token{}, err
	}
	if e.Kind != Kind {
		return Token{}, refuse(ReasonKind, "the event's kind is not 27235")
	}
	if age := now.Sub(e.CreatedAt.Time()); age > Window || age < -Window {
		return Token{}, refuse(ReasonTime, fmt.Sprintf("created_at is more than %d s from the server's clock", int(Window.Seconds())))
	}
	t := Token{ID: e.ID, Pubkey: e.PubKey, Created: e.CreatedAt.Time()}
	if t.Payload, err = checkTags(e, r); err != nil {
		return Token{}, err
	}
	return t, checkSignature(e)
}

// checkTags compares the request with the one that was signed.
func checkTags(e *nostr.Event, r Request) (*[sha256.Size]byte, error) {
	u, err := single(e.Tags, "u", ReasonURL)
	if err != nil {
		return nil, err
	}
	signed, err := CanonicalURL(u)
	if err != nil {
		return nil, refuse(ReasonURL, "the u tag is no absolute http URL without user and fragment")
	}
	asked, err := CanonicalURL(r.URL)
	if err != nil || signed != asked {
		return nil, refuse(ReasonURL, "the u tag is not the URL of this request")
	}
	method, err := single(e.Tags, "method", ReasonMethod)
	if err != nil {
		return nil, err
	}
	if !strings.EqualFold(method, r.Method) {
		return nil, refuse(ReasonMethod, "the method tag is not the method of this request")
	}
	if err := headers(e.Tags, r.HeaderDigest); err != nil {
		return nil, err
	}
	return payload(e.Tags, r)
}

// single is the value of the only tag of that name.
func single(tags nostr.Tags, name string, reason Reason) (string, error) {
	var found nostr.Tag
	for _, tag := range tags {
		if len(tag) == 0 || tag[0] != name {
			continue
		}
		if found != nil {
			return "", refuse(reason, "there is more than one "+name+" tag")
		}
		found = tag
	}
	if len(found) < 2 {
		return "", refuse(reason, "there is no "+name+" tag with a value")
	}
	return found[1], nil
}

func has(tags nostr.Tags, name string) bool {
	return slices.ContainsFunc(tags, func(tag nostr.Tag) bool { return len(tag) > 0 && tag[0] == name })
}

func headers(tags nostr.Tags, digest string) error {
	if digest == "" || !has(tags, headersTag) {
		return nil
	}
	text, err := single(tags, headersTag, ReasonPayload)
	if err != nil {
		return err
	}
	if text != digest {
		return refuse(ReasonPayload, "the headers tag is not the SHA-256 of the headers")
	}
	return nil
}

func payload(tags nostr.Tags, r Request) (*[sha256.Size]byte, error) {
	if !r.HasBody && !r.AtEnd && !has(tags, "payload") {
		return nil, nil
	}
	text, err := single(tags, "payload", ReasonPayload)
	if err != nil {
		return nil, err
	}
	if r.AtEnd {
		if text != atEnd {
			return nil, refuse(ReasonPayload, "the payload tag does not say that the body is signed at its end")
		}
		return nil, nil
	}
	var digest [sha256.Size]byte
	if n, err := hex.Decode(digest[:], []byte(strings.ToLower(cut(text, 2*len(digest)+1)))); err != nil || n != len(digest) {
		return nil, refuse(ReasonPayload, "the payload tag is no SHA-256 in hexadecimal")
	}
	return &digest, nil
}

func cut(s string, n int) string { return s[:min(len(s), n)] }

// checkSignature checks id, key and signature (NIP-01, BIP-340).
func checkSignature(e *nostr.Event) error {
	hash := sha256.Sum256(e.Serialize())
	if subtle.ConstantTimeCompare([]byte(hex.EncodeToString(hash[:])), []byte(e.ID)) != 1 {
		return refuse(ReasonID, "id is not the SHA-256 of the event")
	}
	raw, err := lowerHex(e.PubKey, 32)
	if err != nil {
		return refuse(ReasonKey, "pubkey is not 64 lower-case hexadecimal digits")
	}
	key, err := schnorr.ParsePubKey(raw)
	if err != nil {
		return refuse(ReasonKey, "pubkey is no point of the curve")
	}
	if raw, err = lowerHex(e.Sig, 64); err != nil {
		return refuse(ReasonSignature, "sig is not 128 lower-case hexadecimal digits")
	}
	sig, err := schnorr.ParseSignature(raw)
	if err != nil || !sig.Verify(hash[:], key) {
		return refuse(ReasonSignature, "the signature does not hold")
	}
	return nil
}

func lowerHex(text string, size int) ([]byte, error) {
	if len(text) != 2*size || text != strings.ToLower(text) {
		return nil, errShape
	}
	return hex.DecodeString(text)
}

// CanonicalURL is an absolute URL in the form for comparisons: scheme and host in lower case,
// without the default port of the scheme, "/" for an empty path. The rest stays unchanged. A
// fragment, a user or a scheme other than http and https is an error.
func CanonicalURL(text string) (string, error) {
	scheme, rest, found := strings.Cut(text, "://")
	scheme = strings.ToLower(scheme)
	if !found || scheme != "http" && scheme != "https" {
		return "", errors.New("not an absolute http URL")
	}
	if strings.ContainsAny(text, "#\\ \t\r\n\x00") {
		return "", errors.New("a URL with a fragment, a backslash or white space")
	}
	host, tail := rest, ""
	if i := strings.IndexAny(rest, "/?"); i >= 0 {
		host, tail = rest[:i], rest[i:]
	}
	// The parser only checks that the text is a URL. Its own form of the URL is not used, because
	// it changes escapes.
	if _, err := url.Parse(text); err != nil {
		return "", errors.New("not a URL")
	}
	host = strings.ToLower(host)
	host = strings.TrimSuffix(host, map[string]string{"http": ":80", "https": ":443"}[scheme])
	host = strings.TrimSuffix(host, ":")
	if host == "" || strings.Contains(host, "@") {
		return "", errors.New("a URL without host, or with a user")
	}
	if !strings.HasPrefix(tail, "/") {
		tail = "/" + tail
	}
	return scheme + "://" + host + tail, nil
}
