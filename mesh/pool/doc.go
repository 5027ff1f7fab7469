// Package pool manages the box's connections to relays. It dials them again after a failure, logs
// in (NIP-42), and keeps subscriptions over reconnects.
//
// It trusts no relay: an event is passed on only if its id and signature are valid and a
// subscription asked for it. One relay must never delay another. The package must keep no more data
// than its limits allow, and must not hold a private key.
package pool
