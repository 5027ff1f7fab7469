// Package pool owns the box's connections to relays: dialled and dialled again,
// logged in (NIP-42), with subscriptions that outlive a connection.
//
// It takes no relay's word: an event is handed on only when its id and signature
// hold and it is one that was asked for. It must never wait for one relay because
// of another, keep more than its bounds, or hold a private key.
package pool
