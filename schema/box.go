package schema

import "cmp"

// Artifact is one [[artifacts]] table: a probe that checks that one capability of the image is
// present and works.
type Artifact struct {
	ID       string   `toml:"id"`
	Class    string   `toml:"class"` // A service, B tool, C skill server, D bundle
	Entry    string   `toml:"entry"`
	Assets   []string `toml:"assets"`
	Command  []string `toml:"command"` // argv, never a shell string
	Timeout  Duration `toml:"timeout"`
	Required bool     `toml:"required"`
}

// Supervisor is [supervisor].
type Supervisor struct {
	Socket        string `toml:"socket"`      // a leading @ means an abstract socket
	SocketMode    Mode   `toml:"socket_mode"` // permission bits
	SocketGroup   string `toml:"socket_group"`
	Listen        string `toml:"listen"`         // host:port or "off"
	MetricsListen string `toml:"metrics_listen"` // host:port, "off", or empty: port of [observability]
	// StopGrace is the time for the whole shutdown, including Drain.
	StopGrace   Duration       `toml:"stop_grace"`
	Drain       Duration       `toml:"drain"`
	Barrier     string         `toml:"barrier"`       // ready, running, none
	OnAllExited string         `toml:"on_all_exited"` // stay, exit
	Defaults    map[string]any `toml:"defaults"`      // program keys as written; MergeProgram merges them
	Agents      Confinement    `toml:"agents"`
	Log         BoxLog         `toml:"log"`
	Console     ConsoleMode    `toml:"console"`

	// Only for generated descriptions. If Image is empty, the manifest names none.
	Image    string   `toml:"image"`
	Ports    []Port   `toml:"ports"`
	Volumes  []Volume `toml:"volumes"`
	Writable []string `toml:"writable"`
}

// Confinement is the user and the limits of an agent. It has the same keys as a program.
type Confinement struct {
	User    string   `toml:"user"` // empty: agentinit's own user
	Group   string   `toml:"group"`
	Groups  []string `toml:"groups"`
	Umask   *Mode    `toml:"umask"`
	Limits  Limits   `toml:"limits"`
	Guard   bool     `toml:"guard"`
	Sandbox *Sandbox `toml:"sandbox"`
}

// BoxLog is supervisor.log: agentinit's own log, and the format of the console.
type BoxLog struct {
	Format  string                `toml:"format"` // auto, json, console, raw
	Level   string                `toml:"level"`  // empty: Manifest.LogLevel takes that of [observability]
	Forward map[string]LogForward `toml:"forward"`
}

// LogLevel is the lowest level of agentinit's own log lines. AGENTBOX_LOG_LEVEL takes precedence
// over it.
func (m *Manifest) LogLevel() string {
	return cmp.Or(m.Supervisor.Log.Level, m.Observability.LogLevel)
}

// LogForward is one table of supervisor.log.forward: a collector of the programs' output.
type LogForward struct {
	Type       string            `toml:"type"` // syslog, loki, otlp, http
	URL        string            `toml:"url"`
	TokenEnv   string            `toml:"token_env"` // name of a variable
	Headers    map[string]string `toml:"headers"`
	CAFile     string            `toml:"ca_file"`
	Programs   []string          `toml:"programs"` // names and globs; empty: all programs
	Events     bool              `toml:"events"`   // agentinit's own events too
	BatchLines int               `toml:"batch_lines"`
	BatchWait  Duration          `toml:"batch_wait"`
	Timeout    Duration          `toml:"timeout"`
}

// Bootstrap is [bootstrap].
type Bootstrap struct {
	Profile       string   `toml:"profile"` // auto, agentbox, none
	SealTimeout   Duration `toml:"seal_timeout"`
	OnSealTimeout string   `toml:"on_seal_timeout"` // stay, exit
}

// Slots is [slots]: settings of the adapters behind the classes of [adapters].
type Slots struct {
	Beads        BeadsSlot  `toml:"beads"`
	Pods         Slot       `toml:"pods"`
	Memory       MemorySlot `toml:"memory"`
	Events       EventsSlot `toml:"events"`
	Orchestrator Slot       `toml:"orchestrator"`
}

// Slot is the part that all [slots.<slot>] have: how an external class authenticates. TokenEnv
// names a variable, because a manifest never contains the token itself.
type Slot struct {
	Auth     string `toml:"auth"` // bearer, nip98
	TokenEnv string `toml:"token_env"`
}

// BeadsSlot is [slots.beads]; Path empty means $WORKSPACE/beads.db.
type BeadsSlot struct {
	Path     string `toml:"path"`
	Auth     string `toml:"auth"`
	TokenEnv string `toml:"token_env"`
}

// MemorySlot is [slots.memory]; Dir empty means $RUVECTOR_DATA_DIR.
type MemorySlot struct {
	Dir      string   `toml:"dir"`
	Embedder Embedder `toml:"embedder"`
	Auth     string   `toml:"auth"`
	TokenEnv string   `toml:"token_env"`
}

// Embedder is slots.memory.embedder.
type Embedder struct {
	Kind   string `toml:"kind"` // hash-v1, http
	URL    string `toml:"url"`
	Model  string `toml:"model"`
	KeyEnv string `toml:"key_env"`
}

// EventsSlot is [slots.events].
type EventsSlot struct {
	// Fsync is "always" or a duration such as "1s".
	Fsync         string `toml:"fsync"`
	RetentionDays int64  `toml:"retention_days"` // 0: events are kept for ever
	MaxBytes      Size   `toml:"max_bytes"`      // of all journal files; 0: no limit
	SpoolBytes    Size   `toml:"spool_bytes"`
	Format        string `toml:"format"` // cloudevents, json
	Auth          string `toml:"auth"`
	TokenEnv      string `toml:"token_env"`
}

// API is [api]: the management listener from a client's point of view.
type API struct {
	PublicURLs     []string `toml:"public_urls"`
	TrustedProxies []string `toml:"trusted_proxies"` // addresses or prefixes
	CORSOrigins    []string `toml:"cors_origins"`
	RateLimit      int      `toml:"rate_limit"` // requests a second for each principal; 0: no limit
	// Keys are bearer keys in addition to the management key. The map key is the name in the audit
	// log.
	Keys map[string]APIKey `toml:"keys"`
}

// APIKey is one [api.keys.<name>]: where the key is, and the role that it gives.
type APIKey struct {
	Role string `toml:"role"` // viewer, operator
	Env  string `toml:"env"`  // variable with the key; if it is empty, File is set
	File string `toml:"file"` // file with the key
}

// Template is one [templates.<name>]: a command that tasks and intents may start.
type Template struct {
	Command     Command           `toml:"command"`
	Args        []string          `toml:"args"`
	Environment map[string]string `toml:"environment"`
	Directory   string            `toml:"directory"`
	Timeout     Duration          `toml:"timeout"` // 0: no limit
	User        string            `toml:"user"`    // if User is empty, unset keys below are those of [supervisor.agents]
	Group       string            `toml:"group"`
	Groups      []string          `toml:"groups"`
	Umask       *Mode             `toml:"umask"`
	Limits      Limits            `toml:"limits"`
	Guard       bool              `toml:"guard"`
	Sandbox     *Sandbox          `toml:"sandbox"`
	Stdin       string            `toml:"stdin"`
	Intents     []int64           `toml:"intents"`
}

// AdaptersCompat is [adapters_compat]: the old major version of the contract that a slot still
// speaks ("v1"). Empty means the current version.
type AdaptersCompat struct {
	Beads        string `toml:"beads"`
	Pods         string `toml:"pods"`
	Memory       string `toml:"memory"`
	Events       string `toml:"events"`
	Orchestrator string `toml:"orchestrator"`
}
