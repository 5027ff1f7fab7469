package schema

// Manifest is one document as a typed value, with every default of the schema. For some keys,
// absence has its own meaning (federation.mode, the adapters). Such a key is empty here if it is
// absent; ask the Document whether it is written. A Manifest is plain data: it may be copied and
// shared, but not changed while another goroutine reads it. It does not have the programs: schema/plan
// merges their tables with the feature catalogue and decodes them with DecodeProgram.
type Manifest struct {
	Core          Core                `toml:"core"`
	Federation    Federation          `toml:"federation"`
	Adapters      Adapters            `toml:"adapters"`
	GPU           GPU                 `toml:"gpu"`
	Desktop       Desktop             `toml:"desktop"`
	Observability Observability       `toml:"observability"`
	Providers     map[string]Provider `toml:"providers"`
	Skills        Skills              `toml:"skills"`
	Toolchains    Toolchains          `toml:"toolchains"`
	Integrations  Integrations        `toml:"integrations"`
	Consultants   Consultants         `toml:"consultants"`
	PrivacyFilter PrivacyFilter       `toml:"privacy_filter"`
	SovereignMesh SovereignMesh       `toml:"sovereign_mesh"`
	Security      Security            `toml:"security"`
	LinkedData    LinkedData          `toml:"linked_data"`

	Artifacts      []Artifact          `toml:"artifacts"`
	Supervisor     Supervisor          `toml:"supervisor"`
	Bootstrap      Bootstrap           `toml:"bootstrap"`
	Slots          Slots               `toml:"slots"`
	API            API                 `toml:"api"`
	Templates      map[string]Template `toml:"templates"`
	AdaptersCompat AdaptersCompat      `toml:"adapters_compat"`
}

// Core is [core].
type Core struct {
	Orchestration string `toml:"orchestration"`
	VectorDB      string `toml:"vector_db"`
}

// Federation is [federation]. Mode is "standalone", "client" or empty.
type Federation struct {
	Mode        string `toml:"mode"`
	ExternalURL string `toml:"external_url"`
	// Only with mode "host":
	Registry       string   `toml:"registry"`
	Heartbeat      Duration `toml:"heartbeat"`
	AllowedPubkeys []string `toml:"allowed_pubkeys"`
	RelayURLs      []string `toml:"relay_urls"`
}

// Adapters is [adapters]: the class of each durable-state slot.
type Adapters struct {
	Beads        string `toml:"beads"`
	Pods         string `toml:"pods"`
	Memory       string `toml:"memory"`
	Events       string `toml:"events"`
	Orchestrator string `toml:"orchestrator"`
}

// GPU is [gpu].
type GPU struct {
	Backend string `toml:"backend"`
}

// Desktop is [desktop].
type Desktop struct {
	Enabled    bool   `toml:"enabled"`
	Stack      string `toml:"stack"`
	Resolution string `toml:"resolution"` // WIDTHxHEIGHT in pixels
}

// Observability is [observability].
type Observability struct {
	MetricsPort  int    `toml:"metrics_port"`
	OTLPEndpoint string `toml:"otlp_endpoint"`
	LogLevel     string `toml:"log_level"`
}

// Provider is one [providers.<name>]: the source of a credential.
type Provider struct {
	Enabled         bool     `toml:"enabled"`
	EnvVar          string   `toml:"env_var"`
	OptionalEnvVars []string `toml:"optional_env_vars"`
	AuthMode        string   `toml:"auth_mode"`
}

// Skills is [skills].
type Skills struct {
	Browser      SkillsBrowser      `toml:"browser"`
	Media        SkillsMedia        `toml:"media"`
	SpatialAnd3D SkillsSpatialAnd3D `toml:"spatial_and_3d"`
	DataScience  SkillsDataScience  `toml:"data_science"`
	Docs         SkillsDocs         `toml:"docs"`
	Ontology     SkillsOntology     `toml:"ontology"`
}

// SkillsBrowser is [skills.browser].
type SkillsBrowser struct {
	Playwright   bool `toml:"playwright"`
	QEBrowser    bool `toml:"qe_browser"`
	AgentBrowser bool `toml:"agent_browser"`
}

// SkillsMedia is [skills.media].
type SkillsMedia struct {
	FFmpeg         bool `toml:"ffmpeg"`
	ImageMagick    bool `toml:"imagemagick"`
	ComfyUIBuiltin bool `toml:"comfyui_builtin"`
}

// SkillsSpatialAnd3D is [skills.spatial_and_3d].
type SkillsSpatialAnd3D struct {
	Blender           bool `toml:"blender"`
	QGIS              bool `toml:"qgis"`
	GaussianSplatting bool `toml:"gaussian_splatting"`
}

// SkillsDataScience is [skills.data_science].
type SkillsDataScience struct {
	PyTorch bool `toml:"pytorch"`
	Jupyter bool `toml:"jupyter"`
}

// SkillsDocs is [skills.docs].
type SkillsDocs struct {
	LaTeX         bool `toml:"latex"`
	Mermaid       bool `toml:"mermaid"`
	ReportBuilder bool `toml:"report_builder"`
}

// SkillsOntology is [skills.ontology].
type SkillsOntology struct {
	Enabled bool `toml:"enabled"`
}

// Toolchains is [toolchains].
type Toolchains struct {
	Claude         bool `toml:"claude"`
	ClaudeCode     bool `toml:"claude_code"`
	Ruflo          bool `toml:"ruflo"`
	ClaudeFlow     bool `toml:"claude_flow"`
	AgenticQE      bool `toml:"agentic_qe"`
	NagualQE       bool `toml:"nagual_qe"`
	CodebaseMemory bool `toml:"codebase_memory"`
	Rust           bool `toml:"rust"`
	GeminiCLI      bool `toml:"gemini_cli"`
	Codex          bool `toml:"codex"`
	CodeServer     bool `toml:"code_server"`
	CUDA           bool `toml:"cuda"`
}

// Integrations is [integrations].
type Integrations struct {
	RuvectorExternal     RuvectorExternal     `toml:"ruvector_external"`
	SolidPodRS           SolidPodRS           `toml:"solid_pod_rs"`
	ExternalOrchestrator ExternalOrchestrator `toml:"external_orchestrator"`
	ExternalEvents       ExternalEvents       `toml:"external_events"`
	ExternalNetwork      ExternalNetwork      `toml:"external_network"`
	ComfyUIExternal      ComfyUIExternal      `toml:"comfyui_external"`
}

// RuvectorExternal is [integrations.ruvector_external]. Conninfo may contain a password.
type RuvectorExternal struct {
	Enabled  bool   `toml:"enabled"`
	Conninfo string `toml:"conninfo"`
}

// SolidPodRS is [integrations.solid_pod_rs], the local pod server.
type SolidPodRS struct {
	Port                 int    `toml:"port"`
	Bind                 string `toml:"bind"`
	Storage              string `toml:"storage"`
	StorageRoot          string `toml:"storage_root"`
	BaseURL              string `toml:"base_url"`
	EnableOIDC           bool   `toml:"enable_oidc"`
	EnableSchnorrVerify  bool   `toml:"enable_schnorr_verify"`
	EnableDPoPCache      bool   `toml:"enable_dpop_cache"`
	Notifications        string `toml:"notifications"`
	LogLevel             string `toml:"log_level"`
	EnableDIDNostr       bool   `toml:"enable_did_nostr"`
	EnableWebhookSigning bool   `toml:"enable_webhook_signing"`
	EnableRateLimit      bool   `toml:"enable_rate_limit"`
	EnableQuota          bool   `toml:"enable_quota"`
	JSSV04Compat         bool   `toml:"jss_v04_compat"`
	RateLimitPerSec      int64  `toml:"rate_limit_per_sec"`
	QuotaDefaultBytes    int64  `toml:"quota_default_bytes"`
}

// ExternalOrchestrator is [integrations.external_orchestrator].
type ExternalOrchestrator struct {
	Enabled  bool   `toml:"enabled"`
	Protocol string `toml:"protocol"`
}

// ExternalEvents is [integrations.external_events].
type ExternalEvents struct {
	Enabled     bool     `toml:"enabled"`
	URL         string   `toml:"url"`
	RelayURLs   []string `toml:"relay_urls"`
	MCPEndpoint string   `toml:"mcp_endpoint"`
}

// ExternalNetwork is [integrations.external_network].
type ExternalNetwork struct {
	Enabled bool   `toml:"enabled"`
	Network string `toml:"network"`
}

// ComfyUIExternal is [integrations.comfyui_external].
type ComfyUIExternal struct {
	Enabled bool   `toml:"enabled"`
	URL     string `toml:"url"`
	WSURL   string `toml:"ws_url"`
}

// Consultants is [consultants]. Home is empty for perplexity and deepseek, which have no home
// directory.
type Consultants struct {
	Enabled            bool       `toml:"enabled"`
	LogDir             string     `toml:"log_dir"`
	IntelligenceSignal bool       `toml:"intelligence_signal"`
	Codex              Consultant `toml:"codex"`
	Gemini             Consultant `toml:"gemini"`
	ZAI                Consultant `toml:"zai"`
	Perplexity         Consultant `toml:"perplexity"`
	DeepSeek           Consultant `toml:"deepseek"`
}

// Consultant is one [consultants.<name>]; TimeoutMS is in milliseconds.
type Consultant struct {
	Enabled   bool   `toml:"enabled"`
	Model     string `toml:"model"`
	Home      string `toml:"home"`
	TimeoutMS int    `toml:"timeout_ms"`
}

// PrivacyFilter is [privacy_filter].
type PrivacyFilter struct {
	Enabled  bool            `toml:"enabled"`
	Mode     string          `toml:"mode"`
	Port     int             `toml:"port"`
	DType    string          `toml:"dtype"`
	Model    string          `toml:"model"`
	Policy   PrivacyPolicy   `toml:"policy"`
	Entities PrivacyEntities `toml:"entities"`
}

// PrivacyPolicy is [privacy_filter.policy]: strict, soft or off.
type PrivacyPolicy struct {
	Pods         string `toml:"pods"`
	Memory       string `toml:"memory"`
	Events       string `toml:"events"`
	Beads        string `toml:"beads"`
	Orchestrator string `toml:"orchestrator"`
	Inbound      string `toml:"inbound"`
	Outbound     string `toml:"outbound"`
}

// PrivacyEntities is [privacy_filter.entities]; an empty list means all eight.
type PrivacyEntities struct {
	Enabled []string `toml:"enabled"`
}

// SovereignMesh is [sovereign_mesh].
type SovereignMesh struct {
	Enabled            bool     `toml:"enabled"`
	SolidPod           bool     `toml:"solid_pod"`
	NostrBridge        bool     `toml:"nostr_bridge"`
	HTTPSBridge        bool     `toml:"https_bridge"`
	PublishAgentEvents bool     `toml:"publish_agent_events"`
	TelegramMirror     bool     `toml:"telegram_mirror"`
	Relay              Relay    `toml:"relay"`
	Operator           Operator `toml:"operator"`
}

// Relay is [sovereign_mesh.relay].
type Relay struct {
	Enabled         bool     `toml:"enabled"`
	Implementation  string   `toml:"implementation"`
	Port            int      `toml:"port"`
	Bind            string   `toml:"bind"`
	Expose          bool     `toml:"expose"`
	DataDir         string   `toml:"data_dir"`
	IngressPolicy   string   `toml:"ingress_policy"`
	AllowedPubkeys  []string `toml:"allowed_pubkeys"`
	AllowedKinds    []int64  `toml:"allowed_kinds"`
	PodBridge       bool     `toml:"pod_bridge"`
	ExternalFanout  string   `toml:"external_fanout"`
	MaxEventBytes   int64    `toml:"max_event_bytes"`
	MessagesPerSec  int64    `toml:"messages_per_sec"`
	RetentionDays   int64    `toml:"retention_days"`
	MaxBytes        Size     `toml:"max_bytes"` // maximum size of the embedded relay's database
	AllowNIP04      bool     `toml:"allow_nip04"`
	InfoDescription string   `toml:"info_description"`
	InfoContact     string   `toml:"info_contact"`
}

// maxRetentionDays is a hundred years. A time of more than 292 years overflows a time.Duration, and
// what is to be kept would be deleted.
const maxRetentionDays = 36500

// KeptDays is how long events without an expiration are kept; 0 means for ever. The older manifest
// has no limit for retention_days, so a longer time is shortened and not refused.
func (r Relay) KeptDays() int { return int(min(r.RetentionDays, maxRetentionDays)) }

// Operator is [sovereign_mesh.operator]: the owner of the box.
type Operator struct {
	PubkeyHex   string   `toml:"pubkey_hex"`
	NPub        string   `toml:"npub"`
	DisplayName string   `toml:"display_name"`
	RelayURLs   []string `toml:"relay_urls"`
}

// Security is [security]. Exceptions holds only the blocks that are declared.
type Security struct {
	AuditAcknowledged bool                 `toml:"audit_acknowledged"`
	Enforce           bool                 `toml:"enforce"`
	Exceptions        map[string]Exception `toml:"exceptions"`
}

// Exception is one [security.exceptions.<name>]; each name allows only some of
// the keys.
type Exception struct {
	Reason              string          `toml:"reason"`
	Tmpfs               []string        `toml:"tmpfs"`
	Devices             []string        `toml:"devices"`
	WritableVolumes     []string        `toml:"writable_volumes"`
	CapAdd              []string        `toml:"cap_add"`
	GroupAdd            []string        `toml:"group_add"`
	SecurityOptOverride []string        `toml:"security_opt_override"`
	RuntimeOverride     string          `toml:"runtime_override"`
	Runtime             string          `toml:"runtime"`
	DeviceRequests      []DeviceRequest `toml:"device_requests"`
	Inherits            []string        `toml:"inherits"`
}

// DeviceRequest is one entry of gpu-cuda's device_requests. Count -1 means all devices.
type DeviceRequest struct {
	Driver       string     `toml:"driver"`
	Count        int        `toml:"count"`
	Capabilities [][]string `toml:"capabilities"`
}

// LinkedData is [linked_data].
type LinkedData struct {
	Enabled               bool              `toml:"enabled"`
	Pods                  string            `toml:"pods"`
	Events                string            `toml:"events"`
	Credentials           string            `toml:"credentials"`
	DIDDocuments          string            `toml:"did_documents"`
	Provenance            string            `toml:"provenance"`
	CapabilityDescriptors string            `toml:"capability_descriptors"`
	SkillMetadata         string            `toml:"skill_metadata"`
	Payments              string            `toml:"payments"`
	MemoryCatalogue       string            `toml:"memory_catalogue"`
	ArchitectureDocs      string            `toml:"architecture_docs"`
	HTTPMeta              string            `toml:"http_meta"`
	DefaultForm           string            `toml:"default_form"`
	ContextCatalogue      string            `toml:"context_catalogue"`
	ContextCacheMode      string            `toml:"context_cache_mode"`
	UnknownContextPolicy  string            `toml:"unknown_context_policy"`
	Canonicalisation      string            `toml:"canonicalisation"`
	RoundTripInDispatch   bool              `toml:"round_trip_in_dispatch"`
	Contexts              map[string]string `toml:"contexts"`
	DID                   LinkedDataDID     `toml:"did"`
	PrivacyHandoff        PrivacyHandoff    `toml:"privacy_handoff"`
	Viewer                Viewer            `toml:"viewer"`
}

// LinkedDataDID is [linked_data.did].
type LinkedDataDID struct {
	Method             string   `toml:"method"`
	ServiceEndpoints   []string `toml:"service_endpoints"`
	PublishToWellKnown bool     `toml:"publish_to_well_known"`
}

// PrivacyHandoff is [linked_data.privacy_handoff].
type PrivacyHandoff struct {
	Order string `toml:"order"`
}

// Viewer is [linked_data.viewer].
type Viewer struct {
	Mode                 string   `toml:"mode"`
	MountPath            string   `toml:"mount_path"`
	BundlePath           string   `toml:"bundle_path"`
	ExternalURL          string   `toml:"external_url"`
	SRIHash              string   `toml:"sri_hash"`
	ExposePort           bool     `toml:"expose_port"`
	ExtraPanes           []string `toml:"extra_panes"`
	UpstreamPanesVisible bool     `toml:"upstream_panes_visible"`
	SourceCodeHeader     string   `toml:"source_code_header"`
}
