// Package host is the other side of a federation session: it lets boxes register,
// gives them a session and a token, takes their heartbeats and evicts them.
//
// Its whole state is in a registry, SQLite or PostgreSQL. Several hosts behind one
// address share only that database, and each of them may fail at any time. The package
// decides which boxes have a session, never what a session may do.
package host
