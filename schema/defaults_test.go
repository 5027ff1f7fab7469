package schema

import (
	"strings"
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters/rest"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/logs"
	"github.com/dreamlab-ai/agentinit/supervisor/logs/forward"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// The schema must have the same default as the package that uses it, even if the schema cannot
// import that package.
func TestDefaultsAreTheirOwners(t *testing.T) {
	root := newManifestShape()
	for path, want := range map[string]any{
		"supervisor.socket":                    api.DefaultSocket,
		"supervisor.stop_grace":                program.DefaultStopGrace,
		"bootstrap.seal_timeout":               program.DefaultSealTimeout,
		"programs.*.stop":                      program.DefaultStopWait,
		"programs.*.logs.max_line":             logs.DefaultMaxLine,
		"programs.*.logs.flush_after":          logs.DefaultFlushAfter,
		"supervisor.log.forward.*.batch_lines": forward.DefaultBatchLines,
		"supervisor.log.forward.*.batch_wait":  forward.DefaultBatchWait,
		"supervisor.log.forward.*.timeout":     forward.DefaultTimeout,
		"api.rate_limit":                       rest.DefaultRateLimit,
	} {
		if got := defaultAt(t, root, path); !sameDefault(got, want) {
			t.Errorf("%s: the schema has %v, its owner %v", path, got, want)
		}
	}
	if sameDefault("10s", 11*time.Second) || sameDefault("1MiB", 1000) || sameDefault(int64(3), 4) {
		t.Error("the comparison takes other values")
	}
}

// defaultAt is the default of the key at path. "*" in path stands for any name.
func defaultAt(t *testing.T, s *shape, path string) any {
	t.Helper()
	for part := range strings.SplitSeq(path, ".") {
		next := s.entry
		for _, k := range s.keys {
			if k.name == part {
				next = k.shape
			}
		}
		if next == nil {
			t.Fatalf("%s: there is no key %q", path, part)
		}
		s = next
	}
	return s.value
}

// sameDefault compares a default of the manifest with one of the code.
func sameDefault(got, want any) bool {
	switch want := want.(type) {
	case time.Duration:
		var d Duration
		if ladder, ok := got.([]any); ok { // a list of signals: the wait after the first signal
			got = strings.TrimPrefix(ladder[0].(string), "TERM ")
		}
		return d.fromTOML(got) == nil && d.Std() == want
	case int:
		var n Size
		return n.fromTOML(got) == nil && int(n) == want
	}
	return got == want
}
