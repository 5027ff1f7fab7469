package control

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// A program puts a symbolic link into the place of the new socket, before that has its mode.
func TestPublishFollowsNoLink(t *testing.T) {
	dir := t.TempDir()
	victim, temp := filepath.Join(dir, "victim"), filepath.Join(dir, "temp")
	if err := os.WriteFile(victim, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, put := range map[string]func(string, string) error{"a link": os.Symlink, "the file itself": os.Link} {
		t.Run(name, func(t *testing.T) {
			if err := put(victim, temp); err != nil {
				t.Fatal(err)
			}
			defer os.Remove(temp)
			s := &Socket{name: filepath.Join(dir, "socket")}
			if err := s.publish(temp, SocketConfig{Path: s.name, Mode: 0o660, GID: os.Getgid()}); err == nil {
				t.Error("it was published")
			}
			info, err := os.Lstat(victim)
			if err != nil {
				t.Fatal(err)
			}
			if mode := info.Mode(); mode != fs.FileMode(0o600) {
				t.Errorf("the mode of the file is %v now", mode)
			}
		})
	}
}
