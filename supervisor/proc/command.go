package proc

import (
	"encoding/hex"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// EnvTag is the environment variable that marks every process started here and,
// by inheritance, its descendants. Its value is "ID.TOKEN", after "/" when the
// Owner itself runs below another one. The token is random for each start, so a
// process cannot pass for a member of a tree whose environment it cannot read.
const EnvTag = "AGENTINIT_RUN"

// Scope says how far a signal or a kill reaches.
type Scope int

// The scopes.
const (
	ScopeTree    Scope = iota // every descendant, wherever it went
	ScopeGroup                // the process group that the process leads
	ScopeProcess              // the process alone
)

// String returns the manifest's word for the scope.
func (s Scope) String() string {
	switch s {
	case ScopeTree:
		return "tree"
	case ScopeGroup:
		return "group"
	case ScopeProcess:
		return "process"
	}
	return fmt.Sprintf("Scope(%d)", int(s))
}

// Credential is who a process runs as; nothing is looked up.
type Credential struct {
	UID, GID uint32
	// Groups are the supplementary groups, exactly these. When the ids are our
	// own already and Groups is nil, ours stay.
	Groups []uint32
}

// Rlimit is a soft and hard limit of setrlimit(2); ^uint64(0) is unlimited.
type Rlimit struct{ Soft, Hard uint64 }

// Command is what to start and how. Only Path is required.
type Command struct {
	// Path is the program. Without a slash it is searched in PATH of Env, with
	// one it is taken relative to Dir.
	Path string
	// Args are all arguments, Args[0] included; nil means Path alone.
	Args []string
	// Env is the whole environment; the tag is added.
	Env []string
	Dir string // "" stays where we are
	// EnterFirst enters Dir before the change of the user, who may then work there even
	// though a directory above it is closed to him.
	EnterFirst bool
	// Files become descriptors 0, 1, 2, 3…; nil entries and the missing ones of
	// the first three are /dev/null. The caller keeps and closes them.
	Files []*os.File
	// StdinPipe makes descriptor 0 a pipe; Process.Stdin is its other end.
	StdinPipe bool
	// TTY makes 0, 1 and 2, where Files has nil, a new pseudo-terminal that
	// controls the new session; Process.TTY is its master.
	TTY bool
	// Foreground starts a process group in our session, not a session of its
	// own, and makes it the foreground group of the terminal on our descriptor
	// TTYFD. It excludes TTY.
	Foreground bool
	TTYFD      int
	// SameSession starts a process group in our session, without a terminal.
	SameSession bool

	// Refused is told each system call that the guard or the sandbox refuses to the process
	// or its descendants, where the kernel can tell. It must neither block nor call the Owner.
	Refused    func(Refusal)
	Guard      Guard       // what of us it must not touch
	Sandbox    *Sandbox    // what it may reach; nil is everything
	Credential *Credential // nil stays who we are
	Scope      Scope       // what Kill empties and Emptied speaks of

	Umask       *int              // nil inherits; 0 to 0777
	Rlimits     map[string]Rlimit // by name: see RlimitNames
	Nice        *int              // -20 to 19
	IONice      string            // "idle", "best-effort[:0-7]", "realtime[:0-7]"
	OOMScoreAdj *int              // -1000 to 1000
	CPUs        []int             // allowed processors
	NoNewPrivs  bool              // prctl(2) PR_SET_NO_NEW_PRIVS
}

// Process is a started process.
type Process struct {
	ID      uint64 // unique for the life of the Owner, never reused
	PID     int
	Started time.Time
	Stdin   *os.File // with StdinPipe; the caller closes it
	TTY     *os.File // with TTY; the caller closes it
}

// rlimits maps the manifest's names to the resources of setrlimit(2).
var rlimits = map[string]int{
	"as": unix.RLIMIT_AS, "core": unix.RLIMIT_CORE, "cpu": unix.RLIMIT_CPU,
	"data": unix.RLIMIT_DATA, "fsize": unix.RLIMIT_FSIZE, "memlock": unix.RLIMIT_MEMLOCK,
	"nofile": unix.RLIMIT_NOFILE, "nproc": unix.RLIMIT_NPROC, "stack": unix.RLIMIT_STACK,
}

// ParseIONice turns the text of Command.IONice into the value of ioprio_set(2).
func ParseIONice(s string) (int, error) {
	class, level, hasLevel := strings.Cut(s, ":")
	classes := map[string]int{"realtime": 1, "best-effort": 2, "idle": 3}
	n, ok := classes[class]
	if !ok {
		return 0, fmt.Errorf("ionice %q: want idle, best-effort[:0-7] or realtime[:0-7]", s)
	}
	prio := 4
	if n == 3 {
		prio = 0
	}
	if hasLevel {
		var err error
		prio, err = strconv.Atoi(level)
		if err != nil || prio < 0 || prio > 7 || n == 3 {
			return 0, fmt.Errorf("ionice %q: the level is a number from 0 to 7, and idle has none", s)
		}
	}
	return n<<13 | prio, nil
}

// ParseSignal reads "TERM", "SIGTERM", "15", "RTMIN+3" or "RTMAX-1".
func ParseSignal(s string) (syscall.Signal, error) {
	name := strings.TrimPrefix(strings.ToUpper(s), "SIG")
	if n, err := strconv.Atoi(name); err == nil && n > 0 && n <= maxSignal {
		return syscall.Signal(n), nil
	}
	if sig := unix.SignalNum("SIG" + name); sig != 0 {
		return sig, nil
	}
	for base, at := range map[string]int{"RTMIN": minRealtime, "RTMAX": maxSignal} {
		rest, ok := strings.CutPrefix(name, base)
		if !ok {
			continue
		}
		n := 0
		if rest != "" {
			var err error
			if n, err = strconv.Atoi(rest); err != nil {
				break
			}
		}
		if at+n >= minRealtime && at+n <= maxSignal {
			return syscall.Signal(at + n), nil
		}
	}
	return 0, fmt.Errorf("unknown signal %q", s)
}

// SignalName is the name without "SIG"; a real-time signal is "RTMIN+n".
func SignalName(sig syscall.Signal) string {
	if n := unix.SignalName(sig); n != "" {
		return strings.TrimPrefix(n, "SIG")
	}
	switch n := int(sig); {
	case n == minRealtime:
		return "RTMIN"
	case n > minRealtime && n <= maxSignal:
		return fmt.Sprintf("RTMIN+%d", n-minRealtime)
	}
	return strconv.Itoa(int(sig))
}

// glibc and musl keep the first two or three real-time signals to themselves;
// what programs call SIGRTMIN is 34 with glibc (signal(7)).
const (
	minRealtime = 34
	maxSignal   = 64
)

// newToken is a value that cannot be guessed. It asks the kernel itself: crypto/rand and
// path/filepath, of all things, are initialised after most of what a box links, and
// this package would be initialised after them, and with it init mode.
func newToken() (string, error) {
	var b [8]byte
	if _, err := unix.Getrandom(b[:], 0); err != nil {
		return "", os.NewSyscallError("getrandom", err)
	}
	return hex.EncodeToString(b[:]), nil
}

// tag is the value of EnvTag for one start, empty without one.
func (o *Owner) tag(id uint64, token string) string {
	if o.untagged {
		return ""
	}
	t := strconv.FormatUint(id, 10) + "." + token
	if o.tagPrefix != "" {
		return o.tagPrefix + "/" + t
	}
	return t
}

// taggedEnv puts the tag first, where a reader of /proc/PID/environ meets it at
// once, and drops one that the environment has already.
func taggedEnv(env []string, tag string) []string {
	if tag == "" {
		return env
	}
	out := make([]string, 0, len(env)+1)
	out = append(out, EnvTag+"="+tag)
	for _, kv := range env {
		if !strings.HasPrefix(kv, EnvTag+"=") {
			out = append(out, kv)
		}
	}
	return out
}
