// Package solid owns the pod server of the box: a subset of the Solid Protocol 0.11 over a directory.
// Documents and containers (LDP 1.0) are files and directories below one root; access lists (Web Access
// Control 1.0) lie beside them. It also owns what a file system does not keep: the media types of files whose
// names do not tell them, and temporary files.
//
// Its clients are adversarial, so it runs as a program of its own, never inside PID 1. It must never open a
// path in another way than one component after the other below the root descriptor, follow a symbolic link
// (except that of a renamed pod), keep a body in memory whose size only the client bounds, or answer a request
// before Web Access Control has allowed it.
//
// It does not decide who signed a request: the caller gives it an Identify function. It has no OIDC, no
// webhooks, and no storage but files.
package solid
