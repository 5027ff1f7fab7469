package profiles

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A program of the box can fill the directory of the profiles, and the boot waits for the rules.
func TestProfilesAreBounded(t *testing.T) {
	workspace := t.TempDir()
	dir := filepath.Join(workspace, "profiles")
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
	if err := os.Mkdir(filepath.Join(dir, "fifo"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "fifo", "profile.toml"), 0o600); err != nil {
		t.Fatal(err)
	}
	if all := Read(workspace); len(all) != 1 || !all[0].HeadlessOnly {
		t.Errorf("with a large profile and a FIFO beside it: %v", all)
	}
	for i := range 2 * maxAllProfiles / maxProfile {
		write(fmt.Sprintf("b%d", i), headless+fill)
	}
	if n := len(Read(workspace)); n != maxAllProfiles/maxProfile {
		t.Errorf("read %d profiles", n)
	}
	for i := range maxProfiles {
		if err := os.Mkdir(filepath.Join(dir, fmt.Sprintf("c%d", i)), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if all := Read(workspace); all != nil {
		t.Errorf("of too many directories: %v", all)
	}
}
