// Package nip01 owns the wire of Nostr (NIP-01) as both ends of ours read it:
// events, filters and the messages between client and relay, read strictly and
// within limits, and what an event says by its kind and tags (NIP-40, NIP-70).
//
// It is pure: no I/O and no clock. It must never report an event as verified
// whose id or signature it has not computed, and never decide who may do what.
package nip01
