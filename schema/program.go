package schema

import "fmt"

// Program is one [programs.NAME] with its defaults filled in. Text that may
// hold ${X} is kept as written: expansion belongs to the plan.
type Program struct {
	Command   Command `toml:"command"` // empty only until a catalogue entry is merged in
	Enabled   bool    `toml:"enabled"`
	When      string  `toml:"when"` // manifest path that must be true
	Type      string  `toml:"type"` // service, oneshot, schedule
	Schedule  string  `toml:"schedule"`
	Overlap   string  `toml:"overlap"`  // skip, queue, kill
	Timezone  string  `toml:"timezone"` // empty: the box's own
	Priority  int     `toml:"priority"`
	Needs     []Need  `toml:"needs"`
	Instances int     `toml:"instances"`
	Autostart bool    `toml:"autostart"`
	Required  bool    `toml:"required"`

	Restart      string   `toml:"restart"` // always, on-failure, never
	ExitCodes    []int    `toml:"exit_codes"`
	StartSeconds Duration `toml:"start_seconds"`
	// StartTimeout 0 has no limit: the default of a oneshot.
	StartTimeout Duration     `toml:"start_timeout"`
	Backoff      Backoff      `toml:"backoff"`
	RestartLimit RestartLimit `toml:"restart_limit"`
	StartRetries int          `toml:"start_retries"` // -1: restart_limit counts instead

	Ready  *Ready  `toml:"ready"`  // nil: RUNNING is ready
	Health *Health `toml:"health"` // nil: not checked

	// Stop is the whole ladder, the short form stop_signal and stop_timeout
	// folded in.
	Stop        StopLadder `toml:"stop"`
	StopSignal  string     `toml:"stop_signal"`
	StopTimeout Duration   `toml:"stop_timeout"`
	StopCommand *Hook      `toml:"stop_command"`
	Kill        string     `toml:"kill"` // tree, group, process
	Essential   bool       `toml:"essential"`
	OnFatal     string     `toml:"on_fatal"` // ignore, shutdown

	User   string   `toml:"user"`  // name or number; empty inherits
	Group  string   `toml:"group"` // name or number; empty follows the user
	Groups []string `toml:"groups"`
	// Umask nil inherits.
	Umask     *Mode  `toml:"umask"`
	Directory string `toml:"directory"`

	Environment     map[string]string `toml:"environment"`
	EnvFile         Strings           `toml:"env_file"`
	PassEnvironment PassEnvironment   `toml:"pass_environment"`

	Limits  Limits   `toml:"limits"`
	Guard   bool     `toml:"guard"`
	Sandbox *Sandbox `toml:"sandbox"` // nil: none
	Logs    Logs     `toml:"logs"`
	Hooks   Hooks    `toml:"hooks"`
	Stdin   string   `toml:"stdin"` // null, pipe, inherit
	TTY     bool     `toml:"tty"`
	Control bool     `toml:"control"`

	// For generated descriptions.
	Ports    []Port   `toml:"ports"`
	Volumes  []Volume `toml:"volumes"`
	Writable []string `toml:"writable"`
}

// Backoff is the wait before a restart.
type Backoff struct {
	Initial    Duration `toml:"initial"`
	Factor     float64  `toml:"factor"`
	Max        Duration `toml:"max"`
	Jitter     float64  `toml:"jitter"` // share, 0 to 1
	ResetAfter Duration `toml:"reset_after"`
}

// RestartLimit ends in FATAL beyond Count restarts within Window; Count 0 has
// no limit.
type RestartLimit struct {
	Count  int      `toml:"count"`
	Window Duration `toml:"window"`
}

// Ready is the key ready: when a program counts as ready.
type Ready struct {
	Probes   []Probe
	Any      bool
	Deadline Duration // 0: start_timeout alone decides
}

// Health is the key health: what is checked while RUNNING.
type Health struct {
	Probes   []Probe
	Failures int
	Action   string   // restart, none, shutdown
	Watchdog Duration // 0: off
	Wedge    Wedge
}

// Wedge are the keys of health that say when a program is wedged; a duration of 0 is off.
type Wedge struct {
	NoOutput    Duration `toml:"no_output"`
	Spinning    Duration `toml:"spinning"`
	Blocked     Duration `toml:"blocked"`
	StackSignal string   `toml:"stack_signal"`
}

// Probe is one condition, as program.Probe has it.
type Probe struct {
	Dialect string  `toml:"-"`
	Target  string  `toml:"-"`
	Argv    Command `toml:"-"`

	Interval  Duration `toml:"interval"`
	Timeout   Duration `toml:"timeout"`
	Successes int      `toml:"successes"`
}

// Limits is the key limits. Rlimits holds only what is written, keyed by the
// manifest's names; nil pointers inherit.
type Limits struct {
	NoFile  *Limit `toml:"nofile"`
	NProc   *Limit `toml:"nproc"`
	Core    *Limit `toml:"core"`
	AS      *Limit `toml:"as"`
	CPU     *Limit `toml:"cpu"` // seconds
	FSize   *Limit `toml:"fsize"`
	MemLock *Limit `toml:"memlock"`
	Stack   *Limit `toml:"stack"`
	PIDs    *Limit `toml:"pids"`
	Memory  *Limit `toml:"memory"`

	Nice        *int    `toml:"nice"`
	IONice      string  `toml:"ionice"`
	OOMScoreAdj *int    `toml:"oom_score_adj"`
	CPUs        CPUList `toml:"cpus"`
}

// Sandbox is the key sandbox: what a program may reach.
type Sandbox struct {
	NoNewPrivileges bool     `toml:"no_new_privileges"`
	Capabilities    []string `toml:"capabilities"`
	Read            []string `toml:"read"`
	Write           []string `toml:"write"`
	Execute         []string `toml:"execute"`
	TCPBind         []int    `toml:"tcp_bind"`
	TCPConnect      []int    `toml:"tcp_connect"`
	Seccomp         string   `toml:"seccomp"` // default, strict, or empty: none
	AllowSyscalls   []string `toml:"allow_syscalls"`
	DenySyscalls    []string `toml:"deny_syscalls"`
	PrivateTmp      bool     `toml:"private_tmp"`
	Preset          string   `toml:"preset"` // web, python, node, agent, or empty
	Mode            string   `toml:"mode"`   // enforce, audit, off
}

// Logs is the key logs: where output goes besides its ring.
type Logs struct {
	To         string      `toml:"to"` // console, file, none
	Path       string      `toml:"path"`
	StderrPath string      `toml:"stderr_path"` // empty: path
	MaxBytes   Size        `toml:"max_bytes"`
	Every      Duration    `toml:"rotate_every"` // 0: never
	At         string      `toml:"rotate_at"`    // HH:MM; empty: never
	Backups    int         `toml:"backups"`
	MaxAge     Duration    `toml:"max_age"` // 0: no limit
	Compress   Compression `toml:"compress"`
	TotalBytes Size        `toml:"total_bytes"` // 0: no limit

	RateLines    int      `toml:"rate_lines"` // in RateInterval; 0: no limit
	RateBytes    Size     `toml:"rate_bytes"` // the same
	RateInterval Duration `toml:"rate_interval"`

	MaxLine    Size     `toml:"max_line"`
	FlushAfter Duration `toml:"flush_after"` // 0: never
}

// Compression is what rotated log files become: "", "gzip" or "zstd".
type Compression string

// fromTOML takes a boolean too: true is gzip.
func (c *Compression) fromTOML(v any) error {
	switch v {
	case true:
		*c = "gzip"
	case false, "none":
		*c = ""
	case "gzip", "zstd":
		*c = Compression(v.(string))
	default:
		return fmt.Errorf("%v is no compression: write gzip, zstd or none", v)
	}
	return nil
}

// Hooks are commands run around a program's life; nil means none.
type Hooks struct {
	PreStart  *Hook `toml:"pre_start"`
	PostReady *Hook `toml:"post_ready"`
	PreStop   *Hook `toml:"pre_stop"`
	PostExit  *Hook `toml:"post_exit"`
}
