package backup

import (
	"archive/tar"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/internal/safeopen"
)

// archiveList is the first entry of an archive: what else is in it.
type archiveList struct {
	Format  int            `json:"format"`
	Version string         `json:"version"` // of the program that wrote it
	Created adapters.Time  `json:"created_at"`
	Skipped []string       `json:"skipped,omitempty"` // parts left out because that was asked for
	Files   []archivedFile `json:"files"`
}

type archivedFile struct {
	Name   string `json:"name"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"` // hex
}

const (
	listName = "backup.json"
	format   = 1
)

// limit bounds a backup, and a restore.
const limit = 10 * time.Minute

// State is all local state of a box. Its methods may be called from any goroutine.
type State struct {
	Version string // of the program, for the archive
	Parts   []Part
	// Staging is a directory with room for a copy of the state, where a backup and a
	// restore keep one while they last; "" is the system's directory for temporary
	// files, which is memory in many containers.
	Staging string

	restoring sync.Mutex // held by the one restore
}

// CopyOptions choose what goes into an archive.
type CopyOptions struct {
	Secrets bool     // also the secret parts
	Skip    []string // parts to leave out
}

// Copy is a copy of the box's state on its way into an archive.
type Copy struct {
	place staged
	list  archiveList
}

// Copy takes all snapshots before the first byte is written, so that a part that
// fails is an error and not an archive that lacks it.
func (s *State) Copy(ctx context.Context, o CopyOptions) (*Copy, error) {
	parts, skipped, err := s.selected(o)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	place, err := s.staging("backup")
	if err != nil {
		return nil, err
	}
	c := &Copy{place, archiveList{Format: format, Version: s.Version, Created: adapters.At(time.Now()), Skipped: skipped}}
	if err := snapshots(ctx, parts, place.dir); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// Close removes the copy.
func (c *Copy) Close() error { return c.place.Close() }

// selected are the parts that the options choose.
func (s *State) selected(o CopyOptions) (parts []Part, skipped []string, err error) {
	for _, name := range o.Skip {
		if !slices.ContainsFunc(s.Parts, func(p Part) bool { return p.Name == name }) {
			var kept []string
			for _, p := range s.Parts {
				kept = append(kept, p.Name)
			}
			return nil, nil, adapters.Invalid("skip", "this box keeps no %q, only %s", adapters.Cut(name, 64), strings.Join(kept, ", "))
		}
	}
	for _, part := range s.Parts {
		switch {
		case slices.Contains(o.Skip, part.Name):
			skipped = append(skipped, part.Name)
		case o.Secrets || !part.Secret:
			parts = append(parts, part)
		}
	}
	if len(parts) == 0 {
		return nil, nil, adapters.Invalid("skip", "names every part, so no part is left to back up")
	}
	return parts, skipped, nil
}

// staged is a directory for a copy of the box's state.
type staged struct {
	name string   // that it was made with
	dir  string   // the path to use: it leads to the directory whatever has taken its name
	held *os.File // nil without root
}

// staging makes a directory for a copy of the box's state.
func (s *State) staging(purpose string) (staged, error) {
	home := cmp.Or(s.Staging, os.TempDir())
	err := os.MkdirAll(home, 0o750)
	if err == nil {
		err = sweepStaging(home)
	}
	if err != nil {
		return staged{}, adapters.Unavailable(err, "cannot make a place for the copy")
	}
	name, err := os.MkdirTemp(home, stagingPrefix+purpose+"-")
	if err != nil {
		return staged{}, adapters.Unavailable(err, "cannot prepare the copy in the workspace, which must be writable")
	}
	d, err := hold(name)
	if err != nil {
		return staged{}, adapters.Unavailable(errors.Join(err, os.Remove(name)), "cannot prepare the copy")
	}
	return d, nil
}

// hold opens a directory that was just made with mode 0700. If the workspace belongs to another user,
// that user can put a symbolic link in its place, and root would write the copy, which has files of
// programs, where the link leads.
func hold(name string) (staged, error) {
	if os.Geteuid() != 0 {
		return staged{name: name, dir: name}, nil
	}
	f, err := os.OpenFile(name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return staged{}, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Uid != 0 || st.Mode&0o777 != 0o700 {
		return staged{}, errors.Join(fmt.Errorf("%s was replaced", name), err, f.Close())
	}
	return staged{name: name, dir: fmt.Sprintf("/proc/self/fd/%d/.", f.Fd()), held: f}, nil
}

// Close removes the directory. What has taken its name is not entered.
func (d staged) Close() error {
	if d.held == nil {
		return safeopen.RemoveAll(d.dir)
	}
	// No other user can write it, and copyTree has bounded it.
	entries, err := os.ReadDir(d.dir)
	for _, e := range entries {
		err = errors.Join(err, os.RemoveAll(filepath.Join(d.dir, e.Name())))
	}
	return errors.Join(err, os.Remove(d.name), d.release())
}

// release leaves the directory where it is.
func (d staged) release() error {
	if d.held == nil {
		return nil
	}
	return d.held.Close()
}

const stagingPrefix = ".agentbox-staging-"

// maxStaging bounds how many copies sweepStaging looks at.
const maxStaging = 1000

// sweepStaging removes the copies that a killed box has left. No copy that is in
// use is as old. Programs can write the directory: they can put any number of files there, and a tree of
// any depth that has the name of a copy.
func sweepStaging(home string) error {
	dir, err := safeopen.OpenDirectory(home)
	if err != nil {
		return err
	}
	defer dir.Close()
	names, err := dir.Names(func(name string) bool { return strings.HasPrefix(name, stagingPrefix) }, maxStaging)
	if err != nil {
		return err
	}
	for _, name := range names {
		info, err := os.Lstat(filepath.Join(home, name))
		if err == nil && info.IsDir() && time.Since(info.ModTime()) > 2*limit {
			err = dir.RemoveAll(name)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// snapshots copies every part below dir. The error names all parts that cannot
// be copied, so that the operator knows what an archive without them lacks.
func snapshots(ctx context.Context, parts []Part, dir string) error {
	var failed, why []string
	var causes []error
	for _, part := range parts {
		err := snapshot(ctx, part, filepath.Join(dir, part.Name))
		if errors.Is(err, context.DeadlineExceeded) {
			return adapters.Errorf(adapters.CodeTimeout, "cannot copy %s within %s: %s", part.Name, limit, err).Wrap(err)
		}
		if err != nil {
			failed, causes = append(failed, part.Name), append(causes, err)
			text := err.Error()
			if coded, ok := errors.AsType[*adapters.Error](err); ok {
				text = coded.Message // the answer has a code of its own
			}
			why = append(why, fmt.Sprintf("cannot copy %s: %s", part.Name, text))
		}
		if err := ctx.Err(); err != nil {
			return adapters.AsError(err)
		}
	}
	if failed == nil {
		return nil
	}
	e := adapters.Errorf(adapters.CodeUnavailable, "%s; to back up the rest, ask for a backup without: skip=PART, or agentctl backup --skip PART", strings.Join(why, "; "))
	return e.Wrap(errors.Join(causes...)).With("parts", failed)
}

func snapshot(ctx context.Context, part Part, dir string) error {
	if !fs.ValidPath(part.Name) || strings.Contains(part.Name, "/") || part.Name == "." {
		return fmt.Errorf("%q cannot be the name of a part", part.Name)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	return part.Snapshot(ctx, dir)
}

// Archive writes the copy as a tar, after a list of its files. File and directory
// modes are kept; the owner will be the user that restores.
func (c *Copy) Archive(ctx context.Context, w io.Writer) error {
	dir, list := c.place.dir, c.list
	var err error
	if list.Files, err = listFiles(ctx, dir); err != nil {
		return err
	}
	raw, err := json.Marshal(list)
	if err != nil {
		return err
	}
	t := tar.NewWriter(w)
	h := &tar.Header{Name: listName, Mode: 0o600, Size: int64(len(raw)), ModTime: list.Created.Time, Format: tar.FormatPAX, Typeflag: tar.TypeReg}
	if err := t.WriteHeader(h); err != nil {
		return err
	}
	if _, err := t.Write(raw); err != nil {
		return err
	}
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		return archiveOne(ctx, t, dir, path, d)
	})
	return errors.Join(err, t.Close())
}

// listFiles are the files below dir with their checksums, by name.
func listFiles(ctx context.Context, dir string) (files []archivedFile, err error) {
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		h := sha256.New()
		n, err := io.Copy(h, adapters.UntilDone(ctx, f))
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		files = append(files, archivedFile{Name: filepath.ToSlash(name), Size: n, SHA256: hex.EncodeToString(h.Sum(nil))})
		return err
	})
	return files, err
}

func archiveOne(ctx context.Context, t *tar.Writer, dir, path string, d fs.DirEntry) error {
	info, err := d.Info()
	if err != nil {
		return err
	}
	name, err := filepath.Rel(dir, path)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() && !info.IsDir() {
		return fmt.Errorf("%s is neither a file nor a directory", name)
	}
	h := &tar.Header{Name: name, Mode: int64(info.Mode().Perm()), ModTime: info.ModTime(), Format: tar.FormatPAX, Typeflag: tar.TypeDir}
	if info.IsDir() {
		h.Name += "/"
		return t.WriteHeader(h)
	}
	h.Typeflag, h.Size = tar.TypeReg, info.Size()
	if err := t.WriteHeader(h); err != nil {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(t, adapters.UntilDone(ctx, f))
	return err
}
