package identity

import (
	"bytes"
	"crypto/pbkdf2"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/nbd-wtf/go-nostr"
)

// The keys of the examples in NIP-19.
const (
	nip19Nsec = "nsec1vl029mgpspedva04g90vltkh6fvh240zqtv9k0t9af8935ke9laqsnlfe5"
	nip19Hex  = "67dea2ed018072d675f5415ecfaed7d2597555e202d85b3d65ea4e58d2d92ffa"
	nip19Npub = "npub10elfcs4fr0l0r8af98jlmgdh9c8tcxjvz9qkw038js35mp4dma8qzvjptg"
	nip19Pub  = "7e7e9c42a91bfef19fa929e5fda1b72e0ebc1a4c1141673e2794234d86addf4e"
)

func TestKeyOfNIP19(t *testing.T) {
	for _, text := range []string{nip19Nsec, nip19Hex} {
		k, err := ParseKey(text)
		if err != nil {
			t.Fatal(err)
		}
		if k.Nsec() != nip19Nsec || len(k.Nsec()) != 63 {
			t.Errorf("Nsec of %s is another key", text[:5])
		}
	}
	for _, text := range []string{nip19Npub, nip19Pub, "did:nostr:" + nip19Pub} {
		p, err := ParsePublicKey(text)
		if err != nil || string(p) != nip19Pub || p.Npub() != nip19Npub || p.DID() != "did:nostr:"+nip19Pub {
			t.Errorf("ParsePublicKey(%q) = %q, %v", text, p, err)
		}
	}
}

// Test vector 1 of BIP-340: the public key of this private key.
func TestPublicKeyOfBIP340(t *testing.T) {
	k, err := ParseKey(strings.ToLower("B7E151628AED2A6ABF7158809CF4F3C762E7160F38B4DA56A784D9045190CFEF"))
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.ToLower("DFF1D77F2A671C5F36183726DB2341BE58FEAE1DA2DECED843240F7B502BA659"); string(k.Public()) != want {
		t.Errorf("public key %s, want %s", k.Public(), want)
	}
}

func TestRefusedKeys(t *testing.T) {
	order := "fffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141"
	for _, text := range []string{
		"", "nsec1", strings.Repeat("0", 64), order, strings.ToUpper(nip19Hex), nip19Hex[:62], nip19Hex + "00",
		nip19Npub, strings.Replace(nip19Nsec, "v", "w", 1), strings.Repeat("f", 64),
	} {
		if k, err := ParseKey(text); err == nil {
			t.Errorf("ParseKey(%q) gave %s", text, k.Public())
		} else if text != "" && strings.Contains(err.Error(), text) {
			t.Errorf("the error quotes what may be a key: %v", err)
		}
	}
	// No point of the curve has x = 5 (BIP-340, lift_x).
	for _, text := range []string{"", nip19Nsec, strings.Repeat("0", 63) + "5", strings.Repeat("f", 64), strings.ToUpper(nip19Pub), "did:nostr:" + nip19Npub[:10]} {
		if p, err := ParsePublicKey(text); err == nil {
			t.Errorf("ParsePublicKey(%q) gave %s", text, p)
		}
	}
}

func TestSignedEventIsValidAndStable(t *testing.T) {
	k := mustKey(t)
	make := func() nostr.Event {
		return nostr.Event{Kind: 1, CreatedAt: 1_700_000_000, Content: "line\n\"quoted\" \\ \t € \u2028 😀"}
	}
	a, b := make(), make()
	if err := errors.Join(k.Sign(&a), k.Sign(&b)); err != nil {
		t.Fatal(err)
	}
	if ok, err := a.CheckSignature(); !ok || err != nil || !a.CheckID() {
		t.Fatalf("the signature does not hold: %v", err)
	}
	if a.ID != b.ID {
		t.Error("the same event signed twice has two ids")
	}
	a.Content += "."
	if ok, _ := a.CheckSignature(); ok {
		t.Error("a changed event still verifies")
	}
}

func TestNIP44(t *testing.T) {
	// The first vector of NIP-44's get_conversation_key.
	k, err := ParseKey("315e59ff51cb9209768cf7da80791ddcaae56ac9775eb25b6dee1234bc5d2268")
	if err != nil {
		t.Fatal(err)
	}
	got, err := k.conversation("c2f9d9948dc8c7c38321e4b85c8558872eafa0641cd269db76848a6073e69133")
	if want := "3dfef0ce2a4d80a25e7a328accf73448ef67096f65f79588e358d9a0eb9013f1"; err != nil || hex.EncodeToString(got[:]) != want {
		t.Errorf("conversation key %x, %v; want %s", got, err, want)
	}
	a, b, c := mustKey(t), mustKey(t), mustKey(t)
	sealed, err := a.Encrypt("secret words", b.Public())
	if err != nil {
		t.Fatal(err)
	}
	if text, err := b.Decrypt(sealed, a.Public()); err != nil || text != "secret words" {
		t.Errorf("Decrypt = %q, %v", text, err)
	}
	if text, err := c.Decrypt(sealed, a.Public()); err == nil {
		t.Errorf("a stranger reads %q", text)
	}
	for _, payload := range []string{"", "#", strings.Repeat("\n", 132), strings.Repeat("\r\n", 1000), strings.Repeat("A", 132), strings.Repeat("=", 132), sealed[:100] + "\n" + sealed[100:]} {
		if text, err := b.Decrypt(payload, a.Public()); err == nil {
			t.Errorf("%q decrypts to %q", payload, text)
		}
	}
}

func TestSealedKeyOpensAgain(t *testing.T) {
	k := mustKey(t)
	sealed, err := sealKey(k, "the management key", 4)
	if err != nil {
		t.Fatal(err)
	}
	got, version, err := openKey(sealed, nil, "the management key")
	if err != nil || version != 2 || got.Nsec() != k.Nsec() {
		t.Fatalf("openKey: version %d, %v", version, err)
	}
	if bytes.Contains(sealed, k.bytes()) {
		t.Error("the file holds the key in the clear")
	}
	if _, _, err := openKey(sealed, nil, "another management key"); !errors.Is(err, ErrWrongKey) {
		t.Errorf("another management key: %v", err)
	}
	again, err := sealKey(k, "the management key", 4)
	if err != nil || bytes.Equal(sealed[8:36], again[8:36]) {
		t.Error("salt and nonce are used twice")
	}
}

// Every byte of the file is protected. A changed byte gives an error, never another key.
func TestTamperedFileIsRefused(t *testing.T) {
	k := mustKey(t)
	sealed, err := sealKey(k, "m", 4)
	if err != nil {
		t.Fatal(err)
	}
	for i := range sealed {
		bad := bytes.Clone(sealed)
		bad[i] ^= 1
		if _, _, err := openKey(bad, nil, "m"); err == nil {
			t.Errorf("byte %d was changed and the file still opens", i)
		}
	}
	for _, cost := range [][3]byte{{63, 8, 1}, {19, 8, 1}, {0, 8, 1}, {15, 255, 1}, {15, 8, 255}, {15, 0, 1}} {
		bad := bytes.Clone(sealed)
		copy(bad[5:8], cost[:])
		if _, _, err := openKey(bad, nil, "m"); !errors.Is(err, ErrNotSealed) {
			t.Errorf("cost %v: %v", cost, err)
		}
	}
	for n := range sealed {
		if _, _, err := openKey(sealed[:n], nil, "m"); err == nil {
			t.Fatalf("%d of %d bytes open", n, len(sealed))
		}
	}
}

// sealV1 makes the file that the older runtime wrote.
func sealV1(t testing.TB, k *Key, managementKey string, salt []byte) []byte {
	t.Helper()
	key, err := pbkdf2.Key(sha256.New, managementKey, salt, v1Iterations, 32)
	if err != nil {
		t.Fatal(err)
	}
	aead, err := newGCM(key)
	if err != nil {
		t.Fatal(err)
	}
	nonce := bytes.Repeat([]byte{7}, nonceSize)
	box := aead.Seal(nil, nonce, k.bytes(), nil)
	text, tag := box[:keySize], box[keySize:]
	return append(append(nonce, tag...), text...)
}

func TestVersion1IsRead(t *testing.T) {
	k, salt := mustKey(t), []byte("0123456789abcdef")
	sealed := sealV1(t, k, "m", salt)
	got, version, err := openKey(sealed, salt, "m")
	if err != nil || version != 1 || got.Nsec() != k.Nsec() {
		t.Fatalf("version %d, %v", version, err)
	}
	for name, f := range map[string]func() error{
		"wrong key":  func() error { _, _, err := openKey(sealed, salt, "n"); return err },
		"wrong salt": func() error { _, _, err := openKey(sealed, []byte("0123456789abcdeX"), "m"); return err },
		"no salt":    func() error { _, _, err := openKey(sealed, nil, "m"); return err },
		"changed": func() error {
			_, _, err := openKey(append(bytes.Clone(sealed[:59]), sealed[59]^1), salt, "m")
			return err
		},
	} {
		if f() == nil {
			t.Errorf("%s: the file opens", name)
		}
	}
}

func TestKeyPrintsRedacted(t *testing.T) {
	k := mustKey(t)
	raw := hex.EncodeToString(k.bytes())
	holders := []any{k, *k, &k, NewSigner(k), struct{ K *Key }{k}, struct{ K Key }{*k}, []*Key{k}, map[string]*Key{"k": k}}
	for _, v := range holders {
		js, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		texts := []string{string(js)}
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%t", "%b", "%c", "%e", "%U", "%o", "%5.2s"} {
			texts = append(texts, fmt.Sprintf(verb, v))
		}
		for _, text := range texts {
			low := strings.ToLower(text)
			if strings.Contains(low, raw) || strings.Contains(low, k.Nsec()) || strings.Contains(text, fmt.Sprint(k.bytes()[:8])[1:20]) {
				t.Errorf("%T shows the key", v)
			}
		}
	}
	if got := fmt.Sprintf("%d %s", k, k); got != "[redacted] [redacted]" {
		t.Errorf("a key prints as %q", got)
	}
}

func FuzzOpenKey(f *testing.F) {
	k, err := KeyFromBytes(bytes.Repeat([]byte{9}, 32))
	if err != nil {
		f.Fatal(err)
	}
	sealed, err := sealKey(k, "m", 4)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(sealed, []byte("salt"))
	f.Add(sealV1(f, k, "m", []byte("saltsalt")), []byte("saltsalt"))
	f.Fuzz(func(t *testing.T, sealed, salt []byte) {
		if len(sealed) > 5 && sealed[5] > 12 {
			return // slow, and it covers no additional path
		}
		got, _, err := openKey(sealed, salt, "m")
		if err == nil && got.Public() != k.Public() {
			t.Errorf("a file nobody wrote opens as %s", got.Public())
		}
	})
}

func mustKey(t testing.TB) *Key {
	t.Helper()
	k, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	return k
}
