package proc

import (
	"errors"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// cgroupBase is a directory of the cgroup v2 hierarchy (cgroups(7)) below which
// every started process gets a cgroup of its own. All methods work on nil, which
// is a box without: the usual case, since container engines mount it read-only.
type cgroupBase struct {
	dir string // in the file system
	rel string // as /proc/PID/cgroup names it
}

// cgroup is that of one started process.
type cgroup struct {
	dir  string
	open int // descriptor, until the process is started; then -1
}

func openCgroupBase() (*cgroupBase, error) {
	mount, err := cgroupMount()
	if err != nil {
		return nil, err
	}
	own, err := cgroupOf("self")
	if err != nil {
		return nil, err
	}
	// Random: boxes that share a hierarchy may all be pid 1.
	token, err := newToken()
	if err != nil {
		return nil, err
	}
	rel := path.Join(own, "agentinit-"+token)
	b := &cgroupBase{dir: path.Join(mount, rel), rel: rel}
	if err := os.Mkdir(b.dir, 0o755); err != nil {
		return nil, err
	}
	// The kill file came with Linux 5.14; without it a cgroup gains us little.
	if _, err := os.Stat(path.Join(b.dir, "cgroup.kill")); err != nil {
		os.Remove(b.dir)
		return nil, err
	}
	return b, nil
}

// cgroupMount finds the hierarchy where every engine and init mounts it: alone, or
// beside those of version 1.
func cgroupMount() (string, error) {
	for _, dir := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		var fs unix.Statfs_t
		if err := unix.Statfs(dir, &fs); err == nil && fs.Type == unix.CGROUP2_SUPER_MAGIC {
			return dir, nil
		}
	}
	return "", errors.New("no cgroup v2 hierarchy is mounted on /sys/fs/cgroup")
}

// cgroupOf reads the v2 line of /proc/PID/cgroup.
func cgroupOf(pid string) (string, error) {
	b, err := os.ReadFile("/proc/" + pid + "/cgroup")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(b)) {
		if path, ok := strings.CutPrefix(line, "0::"); ok {
			return strings.TrimSpace(path), nil
		}
	}
	return "", errors.New("in no cgroup v2")
}

// idOf returns the id of the started process in whose cgroup a process is, or 0.
func (b *cgroupBase) idOf(pid int) uint64 {
	if b == nil {
		return 0
	}
	path, err := cgroupOf(strconv.Itoa(pid))
	if err != nil {
		return 0
	}
	rest, ok := strings.CutPrefix(path, b.rel+"/")
	if !ok {
		return 0
	}
	name, _, _ := strings.Cut(rest, "/")
	id, err := strconv.ParseUint(name, 10, 64)
	if err != nil {
		return 0
	}
	return id
}

// create makes the cgroup of one process; nil when it cannot, which costs only
// the extra certainty.
func (b *cgroupBase) create(id uint64) *cgroup {
	if b == nil {
		return nil
	}
	dir := path.Join(b.dir, strconv.FormatUint(id, 10))
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil
	}
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		os.Remove(dir)
		return nil
	}
	return &cgroup{dir: dir, open: fd}
}

func (b *cgroupBase) close() {
	if b != nil {
		os.Remove(b.dir) // fails while a program of ours lives on, rightly
	}
}

func (c *cgroup) fd() (int, bool) {
	if c == nil {
		return 0, false
	}
	return c.open, true
}

// started gives up the descriptor: the fork was all it was for.
func (c *cgroup) started() {
	if c != nil && c.open >= 0 {
		unix.Close(c.open)
		c.open = -1
	}
}

// kill has the kernel kill all members, forking ones included. Refusal leaves
// the usual way, which comes next anyway.
func (c *cgroup) kill() {
	if c != nil {
		_ = os.WriteFile(path.Join(c.dir, "cgroup.kill"), []byte("1"), 0)
	}
}

// remove works only once the cgroup is empty; a leaked member keeps it.
func (c *cgroup) remove() {
	if c != nil {
		os.Remove(c.dir)
	}
}
