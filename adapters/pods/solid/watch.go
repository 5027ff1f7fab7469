package solid

import (
	"encoding/binary"
	"errors"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// watcher finds out what changes in the containers that channels are about, also by other programs: agentinit writes messages into
// the box's pod. It compares states, so a change of this server and the kernel's word about it (inotify(7)) are told once.
type watcher struct {
	s      *Server
	file   *os.File // nil: changes of other programs are not seen
	fd     int      // of file, whose method Fd would make it blocking
	reader sync.WaitGroup

	mu     sync.Mutex
	byPath map[string]*watched
}

// watched is one container.
type watched struct {
	of     resource
	holds  int               // channels
	wd     int32             // -1: the kernel does not watch it
	once   sync.Once         // lists it
	listed bool              // before, states has only what has changed since hold
	states map[string]string // of each name: the ETag of a document, isContainer, or unknown; nil = it cannot be listed
}

// unknown is the state of a member that was there when the watch began.
const unknown = "?"

const watchMask = unix.IN_CREATE | unix.IN_CLOSE_WRITE | unix.IN_MOVED_TO | unix.IN_MOVED_FROM | unix.IN_DELETE | unix.IN_ONLYDIR

func newWatcher(s *Server) *watcher {
	w := &watcher{s: s, byPath: map[string]*watched{}}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		s.log.Warn("changes by other programs are not told", "error", err.Error())
		return w
	}
	w.fd, w.file = fd, os.NewFile(uintptr(fd), "inotify")
	w.reader.Go(w.read)
	return w
}

func (w *watcher) close() {
	if w.file != nil {
		w.file.Close()
		w.reader.Wait()
	}
}

// hold watches a container until release. What happens in it is told after list.
func (w *watcher) hold(r resource) *watched {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c := w.byPath[r.path()]; c != nil {
		c.holds++
		return c
	}
	c := &watched{of: r, holds: 1, wd: -1, states: map[string]string{}}
	w.byPath[r.path()] = c
	d, err := w.s.store.below(r)
	if err != nil {
		return c // gone meanwhile
	}
	defer d.Close()
	if w.file != nil {
		wd, err := d.Watch(w.fd, watchMask)
		if err != nil {
			w.s.seldom(r.path(), "changes by other programs are not told", err)
		} else {
			c.wd = int32(wd)
		}
	}
	return c
}

// list finds out what is in a container, if that is not known. It reads the names without a lock: there may be many.
func (w *watcher) list(c *watched) {
	c.once.Do(func() {
		var names []string
		d, err := w.s.store.below(c.of)
		if err == nil {
			names, err = d.Names(func(name string) bool { return adapters.CheckPodPath(c.of.in(name, false).path()) == nil }, 2*maxMembers)
			d.Close()
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		c.listed = true
		if err != nil {
			c.states = nil
			if !errors.Is(err, absent) {
				w.s.seldom(c.of.path(), "what happens in a container is not told", err)
			}
			return
		}
		for _, name := range names {
			if _, changed := c.states[name]; !changed {
				c.states[name] = unknown
			}
		}
		maps.DeleteFunc(c.states, func(_, state string) bool { return state == "" })
	})
}

func (w *watcher) release(r resource) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.byPath[r.path()]
	if c.holds--; c.holds > 0 {
		return
	}
	delete(w.byPath, r.path())
	if c.wd >= 0 && !w.used(c.wd) {
		_, _ = unix.InotifyRmWatch(w.fd, uint32(c.wd)) // EINVAL: the container is gone, and its watch with it
	}
}

// used tells whether a watch is that of a container: a renamed pod has two paths. The caller holds mu.
func (w *watcher) used(wd int32) bool {
	for _, c := range w.byPath {
		if c.wd == wd {
			return true
		}
	}
	return false
}

// state is the present state of a resource.
func (w *watcher) state(r resource) string {
	doc, err := w.s.store.stat(r)
	switch {
	case err != nil:
		return ""
	case r.container:
		return isContainer
	}
	return quoted(doc.etag, "")
}

// change records a state and says what has happened: Create, Update, Delete, or "" if it is known or no channel is about it.
func (w *watcher) change(r resource, state string) (kind string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.byPath[r.parent().path()]
	if c == nil || c.states == nil {
		return ""
	}
	old := c.states[r.name()]
	switch {
	case !c.listed:
		c.states[r.name()] = state // "" too: the name may have been read before
		return ""
	case old == state:
		return ""
	case state == "":
		delete(c.states, r.name())
		return "Delete"
	}
	c.states[r.name()] = state
	if old == "" {
		return "Create"
	}
	return "Update"
}

// read reads events until the file is closed.
func (w *watcher) read() {
	buf := make([]byte, 64<<10)
	for {
		n, err := w.file.Read(buf)
		if err != nil {
			if !errors.Is(err, os.ErrClosed) {
				w.s.log.Warn("changes by other programs are not told any more", "error", err.Error())
			}
			return
		}
		for rest := buf[:n]; len(rest) >= unix.SizeofInotifyEvent; {
			wd, mask := int32(binary.NativeEndian.Uint32(rest)), binary.NativeEndian.Uint32(rest[4:])
			end := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(rest[12:]))
			name := strings.TrimRight(string(rest[unix.SizeofInotifyEvent:end]), "\x00")
			rest = rest[end:]
			if mask&unix.IN_Q_OVERFLOW != 0 {
				w.rescan()
			} else if name != "" {
				w.seen(wd, name, mask&unix.IN_ISDIR != 0)
			}
		}
	}
}

// seen tells of a name in a watched directory. Unfinished files of agentinit are not told.
func (w *watcher) seen(wd int32, name string, isDir bool) {
	if strings.Contains(name, ".tmp-") {
		return
	}
	w.mu.Lock()
	var of []resource
	for _, c := range w.byPath {
		if c.wd == wd {
			of = append(of, c.of)
		}
	}
	w.mu.Unlock()
	for _, container := range of {
		w.compare(container.in(name, isDir))
	}
}

// compare tells of a member whose state has changed.
func (w *watcher) compare(r resource) {
	if adapters.CheckPodPath(r.path()) == nil && !(r.container && adapters.PodAuxiliary(r.name())) {
		w.s.tell(r, w.state(r))
	}
}

// rescan compares all members of all containers, after the kernel has dropped events.
func (w *watcher) rescan() {
	w.mu.Lock()
	var known []resource
	for _, c := range w.byPath {
		for name, state := range c.states {
			known = append(known, c.of.in(name, state == isContainer))
		}
	}
	containers := slices.Collect(maps.Values(w.byPath))
	w.mu.Unlock()
	for _, c := range containers {
		members, _, err := w.s.store.list(c.of)
		if err != nil {
			continue
		}
		for _, m := range members {
			known = append(known, m.resource)
		}
	}
	for _, r := range known {
		if state := w.state(r); state != "" || w.state(r.parent().in(r.name(), !r.container)) == "" {
			w.s.tell(r, state)
		}
	}
}
