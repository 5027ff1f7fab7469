package solid

import (
	"crypto/rand"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/internal/safeopen"
)

// remove deletes a document with its auxiliary resources, or an empty container. It calls gone for all that is deleted.
func (s *store) remove(r resource, check func(old *document) error, gone func(r resource, size int64)) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	d, err := s.below(r.parent())
	if err != nil {
		return err
	}
	defer d.Close()
	if r.container {
		return s.removeContainer(d, r, check, gone)
	}
	f, doc, err := openIn(d, r.name())
	if err != nil {
		return err
	}
	f.Close()
	if err := check(&doc); err != nil {
		return err
	}
	finished := s.note(d, r)
	if err := s.drop(d, r.name()); err != nil {
		finished()
		return broken("the document cannot be deleted", err)
	}
	gone(r, doc.size)
	err = d.Sync()
	// The document goes first: without its access list, the rules of its container would hold for it.
	if err = errors.Join(err, s.removeAuxiliaries(d, r, gone)); err != nil {
		return broken("the document is deleted, and what belongs to it is not", err)
	}
	finished()
	return nil
}

// noted begins the name of a file in privateDir that has the path of a document which is being deleted.
const noted = "deleting-"

// isNote tells such a file from others in privateDir, also from one that a crash kept from being written to its end.
func isNote(name string) bool {
	return strings.HasPrefix(name, noted) && !strings.Contains(name, ".tmp-")
}

// note writes down that a document is being deleted, if there are auxiliary resources that must not outlive it: its access list
// would hold for the next document of that name. A full file system has no room for a note, and must not prevent a deletion.
// finished removes the note. If it stays, the next start removes what is left of the document again, or does nothing if the document is there.
func (s *store) note(d *safeopen.Directory, r resource) (finished func()) {
	name := noted + rand.Text()
	if !slices.ContainsFunc(r.auxiliaries(), func(a resource) bool { _, err := d.Stat(a.name()); return err == nil }) ||
		s.private.WriteFile(name, []byte(r.path()), fileMode) != nil {
		return func() {}
	}
	return func() { _ = s.private.Remove(name) }
}

// finish removes the auxiliary resources of documents that an earlier server has deleted, before it was killed. What it cannot
// finish, it leaves for the next start.
func (s *store) finish(warn func(path, what string, err error)) {
	notes, err := s.private.Names(isNote, maxLeft)
	for _, name := range notes {
		one := s.finishOne(name)
		if one == nil {
			one = s.private.Remove(name)
		}
		err = errors.Join(err, one)
	}
	if err != nil {
		warn("/"+privateDir, "what an earlier server was deleting cannot be deleted", err)
	}
}

func (s *store) finishOne(note string) error {
	f, err := s.private.OpenFile(note, os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	path, err := io.ReadAll(io.LimitReader(f, maxTypes))
	if err != nil {
		return err
	}
	r, err := parse(string(path))
	if err != nil || r.container {
		return nil // no note of this server
	}
	d, err := s.below(r.parent())
	if errors.Is(err, absent) {
		return nil // the container is gone too
	}
	if err != nil {
		return err
	}
	defer d.Close()
	if _, err := d.Stat(r.name()); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return s.removeAuxiliaries(d, r, func(resource, int64) {})
}

// removeAuxiliaries removes what belongs to a document.
func (s *store) removeAuxiliaries(d *safeopen.Directory, r resource, gone func(r resource, size int64)) (err error) {
	for _, a := range r.auxiliaries() {
		entry, statErr := d.Stat(a.name())
		switch removeErr := s.drop(d, a.name()); {
		case removeErr == nil && statErr == nil:
			gone(a, entry.Size)
		case !errors.Is(removeErr, fs.ErrNotExist):
			err = errors.Join(err, removeErr)
		}
	}
	return err
}

var filled = faulty(adapters.CodeConflict, "the container is not empty")

// removeContainer moves a container away before it deletes it: what another program puts there meanwhile is not lost.
func (s *store) removeContainer(d *safeopen.Directory, r resource, check func(old *document) error, gone func(r resource, size int64)) error {
	name := r.name()
	inside, err := d.Below(name)
	if missing(err) {
		return absent
	}
	if err != nil {
		return broken("the container cannot be opened", err)
	}
	defer inside.Close()
	if !emptied(inside) { // without a look at conditions (RFC 9110, 13.2.1)
		return filled
	}
	if err := check(&document{}); err != nil {
		return err
	}
	away := rand.Text()
	if err := s.moveAway(d, inside, name, away); err != nil {
		return err
	}
	gone(r, 0)
	for _, a := range r.auxiliaries() {
		if entry, err := inside.Stat(a.name()); err == nil {
			gone(a, entry.Size)
		}
	}
	if err := errors.Join(s.private.RemoveAll(away), d.Sync()); err != nil {
		return broken("the container cannot be deleted", err)
	}
	return nil
}

// moveAway moves a container to the private directory, and back if it is not empty there.
func (s *store) moveAway(d, inside *safeopen.Directory, name, away string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := d.Move(name, s.private, away); err != nil {
		return broken("the container cannot be deleted", err)
	}
	if emptied(inside) {
		return nil
	}
	if err := s.private.Move(away, d, name); err != nil {
		return broken("the container cannot be put back", err)
	}
	return filled
}

// emptied tells whether a container holds nothing but what belongs to itself.
func emptied(d *safeopen.Directory) bool {
	_, err := d.Names(func(name string) bool { return name != typesDir && name != ".acl" && name != ".meta" }, 0)
	return err == nil
}
