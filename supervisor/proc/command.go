package proc

import (
	"encoding/hex"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// EnvTag is the environment variable that marks every process that the Owner starts. Descendants
// inherit it. Its value is "ID.TOKEN". If the Owner itself runs below another Owner, the other's
// tag and "/" come first. The token is random for each start: a process that cannot read the
// environment of a tree cannot pretend to be a member of it.
const EnvTag = "AGENTINIT_RUN"

// Scope says how far a signal or a kill reaches.
type Scope int

// The scopes.
const (
	ScopeTree    Scope = iota // every descendant, even in another session or group
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

// Credential is the user and the groups of a process, as numbers: no name is looked up.
type Credential struct {
	UID, GID uint32
	// Groups are the supplementary groups, exactly these. If the ids are those of agentinit and
	// Groups is nil, the process keeps agentinit's groups.
	Groups []uint32
}

// Rlimit is a soft and hard limit of setrlimit(2); ^uint64(0) is unlimited.
type Rlimit struct{ Soft, Hard uint64 }

// Command is what to start and how. Only Path is required.
type Command struct {
	// Path is the program. A path without a slash is searched in PATH of Env. A path with a slash
	// is relative to Dir.
	Path string
	// Args are all arguments, Args[0] included; nil means Path alone.
	Args []string
	// Env is the whole environment; Start adds EnvTag to it.
	Env []string
	Dir string // "" keeps agentinit's directory
	// EnterFirst enters Dir before the change of the user. The user can then work there even if he
	// has no right to a directory above it.
	EnterFirst bool
	// Files become descriptors 0, 1, 2, 3 and so on. A nil entry becomes /dev/null, and so do
	// missing entries among the first three. The caller keeps the files and closes them.
	Files []*os.File
	// StdinPipe makes descriptor 0 a pipe; Process.Stdin is its other end.
	StdinPipe bool
	// TTY makes a new pseudo-terminal the controlling terminal of the new session. Of the
	// descriptors 0, 1 and 2, those without an entry in Files become this terminal. Process.TTY is
	// its master.
	TTY bool
	// Foreground starts a process group in agentinit's session instead of a new session. The group
	// becomes the foreground group of the terminal on agentinit's descriptor TTYFD. Foreground
	// excludes TTY.
	Foreground bool
	TTYFD      int
	// SameSession starts a process group in agentinit's session, without a terminal.
	SameSession bool

	// Refused is called for each system call that the guard or the sandbox refuses to the process
	// or its descendants, if the kernel can report it. It may be called from several goroutines at
	// once, and must neither block nor call the Owner.
	Refused    func(Refusal)
	Guard      Guard       // which actions against agentinit are refused
	Sandbox    *Sandbox    // what the program may reach; nil means everything
	Credential *Credential // nil keeps agentinit's user and groups
	Scope      Scope       // which processes Kill ends and Emptied waits for

	Umask       *int              // nil inherits; 0 to 0777
	Rlimits     map[string]Rlimit // by name: those of rlimits, and pids and memory, which a cgroup holds if it can
	Nice        *int              // -20 to 19
	IONice      string            // "idle", "best-effort[:0-7]", "realtime[:0-7]"
	OOMScoreAdj *int              // -1000 to 1000
	CPUs        []int             // allowed processors
	NoNewPrivs  bool              // PR_SET_NO_NEW_PRIVS of prctl(2)
}

// Process is a started process.
type Process struct {
	ID      uint64 // unique for the life of the Owner, never reused
	PID     int
	Started time.Time
	Stdin   *os.File // with StdinPipe; the caller closes it
	TTY     *os.File // with TTY; the caller closes it
	Slave   *os.File // the other end of TTY; the caller closes it, but not before the process has exited
	Bounds  []Bound  // its limits of processes and memory
}

// rlimits maps the manifest's names to the resources of setrlimit(2).
var rlimits = map[string]int{
	"as": unix.RLIMIT_AS, "core": unix.RLIMIT_CORE, "cpu": unix.RLIMIT_CPU,
	"data": unix.RLIMIT_DATA, "fsize": unix.RLIMIT_FSIZE, "memlock": unix.RLIMIT_MEMLOCK,
	"nofile": unix.RLIMIT_NOFILE, "nproc": unix.RLIMIT_NPROC, "stack": unix.RLIMIT_STACK,
}

// parseIONice turns the text of Command.IONice into the value of ioprio_set(2).
func parseIONice(s string) (int, error) {
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
			return 0, fmt.Errorf("ionice %q: the level must be a number from 0 to 7, and idle takes no level", s)
		}
	}
	return n<<13 | prio, nil
}

// newToken returns a value that cannot be guessed. It asks the kernel directly instead of
// crypto/rand. The runtime initialises crypto/rand and path/filepath late, and this package and
// init mode would then have to wait for them.
func newToken() (string, error) {
	var b [8]byte
	if _, err := unix.Getrandom(b[:], 0); err != nil {
		return "", os.NewSyscallError("getrandom", err)
	}
	return hex.EncodeToString(b[:]), nil
}

// tag returns the value of EnvTag for one start, or "" if the Owner does not tag.
func (o *Owner) tag(id uint64, token string) string {
	if o.lone {
		return ""
	}
	t := strconv.FormatUint(id, 10) + "." + token
	if o.tagPrefix != "" {
		return o.tagPrefix + "/" + t
	}
	return t
}

// taggedEnv puts the tag first, so that a reader of /proc/PID/environ finds it at once. A tag that
// is already in the environment is removed.
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
