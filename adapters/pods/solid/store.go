package solid

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/internal/safeopen"
)

const (
	dirMode  = 0o750
	fileMode = 0o640
	// privateDir holds temporary files and containers that are being deleted; typesDir, in each container that needs it,
	// the media types of documents. No path of a request can name them: they begin with a dot.
	privateDir = ".pod-server"
	typesDir   = ".types"
	maxTypes   = 4 << 10 // bytes of a file in typesDir
	maxLeft    = 10_000  // leftovers that one start removes
	maxMembers = 100_000 // of a container, as much as the client of the slot reads
)

// store is the tree of files. Every path is opened one name after the other below the root, without symbolic
// links.
type store struct {
	root    *safeopen.Directory
	private *safeopen.Directory
	lock    *os.File     // private: one server at a time has a tree
	held    atomic.Int64 // see maxHeld

	// writing is held by the one request that changes names. It waits for the disk several times, and no read waits for it.
	writing sync.Mutex
	last    int64 // the modification time of the latest document, in nanoseconds
	// mu makes a document and its media type change together for reads. It is held, with writing, only while a name changes: never
	// while anything is read from a client or written to the disk.
	mu sync.RWMutex
}

// openStore opens the tree, and removes what an earlier server has left half done. warn gets what does not prevent its use.
func openStore(dir string, warn func(path, what string, err error)) (*store, error) {
	top, err := safeopen.MakeDirectory(dir, dirMode)
	if err != nil {
		return nil, err
	}
	s := &store{root: top}
	if err = top.Mkdir(privateDir, 0o700); errors.Is(err, fs.ErrExist) {
		err = nil
	}
	if err == nil {
		s.private, err = top.Below(privateDir)
	}
	if err == nil {
		err = s.own(warn)
	}
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	s.finish(warn)
	count := 0
	left, err := s.private.Names(func(name string) bool {
		if isNote(name) {
			return false // finish has removed those that are done
		}
		count++
		return count <= maxLeft
	}, maxLeft)
	for _, name := range left {
		err = errors.Join(err, s.private.RemoveAll(name))
	}
	if count > maxLeft {
		err = errors.Join(err, fmt.Errorf("there are %d files, and one start removes %d", count, maxLeft))
	}
	if err != nil {
		warn("/"+privateDir, "what an earlier server has left cannot be removed", err)
	}
	return s, nil
}

// own locks the private directory, and refuses one of a user who could exchange the files in it.
func (s *store) own(warn func(path, what string, err error)) error {
	var err error
	if s.lock, err = s.root.OpenAny(privateDir, os.O_RDONLY|unix.O_DIRECTORY); err != nil {
		return err
	}
	var st, above unix.Stat_t
	err = unix.Fstat(int(s.lock.Fd()), &st)
	if err == nil {
		err = unix.Stat(s.root.Path(), &above)
	}
	if err != nil {
		return err
	}
	uid := uint32(os.Geteuid())
	if st.Uid != uid && st.Uid != 0 && st.Uid != above.Uid { // the owner of the tree can do all that anyway
		return fmt.Errorf("%s belongs to user %d, who could exchange what is received; remove it", s.lock.Name(), st.Uid)
	}
	if st.Uid == uid && st.Mode&0o077 != 0 {
		if err := s.lock.Chmod(0o700); err != nil {
			return err
		}
	}
	err = unix.Flock(int(s.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return fmt.Errorf("another server serves %s", s.root.Path())
	}
	if err != nil { // a file system without locks
		warn("/"+privateDir, "nothing prevents that a second server serves the tree too", err)
	}
	return nil
}

func (s *store) close() error {
	err := s.root.Close()
	if s.private != nil {
		err = errors.Join(err, s.private.Close())
	}
	if s.lock != nil {
		err = errors.Join(err, s.lock.Close())
	}
	return err
}

// document describes a stored document.
type document struct {
	etag        string // strong, without quotes
	contentType string
	modified    time.Time
	size        int64
	inode       uint64
}

// describe makes the ETag of the facts that change with each write. A document is never changed in place by this
// server, and each gets a modification time of its own.
func describe(info fs.FileInfo) document {
	d := document{modified: info.ModTime(), size: info.Size()}
	changed := int64(0)
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		d.inode, changed = st.Ino, st.Ctim.Nano()
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %d %d %d", d.inode, d.size, d.modified.UnixNano(), changed))
	d.etag = hex.EncodeToString(sum[:12])
	return d
}

// absent is the error for a resource that does not exist, strange that for a name of what is no document, such as a link or
// a FIFO. Both are 404 for clients, but an access list that is strange denies.
var (
	absent  = &fault{code: adapters.CodeNotFound, text: "there is no such resource"}
	strange = &fault{code: adapters.CodeNotFound, text: "there is no such document"}
)

// missing tells whether an error of the file system means that the path leads to no document or container.
func missing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) || errors.Is(err, safeopen.ErrUnsafe)
}

// below opens the directory of a container.
func (s *store) below(r resource) (*safeopen.Directory, error) {
	d, err := s.root.Below(s.renamed(r.names)...)
	if missing(err) {
		return nil, absent
	}
	if err != nil {
		return nil, broken("the container cannot be opened", err)
	}
	return d, nil
}

// renamed follows the one link that agentinit makes in the tree: after a rotation of the box's key, the former
// name of its pod leads to the present one (package bootstrap/identity).
func (s *store) renamed(names []string) []string {
	if len(names) < 2 || names[0] != "pods" || !strings.HasPrefix(names[1], "npub1") {
		return names
	}
	pods, err := s.root.Below("pods")
	if err != nil {
		return names
	}
	defer pods.Close()
	target, err := pods.Readlink(names[1])
	if err != nil || !strings.HasPrefix(target, "npub1") || strings.Contains(target, "/") {
		return names
	}
	return append([]string{"pods", target}, names[2:]...)
}

// open opens a document. The caller closes the file.
func (s *store) open(r resource) (*os.File, document, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	d, err := s.below(r.parent())
	if err != nil {
		return nil, document{}, err
	}
	defer d.Close()
	return openIn(d, r.name())
}

func openIn(d *safeopen.Directory, name string) (*os.File, document, error) {
	entry, err := d.Stat(name)
	if err == nil && !entry.Regular { // a device is not even opened
		return nil, document{}, strange
	}
	var f *os.File
	if err == nil {
		f, err = d.OpenFile(name, os.O_RDONLY, 0)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, document{}, absent
	}
	var info fs.FileInfo
	if err == nil {
		info, err = f.Stat()
	}
	if err != nil {
		if f != nil {
			f.Close()
		}
		return nil, document{}, broken("the document cannot be opened", err)
	}
	doc := describe(info)
	doc.contentType = typeOf(d, name, doc.inode)
	return f, doc, nil
}

// stat describes a document, or tells that a container exists.
func (s *store) stat(r resource) (document, error) {
	if r.container {
		d, err := s.below(r)
		if err == nil {
			d.Close()
		}
		return document{}, err
	}
	f, doc, err := s.open(r)
	if err == nil {
		f.Close()
	}
	return doc, err
}

// read returns a document of at most limit bytes.
func (s *store) read(r resource, limit int64) ([]byte, document, error) {
	f, doc, err := s.open(r)
	if err != nil {
		return nil, document{}, err
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, document{}, broken("the document cannot be read", err)
	}
	if int64(len(raw)) > limit {
		return nil, doc, overLimit("the document", limit)
	}
	return raw, doc, nil
}

// replace writes a file by way of the private directory: the next start removes from there what a crash leaves.
func (s *store) replace(d *safeopen.Directory, name string, data []byte) error {
	temp := rand.Text()
	if err := s.private.WriteFile(temp, data, fileMode); err != nil {
		return err
	}
	if err := s.rename(temp, d, name); err != nil {
		return errors.Join(err, s.private.Remove(temp))
	}
	return nil
}

// rename gives a file of the private directory its name.
func (s *store) rename(temp string, d *safeopen.Directory, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.private.Move(temp, d, name)
}

// decide allows a write or returns its error. old is the document or container that is there now, nil if there is none; making are
// the containers that are missing.
type decide func(old *document, making []resource) error

// put gives an upload its name. made are the containers that were missing.
func (s *store) put(r resource, u *upload, contentType string, check decide) (doc document, made []resource, created bool, err error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	d, made, err := s.makeDir(r.parent(), func(making []resource) error { return check(nil, making) })
	if err != nil {
		return document{}, made, false, err
	}
	defer d.Close()
	old, err := existing(d, r.name())
	if err == nil {
		err = check(old, made)
	}
	if err == nil {
		s.stamp(u.file)
		doc, err = u.become(d, r.name(), contentType, old)
	}
	return doc, made, old == nil, err
}

// existing describes what has the name of a document; nil if there is none.
func existing(d *safeopen.Directory, name string) (*document, error) {
	f, doc, err := openIn(d, name)
	if err == nil {
		f.Close()
		return &doc, nil
	}
	switch {
	case errors.Is(err, absent):
		return nil, nil
	case errors.Is(err, strange):
		return nil, taken
	}
	return nil, err
}

var taken = faulty(adapters.CodeConflict, "a container, or a file that is no document, has this name")

// stamp gives a document a modification time that no other one of this server has: the ETags of two writes
// within a tick of the kernel's clock must differ. A kernel before 5.8 refuses that (utimensat(2)); the inode and
// the tick remain.
func (s *store) stamp(f *os.File) {
	s.last = max(time.Now().UnixNano(), s.last+1)
	at := unix.NsecToTimespec(s.last)
	_ = unix.UtimesNanoAt(int(f.Fd()), "", []unix.Timespec{at, at}, unix.AT_EMPTY_PATH)
}

// makeDir opens a container, and makes it and its parents if they are missing. Before the first is made, it calls
// before with all that are missing. The caller holds writing.
func (s *store) makeDir(r resource, before func(making []resource) error) (*safeopen.Directory, []resource, error) {
	var made []resource
	d, err := s.root.Below()
	for i, name := range s.renamed(r.names) {
		if err != nil {
			break
		}
		next, openErr := d.Below(name)
		if errors.Is(openErr, fs.ErrNotExist) {
			if len(made) == 0 {
				if err := before(r.from(i)); err != nil {
					d.Close()
					return nil, nil, err
				}
			}
			if openErr = d.Mkdir(name, dirMode); openErr == nil {
				openErr = d.Sync()
				made = append(made, resource{names: r.names[:i+1], container: true})
			}
			if openErr == nil {
				next, openErr = d.Below(name)
			}
		}
		d.Close()
		d, err = next, openErr
	}
	switch {
	case err == nil:
		return d, made, nil
	case missing(err):
		return nil, made, faulty(adapters.CodeConflict, "a document has the name of a container in this path")
	}
	return nil, made, full(err)
}

// create makes a container, which must not exist.
func (s *store) create(r resource, check decide) ([]resource, error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	d, made, err := s.makeDir(r, func(making []resource) error { return check(nil, making) })
	if err != nil {
		return made, err
	}
	d.Close()
	if len(made) > 0 {
		return made, nil
	}
	if err := check(&document{}, nil); err != nil {
		return nil, err
	}
	return nil, faulty(adapters.CodeConflict, "the container exists already")
}

// member is one entry of a container.
type member struct {
	resource
	document
}

// list returns the members of a container, sorted. It leaves out what no path can name, and what is neither a
// document nor a container.
func (s *store) list(r resource) ([]member, time.Time, error) {
	d, err := s.below(r)
	if err != nil {
		return nil, time.Time{}, err
	}
	defer d.Close()
	n := 0
	names, err := d.Names(func(name string) bool {
		if adapters.PodAuxiliary(name) || len(name) > maxName || adapters.CheckPodPath(r.in(name, false).path()) != nil {
			return false
		}
		n++
		return true
	}, maxMembers)
	if n > maxMembers {
		return nil, time.Time{}, faulty(adapters.CodePayloadTooLarge, "the container has more than %d members, the limit of a listing", maxMembers)
	}
	if err != nil {
		return nil, time.Time{}, broken("the container cannot be listed", err)
	}
	var of time.Time
	types, err := d.Below(typesDir)
	if err == nil {
		defer types.Close()
	}
	members := make([]member, 0, len(names))
	for _, name := range names {
		entry, err := d.Stat(name)
		if err != nil || !entry.Regular && !entry.Dir {
			continue // gone, or not for clients
		}
		m := member{resource: r.in(name, entry.Dir), document: document{size: entry.Size, modified: entry.Modified}}
		if entry.Regular {
			m.contentType = typeOfName(name)
			if types != nil {
				m.contentType = typeIn(types, name, 0)
			}
		}
		if entry.Modified.After(of) {
			of = entry.Modified
		}
		members = append(members, m)
	}
	slices.SortFunc(members, func(a, b member) int { return strings.Compare(a.path(), b.path()) })
	return members, of, nil
}
