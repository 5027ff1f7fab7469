// Package identity owns the key pair by which a box is known: it creates, seals,
// loads and rotates it, and writes what follows from it (identity file, pod tree,
// access list, profile, DID document, environment file).
//
// The private key exists in one type, Key, that signs and decrypts and prints
// [redacted]. The package never sends anything, and never replaces a file that it
// cannot read: such a file may hold the only copy of a key that is known elsewhere.
//
// Standards: BIP-340 (Schnorr signatures over secp256k1), NIP-01 (events), NIP-19
// (npub, nsec), NIP-44 (encryption), Solid WAC, DID Core 1.0 with did:nostr.
package identity
