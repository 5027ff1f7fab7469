package rest

import (
	"archive/tar"
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
	"strings"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
)

const tarType = "application/x-tar"

// BackupPart is one piece of the box's state.
type BackupPart struct {
	// Name is its directory in the archive: one path element.
	Name string
	// Secret parts are left out unless they are asked for.
	Secret bool
	// Snapshot writes a consistent copy below dir, which is empty. What is
	// written meanwhile may be in it or not, but nothing half. Nothing to copy
	// is no error.
	Snapshot func(ctx context.Context, dir string) error
	// Serving says whether the state is in use now, so that replacing it must be
	// asked for.
	Serving func() bool
	// Check judges a snapshot below dir, which may be written to: whole, and of
	// no newer form than this program knows. Nothing else is touched.
	Check func(ctx context.Context, dir string) error
	// Restore puts a checked snapshot in place of what is there, which it keeps
	// aside under a name with stamp, and returns that name, "" when nothing was
	// there. With an error nothing has been replaced.
	Restore func(ctx context.Context, dir, stamp string) (kept string, err error)
}

// backupList is the first entry of an archive: what else is in it.
type backupList struct {
	Format  int           `json:"format"`
	Version string        `json:"version"` // of the program that wrote it
	Created adapters.Time `json:"created_at"`
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
	secrets, err := boolParam(q.URL.Query(), "include_secrets")
	if err != nil {
		return err
	}
	if len(q.s.cfg.Backup) == 0 {
		return adapters.Unsupported("backup", "this box keeps no local state")
	}
	ctx, cancel := context.WithTimeout(q.Context(), backupLimit)
	defer cancel()
	q.readDeadline(0)
	q.writeDeadline(0)
	dir, err := os.MkdirTemp("", "agentbox-backup-")
	if err != nil {
		return adapters.Unavailable(err, "there is no room for the copy")
	}
	defer os.RemoveAll(dir)
	for _, part := range q.s.cfg.Backup {
		if part.Secret && !secrets {
			continue
		}
		if err := snapshot(ctx, part, filepath.Join(dir, part.Name)); err != nil {
			return adapters.Unavailable(err, "cannot copy %s", part.Name)
		}
	}
	q.w.Header().Set("Content-Disposition", `attachment; filename="agentbox-backup.tar"`)
	out := &lateWriter{q: q, mt: tarType}
	return out.finish(archive(out, dir, backupList{Format: backupFormat, Version: q.s.cfg.Version, Created: adapters.At(time.Now())}))
}

func snapshot(ctx context.Context, part BackupPart, dir string) error {
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
