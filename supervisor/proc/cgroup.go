package proc

import (
	"errors"
	"maps"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// cgroupBase is a directory of the cgroup v2 hierarchy (cgroups(7)). Each started process gets a
// cgroup of its own below it. All methods work on nil, which means that there is no such directory.
// That is the usual case, because container engines mount the hierarchy read-only.
type cgroupBase struct {
	dir string // its path in the file system
	rel string // its path as /proc/PID/cgroup shows it
	// counts holds the controllers that work below dir. share is the default limit of processes
	// and threads of a program; 0 sets none. whole are the limits of all programs together.
	counts map[string]bool
	share  uint64
	whole  map[string]uint64
}

// cgroup is the cgroup of one started process.
type cgroup struct {
	base *cgroupBase
	dir  string
	open int // descriptor, until the process is started; then -1
}

// init says that we are PID 1: only then may agentinit move itself.
func openCgroupBase(init bool, report func(string)) (*cgroupBase, error) {
	mount, err := cgroupMount()
	if err != nil {
		return nil, err
	}
	own, err := cgroupOf("self")
	if err != nil {
		return nil, err
	}
	// The name is random, because two boxes that share a hierarchy can both be pid 1.
	token, err := newToken()
	if err != nil {
		return nil, err
	}
	rel := path.Join(own, "agentinit-"+token)
	b := &cgroupBase{dir: path.Join(mount, rel), rel: rel}
	if err := os.Mkdir(b.dir, 0o755); err != nil {
		return nil, err
	}
	// Linux 5.14 added cgroup.kill. Without that file, a cgroup gives almost no advantage.
	if _, err := os.Stat(path.Join(b.dir, "cgroup.kill")); err != nil {
		os.Remove(b.dir)
		return nil, err
	}
	if err := b.bound(path.Join(mount, own), init); err != nil {
		report("programs have no limits of their cgroups: " + err.Error())
	}
	return b, nil
}

// SelfCgroup is a cgroup below the cgroup of the box. PID 1 moves itself there if the kernel
// demands it; see bound.
const SelfCgroup = "agentinit.self"

// The programs of a box together may not use the whole of the box's limits. This much is left for
// agentinit: threads, because the Go runtime ends the process if it cannot get one, and
// memory, so that the kernel kills a program before agentinit is short of memory.
const (
	pidsReserve   = 100
	memoryReserve = 32 << 20
)

// controllers are those that limit processes and memory.
var controllers = []string{"pids", "memory"}

// bound enables the controllers for the programs, and limits all programs together to the limits
// of the box without the reserve. own is the directory of the box's cgroup.
//
// A cgroup that contains processes cannot enable controllers for the cgroups below, unless it is the
// root of the hierarchy (cgroups(7), "no internal processes"). Therefore agentinit moves itself
// into SelfCgroup. If the cgroup contains other processes too, agentinit stays and
// enables no controller, because those processes do not belong to it.
func (b *cgroupBase) bound(own string, init bool) error {
	there, enabled := wordsOf(path.Join(own, "cgroup.controllers")), wordsOf(path.Join(own, "cgroup.subtree_control"))
	var enable, missing []string
	for _, c := range controllers {
		if there[c] {
			enable = append(enable, "+"+c)
			if !enabled[c] {
				missing = append(missing, "+"+c)
			}
		}
	}
	if len(enable) == 0 {
		return errors.New("agentinit's cgroup has neither the controller pids nor memory")
	}
	if len(missing) > 0 {
		if err := handOn(own, strings.Join(missing, " "), init); err != nil {
			return err
		}
	}
	if err := writeCgroup(b.dir, "cgroup.subtree_control", strings.Join(enable, " ")); err != nil {
		return err
	}
	b.counts = wordsOf(path.Join(b.dir, "cgroup.subtree_control"))
	return b.divide(own)
}

// divide limits all programs together, and sets the share of one program.
func (b *cgroupBase) divide(own string) error {
	b.whole = map[string]uint64{}
	if most := limitOf(own, "pids.max"); b.counts["pids"] && most > 2*pidsReserve {
		if err := b.boundAll("pids", most-pidsReserve); err != nil {
			return err
		}
		b.share = (most - pidsReserve) / 4 * 3
	}
	if most := limitOf(own, "memory.max"); b.counts["memory"] && most > 0 {
		return b.boundAll("memory", most-min(memoryReserve, most/8))
	}
	return nil
}

// boundAll limits all programs together.
func (b *cgroupBase) boundAll(name string, most uint64) error {
	if err := writeCgroup(b.dir, name+".max", strconv.FormatUint(most, 10)); err != nil {
		return err
	}
	b.whole[name] = most
	return nil
}

// handOn enables controllers for the cgroups below own.
func handOn(own, enable string, init bool) error {
	// Only the root of the hierarchy has no type. The rule does not apply to it.
	if _, err := os.Stat(path.Join(own, "cgroup.type")); errors.Is(err, os.ErrNotExist) {
		return writeCgroup(own, "cgroup.subtree_control", enable)
	}
	if !init {
		return errors.New("agentinit is not PID 1 and stays in the cgroup in which it is")
	}
	self := path.Join(own, SelfCgroup)
	if err := os.Mkdir(self, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	err := writeCgroup(self, "cgroup.procs", "0") // the writer
	if err == nil && len(wordsOf(path.Join(own, "cgroup.procs"))) > 0 {
		// The kernel would still enable pids alone, but then no process could be
		// started in a cgroup below (cgroups(7), "threaded").
		err = errors.New("there are other processes in its cgroup")
	}
	if err == nil {
		err = writeCgroup(own, "cgroup.subtree_control", enable)
	}
	if err != nil {
		return errors.Join(err, writeCgroup(own, "cgroup.procs", "0"), os.Remove(self))
	}
	return nil
}

func writeCgroup(dir, file, text string) error {
	return os.WriteFile(path.Join(dir, file), []byte(text), 0o600) // the kernel has made the file
}

// wordsOf returns the words of a file. A file that cannot be read has none.
func wordsOf(file string) map[string]bool {
	text, err := os.ReadFile(file)
	words := map[string]bool{}
	for w := range strings.FieldsSeq(string(text)) {
		words[w] = err == nil
	}
	return words
}

// limitOf reads a limit; 0 means that there is none.
func limitOf(dir, file string) uint64 {
	text, err := os.ReadFile(path.Join(dir, file))
	if err != nil {
		return 0 // the root of the hierarchy has no limits
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return 0 // "max"
	}
	return n
}

// cgroupMount finds the hierarchy where every engine and init system mounts it: on /sys/fs/cgroup,
// or in a directory of it if version 1 is mounted too.
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
	return "", errors.New("this process is in no cgroup v2")
}

// idOf returns the id of the started process whose cgroup contains the process pid, or 0.
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

// create makes the cgroup of one process. It returns nil if it cannot: the program then starts
// without a cgroup.
func (b *cgroupBase) create(id uint64) *cgroup {
	if b == nil {
		return nil
	}
	dir := path.Join(b.dir, strconv.FormatUint(id, 10))
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil
	}
	if b.share > 0 {
		if err := writeCgroup(dir, "pids.max", strconv.FormatUint(b.share, 10)); err != nil {
			os.Remove(dir)
			return nil
		}
	}
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		os.Remove(dir)
		return nil
	}
	return &cgroup{base: b, dir: dir, open: fd}
}

// instead names the limit of setrlimit(2) that replaces a limit of the cgroup.
var instead = map[string]string{"pids": "nproc", "memory": "data"}

// limit writes the limits pids and memory to the cgroup, and returns the others, which are for
// setrlimit(2). Without a cgroup, or without the controller, pids becomes nproc, which
// counts the processes of the user, and memory becomes data, which counts for each process.
func (c *cgroup) limit(asked map[string]Rlimit) (map[string]Rlimit, error) {
	rest := maps.Clone(asked)
	for name, instead := range instead {
		l, ok := asked[name]
		if !ok {
			continue
		}
		delete(rest, name)
		if c != nil && c.base.counts[name] {
			if err := c.set(name, l); err != nil {
				return nil, &StartError{Op: opLimit + name, Err: err}
			}
		} else if _, ok := asked[instead]; !ok {
			rest[instead] = l
		}
	}
	return rest, nil
}

// Bound is a limit of processes or of memory that is in force for a started process.
type Bound struct {
	Name    string // of controllers
	Default bool   // agentinit set it from the limits of the box; the Command did not ask for it
	Of      BoundOf
	Rlimit
}

// BoundOf is what a Bound counts.
type BoundOf uint8

// What a Bound counts.
const (
	OfTree    BoundOf = iota // the started process and its members
	OfAll                    // all started processes with their members, together
	OfUser                   // all processes of its user; it does not bind root (RLIMIT_NPROC)
	OfProcess                // the data of each process (RLIMIT_DATA)
)

// bounds are the limits that limit has set for asked, and those that create and divide have set.
func (c *cgroup) bounds(asked map[string]Rlimit) []Bound {
	var out []Bound
	for _, name := range controllers {
		l, ok := asked[name]
		if c == nil || !c.base.counts[name] {
			of := map[string]BoundOf{"pids": OfUser, "memory": OfProcess}[name]
			if _, replaced := asked[instead[name]]; ok && !replaced && !l.unlimited() {
				out = append(out, Bound{name, false, of, l})
			}
			continue
		}
		if name == "pids" {
			l.Soft = l.Hard // pids.max is the only limit that the controller has
		}
		if name == "pids" && !ok && c.base.share > 0 {
			out = append(out, Bound{name, true, OfTree, Rlimit{c.base.share, c.base.share}})
			continue // the limit of all programs is higher
		}
		if ok && !l.unlimited() {
			out = append(out, Bound{name, false, OfTree, l})
		}
		if whole := c.base.whole[name]; whole > 0 && (!ok || l.Hard > whole) {
			out = append(out, Bound{name, true, OfAll, Rlimit{whole, whole}})
		}
	}
	return out
}

func (l Rlimit) unlimited() bool { return l.Soft == unix.RLIM_INFINITY && l.Hard == unix.RLIM_INFINITY }

// set writes one limit. Above the soft limit of memory the kernel reclaims memory.
func (c *cgroup) set(name string, l Rlimit) error {
	text := func(n uint64) string {
		if n == unix.RLIM_INFINITY {
			return "max"
		}
		return strconv.FormatUint(n, 10)
	}
	if name == "memory" && l.Soft < l.Hard {
		if err := writeCgroup(c.dir, "memory.high", text(l.Soft)); err != nil {
			return err
		}
	}
	return writeCgroup(c.dir, name+".max", text(l.Hard))
}

// exhausted returns the limit of memory, in bytes, if the members have reached it so that the kernel
// had to kill one. The kernel counts that in the cgroup whose limit it was and in those above, so
// a kill at a limit of the box does not count here (Documentation/admin-guide/cgroup-v2.rst, memory.events).
func (c *cgroup) exhausted() uint64 {
	if c == nil || !c.base.counts["memory"] {
		return 0
	}
	text, err := os.ReadFile(path.Join(c.dir, "memory.events"))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if n, ok := strings.CutPrefix(line, "oom "); ok && strings.TrimSpace(n) != "0" {
			return limitOf(c.dir, "memory.max")
		}
	}
	return 0
}

func (b *cgroupBase) close() {
	if b != nil {
		removeCgroups(b.dir, nestedMost) // fails while a program is still alive, as it should
	}
}

func (c *cgroup) fd() (int, bool) {
	if c == nil {
		return 0, false
	}
	return c.open, true
}

// started closes the descriptor, which only the fork needed.
func (c *cgroup) started() {
	if c != nil && c.open >= 0 {
		unix.Close(c.open)
		c.open = -1
	}
}

// kill asks the kernel to kill all members, even those that fork meanwhile. An error is ignored,
// because the caller then kills each member itself.
func (c *cgroup) kill() {
	if c != nil {
		_ = writeCgroup(c.dir, "cgroup.kill", "1")
	}
}

// remove succeeds only if the cgroup is empty. A leaked member keeps the cgroup.
func (c *cgroup) remove() {
	if c != nil {
		removeCgroups(c.dir, nestedMost)
	}
}

// nestedMost bounds how many cgroups are removed with the one of a program: each removal takes a lock which
// all cgroups of the machine share.
const nestedMost = 1000

// removeCgroups removes a cgroup and the empty cgroups that programs, such as container engines, have made
// below it. It looks at no more than most of them, and returns how many it looked at.
func removeCgroups(dir string, most int) (seen int) {
	if unix.Rmdir(dir) == nil { // os.Remove would ask the kernel twice
		return 0
	}
	for _, name := range nestedCgroups(dir, most) {
		if seen >= most {
			return seen
		}
		seen += 1 + removeCgroups(path.Join(dir, name), most-seen-1)
	}
	if seen > 0 {
		_ = unix.Rmdir(dir)
	}
	return seen
}

// nestedCgroups returns the names of the cgroups in a cgroup, no more than most.
func nestedCgroups(dir string, most int) (names []string) {
	f, err := os.Open(dir)
	if err != nil {
		return nil
	}
	defer f.Close()
	for len(names) < most && err == nil {
		var entries []os.DirEntry
		entries, err = f.ReadDir(100)
		for _, e := range entries {
			if e.IsDir() {
				names = append(names, e.Name())
			}
		}
	}
	return names[:min(len(names), most)]
}
