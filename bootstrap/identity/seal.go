package identity

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"

	"golang.org/x/crypto/scrypt"
)

// The encrypted key file, version 2. All fields before the ciphertext are associated data:
//
//	offset  size  field
//	0       4     "AGK2"
//	4       1     key derivation: 1 = scrypt (RFC 7914)
//	5       3     its cost: log2 N, r, p
//	8       16    salt
//	24      12    nonce
//	36      32    public key, x-only
//	68      48    AES-256-GCM: private key and tag
//
// The file contains the public key, so that it can be opened even if the identity file, which is on
// another volume, is missing.
const (
	magic      = "AGK2"
	kdfScrypt  = 1
	saltSize   = 16
	nonceSize  = 12
	tagSize    = 16
	headerSize = len(magic) + 4 + saltSize + nonceSize + keySize
	sealedSize = headerSize + keySize + tagSize
)

// The cost of scrypt for new files: 32 MiB and about 70 ms. The management key is normally 32
// random bytes, for which any cost is enough.
const defaultLog2N, costR, costP = 15, 8, 1

// Limits for the cost that is read: at most 256 MiB. Otherwise a planted file could make PID 1 run
// out of memory.
const maxLog2N, maxR, maxP = 18, 8, 4

// Version 1 is only read, never written: nonce, tag, ciphertext. Its key is derived with
// PBKDF2-HMAC-SHA-256 from the management key and a salt in a separate file.
const (
	v1Size       = nonceSize + tagSize + keySize
	v1Iterations = 100_000
	v1MinSalt    = 8
)

// The errors of openKey. They reveal no information about the key.
var (
	// ErrWrongKey: the management key is a different one, or the file was changed. The two cases
	// cannot be told apart.
	ErrWrongKey = errors.New("wrong management key, or the file was tampered with")
	// ErrNotSealed: the file is no encrypted key of version 1 or 2.
	ErrNotSealed = errors.New("not an encrypted key file of version 1 or 2")
)

// sealKey encrypts k with the management key, as version 2.
func sealKey(k *Key, managementKey string, log2N byte) ([]byte, error) {
	header := make([]byte, 0, sealedSize)
	header = append(header, magic...)
	header = append(header, kdfScrypt, log2N, costR, costP)
	random := make([]byte, saltSize+nonceSize)
	rand.Read(random) // never fails: it ends the program rather than return an error
	header = append(header, random...)
	public, err := decodeLowerHex(string(k.public))
	if err != nil {
		return nil, err
	}
	header = append(header, public...)
	aead, err := openingV2(header, managementKey)
	if err != nil {
		return nil, err
	}
	return aead.Seal(header, nonceOf(header), k.bytes(), header), nil
}

func nonceOf(header []byte) []byte { return header[headerSize-keySize-nonceSize : headerSize-keySize] }

// openKey decrypts the output of sealKey or of an older runtime. salt is the salt of version 1. The
// decrypted key is checked against the public key in the file.
func openKey(sealed, salt []byte, managementKey string) (k *Key, version int, err error) {
	var raw []byte
	if bytes.HasPrefix(sealed, []byte(magic)) {
		version = 2
		raw, err = openV2(sealed, managementKey)
	} else {
		version = 1
		raw, err = openV1(sealed, salt, managementKey)
	}
	if err != nil {
		return nil, version, err
	}
	k, err = KeyFromBytes(raw)
	clear(raw)
	if err != nil {
		return nil, version, err
	}
	if version == 2 {
		if public := hex.EncodeToString(sealed[headerSize-keySize : headerSize]); public != string(k.public) {
			return nil, version, ErrWrongKey
		}
	}
	return k, version, nil
}

func openV2(sealed []byte, managementKey string) ([]byte, error) {
	if len(sealed) != sealedSize {
		return nil, fmt.Errorf("%w: %d bytes, want %d", ErrNotSealed, len(sealed), sealedSize)
	}
	header := sealed[:headerSize]
	aead, err := openingV2(header, managementKey)
	if err != nil {
		return nil, err
	}
	raw, err := aead.Open(nil, nonceOf(header), sealed[headerSize:], header)
	if err != nil {
		return nil, ErrWrongKey
	}
	return raw, nil
}

// openingV2 derives the cipher from the header's cost and salt.
func openingV2(header []byte, managementKey string) (cipher.AEAD, error) {
	kdf, log2N, r, p := header[4], header[5], header[6], header[7]
	if kdf != kdfScrypt {
		return nil, fmt.Errorf("%w: unknown key derivation %d", ErrNotSealed, kdf)
	}
	if log2N < 1 || log2N > maxLog2N || r < 1 || r > maxR || p < 1 || p > maxP {
		return nil, fmt.Errorf("%w: scrypt cost 2^%d, %d, %d is out of range", ErrNotSealed, log2N, r, p)
	}
	key, err := scrypt.Key([]byte(managementKey), header[8:8+saltSize], 1<<log2N, int(r), int(p), 32)
	if err != nil {
		return nil, err
	}
	defer clear(key)
	return newGCM(key)
}

func openV1(sealed, salt []byte, managementKey string) ([]byte, error) {
	if len(sealed) != v1Size {
		return nil, fmt.Errorf("%w: %d bytes", ErrNotSealed, len(sealed))
	}
	if len(salt) < v1MinSalt {
		return nil, fmt.Errorf("%w: the salt of version 1 is missing or shorter than %d bytes", ErrNotSealed, v1MinSalt)
	}
	key, err := pbkdf2.Key(sha256.New, managementKey, salt, v1Iterations, 32)
	if err != nil {
		return nil, err
	}
	defer clear(key)
	aead, err := newGCM(key)
	if err != nil {
		return nil, err
	}
	nonce, tag, text := sealed[:nonceSize], sealed[nonceSize:nonceSize+tagSize], sealed[nonceSize+tagSize:]
	raw, err := aead.Open(nil, nonce, append(bytes.Clone(text), tag...), nil)
	if err != nil {
		return nil, ErrWrongKey
	}
	return raw, nil
}

func newGCM(key []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}
