package backup

import (
	"archive/tar"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// Bounds of an archive that is put back.
const (
	// MaxArchive is how many bytes an archive may have.
	MaxArchive  = 64 << 30
	maxFiles    = 200_000
	maxList     = 64 << 20               // bytes of backup.json
	stampFormat = "20060102T150405.000Z" // two restores in a second must not overwrite what they keep
)

// Restored is what became of a backup.
type Restored struct {
	DryRun  bool           `json:"dry_run"`
	Version string         `json:"version"` // that wrote the backup
	Created adapters.Time  `json:"created_at"`
	Parts   []RestoredPart `json:"parts"`
}

// RestoredPart is one piece of the box's state.
type RestoredPart struct {
	Name  string `json:"name"`
	Files int    `json:"files"`
	Bytes int64  `json:"bytes"`
	State string `json:"state"` // checked, restored, left out, not in the backup
	// Kept is the path of the old state.
	Kept adapters.NullString `json:"kept"`
}

// The values of RestoredPart.State.
const (
	partChecked  = "checked"
	partRestored = "restored"
	partLeftOut  = "left out"
	partSkipped  = "not in the backup" // its maker has left it out
)

// RestoreOptions say what a restore may do.
type RestoreOptions struct {
	DryRun  bool     // check everything, but replace nothing
	Replace bool     // also replace state that is in use
	Secrets bool     // also the secret parts
	Parts   []string // only these parts; empty: all
}

// Restore unpacks the archive beside the state, judges all of it, and only then
// replaces anything.
func (s *State) Restore(ctx context.Context, archive io.Reader, o RestoreOptions) (Restored, error) {
	if !s.restoring.TryLock() {
		return Restored{}, adapters.Errorf(adapters.CodeConflict, "another restore is under way")
	}
	defer s.restoring.Unlock()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	place, err := s.staging("restore")
	if err != nil {
		return Restored{}, err
	}
	defer place.Close()
	dir := place.dir
	list, err := unpack(ctx, archive, dir)
	if err != nil {
		return Restored{}, err
	}
	out := Restored{DryRun: o.DryRun, Version: list.Version, Created: list.Created, Parts: []RestoredPart{}}
	chosen, err := s.choose(o, list, &out)
	if err == nil {
		err = check(ctx, chosen, dir, o)
	}
	if err == nil && !o.DryRun {
		err = replaceParts(ctx, chosen, dir, &out)
	}
	return out, err
}

// damaged refuses an archive.
func damaged(format string, args ...any) error {
	return adapters.Errorf(adapters.CodeValidation, "the backup cannot be used: "+format, args...).With("field", "body")
}

// unpack writes the archive below dir and compares every file with the list at the start of the
// archive. A root descriptor is used, so no name in the archive can lead out of dir.
func unpack(ctx context.Context, r io.Reader, dir string) (list archiveList, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return list, adapters.Unavailable(err, "cannot unpack")
	}
	defer root.Close()
	t := tar.NewReader(r)
	if list, err = readList(t); err != nil {
		return list, err
	}
	for entries := 0; ; entries++ {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return list, damaged("%w", err)
		}
		if entries > 2*maxFiles {
			return list, adapters.OverLimit("files", maxFiles)
		}
		if err := unpackOne(root, h, adapters.UntilDone(ctx, t)); err != nil {
			return list, err
		}
	}
	files, err := listFiles(ctx, dir)
	if err != nil {
		return list, adapters.Unavailable(err, "cannot read what was unpacked")
	}
	return list, compareLists(list.Files, files)
}

func readList(t *tar.Reader) (list archiveList, err error) {
	h, err := t.Next()
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, tar.ErrHeader) {
		return list, damaged("it is not a tar archive of agentctl backup (decompress it first if it is compressed)")
	}
	if err != nil {
		return list, damaged("%w", err)
	}
	if h.Name != listName || h.Size > maxList {
		return list, damaged("it does not begin with %s", listName)
	}
	raw, err := io.ReadAll(t)
	if err != nil {
		return list, damaged("%w", err)
	}
	if err := json.Unmarshal(raw, &list); err != nil {
		return list, damaged("%s: %w", listName, err)
	}
	if list.Format != format {
		return list, damaged("its format is %d, this program knows %d", list.Format, format)
	}
	if len(list.Files) > maxFiles || len(list.Skipped) > maxFiles {
		return list, adapters.OverLimit("files", maxFiles)
	}
	return list, nil
}

func unpackOne(root *os.Root, h *tar.Header, r io.Reader) error {
	name := filepath.Clean(strings.TrimSuffix(h.Name, "/"))
	if !filepath.IsLocal(name) {
		return damaged("%q leads out of it", adapters.Cut(h.Name, 200))
	}
	mode := os.FileMode(h.Mode) & 0o777
	switch h.Typeflag {
	case tar.TypeDir:
		if err := root.MkdirAll(name, mode|0o700); err != nil {
			return unpackError(h.Name, err)
		}
		return nil
	case tar.TypeReg:
	default:
		return damaged("%q is neither a file nor a directory", adapters.Cut(h.Name, 200))
	}
	f, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return unpackError(h.Name, err)
	}
	err = copySparse(f, r)
	if err := errors.Join(err, f.Close()); err != nil {
		return unpackError(h.Name, err)
	}
	return nil
}

// unpackError tells a disk that cannot take the copy from a stream that broke
// off and from names that clash.
func unpackError(name string, err error) error {
	disk := []error{syscall.ENOSPC, syscall.EDQUOT, syscall.EIO, syscall.EROFS}
	if slices.ContainsFunc(disk, func(e error) bool { return errors.Is(err, e) }) {
		return adapters.Unavailable(err, "cannot unpack %q", adapters.Cut(name, 200))
	}
	return damaged("%q: %w", adapters.Cut(name, 200), err)
}

// compareLists refuses archives whose files differ from their list.
func compareLists(want, have []archivedFile) error {
	byName := make(map[string]archivedFile, len(have))
	for _, f := range have {
		byName[f.Name] = f
	}
	for _, f := range want {
		got, ok := byName[f.Name]
		switch {
		case !ok:
			return damaged("%q is missing", adapters.Cut(f.Name, 200))
		case got != f:
			return damaged("%q is damaged: its checksum is another", adapters.Cut(f.Name, 200))
		}
		delete(byName, f.Name)
	}
	for name := range byName {
		return damaged("%q is not on its list", adapters.Cut(name, 200))
	}
	return nil
}

// choose finds the parts of the archive to restore. If a part has no place in this box, that is an
// error: the caller must name the other parts.
func (s *State) choose(o RestoreOptions, list archiveList, out *Restored) (chosen []Part, err error) {
	found := map[string]*RestoredPart{}
	for _, f := range list.Files {
		name, _, below := strings.Cut(f.Name, "/")
		if !below {
			return nil, damaged("%q belongs to no part", adapters.Cut(f.Name, 200))
		}
		if found[name] == nil {
			found[name] = &RestoredPart{Name: name, State: partLeftOut}
		}
		found[name].Files++
		found[name].Bytes += f.Size
	}
	for _, name := range list.Skipped {
		out.Parts = append(out.Parts, RestoredPart{Name: adapters.Cut(name, 64), State: partSkipped})
	}
	for _, name := range o.Parts {
		if found[name] == nil {
			return nil, adapters.Invalid("part", "the backup has no %q; it has %s", adapters.Cut(name, 64),
				adapters.Cut(cmp.Or(strings.Join(slices.Sorted(maps.Keys(found)), ", "), "no part"), 200))
		}
	}
	for _, part := range s.Parts {
		f := found[part.Name]
		if f == nil {
			continue
		}
		delete(found, part.Name)
		if asked := len(o.Parts) == 0 || slices.Contains(o.Parts, part.Name); asked && (o.Secrets || !part.Secret) {
			f.State = partChecked
			chosen = append(chosen, part)
		}
		out.Parts = append(out.Parts, *f)
	}
	for name := range found {
		if len(o.Parts) == 0 || slices.Contains(o.Parts, name) {
			return nil, adapters.Invalid("part", "this box keeps no %q: name the parts to restore", adapters.Cut(name, 64))
		}
	}
	if len(chosen) == 0 && len(list.Files) == 0 {
		return nil, adapters.Errorf(adapters.CodeValidation, "the backup is empty: the box that made it kept no state").With("field", "part")
	}
	if len(chosen) == 0 {
		return nil, adapters.Errorf(adapters.CodeValidation, "every part to restore is secret; add --include-secrets (over HTTP: include_secrets=true)").With("field", "part")
	}
	return chosen, nil
}

// check judges every part before one is touched.
func check(ctx context.Context, parts []Part, dir string, o RestoreOptions) error {
	var serving []string
	for _, part := range parts {
		if part.Check != nil {
			if err := part.Check(ctx, filepath.Join(dir, part.Name)); err != nil {
				return adapters.Errorf(adapters.CodeValidation, "%s cannot be restored: %w", part.Name, err).With("field", part.Name)
			}
		}
		if part.Serving != nil && part.Serving() {
			serving = append(serving, part.Name)
		}
	}
	if len(serving) > 0 && !o.Replace && !o.DryRun {
		return adapters.Errorf(adapters.CodeConflict, "cannot restore %s: in use by the running box; to replace it, add --replace (over HTTP: replace=true)", strings.Join(serving, ", ")).With("parts", serving).Final()
	}
	return nil
}

// replaceParts replaces the parts one after the other. If one fails, the error names the parts
// replaced before it, and where their old state is.
func replaceParts(ctx context.Context, parts []Part, dir string, out *Restored) error {
	stamp := time.Now().UTC().Format(stampFormat)
	var done []string
	for _, part := range parts {
		kept, err := part.Restore(ctx, filepath.Join(dir, part.Name), stamp)
		if err != nil {
			e := adapters.AsError(fmt.Errorf("cannot restore %s: %w", part.Name, err))
			if e.Code == adapters.CodeInternal {
				e = adapters.Unavailable(err, "cannot restore %s", part.Name)
			}
			return e.With("restored", done)
		}
		i := slices.IndexFunc(out.Parts, func(p RestoredPart) bool { return p.Name == part.Name })
		out.Parts[i].State, out.Parts[i].Kept = partRestored, adapters.NullString(kept)
		done = append(done, part.Name+" (before: "+kept+")")
	}
	return nil
}
