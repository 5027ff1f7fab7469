// Package host is the other side of a federation session: it lets boxes register,
// gives them a session and a token, takes their heartbeats and evicts them.
//
// All it knows lies in a registry, SQLite or PostgreSQL; nothing but the database
// must agree between several hosts behind one address, and any of them may die.
// The package decides who has a session, never what a session may do.
package host
