package schema

import "fmt"

// Program is one [programs.NAME] with its defaults. A text with ${X} is kept as written, because
// schema/plan expands it.
type Program struct {
	Command   Command `toml:"command"` // may be empty until a catalogue entry is merged in
	Enabled   bool    `toml:"enabled"`
	When      string  `toml:"when"` // manifest path that must be true
	Type      string  `toml:"type"` // service, oneshot, schedule
	Schedule  string  `toml:"schedule"`
	Overlap   string  `toml:"overlap"`  // skip, queue, kill
	Timezone  string  `toml:"timezone"` // empty: the time zone of the box
	Priority  int     `toml:"priority"`
	Needs     []Need  `toml:"needs"`
	Instances int     `toml:"instances"`
	Autostart bool    `toml:"autostart"`
	Required  bool    `toml:"required"`

	Restart      string   `toml:"restart"` // always, on-failure, never
	ExitCodes    []int    `toml:"exit_codes"`
	StartSeconds Duration `toml:"start_seconds"`
	// If StartTimeout is 0, there is no limit. That is the default of what runs to its completion: a
	// oneshot, and each run of a schedule.
	StartTimeout Duration     `toml:"start_timeout"`
	Backoff      Backoff      `toml:"backoff"`
	RestartLimit RestartLimit `toml:"restart_limit"`
	StartRetries int          `toml:"start_retries"` // -1: restart_limit applies instead

	Ready  *Ready  `toml:"ready"`  // nil: the program is ready when it is RUNNING
	Health *Health `toml:"health"` // nil: no health checks

	// Stop is the complete ladder, including stop_signal and stop_timeout.
	Stop        StopLadder `toml:"stop"`
	StopSignal  string     `toml:"stop_signal"`
	StopTimeout Duration   `toml:"stop_timeout"`
	StopCommand *Hook      `toml:"stop_command"`
	Kill        string     `toml:"kill"` // tree, group, process
	Essential   bool       `toml:"essential"`
	OnFatal     string     `toml:"on_fatal"` // ignore, shutdown

	User   string   `toml:"user"`  // name or number; empty: agentinit's own
	Group  string   `toml:"group"` // name or number; empty: the user's group
	Groups []string `toml:"groups"`
	// If Umask is nil, agentinit's own umask applies.
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

	// Only for generated descriptions.
	Ports    []Port   `toml:"ports"`
	Volumes  []Volume `toml:"volumes"`
	Writable []string `toml:"writable"`
}

// Backoff is the wait before a restart.
type Backoff struct {
	Initial    Duration `toml:"initial"`
	Factor     float64  `toml:"factor"`
	Max        Duration `toml:"max"`
	Jitter     float64  `toml:"jitter"` // as a share, 0 to 1
	ResetAfter Duration `toml:"reset_after"`
}

// RestartLimit: with more than Count restarts within Window, the program becomes FATAL. If Count is
// 0, there is no limit.
type RestartLimit struct {
	Count  int      `toml:"count"`
	Window Duration `toml:"window"`
}

// Ready is the key ready: the conditions under which a program is ready.
type Ready struct {
	Probes   []Probe
	Any      bool
	Deadline Duration // 0: only start_timeout applies
}

// Health is the key health: the checks while the program is RUNNING.
type Health struct {
	Probes   []Probe
	Failures int
	Action   string   // restart, none, shutdown
	Watchdog Duration // 0: off
	Wedge    Wedge
}

// Wedge is the keys of health that define when a program hangs. A duration of 0 switches the check
// off.
type Wedge struct {
	NoOutput    Duration `toml:"no_output"`
	Spinning    Duration `toml:"spinning"`
	Blocked     Duration `toml:"blocked"`
	StackSignal string   `toml:"stack_signal"`
}

// Probe is one condition. Its fields are those of program.Probe.
type Probe struct {
	Dialect string  `toml:"-"`
	Target  string  `toml:"-"`
	Argv    Command `toml:"-"`

	Interval  Duration `toml:"interval"`
	Timeout   Duration `toml:"timeout"`
	Successes int      `toml:"successes"`
}

// Limits is the key limits. Rlimits returns only the limits that are written, under the manifest's
// names. A nil pointer means that the limit is inherited.
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

// Sandbox is the key sandbox: the resources that a program may use.
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

// Logs is the key logs: where output goes in addition to the ring buffer in memory.
type Logs struct {
	To         string      `toml:"to"` // console, file, none
	Path       string      `toml:"path"`
	StderrPath string      `toml:"stderr_path"` // empty: where stdout goes
	MaxBytes   Size        `toml:"max_bytes"`
	Every      Duration    `toml:"rotate_every"` // 0: no rotation by age
	At         string      `toml:"rotate_at"`    // HH:MM; empty: no rotation at a fixed time
	Backups    int         `toml:"backups"`
	MaxAge     Duration    `toml:"max_age"` // 0: no limit
	Compress   Compression `toml:"compress"`
	TotalBytes Size        `toml:"total_bytes"` // 0: no limit

	RateLines    int      `toml:"rate_lines"` // in one RateInterval; 0: no limit
	RateBytes    Size     `toml:"rate_bytes"` // in one RateInterval; 0: no limit
	RateInterval Duration `toml:"rate_interval"`

	MaxLine    Size     `toml:"max_line"`
	FlushAfter Duration `toml:"flush_after"` // 0: never
}

// Compression is the compression of rotated log files: "", "gzip" or "zstd".
type Compression string

// fromTOML also accepts a boolean: true means gzip.
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

// Hooks are commands that run before or after events of a program. nil means that there is no such
// hook.
type Hooks struct {
	PreStart  *Hook `toml:"pre_start"`
	PostReady *Hook `toml:"post_ready"`
	PreStop   *Hook `toml:"pre_stop"`
	PostExit  *Hook `toml:"post_exit"`
}
