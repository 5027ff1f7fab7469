package solid

import (
	"strings"
	"testing"
)

// A path that is refused is refused in a sentence, without a code and with "path" once.
func TestAWrongPathIsNamedInASentence(t *testing.T) {
	for path, want := range map[string]string{
		"/.hidden":                      "the path names a dot file",
		"/a//b":                         "the path has an empty segment",
		"/a/../b":                       `the path has a segment ".."`,
		"/" + strings.Repeat("a", 1024): "the path (bytes): more than 1024",
		"/" + strings.Repeat("a", 256):  "the path segment (bytes): more than 255",
		"/a.acl/b":                      "a container must not have a name that ends with .acl or .meta",
	} {
		if _, err := parse(path); err == nil || err.Error() != want {
			t.Errorf("%.20s: %v; want %s", path, err, want)
		}
	}
}
