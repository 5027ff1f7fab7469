package proc

import (
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A mark is a property that every descendant of a program inherits and cannot remove. It identifies
// an orphan that has no environment tag, session or descriptors of its program. Without cgroups
// there are two kinds:
//
//   - The hard limit of queued signals (RLIMIT_SIGPENDING) of a guarded program. Each start has a
//     different limit, a little lower than agentinit's, and the guard's filter refuses to change
//     it. All processes may read it (/proc/PID/limits).
//   - A supplementary group of its own, if root starts an unguarded program as another user: a
//     process needs CAP_SETGID to drop a group.
//
// An unguarded program can lower its own limit to that of a guarded one. So the limit counts only
// for processes that could not have done so, see marked.
//
// A program that can have neither (guard = false under agentinit's own user) is recognised only by
// its session, its environment and its descriptors.

// Marks are given out in turn. So an orphan of an ended program is not taken for one of the next
// program. At most this many are in use at once; a start beyond that has no mark.
const markSlots = 8192

// firstMarkGroup is the first of the groups. They lie above the groups of accounts, below systemd's
// dynamic users, and within the 65536 that a user namespace usually maps.
const (
	firstMarkGroup = 52000
	markGroups     = 8192
)

// marks are the marks in use; guarded by Owner.mu.
type marks struct {
	next  int
	used  map[int]*process
	top   uint64 // the limit of slot 0; each further slot has one less
	slots int
	group bool // whether groups can be set
}

func newMarks(limit uint64) marks {
	m := marks{used: map[int]*process{}, top: limit, slots: markSlots}
	if limit < 2*markSlots {
		m.slots = int(limit / 4) // programs keep at least three quarters of the limit
	}
	m.group = os.Geteuid() == 0 && MayChangeUser() && mapsGroups()
	return m
}

// mapsGroups tells whether agentinit's user namespace maps the groups of the marks
// (user_namespaces(7)).
func mapsGroups() bool {
	b, err := os.ReadFile("/proc/self/gid_map")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) != 3 {
			continue
		}
		first, err1 := strconv.ParseUint(f[0], 10, 64)
		n, err2 := strconv.ParseUint(f[2], 10, 64)
		if err1 == nil && err2 == nil && first <= firstMarkGroup && first+n >= firstMarkGroup+markGroups {
			return true
		}
	}
	return false
}

// take gives p a mark, if one is free.
func (m *marks) take(p *process) {
	p.mark = -1
	for range m.slots {
		slot := m.next
		m.next = (m.next + 1) % m.slots
		if m.used[slot] == nil {
			m.used[slot], p.mark = p, slot
			return
		}
	}
}

// release takes the mark of p back. It tells whether p had one.
func (m *marks) release(p *process) bool {
	had := p.mark >= 0 && m.used[p.mark] == p
	if had {
		delete(m.used, p.mark)
	}
	return had
}

// releaseMark forgets the mark of p. The caller holds the mutex.
func (o *Owner) releaseMark(p *process) {
	if o.marks.release(p) {
		o.refused.Load().unshare(p.mark)
	}
}

// limit is the limit of queued signals of a slot.
func (m *marks) limit(slot int) uint64 { return m.top - uint64(max(0, slot)) }

// slot is the slot that a limit tells, or -1.
func (m *marks) slot(limit uint64) int {
	if limit <= m.top && m.top-limit < uint64(m.slots) {
		return int(m.top - limit)
	}
	return -1
}

// seenMarks are the marks of a process, as the kernel shows them.
type seenMarks struct {
	limit  uint64
	groups []int
	uids   []int
}

// trusted tells that the process has never been that of an unprivileged user.
func (s *seenMarks) trusted() bool {
	return len(s.uids) > 0 && !slices.ContainsFunc(s.uids, func(uid int) bool { return uid != 0 && uid != os.Geteuid() })
}

// marked returns the started process whose mark is given, or nil. A process of agentinit's user or
// of root has the limit that agentinit gave it. For others the group comes first, because only
// root can give groups: an unguarded program of another user has one and cannot drop it, and it
// could have set its limit. Without such groups the limit of another user's process is no
// proof. The caller holds the mutex.
func (o *Owner) marked(s seenMarks) *process {
	if s.trusted() {
		if p := o.byLimit(s.limit); p != nil {
			return p
		}
	}
	grouped := false
	for _, g := range s.groups {
		if slot := g - firstMarkGroup; slot >= 0 && slot < markGroups {
			grouped = true
			if p := o.marks.used[slot]; p != nil && p.grouped {
				return p
			}
		}
	}
	if o.marks.group && !grouped {
		return o.byLimit(s.limit)
	}
	return nil
}

func (o *Owner) byLimit(limit uint64) *process {
	if p := o.marks.used[o.marks.slot(limit)]; p != nil && p.guarded {
		return p
	}
	return nil
}

// markOf returns the slot that the limit of a guarded process tells, or -1.
func (o *Owner) markOf(pid int) int {
	var l unix.Rlimit
	if unix.Prlimit(pid, rlimitSigpending, nil, &l) != nil { // a process of another user
		l.Max = readLimit(pid)
	}
	return o.marks.slot(l.Max)
}

// readMarks reads from /proc what marked needs.
func readMarks(pid int) seenMarks {
	s := seenMarks{limit: readLimit(pid)}
	s.uids, s.groups = readOwner(pid)
	return s
}

// readLimit reads the hard limit of queued signals. It is the highest number if it cannot be read.
func readLimit(pid int) uint64 {
	if b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/limits"); err == nil {
		for line := range strings.Lines(string(b)) {
			rest, ok := strings.CutPrefix(line, "Max pending signals")
			if f := strings.Fields(rest); ok && len(f) >= 2 {
				if n, err := strconv.ParseUint(f[1], 10, 64); err == nil {
					return n
				}
			}
		}
	}
	return ^uint64(0)
}

// readOwner returns the uids of a process (real, effective, saved, of the file system), and its
// supplementary groups. It returns none if the process has ended.
func readOwner(pid int) (uids, groups []int) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return nil, nil
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "Uid:"); ok {
			uids = numbers(rest)
		} else if rest, ok := strings.CutPrefix(line, "Groups:"); ok {
			groups = numbers(rest)
		}
	}
	return uids, groups
}

// numbers returns the words of a line that are numbers.
func numbers(line string) (all []int) {
	for f := range strings.FieldsSeq(line) {
		if n, err := strconv.Atoi(f); err == nil {
			all = append(all, n)
		}
	}
	return all
}

// addMark puts the mark of p on its command. It returns the groups that the command gets. The last
// two arguments have no meaning for the kernel: see filter.Guarded.
func (o *Owner) addMark(l *launch, p *process) []uint32 {
	if p.mark < 0 {
		return nil
	}
	if p.guarded {
		n := o.marks.limit(p.mark)
		l.try(unix.SYS_PRLIMIT64, 0, rlimitSigpending, addr(l, &Rlimit{n, n}), 0, uintptr(o.guard.password[0]), uintptr(o.guard.password[1]))
	}
	if p.grouped {
		return []uint32{uint32(firstMarkGroup + p.mark)}
	}
	return nil
}
