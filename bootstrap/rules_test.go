package bootstrap

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A program of the box can fill the directory of the profiles, and the boot waits for the rules.
func TestProfilesAreBounded(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name, "profile.toml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const headless = "headless_only = true\n"
	fill := strings.Repeat("#", maxProfile-len(headless)-1) + "\n"
	write("a", headless)
	write("large", headless+"#"+fill)
	if all := readProfiles(dir); len(all) != 1 || !all[0].HeadlessOnly {
		t.Errorf("with a large profile beside it: %v", all)
	}
	for i := range 2 * maxAllProfiles / maxProfile {
		write(fmt.Sprintf("b%d", i), headless+fill)
	}
	if n := len(readProfiles(dir)); n != maxAllProfiles/maxProfile {
		t.Errorf("read %d profiles", n)
	}
	for i := range maxProfiles {
		if err := os.Mkdir(filepath.Join(dir, fmt.Sprintf("c%d", i)), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if all := readProfiles(dir); all != nil {
		t.Errorf("of too many directories: %v", all)
	}
}
