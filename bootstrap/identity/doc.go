// Package identity owns the key pair that identifies the box. It creates, seals, loads and rotates
// the key pair, and writes the files derived from it (identity file, pod tree, access list,
// profile, DID document, environment file).
//
// The private key exists only in the type Key, which signs and decrypts and is printed as
// [redacted]. The package never sends data, and never replaces a file that it cannot read: such a
// file may be the only copy of a key that other systems know.
//
// Standards: BIP-340 (Schnorr signatures over secp256k1), NIP-01 (events), NIP-19
// (npub, nsec), NIP-44 (encryption), Solid WAC, DID Core 1.0 with did:nostr.
package identity
