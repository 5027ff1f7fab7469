// Package mailbox owns the messages between a box and the keys it talks to: an
// inbox of what relays have for the box's key, and an outbox of what the box
// publishes. Both are files, one for each message.
//
// The inbox takes an event only after the kind, the recipient, the signature and
// the sender were judged; it is on disk before anything is told of it, and once:
// its id is its name. The outbox writes what is to be published, then the signed
// event, and only then asks a relay, so that a crash at any point gives the same
// id again. An event counts as published when a relay has said so.
//
// The package must never write what it has not verified, hand on the text of a
// private message, or hold a message in memory that is not being worked on.
package mailbox
