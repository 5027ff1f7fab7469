// Package nip01 is the wire format of Nostr (NIP-01) for agentbox's client and relay: events,
// filters and messages, parsed strictly and with limits. It also reads what the kind and tags of an
// event mean (NIP-40, NIP-70).
//
// It is pure: no I/O and no clock. It must report an event as verified only if it has computed the
// id and checked the signature. It must not decide about rights.
package nip01
