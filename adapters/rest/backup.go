package rest

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
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/backup"
)

const tarType = "application/x-tar"

// backupList is the first entry of an archive: what else is in it.
type backupList struct {
	Format  int           `json:"format"`
	Version string        `json:"version"` // of the program that wrote it
	Created adapters.Time `json:"created_at"`
	Skipped []string      `json:"skipped,omitempty"` // parts left out because that was asked for
	Files   []backupFile  `json:"files"`
}

type backupFile struct {
	Name   string `json:"name"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"` // hex
}

const (
	backupListName = "backup.json"
	backupFormat   = 1
)

// backupLimit bounds the whole of a backup.
const backupLimit = 10 * time.Minute

// getBackup takes all snapshots before the first byte goes out, so that a part
// that fails is an error and not an archive that lacks it.
func getBackup(q *request) error {
	if len(q.s.cfg.Backup) == 0 {
		return adapters.Unsupported("backup", "this box keeps no local state")
	}
	parts, skipped, err := q.backupParts()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(q.Context(), backupLimit)
	defer cancel()
	q.readDeadline(0)
	q.writeDeadline(0)
	dir, err := q.s.staging("backup")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := snapshots(ctx, parts, dir); err != nil {
		return err
	}
	q.w.Header().Set("Content-Disposition", `attachment; filename="agentbox-backup.tar"`)
	out := &lateWriter{q: q, mt: tarType}
	return out.finish(archive(out, dir, backupList{
		Format: backupFormat, Version: q.s.cfg.Version, Created: adapters.At(time.Now()), Skipped: skipped,
	}))
}

// backupParts are those that the query wants.
func (q *request) backupParts() (parts []backup.Part, skipped []string, err error) {
	v := q.URL.Query()
	secrets, err := boolParam(v, "include_secrets")
	if err != nil {
		return nil, nil, err
	}
	left := map[string]bool{}
	for _, name := range v["skip"] {
		if !slices.ContainsFunc(q.s.cfg.Backup, func(p backup.Part) bool { return p.Name == name }) {
			return nil, nil, adapters.Invalid("skip", "this box keeps no %q", cut(name, 64))
		}
		left[name] = true
	}
	for _, part := range q.s.cfg.Backup {
		switch {
		case left[part.Name]:
			skipped = append(skipped, part.Name)
		case secrets || !part.Secret:
			parts = append(parts, part)
		}
	}
	if len(parts) == 0 {
		return nil, nil, adapters.Invalid("skip", "nothing is left to back up")
	}
	return parts, skipped, nil
}

// staging makes a directory for a copy of the box's state.
func (s *Server) staging(purpose string) (string, error) {
	home := cmp.Or(s.cfg.Staging, os.TempDir())
	err := os.MkdirAll(home, 0o750)
	if err == nil {
		err = sweepStaging(home)
	}
	if err != nil {
		return "", adapters.Unavailable(err, "cannot make a place for the copy")
	}
	dir, err := os.MkdirTemp(home, stagingPrefix+purpose+"-")
	if err != nil {
		return "", adapters.Unavailable(err, "there is no room for the copy")
	}
	return dir, nil
}

const stagingPrefix = ".agentbox-staging-"

// sweepStaging removes what a box that was killed has left: nothing that is in
// use is as old.
func sweepStaging(home string) error {
	entries, err := os.ReadDir(home)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), stagingPrefix) || !e.IsDir() {
			continue
		}
		info, err := e.Info()
		if err == nil && time.Since(info.ModTime()) > 2*backupLimit {
			err = os.RemoveAll(filepath.Join(home, e.Name()))
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// snapshots copies every part below dir. The error names all parts that cannot
// be copied, so that whoever leaves them out knows what is lost.
func snapshots(ctx context.Context, parts []backup.Part, dir string) error {
	var failed, why []string
	var causes []error
	for _, part := range parts {
		if err := snapshot(ctx, part, filepath.Join(dir, part.Name)); err != nil {
			failed, causes = append(failed, part.Name), append(causes, err)
			text := err.Error()
			var coded *adapters.Error
			if errors.As(err, &coded) {
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
	e := adapters.Errorf(adapters.CodeUnavailable, "%s; a backup without must be asked for (skip)", strings.Join(why, "; "))
	return e.Wrap(errors.Join(causes...)).With("parts", failed)
}

func snapshot(ctx context.Context, part backup.Part, dir string) error {
	if !fs.ValidPath(part.Name) || strings.Contains(part.Name, "/") || part.Name == "." {
		return fmt.Errorf("%q is no name of a part", part.Name)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	return part.Snapshot(ctx, dir)
}

// archive writes everything below dir as a tar, after a list of its files; file
// and directory modes are kept, owners are not: who restores owns.
func archive(w io.Writer, dir string, list backupList) error {
	var err error
	if list.Files, err = listFiles(dir); err != nil {
		return err
	}
	raw, err := json.Marshal(list)
	if err != nil {
		return err
	}
	t := tar.NewWriter(w)
	h := &tar.Header{Name: backupListName, Mode: 0o600, Size: int64(len(raw)), ModTime: list.Created.Time, Format: tar.FormatPAX, Typeflag: tar.TypeReg}
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
		return archiveOne(t, dir, path, d)
	})
	return errors.Join(err, t.Close())
}

// listFiles are the files below dir with their checksums, by name.
func listFiles(dir string) (files []backupFile, err error) {
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
		n, err := io.Copy(h, f)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		files = append(files, backupFile{Name: filepath.ToSlash(name), Size: n, SHA256: hex.EncodeToString(h.Sum(nil))})
		return err
	})
	return files, err
}

func archiveOne(t *tar.Writer, dir, path string, d fs.DirEntry) error {
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
	_, err = io.Copy(t, f)
	return err
}
