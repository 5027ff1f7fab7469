// Package mailbox holds the messages between a box and other keys. The inbox has messages from
// relays to the box's key; the outbox has what the box publishes. Each message is one file.
//
// The inbox accepts an event only after it has checked the kind, the recipient, the signature and
// the sender. It writes the event to disk before it reports it, and only once: the file name is the
// event's id. The outbox writes the draft, then the signed event, and only then calls a relay, so a
// crash at any point gives the same id again. An event counts as published when a relay has
// confirmed it.
//
// The package must never write an event that it has not verified, pass on the text of a private
// message, or keep a message in memory longer than it works on it.
package mailbox
