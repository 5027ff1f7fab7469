package bootstrap

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dreamlab-ai/agentinit/schema"
)

func TestAPIKeys(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good, short, large := write("good", " a-key-of-a-file-x\n"), write("short", "short"), write("large", strings.Repeat("x", maxKey+1))
	env := map[string]string{"GOOD": "a-key-of-the-environment", "BLANKS": "a key with blanks in it"}
	for _, c := range []struct {
		name string
		key  schema.APIKey
		want string // the key, or "" for a failure
	}{
		{"of a variable", schema.APIKey{Role: "viewer", Env: "GOOD"}, "a-key-of-the-environment"},
		{"of a file", schema.APIKey{Role: "operator", File: good}, "a-key-of-a-file-x"},
		{"a variable that is not set", schema.APIKey{Role: "viewer", Env: "ABSENT"}, ""},
		{"blanks", schema.APIKey{Role: "viewer", Env: "BLANKS"}, ""},
		{"too short", schema.APIKey{Role: "viewer", File: short}, ""},
		{"too large", schema.APIKey{Role: "viewer", File: large}, ""},
		{"no file", schema.APIKey{Role: "viewer", File: filepath.Join(dir, "absent")}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := &schema.Manifest{}
			m.API.Keys = map[string]schema.APIKey{"k": c.key}
			keys, err := APIKeys(m, func(name string) string { return env[name] })
			if c.want == "" {
				if err == nil || ExitCode(err) != ExitPrepare || !strings.Contains(err.Error(), "api.keys.k") {
					t.Errorf("got %v", err)
				}
				return
			}
			if err != nil || len(keys) != 1 || keys[0].Key.Reveal() != c.want || keys[0].Role != c.key.Role {
				t.Errorf("got %v, %v", keys, err)
			}
		})
	}
}
