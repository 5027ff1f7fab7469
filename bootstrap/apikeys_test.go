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
	env := map[string]string{"GOOD": "a-key-of-the-environment", "BLANKS": "a key with blanks in it", "SHORT": "short", "SAMPLE": keyPlaceholder}
	for _, c := range []struct {
		name string
		key  schema.APIKey
		want string // the key, or "" for a failure
		says string // what the failure says
	}{
		{"of a variable", schema.APIKey{Role: "viewer", Env: "GOOD"}, "a-key-of-the-environment", ""},
		{"of a file", schema.APIKey{Role: "operator", File: good}, "a-key-of-a-file-x", ""},
		{"a variable that is not set", schema.APIKey{Role: "viewer", Env: "ABSENT"}, "", "the variable ABSENT is not set; set it in the container's environment"},
		{"a variable with a short key", schema.APIKey{Role: "viewer", Env: "SHORT"}, "", "the variable SHORT holds fewer than 16 characters"},
		{"a key in place of its variable", schema.APIKey{Role: "viewer", Env: "a-key-and-no-name"}, "", "the variable that env names is not set"},
		{"a placeholder", schema.APIKey{Role: "operator", Env: "SAMPLE"}, "", "the variable SAMPLE holds the placeholder"},
		{"blanks", schema.APIKey{Role: "viewer", Env: "BLANKS"}, "", "the variable BLANKS holds something else"},
		{"too short", schema.APIKey{Role: "viewer", File: short}, "", short + " holds fewer than 16 characters"},
		{"too large", schema.APIKey{Role: "viewer", File: large}, "", "too large"},
		{"no file", schema.APIKey{Role: "viewer", File: filepath.Join(dir, "absent")}, "", "absent"},
		{"no directory", schema.APIKey{Role: "viewer", File: filepath.Join(dir, "absent", "key")}, "", "absent/key: no such file or directory; mount it"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := &schema.Manifest{}
			m.API.Keys = map[string]schema.APIKey{"k": c.key}
			keys, err := APIKeys(m, func(name string) string { return env[name] })
			if c.want == "" {
				if err == nil || ExitCode(err) != ExitPrepare || !strings.Contains(err.Error(), "api.keys.k") || !strings.Contains(err.Error(), c.says) {
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
