package rules

import (
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/dreamlab-ai/agentinit/schema"
)

// What a collector of logs can be, apart from syslog, and the schemes of URLs.
var (
	webCollectors = []string{"loki", "otlp", "http"}
	webSchemes    = []string{"http", "https"}
	syslogSchemes = []string{"unix", "udp", "tcp", "tls"}
)

func forwardURLs(d *schema.Document, _ Facts) (out []schema.Finding) {
	forwards := d.Manifest().Supervisor.Log.Forward
	for _, name := range slices.Sorted(maps.Keys(forwards)) {
		f := forwards[name]
		path := []string{"supervisor", "log", "forward", name, "url"}
		scheme, _, _ := strings.Cut(f.URL, "://")
		web := slices.Contains(webSchemes, scheme)
		hint := ""
		switch {
		case f.Type == "syslog" && web:
			hint = "write unix://, udp://, tcp:// or tls://"
		case slices.Contains(webCollectors, f.Type) && slices.Contains(syslogSchemes, scheme):
			hint = "write http:// or https://"
		default: // right, or a type or a URL that is E016 already
			continue
		}
		out = append(out, atKeys(d, path, schema.Path(path...)+" = "+schema.Address(f.URL)+" does not go with type = "+schema.Quote(f.Type), hint))
	}
	return out
}

func forwardGlobs(d *schema.Document, _ Facts) (out []schema.Finding) {
	forwards := d.Manifest().Supervisor.Log.Forward
	for _, name := range slices.Sorted(maps.Keys(forwards)) {
		for _, glob := range forwards[name].Programs {
			if _, err := path.Match(glob, ""); err != nil {
				out = append(out, atKeys(d, []string{"supervisor", "log", "forward", name, "programs"}, schema.Quote(glob)+" is no pattern of names",
					"close its bracket with ], or write the name of a program"))
			}
		}
	}
	return out
}

func forwardIgnored(d *schema.Document, _ Facts) (out []schema.Finding) {
	for _, name := range d.Keys("supervisor", "log", "forward") {
		if d.Manifest().Supervisor.Log.Forward[name].Type != "syslog" {
			continue
		}
		for _, key := range []string{"token_env", "headers"} {
			path := []string{"supervisor", "log", "forward", name, key}
			if _, written := d.At(path...); written {
				out = append(out, atKeys(d, path, schema.Path(path...)+` has no effect with type = "syslog"`, "drop "+key))
			}
		}
	}
	return out
}
