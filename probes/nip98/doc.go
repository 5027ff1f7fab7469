// Package nip98 makes and checks HTTP authorisation by Nostr events (NIP-98):
// "Authorization: Nostr <base64 of an event of kind 27235>".
//
// It is stricter than the NIP: the URL must be equal, not alike; a body needs a
// payload; an event is good for one request. It decides who made a request, never
// what that one may do, and does no I/O: time, URL and body digest are arguments.
package nip98
