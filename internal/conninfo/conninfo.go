// Package conninfo owns what all of agentinit's PostgreSQL connections have in common: which files are read for
// them, and how long a statement or a transaction may take. The files are those that the connection string or
// the environment names, and none of its home directory. Those of the system are read by packages sysroots and
// hostname.
//
// pgx reads ~/.pgpass and the certificates below ~/.postgresql as libpq does (libpq, 34.16 and 34.19). The
// home of agentinit is often the workspace of the programs: one of them could end agentinit at each boot by a
// sparse file of terabytes, or by a file that holds no certificate.
package conninfo

import (
	"context"
	"crypto/tls"
	"net/url"
	"os"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dreamlab-ai/agentinit/internal/hostname"
	"github.com/dreamlab-ai/agentinit/internal/sysroots"
)

// Guard makes a parsed connection string verify servers by the certificates of sysroots and look names up by
// hostname. It must be called before the configuration is copied: with sslmode=verify-ca, pgx looks into the
// one that it has parsed. If ctx ends while a file does not answer, Guard returns an error.
func Guard(ctx context.Context, config *pgconn.Config) error {
	configs := []*tls.Config{config.TLSConfig}
	for _, f := range config.Fallbacks {
		configs = append(configs, f.TLSConfig)
	}
	config.LookupFunc = hostname.LookupHost
	return sysroots.Complete(ctx, configs...)
}

// Limits of a session, in milliseconds, which the server keeps. If agentinit dies or is cut off in the middle of a
// transaction, PostgreSQL finds out after hours (tcp_keepalives_idle), and would keep the locks for as long.
const (
	StatementTimeout = "5000"
	idleTimeout      = "10000"
)

// Bound sets the limits of the sessions that a parsed connection string opens, also if the string has others.
func Bound(config *pgconn.Config) {
	config.RuntimeParams["statement_timeout"] = StatementTimeout
	config.RuntimeParams["idle_in_transaction_session_timeout"] = idleTimeout
}

// settings are those that have a file of the home directory as default, and the variables that name another.
var settings = []struct{ key, variable string }{
	{"passfile", "PGPASSFILE"}, {"sslrootcert", "PGSSLROOTCERT"}, {"sslcert", "PGSSLCERT"}, {"sslkey", "PGSSLKEY"},
}

// WithoutHome returns the connection string with an empty value for each setting that has a file of the home
// directory as default, unless the string or the environment has a value. A string that names a service is
// returned as it is: its settings may be in the file of services.
func WithoutHome(text string) string {
	if os.Getenv("PGSERVICE") != "" {
		return text
	}
	if !strings.HasPrefix(text, "postgres://") && !strings.HasPrefix(text, "postgresql://") {
		return keywords(text)
	}
	address, query, _ := strings.Cut(text, "?")
	query, fragment, isFragment := strings.Cut(query, "#")
	have, err := url.ParseQuery(query)
	if err != nil || have.Has("service") || strings.Contains(address, "#") {
		return text // pgx says what is wrong with it
	}
	for _, s := range settings {
		if !have.Has(s.key) && os.Getenv(s.variable) == "" {
			if query != "" {
				query += "&"
			}
			query += s.key + "="
		}
	}
	if query != "" {
		address += "?" + query
	}
	if isFragment {
		address += "#" + fragment
	}
	return address
}

// keywords puts the empty values first, because the last value of a keyword counts.
func keywords(text string) string {
	if strings.Contains(text, "service") { // also a value: then the home directory counts, as for all programs
		return text
	}
	var empty strings.Builder
	for _, s := range settings {
		if os.Getenv(s.variable) == "" {
			empty.WriteString(s.key + "='' ")
		}
	}
	return empty.String() + text
}
