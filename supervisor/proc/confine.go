package proc

import (
	"fmt"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/dreamlab-ai/agentinit/internal/capability"
)

// Sandbox is what a program may reach; the zero value allows everything. A nil list allows
// everything of its kind; an empty list forbids all of it.
type Sandbox struct {
	// Capabilities are the numbers of the capabilities that the program keeps (capabilities(7)).
	Capabilities []int
	// Read, Write and Execute are paths. What may be written or executed may also be read.
	Read, Write, Execute []string
	// TCPBind and TCPConnect are ports.
	TCPBind, TCPConnect []int
	// Filter is a seccomp filter.
	Filter []unix.SockFilter
	// PrivateTmp gives the program its own /tmp and /var/tmp, in memory.
	PrivateTmp bool
}

// Landlock's rights to files (landlock(7)), grouped by purpose.
const (
	landExecute = 1 << 0
	landRead    = 1<<2 | 1<<3
	// ABI 1: write, remove, and make all kinds of files. REFER came with ABI 2, TRUNCATE with ABI 3
	// and IOCTL_DEV with ABI 5.
	landWrite    = 1<<1 | 0x1ff0
	landRefer    = 1 << 13
	landTruncate = 1 << 14
	landIoctl    = 1 << 15
	// The rights that a rule about a file may hold. All others are for directories only.
	landOfFile = landExecute | 1<<1 | 1<<2 | landTruncate | landIoctl

	landBind, landConnect = 1 << 0, 1 << 1
)

// writeRights returns the rights of writing that an ABI version knows.
func writeRights(abi int) uint64 {
	rights := uint64(landWrite)
	for v, r := range map[int]uint64{2: landRefer, 3: landTruncate, 5: landIoctl} {
		if abi >= v {
			rights |= r
		}
	}
	return rights
}

// devices are the devices to which every program may write, even in a sandbox.
var devices = []string{"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"}

// handled returns what the sandbox forbids unless a rule allows it.
func (s *Sandbox) handled(abi int) landlockAttr {
	var a landlockAttr
	if s == nil || abi == 0 {
		return a
	}
	if s.Read != nil {
		a.fs |= landRead
	}
	if s.Write != nil {
		a.fs |= writeRights(abi)
	}
	if s.Execute != nil {
		a.fs |= landExecute
	}
	if s.TCPBind != nil {
		a.net |= landBind
	}
	if s.TCPConnect != nil {
		a.net |= landConnect
	}
	return a
}

// scopes tells whether the sandbox makes a Landlock domain of its own. That domain then also scopes
// signals.
func (s *Sandbox) scopes() bool {
	a := s.handled(1)
	return a.fs != 0 || a.net != 0
}

// Missing names the parts of a sandbox that this kernel cannot enforce.
func (s *Sandbox) Missing(abi int) []string {
	var out []string
	a := s.handled(1)
	switch {
	case a.fs != 0 && abi == 0:
		out = append(out, "paths (the kernel has no Landlock, or forbids it here)")
	case s.Write != nil && abi < 3:
		out = append(out, fmt.Sprintf("truncation of files (Landlock ABI 3, Linux 6.2; this kernel has %d)", abi))
	}
	if a.net != 0 && abi < 4 {
		out = append(out, fmt.Sprintf("TCP ports (Landlock ABI 4, Linux 6.7; this kernel has %d)", abi))
	}
	return out
}

// WithoutMissing is the sandbox without what Missing names.
func (s Sandbox) WithoutMissing(abi int) Sandbox {
	if abi == 0 {
		s.Read, s.Write, s.Execute = nil, nil, nil
	}
	if abi < 4 {
		s.TCPBind, s.TCPConnect = nil, nil
	}
	return s
}

const opSandbox = "sandbox"

// addLandlock makes a ruleset; restrict puts it into force. The new process, not agentinit, opens
// the paths, because they can lie on a file system whose server does not answer.
func (l *launch) addLandlock(c *Command, abi int) error {
	s := c.Sandbox
	if !s.scopes() {
		return nil
	}
	attr := s.handled(abi)
	if abi >= landlockScopeABI && c.Guard == GuardFull {
		attr.scoped = landlockScopeSignal
	}
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), attr.size(), 0)
	if errno != 0 {
		return &StartError{Op: opSandbox, Err: errno}
	}
	l.ruleset = int(fd) // always close-on-exec
	add := func(key string, paths []string, rights uint64) error {
		for _, path := range paths {
			if err := l.addPath(stepInfo{opSandbox + " " + key, path}, path, rights&attr.fs); err != nil {
				return err
			}
		}
		return nil
	}
	write := landRead | writeRights(abi)
	for _, err := range []error{
		add("read", s.Read, landRead), add("write", s.Write, write), add("execute", s.Execute, landRead|landExecute),
		l.addDevices((landRead | write) & attr.fs),
	} {
		if err != nil {
			return err
		}
	}
	for right, ports := range map[uint64][]int{landBind: s.TCPBind, landConnect: s.TCPConnect} {
		for _, port := range ports {
			rule := &[2]uint64{right, uint64(port)} // struct landlock_net_port_attr
			l.toRuleset(stepInfo{op: opSandbox + " tcp"}, landlockRulePort, addr(l, rule))
		}
	}
	return nil
}

// toRuleset adds one rule to the ruleset.
func (l *launch) toRuleset(info stepInfo, kind, rule uintptr) {
	l.add(info, unix.SYS_LANDLOCK_ADD_RULE, uintptr(l.ruleset), kind, rule, 0)
}

// addPath allows what lies below a path. A path that begins with "-" may be missing. For a file,
// the kernel refuses the rights that only directories have. Whether the path is a file turns out
// only when the new process opens it.
func (l *launch) addPath(info stepInfo, path string, rights uint64) error {
	name, optional := strings.CutPrefix(path, "-")
	text, err := l.text(name)
	if err != nil {
		return &StartError{Op: info.op, Path: path, Err: err}
	}
	if rights == 0 {
		return nil
	}
	files, after := l.addRule(info, text, rights&landOfFile), 0
	if rights&^landOfFile != 0 {
		after = len(l.steps)
		l.addRule(info, text, rights)
		// If the path is a file, the kernel refuses this rule. The rule with the rights of files,
		// added above, is then enough.
		l.steps[len(l.steps)-1].OnError = uintptr(len(l.steps))
	}
	if optional {
		l.steps[files].OnError = uintptr(len(l.steps))
		if after > 0 {
			l.steps[after].OnError = uintptr(len(l.steps))
		}
	}
	return nil
}

// addRule opens a path and allows what lies below it. It returns the index of the step that opens
// the path.
func (l *launch) addRule(info stepInfo, path uintptr, rights uint64) (open int) {
	rule := &[2]uint64{rights, 0} // struct landlock_path_beneath_attr: rights, descriptor
	open = len(l.steps)
	l.add(info, unix.SYS_OPENAT, atCWD, path, unix.O_PATH|unix.O_CLOEXEC, 0).Store = uintptr(unsafe.Pointer(&rule[1]))
	l.toRuleset(info, landlockRulePath, addr(l, rule))
	return open
}

// atCWD is AT_FDCWD of openat(2) as an argument.
const atCWD = ^uintptr(99)

// addDevices allows those of the devices that exist.
func (l *launch) addDevices(rights uint64) error {
	for _, path := range devices {
		if err := l.addPath(stepInfo{op: opSandbox}, "-"+path, rights&landOfFile); err != nil {
			return err
		}
	}
	return nil
}

// restrict puts the ruleset into force.
func (l *launch) restrict() {
	if l.ruleset >= 0 {
		l.add(stepInfo{op: opSandbox}, unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(l.ruleset), 0)
	}
}

// addPrivateTmp gives the program mounts of its own. That needs CAP_SYS_ADMIN.
func (l *launch) addPrivateTmp() {
	info := stepInfo{op: opSandbox + " private_tmp"}
	l.add(info, unix.SYS_UNSHARE, unix.CLONE_NEWNS)
	text := func(s string) uintptr {
		p, err := l.text(s)
		if err != nil {
			panic(err) // constants without NUL
		}
		return p
	}
	none, tmpfs, root := text("none"), text("tmpfs"), text("/")
	// New mounts outside still appear inside, but mounts inside do not appear outside.
	l.add(info, unix.SYS_MOUNT, none, root, 0, unix.MS_REC|unix.MS_SLAVE, 0)
	for _, dir := range []string{"/tmp", "/var/tmp"} {
		info.path = dir
		s := l.add(info, unix.SYS_MOUNT, tmpfs, text(dir), tmpfs, unix.MS_NOSUID|unix.MS_NODEV, text("mode=1777"))
		if dir != "/tmp" {
			s.OnError = uintptr(len(l.steps)) // /var/tmp may be missing in a box
		}
	}
}

// Capability numbers end here for this kernel (/proc/sys/kernel/cap_last_cap).
const maxCapability = 63

// dropBounding removes all other capabilities from the bounding set, so that no exec can regain
// them. That needs CAP_SETPCAP. Without it, no_new_privs has the same effect from the exec on.
func (s *Sandbox) dropBounding(l *launch, lastCap int) {
	for n := 0; n <= min(lastCap, maxCapability); n++ {
		if !slices.Contains(s.Capabilities, n) {
			l.try(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, uintptr(n), 0, 0, 0)
		}
	}
	if len(s.Capabilities) > 0 {
		l.add(stepInfo{op: opSandbox + " capabilities"}, unix.SYS_PRCTL, unix.PR_SET_KEEPCAPS, 1, 0, 0, 0)
	}
}

// keepCapabilities must run after the change of the user, which clears the capabilities.
func (s *Sandbox) keepCapabilities(l *launch) {
	info := stepInfo{op: opSandbox + " capabilities"}
	var mask uint64
	for _, n := range s.Capabilities {
		mask |= 1 << n
	}
	header := &unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	data := &[2]unix.CapUserData{}
	for i := range data {
		part := uint32(mask >> (32 * i))
		data[i] = unix.CapUserData{Effective: part, Permitted: part, Inheritable: part}
	}
	l.add(info, unix.SYS_CAPSET, addr(l, header), addr(l, data))
	l.add(info, unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
	for _, n := range s.Capabilities {
		l.add(info, unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, uintptr(n), 0, 0)
	}
}

// Enforceable returns the part of the sandbox that can be enforced here, and names the rest. The
// kernel, or the sandbox around agentinit, can make a part impossible.
func Enforceable(s Sandbox) (Sandbox, []string) {
	abi := LandlockABI()
	missing := s.Missing(abi)
	s = s.WithoutMissing(abi)
	ours := ownCapabilities()
	if s.PrivateTmp && ours&(1<<unix.CAP_SYS_ADMIN) == 0 {
		s.PrivateTmp = false
		missing = append(missing, "private_tmp (mounts need CAP_SYS_ADMIN)")
	}
	kept := s.Capabilities[:0:0]
	for _, n := range s.Capabilities {
		if ours&(1<<n) == 0 {
			missing = append(missing, fmt.Sprintf("capability %s (agentinit itself does not have it)", capability.Name(n)))
			continue
		}
		kept = append(kept, n)
	}
	s.Capabilities = kept // stays non-nil if it was: an empty list keeps no capability
	return s, missing
}

// ownCapabilities is the mask of the capabilities that agentinit can pass on.
func ownCapabilities() (mask uint64) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if unix.Capget(&header, &data[0]) != nil {
		return 0
	}
	return uint64(data[0].Permitted) | uint64(data[1].Permitted)<<32
}

// MayChangeUser tells whether agentinit may start processes as other users.
func MayChangeUser() bool {
	const both = 1<<unix.CAP_SETUID | 1<<unix.CAP_SETGID
	return ownCapabilities()&both == both
}
