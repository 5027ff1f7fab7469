package conninfo

import "testing"

func TestWithoutHome(t *testing.T) {
	const none = "passfile='' sslrootcert='' sslcert='' sslkey='' "
	for name, c := range map[string]struct {
		variables  []string
		text, want string
	}{
		"keywords":               {nil, "host=db", none + "host=db"},
		"its own value is last":  {nil, "host=db sslrootcert=/ca", none + "host=db sslrootcert=/ca"},
		"a variable":             {[]string{"PGSSLROOTCERT", "PGPASSFILE"}, "host=db", "sslcert='' sslkey='' host=db"},
		"a service":              {nil, "service=db", "service=db"},
		"a service by variable":  {[]string{"PGSERVICE"}, "host=db", "host=db"},
		"a URL":                  {nil, "postgres://u:p@db/x", "postgres://u:p@db/x?passfile=&sslrootcert=&sslcert=&sslkey="},
		"a URL with a query":     {nil, "postgresql://db/x?sslmode=verify-full&sslrootcert=/ca", "postgresql://db/x?sslmode=verify-full&sslrootcert=/ca&passfile=&sslcert=&sslkey="},
		"a URL with a fragment":  {nil, "postgres://db/x?a=b#f", "postgres://db/x?a=b&passfile=&sslrootcert=&sslcert=&sslkey=#f"},
		"a URL with a service":   {nil, "postgres://?service=db", "postgres://?service=db"},
		"a URL that is no query": {nil, "postgres://db/x?a=%zz", "postgres://db/x?a=%zz"},
		"all by variables": {
			[]string{"PGPASSFILE", "PGSSLROOTCERT", "PGSSLCERT", "PGSSLKEY"}, "postgres://db/x", "postgres://db/x",
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, s := range settings {
				t.Setenv(s.variable, "")
			}
			t.Setenv("PGSERVICE", "")
			for _, v := range c.variables {
				t.Setenv(v, "/some/file")
			}
			if got := WithoutHome(c.text); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}
