package solid

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"os"
	"path"
	"strconv"
	"strings"

	"github.com/dreamlab-ai/agentinit/adapters/pods/rdf"
	"github.com/dreamlab-ai/agentinit/internal/safeopen"
)

// byEnding are the media types that the endings of names tell. The table is part of the program: that of the
// image may change with the image.
var byEnding = map[string]string{
	".ttl": rdf.MediaTurtle, ".acl": rdf.MediaTurtle, ".meta": rdf.MediaTurtle, ".nt": rdf.MediaNTriples, ".jsonld": rdf.MediaJSONLD, ".json": "application/json",
	".txt": "text/plain", ".md": "text/markdown", ".html": "text/html", ".css": "text/css", ".js": "text/javascript",
	".csv": "text/csv", ".xml": "application/xml", ".pdf": "application/pdf", ".png": "image/png", ".jpg": "image/jpeg",
	".jpeg": "image/jpeg", ".gif": "image/gif", ".svg": "image/svg+xml", ".webp": "image/webp",
}

func typeOfName(name string) string {
	if t, ok := byEnding[strings.ToLower(path.Ext(name))]; ok {
		return t
	}
	return "application/octet-stream"
}

// typed is one line of a file in typesDir: the media type of the file with that inode. While a document is
// replaced, there are two: after a crash, the inode tells which of them holds.
type typed struct {
	inode       uint64
	contentType string
}

// typesIn reads the lines for a document from a typesDir; none if its name tells its type.
func typesIn(dir *safeopen.Directory, name string) []typed {
	f, err := dir.OpenFile(name, os.O_RDONLY, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	var out []typed
	lines := bufio.NewScanner(io.LimitReader(f, maxTypes))
	for lines.Scan() && len(out) < 2 {
		number, contentType, _ := strings.Cut(lines.Text(), " ")
		inode, err := strconv.ParseUint(number, 10, 64)
		if _, _, bad := mime.ParseMediaType(contentType); err != nil || bad != nil || !printable(contentType) {
			return nil
		}
		out = append(out, typed{inode, contentType})
	}
	return out
}

// typeOf is the media type of a document. A file that another program has put in the place of one of ours has
// another inode, as has one that was copied; it keeps the latest type.
func typeOf(d *safeopen.Directory, name string, inode uint64) string {
	dir, err := d.Below(typesDir)
	if err != nil {
		return typeOfName(name)
	}
	defer dir.Close()
	return typeIn(dir, name, inode)
}

// typeIn is typeOf for a typesDir.
func typeIn(dir *safeopen.Directory, name string, inode uint64) string {
	lines := typesIn(dir, name)
	for _, l := range lines {
		if l.inode == inode {
			return l.contentType
		}
	}
	if len(lines) > 0 {
		return lines[len(lines)-1].contentType
	}
	return typeOfName(name)
}

func printable(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' })
}

// setType records the type of a document before the document gets its name.
func (s *store) setType(d *safeopen.Directory, name, contentType string, inode uint64, old *document) error {
	dir, err := d.Below(typesDir)
	switch {
	case err == nil:
	case contentType == typeOfName(name) && (old == nil || old.contentType == contentType):
		return nil
	default:
		if err = d.Mkdir(typesDir, dirMode); err == nil || errors.Is(err, fs.ErrExist) {
			dir, err = d.Below(typesDir)
		}
		if err != nil {
			return err
		}
	}
	defer dir.Close()
	var text bytes.Buffer
	if old != nil {
		fmt.Fprintf(&text, "%d %s\n", old.inode, old.contentType)
	}
	fmt.Fprintf(&text, "%d %s\n", inode, contentType)
	return errors.Join(s.replace(dir, name, text.Bytes()), dir.Sync())
}

// drop removes a document and its recorded type. Most have none, and a type that stays is not listed.
func (s *store) drop(d *safeopen.Directory, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := d.Remove(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if dir, err := d.Below(typesDir); err == nil {
		_ = dir.Remove(name)
		dir.Close()
	}
	return err
}
