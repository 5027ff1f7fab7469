package proc

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A mark is what every descendant of a program inherits and none can shed, so that an
// orphan without environment, session and descriptors is still known to be the program's.
// Without cgroups there are two:
//
//   - The hard limit of queued signals (RLIMIT_SIGPENDING) of a guarded program: each start has
//     another one, a little below what agentinit keeps, and the guard's filter refuses to change
//     it. Everybody may read it (/proc/PID/limits).
//   - A supplementary group of its own, where root starts an unguarded program as another
//     user: dropping a group needs CAP_SETGID.
//
// What has neither (guard = false under agentinit's own user) is known by its session, its
// environment and its descriptors only.

// Marks are taken in turn, so that what outlives its program is not taken for the next
// one's. There are at most so many at once; a start beyond that has none.
const markSlots = 8192

// firstMarkGroup begins the groups: above what accounts have, within the 65536 that a user
// namespace usually maps, below systemd's dynamic users.
const (
	firstMarkGroup = 52000
	markGroups     = 8192
)

// marks are those in use; guarded by Owner.mu.
type marks struct {
	next  int
	used  map[int]*process
	top   uint64 // slot 0 has this limit, each further one less
	slots int
	group bool // groups can be set
}

func newMarks(limit uint64) marks {
	m := marks{used: map[int]*process{}, top: limit, slots: markSlots}
	if limit < 2*markSlots {
		m.slots = int(limit / 4) // programs keep most of it
	}
	m.group = os.Geteuid() == 0 && MayChangeUser() && mapsGroups()
	return m
}

// mapsGroups tells whether our user namespace has the groups (user_namespaces(7)).
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

// take gives p a mark.
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

func (m *marks) release(p *process) {
	if p.mark >= 0 && m.used[p.mark] == p {
		delete(m.used, p.mark)
	}
}

// limit is the limit of queued signals of a slot.
func (m *marks) limit(slot int) uint64 { return m.top - uint64(max(0, slot)) }

// marked returns whose mark a process has. The mutex is held.
func (o *Owner) marked(limit uint64, groups []int) *process {
	if slot := int(o.marks.top) - int(limit); limit <= o.marks.top && slot < o.marks.slots {
		if p := o.marks.used[slot]; p != nil && p.guarded {
			return p
		}
	}
	for _, g := range groups {
		if slot := g - firstMarkGroup; slot >= 0 && slot < markGroups {
			if p := o.marks.used[slot]; p != nil && p.grouped {
				return p
			}
		}
	}
	return nil
}

// readMarks reads what marked asks for.
func readMarks(pid int) (limit uint64, groups []int) {
	limit = ^uint64(0)
	if b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/limits"); err == nil {
		for line := range strings.Lines(string(b)) {
			rest, ok := strings.CutPrefix(line, "Max pending signals")
			if f := strings.Fields(rest); ok && len(f) >= 2 {
				if n, err := strconv.ParseUint(f[1], 10, 64); err == nil {
					limit = n
				}
			}
		}
	}
	if b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status"); err == nil {
		for line := range strings.Lines(string(b)) {
			rest, ok := strings.CutPrefix(line, "Groups:")
			if !ok {
				continue
			}
			for _, f := range strings.Fields(rest) {
				if n, err := strconv.Atoi(f); err == nil {
					groups = append(groups, n)
				}
			}
		}
	}
	return limit, groups
}

// addMark puts the mark of p on a command; it returns the groups that the command gets.
func (o *Owner) addMark(l *launch, p *process) []uint32 {
	if p.mark < 0 {
		return nil
	}
	if p.guarded {
		n := o.marks.limit(p.mark)
		l.try(unix.SYS_PRLIMIT64, 0, rlimitSigpending, addr(l, &Rlimit{n, n}), 0)
	}
	if p.grouped {
		return []uint32{uint32(firstMarkGroup + p.mark)}
	}
	return nil
}
