package bootstrap

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"sync"
)

// boxIDPattern matches a valid box id.
var boxIDPattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`) })

// BoxID is the name of a box without an identity: the content of box-id in the workspace, which the
// first start creates. It stays the same over restarts as long as the workspace exists. A file
// without a valid id is an error and is never replaced, because other systems may hold events under
// the old id.
func BoxID(p *Policy, r Roots) (string, error) {
	path := filepath.Join(r.Workspace, "box-id")
	id, err := readBoxID(p, path)
	if !errors.Is(err, fs.ErrNotExist) {
		return id, err
	}
	if err := p.MkdirAll(r.Workspace, 0o750); err != nil {
		return "", err
	}
	id = randomHex(16)
	if err = p.CreateFile(path, []byte(id+"\n"), 0o640); errors.Is(err, fs.ErrExist) {
		return readBoxID(p, path) // another box on the same volume has created the file first
	}
	return id, err
}

func readBoxID(p *Policy, path string) (string, error) {
	data, _, err := p.ReadFile(path, 128)
	if err != nil {
		return "", err
	}
	id := string(bytes.TrimSpace(data))
	if !boxIDPattern().MatchString(id) {
		return "", fmt.Errorf("%s does not hold 1 to 64 letters, digits, dots, dashes and underscores; remove the file to have a new id made", path)
	}
	return id, nil
}
