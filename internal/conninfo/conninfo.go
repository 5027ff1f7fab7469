// Package conninfo owns which files agentinit reads for a PostgreSQL connection string: those that the string
// or the environment names, and none of its home directory.
//
// pgx reads ~/.pgpass and the certificates below ~/.postgresql as libpq does (libpq, 34.16 and 34.19). The
// home of agentinit is often the workspace of the programs: one of them could end agentinit at each boot by a
// sparse file of terabytes, or by a file that holds no certificate.
package conninfo

import (
	"net/url"
	"os"
	"strings"
)

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
