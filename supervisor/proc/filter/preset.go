package filter

import (
	_ "embed"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

//go:embed presets.txt
var presetText string

//go:embed syscalls.txt
var syscallText string

// Policy describes a filter in the words of the manifest.
type Policy struct {
	Preset       string   // "default" or "strict"; "" allows everything but Deny
	Allow, Deny  []string // names of system calls; Deny wins
	Capabilities []string // without CAP_; each allows the calls that it is for
	// Log allows the calls that would be refused, and makes the kernel log them.
	Log bool
}

// presets are the names that Policy.Preset may have.
var presets = []string{"default", "strict"}

// sections are the presets' lists of names.
var sections = sync.OnceValue(func() map[string][]string {
	out := map[string][]string{}
	name := ""
	for line := range strings.Lines(presetText) {
		line = strings.TrimSpace(line)
		switch {
		case line == "" || line[0] == '#':
		case line[0] == '[':
			name = strings.Trim(line, "[]")
		default:
			out[name] = append(out[name], strings.Fields(line)...)
		}
	}
	return out
})

// numbers are the system calls of a machine by name. A call that only another machine has gets a
// negative number.
var numbers = sync.OnceValue(func() map[string]map[string]int {
	out := map[string]map[string]int{"amd64": {}, "arm64": {}}
	for line := range strings.Lines(syscallText) {
		f := strings.Fields(line)
		if len(f) != 3 || f[0] == "#" {
			continue
		}
		for i, machine := range []string{"amd64", "arm64"} {
			n, err := strconv.Atoi(f[1+i])
			if err != nil {
				n = -1
			}
			out[machine][f[0]] = n
		}
	}
	return out
})

// Known tells whether Linux has a system call of that name on a supported machine.
func Known(name string) bool {
	_, ok := numbers()["amd64"][name]
	return ok
}

// Constants for the checks of arguments.
const (
	// namespaceFlags of clone(2) make new namespaces.
	namespaceFlags = 0x7e020000
	afAlg, afVsock = 38, 40
)

// personalities are those without effect on security: Linux, the limit to 32 bits of address space,
// and the value that only queries (personality(2)).
var personalities = []uint32{0, 8, 0x20000, 0x20008, 0xffffffff}

// strictFamilies are the kinds of sockets that "strict" allows.
var strictFamilies = []uint32{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK}

// Compile makes the filter of a policy for a machine. Only native system calls pass: a 32-bit
// program does not run under it. A call that no supported kernel knows gets ENOSYS, as from a
// kernel without it. All other calls that are not allowed get EPERM.
func Compile(goarch string, pol Policy) ([]unix.SockFilter, error) {
	known := numbers()[goarch]
	if known == nil {
		return nil, fmt.Errorf("no system call filter for %s", goarch)
	}
	actions, err := pol.actions(known)
	if err != nil {
		return nil, err
	}
	p := newProgram()
	p.load(offArch)
	p.when(bpf.JumpEqual, tables(goarch)[0].arch, "native")
	p.ret(errno(uint32(unix.ENOSYS)))
	p.label("native")
	p.load(offNr)
	if goarch == "amd64" {
		p.when(bpf.JumpGreaterOrEqual, x32Bit, "absent")
	}
	p.search(ranges(actions, pol.Preset == ""), math.MaxInt)
	p.conditions(pol)
	p.label("allow")
	p.ret(retAllow)
	p.label("deny")
	refuse := errno(uint32(unix.EPERM))
	absent := errno(uint32(unix.ENOSYS))
	if pol.Log {
		refuse, absent = retLog, retLog
	}
	p.ret(refuse)
	p.label("absent")
	p.ret(absent)
	return p.assemble()
}

// actions gives for each known number the label that decides about it.
func (pol Policy) actions(known map[string]int) (map[int]string, error) {
	out := map[int]string{}
	set := func(names []string, label string) error {
		for _, name := range names {
			n, ok := known[name]
			if !ok {
				return fmt.Errorf("unknown system call %q", name)
			}
			if n >= 0 {
				out[n] = label
			}
		}
		return nil
	}
	if pol.Preset != "" {
		if !slices.Contains(presets, pol.Preset) {
			return nil, fmt.Errorf("unknown preset %q", pol.Preset)
		}
		for _, n := range known {
			if n >= 0 {
				out[n] = "deny"
			}
		}
		list := slices.Clone(sections()["default"])
		if pol.Preset == "strict" {
			list = slices.DeleteFunc(list, func(s string) bool { return slices.Contains(sections()["strict without"], s) })
		}
		for _, c := range pol.Capabilities {
			list = append(list, sections()["default with "+c]...)
		}
		if err := set(list, "allow"); err != nil {
			return nil, err
		}
		out[known["socket"]], out[known["personality"]] = "socket", "personality"
		out[known["clone"]], out[known["clone3"]] = "clone", "absent" // its flags are in memory, which a filter cannot read
		if slices.Contains(pol.Capabilities, "SYS_ADMIN") {
			out[known["clone"]], out[known["clone3"]] = "allow", "allow"
		}
	}
	if err := set(pol.Allow, "allow"); err != nil {
		return nil, err
	}
	if pol.ringDoesDenied() {
		out[known["io_uring_setup"]] = "deny"
	}
	return out, set(pol.Deny, "deny")
}

// ringDoesDenied tells whether a program could do with io_uring(7) what Deny refuses. An Allow of
// io_uring_setup takes precedence.
func (pol Policy) ringDoesDenied() bool {
	does := func(call string) bool { return slices.Contains(sections()["io_uring"], call) }
	return slices.ContainsFunc(pol.Deny, does) && !slices.Contains(pol.Allow, "io_uring_setup")
}

// span is a range of numbers with the same answer.
type span struct {
	first int
	label string
}

// ranges covers all numbers, starting at 0.
func ranges(actions map[int]string, open bool) []span {
	gap, end := "absent", "absent"
	if open {
		gap, end = "allow", "allow"
	}
	var out []span
	add := func(first int, label string) {
		if len(out) == 0 || out[len(out)-1].label != label {
			out = append(out, span{first, label})
		}
	}
	next := 0
	for _, n := range slices.Sorted(maps.Keys(actions)) {
		if n > next {
			add(next, gap)
		}
		add(n, actions[n])
		next = n + 1
	}
	add(next, end)
	return out
}

// When a filter is installed, the kernel compiles it and runs it once for each number
// (seccomp_cache_prepare_bitmap in kernel/seccomp.c). That is a part of every start. So search makes
// few instructions, and short ways through them.

const (
	inUse = 480 // numbers from here on are rarely used
	few   = 3   // so many numbers are compared one by one
)

// search goes to the label of the number in the accumulator. The number is below end and not below
// the first span.
func (p *program) search(spans []span, end int) {
	for _, usual := range spans[:min(2, len(spans))] {
		if rest, ok := exceptions(spans, usual.label, end); ok {
			for _, s := range rest {
				p.when(bpf.JumpEqual, uint32(s.first), s.label)
			}
			p.end(usual.label)
			return
		}
	}
	// About as many numbers in use are on each side of the middle.
	half := (spans[0].first + min(end, inUse)) / 2
	middle := 1
	for i := range spans {
		if i > 0 && distance(spans[i].first, half) < distance(spans[middle].first, half) {
			middle = i
		}
	}
	upper := p.unique()
	p.when(bpf.JumpGreaterOrEqual, uint32(spans[middle].first), upper)
	p.search(spans[:middle], spans[middle].first)
	p.label(upper)
	p.search(spans[middle:], end)
}

func distance(a, b int) int { return max(a-b, b-a) }

// exceptions returns the spans that have another label. ok says that they are few single numbers.
func exceptions(spans []span, usual string, end int) (out []span, ok bool) {
	for i, s := range spans {
		if s.label == usual {
			continue
		}
		next := end
		if i+1 < len(spans) {
			next = spans[i+1].first
		}
		if next != s.first+1 || len(out) == few {
			return nil, false
		}
		out = append(out, s)
	}
	return out, true
}

func (p *program) end(label string) {
	if label == "allow" {
		p.ret(retAllow)
	} else {
		p.jump(label)
	}
}

// conditions check the arguments.
func (p *program) conditions(pol Policy) {
	p.label("clone")
	p.load(low(0))
	p.when(bpf.JumpBitsSet, namespaceFlags, "deny")
	p.jump("allow")
	p.label("personality")
	p.load(low(0))
	for _, v := range personalities {
		p.when(bpf.JumpEqual, v, "allow")
	}
	p.jump("deny")
	p.label("socket")
	p.load(low(0))
	if pol.Preset == "strict" {
		for _, family := range strictFamilies {
			p.when(bpf.JumpEqual, family, "allow")
		}
		p.jump("deny")
		return
	}
	p.when(bpf.JumpEqual, afAlg, "deny")
	p.when(bpf.JumpEqual, afVsock, "deny")
	p.jump("allow")
}
