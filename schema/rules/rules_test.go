package rules

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/dreamlab-ai/agentinit/schema"
)

// testCase is one manifest, and how often it must give one code. Other codes are ignored: a case is
// minimal, not valid.
type testCase struct {
	code string
	want int
	text string
	env  string // NAME=value words
	arch string
	// headless are profiles with headless_only = true.
	headless []string
	// says must occur in the messages.
	says string
}

const anthropic = "[providers.anthropic]\nenabled = true\nenv_var = 'KEY'\n"
const relayOn = "[sovereign_mesh]\nenabled = true\n[sovereign_mesh.relay]\nenabled = true\n"
const ldOn = "[linked_data]\nenabled = true\n"

var cases = []testCase{
	{code: "E001", want: 1, text: "[adapters]\nbeads = 'external'", says: "adapters.beads federation.mode federation.external_url"},
	{code: "E001", want: 3, text: "[adapters]\nbeads = 'external'\nmemory = 'external'\nother = 'external'"},
	{code: "E001", want: 1, text: "[federation]\nmode = 'client'\nexternal_url = ''\n[adapters]\npods = 'external'"},
	{code: "E001", want: 0, text: "[federation]\nmode = 'client'\nexternal_url = ' '\n[adapters]\npods = 'external'"},
	{code: "E001", want: 1, text: "[federation]\nmode = 'standalone'\nexternal_url = 'x'\n[adapters]\nevents = 'external'"},
	{code: "E001", want: 0, text: "[adapters]\nbeads = 'External'\nmemory = 'external-pg'"},
	{code: "E002", want: 1, text: "[adapters]\nmemory = 'external-pg'", says: "integrations.ruvector_external.conninfo"},
	{code: "E002", want: 1, text: "[adapters]\nmemory = 'external-pg'\n[integrations.ruvector_external]\nconninfo = '  '"},
	{code: "E002", want: 1, text: "[adapters]\nmemory = 'external-pg'\n[integrations.ruvector_external]\nconninfo = 3"},
	{code: "E002", want: 0, text: "[adapters]\nmemory = 'external-pg'\n[integrations.ruvector_external]\nconninfo = 'x'"},
	{code: "E003", want: 1, text: "[adapters]\norchestrator = 'stdio-bridge'\n[integrations.external_orchestrator]\nenabled = true\nprotocol = 'http'", says: "adapters.orchestrator integrations.external_orchestrator.protocol"},
	{code: "E003", want: 0, text: "[adapters]\norchestrator = 'stdio-bridge'\n[integrations.external_orchestrator]\nenabled = 'true'\nprotocol = 'http'"},
	{code: "E003", want: 0, text: "[adapters]\norchestrator = 'stdio-bridge'\n[integrations.external_orchestrator]\nenabled = true\nprotocol = 'mcp'"},
	{code: "E004", want: 1, text: "[adapters]\nbeads = 'off'", says: "federation.mode"},
	{code: "E004", want: 1, text: "[federation]\nmode = 'client'\n[adapters]\nbeads = 'off'\npods = 'off'"},
	{code: "E004", want: 0, text: "[adapters]"},
	{code: "E004", want: 0, text: "[adapters]\nbeads = 'off'\npods = 'weird'"},
	{code: "E004", want: 0, text: "[federation]\nmode = 'standalone'\n[adapters]\nbeads = 'off'"},
	{code: "E005", want: 1, text: "[adapters]\nevents = 'external'\n[integrations.external_events]\nenabled = true\nrelay_urls = []", says: "url relay_urls mcp_endpoint integrations.external_events"},
	{code: "E005", want: 0, text: "[adapters]\nevents = 'external'\n[integrations.external_events]\nrelay_urls = ['x']"},
	{code: "E005", want: 0, text: "[adapters]\nevents = 'external'\n[integrations.external_events]\nmcp_endpoint = ' '"},
	{code: "W012", want: 1, text: "[federation]\nmode = 'client'\n[adapters]\nbeads = 'local-sqlite'\nevents = 'local-jsonl'", says: "adapters.beads adapters.events"},
	{code: "W012", want: 0, text: "[federation]\nmode = 'client'\n[adapters]\nmemory = 'embedded-ruvector'"},
	{code: "W012", want: 0, text: "[adapters]\nbeads = 'local-sqlite'"},
	{code: "E033", want: 1, text: "[adapters]\npods = 'local-solid-rs'\n[integrations.solid_pod_rs]\nenable_dpop_cache = true", says: "enable_dpop_cache enable_oidc"},
	{code: "E033", want: 0, text: "[adapters]\npods = 'local-solid-rs'\n[integrations.solid_pod_rs]\nenable_dpop_cache = true\nenable_oidc = true"},
	{code: "E033", want: 0, text: "[integrations.solid_pod_rs]\nenable_dpop_cache = true"},

	{code: "E006", want: 1, text: "[skills.spatial_and_3d]\ngaussian_splatting = true", says: "gaussian_splatting unset local-cuda"},
	{code: "E006", want: 1, text: "[gpu]\nbackend = 'ollama-cuda'\n[skills.spatial_and_3d]\ngaussian_splatting = true", says: "ollama-cuda"},
	{code: "E006", want: 0, text: "[gpu]\nbackend = 'local-cuda'\n[skills.spatial_and_3d]\ngaussian_splatting = true"},
	{code: "E006", want: 0, text: "[skills.spatial_and_3d]\ngaussian_splatting = 1"},
	{code: "E007", want: 1, text: "[skills.media]\ncomfyui_builtin = true\n[integrations.comfyui_external]\nenabled = true", says: "skills.media.comfyui_builtin integrations.comfyui_external.enabled"},
	{code: "E007", want: 0, text: "[skills.media]\ncomfyui_builtin = true\n[integrations.comfyui_external]\nenabled = false"},
	{code: "E008", want: 1, text: "[gpu]\nbackend = 'local-cuda'", arch: "arm64", says: "local-cuda arm64"},
	{code: "E008", want: 1, text: "[gpu]\nbackend = 'local-cuda'", arch: "aarch64"},
	{code: "E008", want: 0, text: "[gpu]\nbackend = 'local-cuda'", arch: "amd64"},
	{code: "E008", want: 0, text: "[gpu]\nbackend = 'ollama-cuda'", arch: "arm64"},
	{code: "E010", want: 2, text: "[desktop]\nenabled = true", headless: []string{"/workspace/profiles/a", "/workspace/profiles/b"}, says: "/workspace/profiles/a /workspace/profiles/b"},
	{code: "E010", want: 0, text: "[desktop]\nenabled = false", headless: []string{"/workspace/profiles/a"}},
	{code: "E010", want: 0, text: "[desktop]\nenabled = true"},
	{code: "E019", want: 1, text: "[toolchains]\ncuda = true", says: `[toolchains.cuda]=true [gpu.backend]="local-cuda"`},
	{code: "E019", want: 0, text: "[toolchains]\ncuda = true\n[gpu]\nbackend = 'local-cuda'"},

	{code: "E013", want: 1, text: "[observability]\nmetrics_port = 9090", says: "observability.metrics_port 9090 management-api"},
	{code: "E013", want: 0, text: "[observability]\nmetrics_port = 9091"},
	{code: "E013", want: 0, text: "[observability]\nmetrics_port = 9090.0"},
	{code: "E025", want: 1, text: "[privacy_filter]\nenabled = true\nport = 8080", says: "privacy_filter.port 8080 code-server"},
	{code: "E025", want: 2, text: "[privacy_filter]\nenabled = true\nport = 7000\n[observability]\nmetrics_port = 7000\n[integrations.solid_pod_rs]\nport = 7000", says: "observability.metrics_port integrations.solid_pod_rs.port"},
	{code: "E025", want: 0, text: "[privacy_filter]\nport = 8080"},
	{code: "E025", want: 0, text: "[privacy_filter]\nenabled = true\nport = 9091"},
	{code: "E028", want: 2, text: relayOn + "port = 8484\n[integrations.solid_pod_rs]\nport = 8484", says: "solid-pod-rs integrations.solid_pod_rs.port"},
	{code: "E028", want: 1, text: relayOn + "port = 9092\n[privacy_filter]\nport = 9092", says: "privacy_filter.port"},
	{code: "E028", want: 0, text: relayOn + "port = 9092\n[privacy_filter]\nenabled = true"},
	{code: "E028", want: 0, text: "[sovereign_mesh.relay]\nport = 8484"},

	{code: "W040", want: 1, text: "[providers.gemini]\nenabled = true\nenv_var = 'KEY'\nauth_mode = 'oauth'", env: "KEY=x", says: "gemini KEY anthropic openai zai"},
	{code: "W040", want: 0, text: anthropic + "auth_mode = 'oauth'"},
	{code: "W040", want: 0, text: "[providers.gemini]\nenabled = false\nenv_var = 'KEY'\nauth_mode = 'oauth'"},
	{code: "E017", want: 1, text: anthropic, says: "anthropic KEY"},
	{code: "E017", want: 1, text: anthropic, env: "KEY="},
	{code: "E017", want: 1, text: anthropic, env: "key=x"},
	{code: "E017", want: 0, text: anthropic, env: "KEY=x"},
	{code: "E017", want: 0, text: anthropic + "auth_mode = 'oauth'"},
	{code: "E017", want: 1, text: "[providers.Anthropic]\nenabled = true\nenv_var = 'KEY'\nauth_mode = 'oauth'"},
	{code: "E017", want: 2, text: "[providers.a]\nenabled = true\n[providers.b]\nenabled = true\nenv_var = 3\n[providers]\nc = 3"},
	{code: "E017", want: 0, text: "[providers.a]\nenv_var = 'KEY'\noptional_env_vars = ['OTHER']"},
	{code: "E017", want: 1, text: "[providers.a]\nenabled = true\nenv_var = 'sk-ant-secret'", says: "env_var"},
	{code: "E017", want: 1, text: "[providers.a]\nenabled = true\nenv_var = 'ghp_hunter2c6912E7710c83'", says: "env_var"},
	{code: "W161", want: 1, text: "[api.keys.a]\nrole = 'viewer'\nenv = 'ghp_hunter2c6912E7710c83'", says: "api.keys.a.env"},
	{code: "E018", want: 1, text: anthropic, env: "KEY=change-this", says: "anthropic KEY"},
	{code: "E018", want: 1, text: anthropic + "auth_mode = 'oauth'", env: "KEY=TODO"},
	{code: "E018", want: 0, text: anthropic, env: "KEY=change-this-secret-key"},
	{code: "E014", want: 2, text: "[sovereign_mesh]\ntelegram_mirror = true", says: "CTM_BOT_TOKEN CTM_TELEGRAM_CHAT_ID"},
	{code: "E014", want: 1, text: "[sovereign_mesh]\ntelegram_mirror = true", env: "CTM_BOT_TOKEN=x", says: "CTM_TELEGRAM_CHAT_ID"},
	{code: "E014", want: 0, text: "[sovereign_mesh]\nenabled = true"},

	{code: "E035", want: 2, text: "[consultants.codex]\nenabled = true\n[consultants.zai]\nenabled = true\n[providers.openai]\nenabled = false", says: "consultants.codex.enabled providers.openai.enabled providers.zai.enabled"},
	{code: "E035", want: 0, text: "[consultants.deepseek]\nenabled = true\n[providers.deepseek]\nenabled = true"},
	{code: "E037", want: 3, text: "[consultants.codex]\nenabled = true\n[consultants.gemini]\nenabled = true\n[consultants.zai]\nenabled = true", says: "toolchains.codex=true toolchains.gemini_cli=true toolchains.claude=true"},
	{code: "E037", want: 0, text: "[consultants.perplexity]\nenabled = true\n[consultants.deepseek]\nenabled = true"},
	{code: "E037", want: 0, text: "[consultants.zai]\nenabled = true\n[toolchains]\nclaude = true"},
	{code: "E036", want: 1, text: "[consultants.codex]\nenabled = true\n[consultants.zai]\nenabled = true", says: "consultants.enabled"},
	{code: "E036", want: 0, text: "[consultants]\nenabled = true\n[consultants.codex]\nenabled = true"},
	{code: "E036", want: 0, text: "[consultants.codex]\nenabled = false"},
	{code: "W038", want: 1, text: "[consultants]\nenabled = true\nintelligence_signal = true", says: "AGENTBOX_INTELLIGENCE_DIR WORKSPACE"},
	{code: "W038", want: 0, text: "[consultants]\nenabled = true\nintelligence_signal = true", env: "WORKSPACE=/w"},
	{code: "W038", want: 0, text: "[consultants]\nintelligence_signal = true"},

	{code: "E026", want: 1, text: "[sovereign_mesh.relay]\nenabled = true", says: "sovereign_mesh.relay.enabled sovereign_mesh.enabled sovereign_mesh.solid_pod"},
	{code: "E026", want: 0, text: "[sovereign_mesh]\nsolid_pod = true\n[sovereign_mesh.relay]\nenabled = true"},
	{code: "E026", want: 0, text: relayOn},
	{code: "E027", want: 1, text: relayOn + "implementation = 'external'", says: "sovereign_mesh.relay.implementation federation.mode federation.external_url"},
	{code: "E027", want: 0, text: "[federation]\nmode = 'client'\nexternal_url = 'x'\n" + relayOn + "implementation = 'external'"},
	{code: "E027", want: 0, text: relayOn},
	{code: "E029", want: 1, text: relayOn + "bind = '0.0.0.0'", says: "sovereign_mesh.relay.bind sovereign_mesh.relay.expose"},
	{code: "E029", want: 0, text: relayOn + "bind = '::'"},
	{code: "E029", want: 0, text: relayOn + "bind = '0.0.0.0'\nexpose = true"},
	{code: "E030", want: 1, text: relayOn + "ingress_policy = 'open'\nexternal_fanout = 'bidirectional'", says: "ingress_policy external_fanout"},
	{code: "E030", want: 0, text: relayOn + "ingress_policy = 'open'"},
	{code: "W030", want: 1, text: relayOn + "ingress_policy = 'open'", says: "ingress_policy"},
	{code: "W030", want: 0, text: relayOn + "ingress_policy = 'open'\nexternal_fanout = 'bidirectional'"},
	{code: "W030", want: 0, text: relayOn},
	{code: "W031", want: 1, text: relayOn + "allow_nip04 = true", says: "allow_nip04"},
	{code: "W031", want: 0, text: "[sovereign_mesh.relay]\nallow_nip04 = true"},
	{code: "W039", want: 1, text: relayOn + "ingress_policy = 'allowlist'\nallowed_pubkeys = 'x'", says: "ingress_policy allowed_pubkeys"},
	{code: "W039", want: 1, text: relayOn + "ingress_policy = 'allowlist'\nallowed_pubkeys = []"},
	{code: "W039", want: 0, text: relayOn},
	{code: "W039", want: 0, text: relayOn + "ingress_policy = 'allowlist'\nallowed_pubkeys = ['x']"},
	{code: "W116", want: 2, text: relayOn + "allowed_pubkeys = ['3bf0c63fcb93463407af97a5e5ee64fa883d107ef9e558472c4eb9aaaefa459d', 'npub10elfcs4fr0l0r8af98jlmgdh9c8tcxjvz9qkw038js35mp4dma8qzvjptg', '3BF0C63FCB93463407AF97A5E5EE64FA883D107EF9E558472C4EB9AAAEFA459D']", says: "allowed_pubkeys[1] allowed_pubkeys[2]"},
	{code: "W116", want: 0, text: "[sovereign_mesh.relay]\nallowed_pubkeys = ['x']"},

	{code: "E022", want: 1, text: "[privacy_filter]\nenabled = true", says: "unset local-gpu local-cpu"},
	{code: "E022", want: 1, text: "[privacy_filter]\nenabled = true\nmode = 'off'", says: `"off"`},
	{code: "E022", want: 0, text: "[privacy_filter]\nenabled = true\nmode = 'weird'"},
	{code: "E022", want: 0, text: "[privacy_filter]\nmode = 'off'"},
	{code: "E023", want: 1, text: "[privacy_filter]\nenabled = true\nmode = 'local-gpu'\n[gpu]\nbackend = 'none'", says: `"none"`},
	{code: "E023", want: 1, text: "[privacy_filter]\nenabled = true\nmode = 'local-gpu'", says: "unset"},
	{code: "E023", want: 0, text: "[privacy_filter]\nenabled = true\nmode = 'local-gpu'\n[gpu]\nbackend = 'ollama-rocm'"},
	{code: "E024", want: 1, text: "[privacy_filter]\nenabled = true\ndtype = 'q4'", says: "privacy_filter.mode unset"},
	{code: "E024", want: 0, text: "[privacy_filter]\nenabled = true\ndtype = 'q4'\nmode = 'local-cpu'"},
	{code: "W041", want: 1, text: "[privacy_filter.policy]\npods = 'strict'\nother = 'x'\nmemory = 'off'\nevents = 3", says: "privacy_filter.policy.pods privacy_filter.policy.other"},
	{code: "W041", want: 0, text: "[privacy_filter.policy]\npods = 'off'"},
	{code: "W041", want: 0, text: "[privacy_filter]\nenabled = true\n[privacy_filter.policy]\npods = 'strict'"},

	{code: "E020", want: 2, text: "[security.exceptions]\ndesktop = 3\n[security.exceptions.browser]", says: "security.exceptions.desktop security.exceptions.browser"},
	{code: "E020", want: 0, text: "[security.exceptions.desktop]\n[desktop]\nenabled = true"},
	{code: "E021", want: 1, text: "[desktop]\nenabled = true", says: "security.exceptions.desktop"},
	{code: "E021", want: 5, text: "[gpu]\nbackend = 'local-cuda'\n[skills.spatial_and_3d]\ngaussian_splatting = true\n[toolchains]\ncode_server = true\n[adapters]\npods = 'local-solid-rs'\n[skills.browser]\nplaywright = true"},
	{code: "E021", want: 1, text: "[gpu]\nbackend = 'ollama-rocm'", says: "security.exceptions.gpu-rocm"},
	{code: "E021", want: 2, text: "[sovereign_mesh]\ntelegram_mirror = true\n[sovereign_mesh.relay]\nenabled = true", says: "telegram-mirror nostr-relay"},
	{code: "E021", want: 0, text: "[desktop]\nenabled = true\n[security.exceptions]\ndesktop = 3"},
	{code: "E021", want: 0, text: "[adapters]\npods = 'external'"},
	{code: "W021", want: 1, text: "[skills.browser]\nplaywright = true\n[security.exceptions.playwright]\ncap_add = ['SYS_ADMIN', 'NET_ADMIN']", says: `security.exceptions.playwright "SYS_ADMIN" "NET_ADMIN"`},
	{code: "W021", want: 1, text: "[gpu]\nbackend = 'ollama-rocm'\n[security.exceptions.gpu-rocm]\ndevices = ['/dev/kfd']\nsecurity_opt_override = ['seccomp=unconfined']\n", says: "/dev/kfd seccomp=unconfined"},
	{code: "W021", want: 0, text: "[security]\naudit_acknowledged = true\n[gpu]\nbackend = 'ollama-rocm'\n[security.exceptions.gpu-rocm]\ndevices = ['/dev/kfd']"},
	{code: "W021", want: 0, text: "[security.exceptions.playwright]\ncap_add = ['SYS_ADMIN']"},
	{code: "W021", want: 0, text: "[skills.browser]\nplaywright = true\n[security.exceptions.playwright]\ncap_add = []\nreason = 'x'\ngroup_add = ['video']\nsecurity_opt_override = ['apparmor=x']"},
	{code: "W021", want: 1, text: "[desktop]\nenabled = true\n[toolchains]\ncode_server = true\n[security.exceptions.desktop]\nsecurity_opt_override = ['apparmor=a']\n[security.exceptions.code-server]\nsecurity_opt_override = ['apparmor=b']", says: "security.exceptions.desktop security.exceptions.code-server apparmor"},

	{code: "E040", want: 2, text: "[linked_data]\npods = 'on'\nevents = 'weird'\nprovenance = 'off'\npayments = 3", says: `linked_data.pods "on" linked_data.events "weird"`},
	{code: "E040", want: 0, text: ldOn + "pods = 'on'"},
	{code: "E041", want: 1, text: ldOn + "pods = 'emit'\n[adapters]\npods = 'off'", says: `"emit" "off"`},
	{code: "E041", want: 0, text: ldOn + "pods = 'emit'\n[adapters]\npods = 'external'"},
	{code: "E041", want: 0, text: "[linked_data]\npods = 'emit'"},
	{code: "E042", want: 1, text: ldOn + "events = 'emit'", says: "linked_data.events sovereign_mesh.relay.enabled"},
	{code: "E042", want: 0, text: ldOn + "events = 'emit'\n" + relayOn},
	{code: "E043", want: 1, text: ldOn + "credentials = 'emit'\npayments = 'on'\ncanonicalisation = 'none'", says: "none"},
	{code: "E043", want: 0, text: ldOn + "credentials = 'emit'\ncanonicalisation = ''"},
	{code: "E043", want: 0, text: ldOn + "canonicalisation = 'none'"},
	{code: "E044", want: 1, text: ldOn + "did_documents = 'emit'", says: "linked_data.did_documents sovereign_mesh.solid_pod"},
	{code: "E044", want: 0, text: ldOn + "did_documents = 'emit'\n[sovereign_mesh]\nsolid_pod = true"},
	{code: "E045", want: 2, text: ldOn + "[linked_data.contexts]\na = ''\nb = 3\nc = ' '", says: "linked_data.contexts.a linked_data.contexts.b"},
	{code: "E045", want: 0, text: "[linked_data.contexts]\na = ''"},
	{code: "E046", want: 1, text: ldOn + "payments = 'on'\nprovenance = 'emit'\ncontext_cache_mode = 'off'", says: "linked_data.provenance"},
	{code: "E046", want: 0, text: ldOn + "credentials = 'emit'\ncontext_cache_mode = 'off'"},
	{code: "W047", want: 1, text: ldOn + "pods = 'on'\nunknown_context_policy = 'fail-open'", says: "linked_data.unknown_context_policy linked_data.pods"},
	{code: "W047", want: 0, text: ldOn + "pods = 'emit'\nunknown_context_policy = 'fail-open'"},
	{code: "W048", want: 1, text: ldOn + "pods = 'on'\nevents = 'on'", says: "privacy_filter.enabled"},
	{code: "W048", want: 0, text: ldOn + "pods = 'on'\n[privacy_filter]\nenabled = true"},
	{code: "W048", want: 0, text: ldOn + "http_meta = 'emit'"},
	{code: "E048", want: 1, text: ldOn + "[linked_data.privacy_handoff]\norder = 'before'", says: "linked_data.privacy_handoff.order"},
	{code: "E048", want: 0, text: ldOn + "[linked_data.privacy_handoff]\norder = 'after'"},
	{code: "E048", want: 0, text: "[linked_data.privacy_handoff]\norder = 'before'"},
	{code: "E049", want: 1, text: ldOn + "did_documents = 'emit'\n[integrations.solid_pod_rs]\nenable_did_nostr = false", says: "integrations.solid_pod_rs.enable_did_nostr"},
	{code: "E049", want: 0, text: ldOn + "did_documents = 'emit'\n[linked_data.did]\nmethod = 'web'\n[integrations.solid_pod_rs]\nenable_did_nostr = false"},
	{code: "E049", want: 0, text: ldOn + "did_documents = 'emit'"},
	{code: "E050", want: 1, text: "[linked_data.viewer]\nmode = 'external'", says: "linked_data.viewer.mode linked_data.enabled"},
	{code: "E050", want: 0, text: ldOn + "[linked_data.viewer]\nmode = 'external'"},
	{code: "E050", want: 0, text: "[linked_data.viewer]\nmode = 'off'"},
	{code: "E051", want: 1, text: ldOn + "[linked_data.viewer]\nmode = 'external'", says: "linked_data.viewer.external_url"},
	{code: "E051", want: 0, text: ldOn + "[linked_data.viewer]\nmode = 'external'\nexternal_url = 'x'"},
	{code: "E052", want: 1, text: ldOn + "[linked_data.viewer]\nsri_hash = 'sha1-abc='", says: "sha1-abc="},
	{code: "E052", want: 1, text: ldOn + "[linked_data.viewer]\nsri_hash = 'sha384-abc==='"},
	{code: "E052", want: 0, text: ldOn + "[linked_data.viewer]\nsri_hash = 'sha384-abC0+/=='"},
	{code: "E052", want: 0, text: ldOn + "[linked_data.viewer]\nsri_hash = ''"},
	{code: "W053", want: 1, text: ldOn + "provenance = 'emit'", says: "linked_data.viewer.mode"},
	{code: "W053", want: 0, text: ldOn + "provenance = 'emit'\n[linked_data.viewer]\nmode = 'external'"},
	{code: "E054", want: 1, text: ldOn + "[linked_data.viewer]\nmount_path = '/v1'", says: "/v1"},
	{code: "E054", want: 1, text: ldOn + "[linked_data.viewer]\nmount_path = '/tasks/x'"},
	{code: "E054", want: 0, text: ldOn + "[linked_data.viewer]\nmount_path = '/v1x'"},

	{code: "W100", want: 1, text: "[observability]\nmetrics_port = 9092\n[privacy_filter]\nenabled = true", says: "9092 privacy_filter.port observability.metrics_port"},
	{code: "W100", want: 0, text: "[observability]\nmetrics_port = 9092\n[privacy_filter]\nenabled = true\nport = 9092"},
	{code: "W100", want: 0, text: "[observability]\nmetrics_port = 9092"},
	{code: "W100", want: 1, text: "[programs.a]\ncommand = 'x'\nready = {tcp = 'localhost:8000'}\n[programs.b]\ncommand = 'x'\nready = {http = 'http://127.0.0.1:8000/'}", says: "8000 programs.a.ready.tcp programs.b.ready.http"},
	{code: "W100", want: 0, text: "[programs.a]\ncommand = 'x'\nready = {tcp = 'db:8000'}\n[programs.b]\ncommand = 'x'\nready = {http = 'http://127.0.0.1:8000/'}"},
	{code: "E100", want: 1, text: "[supervisor]\nlisten = '127.0.0.1:7000'\nmetrics_listen = '0.0.0.0:7000'", says: "7000"},
	{code: "E100", want: 0, text: "[supervisor]\nmetrics_listen = 'off'"},
	{code: "E101", want: 1, text: "[programs.a]\ncommand = 'x'\nlogs = {to = 'file'}", says: "programs.a.logs"},
	{code: "E101", want: 0, text: "[supervisor.defaults]\nlogs = {to = 'file'}\n[programs.a]\ncommand = 'x'\nlogs = {path = '/x'}"},
	{code: "E102", want: 2, text: "[programs.a]\ncommand = 'x'\nstop = ['TRM 5s', 'SIGINT', 'RTMIN+3', '9', 'RTMIN+99']", says: "TRM programs.a.stop[4]"},
	{code: "E102", want: 3, text: "[programs.a]\ncommand = 'x'\nstop = ['10s', 'SIGFOO 5s', 'term2']", says: `"10s" "SIGFOO" "term2"`},
	{code: "E102", want: 0, text: "[programs.a]\ncommand = 'x'\nstop_signal = 'SIGTERM'"},
	{code: "E102", want: 1, text: "[programs.a]\ncommand = 'x'\nhealth = {no_output = '3s', stack_signal = 'QIUT'}", says: "QIUT programs.a.health.stack_signal"},
	{code: "W111", want: 1, text: "[supervisor]\nvolumes = ['data:/x']\n[programs.a]\ncommand = 'x'\nvolumes = ['other:/x', 'data:/y']", says: `programs.a.volumes[0] supervisor.volumes[0] "/x"`},
	{code: "W111", want: 0, text: "[supervisor]\nvolumes = ['data:/x']\n[programs.a]\ncommand = 'x'\nvolumes = ['data:/x:ro', 'data:/y']"},
	{code: "E113", want: 2, text: "[[artifacts]]\nid = 'a'\nentry = '/bin/[x'\nassets = ['/a', '/b[']", says: `artifacts[0].entry artifacts[0].assets[1] "/bin/[x"`},
	{code: "E113", want: 0, text: "[[artifacts]]\nid = 'a'\nentry = '/bin/[xy]'"},
	{code: "W110", want: 1, text: "[programs.a]\ncommand = 'x'\ntype = 'schedule'\nschedule = '0 3 30 2 *'", says: `programs.a.schedule "0 3 30 2 *"`},
	{code: "W110", want: 0, text: "[programs.a]\ncommand = 'x'\ntype = 'schedule'\nschedule = '0 3 29 2 *'\n[programs.b]\ncommand = 'x'\ntype = 'schedule'\nschedule = '0 3 30 2 1'\n[programs.c]\ncommand = 'x'\ntype = 'schedule'\nschedule = '@every 1h'\n[programs.d]\ncommand = 'x'\ntype = 'schedule'\nschedule = 'soon'"},
	{code: "W109", want: 2, text: "[supervisor.defaults]\nstop = 'TERM'\n[programs.a]\ncommand = 'x'\nstop = ['CONT', 'TERM 0s', 'KILL']", says: `supervisor.defaults.stop programs.a.stop[1] "TERM"`},
	{code: "W109", want: 2, text: "[programs.a]\ncommand = 'x'\nstop = ['KILL', 'TERM 5s']\n[programs.b]\ncommand = 'x'\nstop = ['INT 1s', '9 5s', 'TERM']", says: "programs.a.stop[0] programs.b.stop[1]"},
	{code: "W109", want: 0, text: "[programs.a]\ncommand = 'x'\nstop = ['10s']"},
	{code: "W109", want: 0, text: "[programs.a]\ncommand = 'x'\nstop = ['CONT', 'TERM 5s', 'SIGKILL']\n[programs.b]\ncommand = 'x'\nstop = 'KILL'\n[programs.c]\ncommand = 'x'\nstop = ['TERM 5s']"},
	{code: "E102", want: 1, text: "[programs.a]\ncommand = 'x'\nstop = ['TERM', '10s', 'KILL']", says: `programs.a.stop[1] "10s" is a wait without a signal`},
	{code: "E103", want: 1, text: "[programs.a]\ncommand = 'x'\nready = [{log = '('}, {log = 'ok'}]", says: "programs.a.ready[0].log"},
	{code: "E103", want: 0, text: "[programs.a]\ncommand = 'x'\nready = {log = 'listening on :[0-9]+'}"},
	{code: "E104", want: 1, text: "[programs.a]\ncommand = 'x'\ntype = 'schedule'"},
	{code: "E104", want: 1, text: "[programs.a]\ncommand = 'x'\nschedule = '@hourly'"},
	{code: "E104", want: 3, text: "[programs.a]\ncommand = 'x'\ntype = 'schedule'\nschedule = '99 * * * *'\n[programs.b]\ncommand = 'x'\ntype = 'schedule'\nschedule = 'TZ=0'\n[programs.c]\ncommand = 'x'\ntype = 'schedule'\nschedule = '@every 5'"},
	{code: "E104", want: 1, text: "[programs.a]\ncommand = 'x'\ntype = 'schedule'\nschedule = '61 * * * *'", says: `is not a schedule: "61 * * * *": the minute "61": it takes 0 to 59`},
	{code: "E104", want: 0, text: "[programs.a]\ncommand = 'x'\ntype = 'schedule'\nschedule = '*/5 0-3 * * mon'\n[programs.b]\ncommand = 'x'\ntype = 'schedule'\nschedule = '@every 10m'"},
	{code: "E104", want: 1, text: "[programs.a]\ncommand = 'x'\ntype = 'schedule'\nschedule = '@hourly'\ntimezone = 'Europe/Berlim'", says: `"Europe/Berlim"`},
	{code: "E104", want: 0, text: "[programs.a]\ncommand = 'x'\ntype = 'schedule'\nschedule = '@hourly'\ntimezone = 'Europe/Berlin'\n[programs.b]\ncommand = 'x'\ntype = 'schedule'\nschedule = '@hourly'\ntimezone = ''"},
	{code: "E105", want: 1, text: "[programs.a]\ncommand = 'x'\nstop = ['TERM']\nstop_timeout = '3s'", says: "programs.a.stop_timeout"},
	{code: "E105", want: 0, text: "[supervisor.defaults]\nstop = ['TERM']\n[programs.a]\ncommand = 'x'\nstop_timeout = '3s'"},
	{code: "E106", want: 1, text: "[[artifacts]]\nid = 'a'\nassets = []", says: "neither"},
	{code: "E106", want: 1, text: "[[artifacts]]\nassets = []", says: "artifacts[0] has neither"},
	{code: "E106", want: 0, text: "[[artifacts]]\nid = 'a'\nentry = '/x'"},
	{code: "E107", want: 2, text: "[[artifacts]]\nid = 'a'\n[[artifacts]]\nid = 'a'\n[[artifacts]]\nid = 'a'"},
	{code: "E107", want: 0, text: "[[artifacts]]\nid = 'a'\n[[artifacts]]\nid = 'b'"},
	{code: "E108", want: 2, text: "[programs.a]\ncommand = 'x'\nready = {deadline = '3s', notify = false}\nhealth = {failures = 3}"},
	{code: "E108", want: 0, text: "[programs.a]\ncommand = 'x'\nready = {notify = true}\nhealth = {watchdog = '3s'}"},
	{code: "E108", want: 0, text: "[programs.a]\ncommand = 'x'\nhealth = [{no_output = '3s'}, {spinning = '3s', stack_signal = 'QUIT'}, {blocked = '3s'}]"},
	{code: "W115", want: 1, text: "[federation]\nmode = 'client'", says: `federation.mode = "client" needs a federation.external_url`},
	{code: "W115", want: 1, text: "[federation]\nmode = 'client'\nexternal_url = 'ftp://host'", says: "federation.external_url"},
	{code: "W115", want: 1, text: "[federation]\nmode = 'client'\nexternal_url = 'http://u:secret@host'"},
	{code: "W115", want: 1, text: "[federation]\nmode = 'client'\nexternal_url = 'http://host/?a=b'"},
	{code: "W115", want: 0, text: "[federation]\nmode = 'client'\nexternal_url = 'http://host/base'"},
	{code: "W115", want: 0, text: "[federation]\nmode = 'client'\n[adapters]\nbeads = 'external'"}, // E001
	{code: "W115", want: 0, text: "[federation]\nmode = 'standalone'\nexternal_url = 'x'\nheartbeat = '1s'\nallowed_pubkeys = ['x']\nrelay_urls = ['x']"},
	{code: "W115", want: 3, text: "[federation]\nmode = 'host'\nheartbeat = '1s'\nallowed_pubkeys = ['79be']\nrelay_urls = ['http://relay']", says: "federation.heartbeat federation.allowed_pubkeys[0] federation.relay_urls[0]"},
	{code: "W115", want: 1, text: "[federation]\nmode = 'host'\nheartbeat = '0s'", says: "federation.heartbeat"},
	{code: "W115", want: 1, text: "[federation]\nmode = 'host'\nrelay_urls = ['ws://a', 'ws://a', 'ws://a', 'ws://a', 'ws://a', 'ws://a', 'ws://a', 'ws://a', 'ws://a']", says: "names 9 relays"},
	{code: "W115", want: 0, text: "[federation]\nmode = 'host'\nheartbeat = '5s'\nallowed_pubkeys = ['79be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798', 'npub10elfcs4fr0l0r8af98jlmgdh9c8tcxjvz9qkw038js35mp4dma8qzvjptg']\nrelay_urls = ['wss://relay.example.org/x']"},
	{code: "W115", want: 1, text: "[adapters]\nevents = 'local-jsonl'\n[slots.events]\nmax_bytes = 5", says: "slots.events.max_bytes"},
	{code: "W115", want: 0, text: "[adapters]\nevents = 'local-jsonl'\n[slots.events]\nmax_bytes = 0\nspool_bytes = 5"},
	{code: "W115", want: 2, text: "[adapters]\nevents = 'external'\n[slots.events]\nspool_bytes = 5\n[integrations.external_events]\nurl = 'x'", says: "slots.events.spool_bytes integrations.external_events.url"},
	{code: "W115", want: 0, text: "[adapters]\nevents = 'external'\n[slots.events]\nformat = 'json'\n[integrations.external_events]\nurl = 'https://h/hook?k=1'"},
	{code: "W115", want: 1, text: "[adapters]\nmemory = 'external-pg'\n[integrations.ruvector_external]\nconninfo = 'db.example.org'", says: "integrations.ruvector_external.conninfo"},
	{code: "W115", want: 0, text: "[adapters]\nmemory = 'external-pg'\n[integrations.ruvector_external]\nconninfo = 'host=db dbname=memory'"},
	{code: "W115", want: 1, text: "[adapters]\nmemory = 'embedded-ruvector'\n[slots.memory.embedder]\nkind = 'http'\nurl = 'ollama:11434'", says: "slots.memory.embedder.url"},
	{code: "W115", want: 0, text: "[slots.memory.embedder]\nkind = 'http'\nurl = 'ollama:11434'"},
	{code: "W115", want: 1, text: "[observability]\notlp_endpoint = 'collector:4318'", says: "observability.otlp_endpoint"},
	{code: "W115", want: 0, text: "[observability]\notlp_endpoint = 'http://collector:4318'"},
	{code: "E114", want: 1, text: "[programs.a]\ncommand = 'x'\nready = [{fd = 3}, {tcp = 'h:1'}, {fd = 4}]\n[programs.b]\ncommand = 'x'\nready = {fd = 3}", says: "ready[2].fd"},
	{code: "E114", want: 0, text: "[programs.a]\ncommand = 'x'\nready = [{fd = 3}, {log = 'up'}]\n[programs.b]\ncommand = 'x'\nready = {fd = 3}"},
	{code: "E109", want: 1, text: "[programs.a]\ncommand = 'x'\ninstances = 2\nlogs = {to = 'file', path = '/x'}"},
	{code: "E109", want: 1, text: "[programs.a]\ncommand = 'x'\nlogs = {to = 'file', path = '/x'}\n[programs.b]\ncommand = 'x'\nlogs = {to = 'file', path = '/x'}", says: `"a"`},
	{code: "E109", want: 1, text: "[programs.a]\ncommand = 'x'\nlogs = {to = 'file', path = '/x', stderr_path = '/e'}\n[programs.b]\ncommand = 'x'\nlogs = {to = 'file', path = '/e'}", says: `"a"`},
	{code: "E109", want: 1, text: "[programs.a]\ncommand = 'x'\nlogs = {path = '/l/x'}\n[programs.b]\ncommand = 'x'\nlogs = {path = '/l/../l//x'}"},
	{code: "E109", want: 1, text: "[programs.a]\ncommand = 'x'\nlogs = {path = '/x.20260101T000000.000000000Z'}\n[programs.b]\ncommand = 'x'\nlogs = {path = '/x'}"},
	{code: "E109", want: 1, text: "[programs.a]\ncommand = 'x'\nlogs = {stderr_path = '/x'}\n[programs.b]\ncommand = 'x'\nlogs = {stderr_path = '/x'}", says: `"a"`},
	{code: "E170", want: 1, text: "[templates.a]\ncommand = 'x'\nintents = [38000]", says: "templates.a.intents stdin"},
	{code: "E170", want: 0, text: "[templates.a]\ncommand = 'x'\nintents = [38000]\nstdin = 'pipe'\n[templates.b]\ncommand = 'x'\nintents = []"},
	{code: "E171", want: 2, text: "[templates.a]\ncommand = 'x'\nintents = [38000, 38001, 38000]\n[templates.b]\ncommand = 'x'\nintents = [38001, 38002, 38000]", says: "templates.b.intents 38001 templates.a"},
	{code: "E171", want: 0, text: "[templates.a]\ncommand = 'x'\nintents = [38000]\n[templates.b]\ncommand = 'x'\nintents = [38001]"},
	{code: "W170", want: 1, text: "[templates.a]\ncommand = 'x'\nintents = [38000]", says: "sovereign_mesh.enabled"},
	{code: "W170", want: 1, text: "[sovereign_mesh]\nenabled = true\n[sovereign_mesh.relay]\npod_bridge = false\n[templates.a]\ncommand = 'x'\nintents = [38000]", says: "pod_bridge"},
	{code: "W170", want: 1, text: "[sovereign_mesh]\nenabled = true\n[templates.a]\ncommand = 'x'\nintents = [38000]", says: "adapters.orchestrator"},
	{code: "W170", want: 0, text: "[adapters]\norchestrator = 'local-process-manager'\n[sovereign_mesh]\nenabled = true\n[templates.a]\ncommand = 'x'\nintents = [38000]"},
	{code: "W170", want: 0, text: "[templates.a]\ncommand = 'x'"},
	{code: "E160", want: 1, text: "[supervisor.log.forward.a]\ntype = 'syslog'\nurl = 'http://x'", says: "supervisor.log.forward.a.url"},
	{code: "E160", want: 1, text: "[supervisor.log.forward.a]\ntype = 'loki'\nurl = 'tcp://x:1'", says: `supervisor.log.forward.a.url "tcp://x:1" "loki"`},
	{code: "E160", want: 1, text: "[supervisor.log.forward.a]\ntype = 'syslog'\nurl = 'https://web:hunter2@x/hunter2'", says: `"https://…"`},
	{code: "E160", want: 0, text: "[supervisor.log.forward.a]\ntype = 'loky'\nurl = 'tcp://x:1'\n[supervisor.log.forward.b]\ntype = 'loki'\nurl = 'ftp://x:1'"},
	{code: "E161", want: 1, text: "[supervisor.log.forward.a]\ntype = 'otlp'\nurl = 'https://x'\nprograms = ['web', 'w[eb']", says: "w[eb"},
	{code: "E161", want: 0, text: "[supervisor.log.forward.a]\ntype = 'otlp'\nurl = 'https://x'\nprograms = ['web', 'w[eb]*']"},
	{code: "E160", want: 0, text: "[supervisor.log.forward.a]\ntype = 'otlp'\nurl = 'https://x'\n[supervisor.log.forward.b]\ntype = 'syslog'\nurl = 'unix:///dev/log'"},
	{code: "W160", want: 2, text: "[supervisor.log.forward.a]\ntype = 'syslog'\nurl = 'tcp://x'\ntoken_env = 'T'\nheaders = {X = 'y'}", says: "supervisor.log.forward.a.token_env"},
	{code: "W160", want: 0, text: "[supervisor.log.forward.a]\ntype = 'loki'\nurl = 'http://x'\ntoken_env = 'T'\nheaders = {X = 'y'}\n[supervisor.log.forward.b]\ntype = 'syslog'\nurl = 'tcp://x'"},
	{code: "W161", want: 2, text: "[supervisor.log.forward.a]\ntype = 'loki'\nurl = 'http://x'\ntoken_env = 'LOKI'\n[api.keys.k]\nrole = 'viewer'\nenv = 'ONCALL'", says: "supervisor.log.forward.a.token_env LOKI api.keys.k.env ONCALL"},
	{code: "W161", want: 1, text: "[api.keys.k]\nrole = 'viewer'\nenv = 'ONCALL'", env: "ONCALL=", says: "ONCALL"},
	{code: "W161", want: 0, text: "[supervisor.log.forward.a]\ntype = 'loki'\nurl = 'http://x'\ntoken_env = 'LOKI'\n[api.keys.k]\nrole = 'viewer'\nenv = 'ONCALL'\n[api.keys.l]\nrole = 'viewer'\nfile = '/k'", env: "LOKI=x ONCALL=y"},
	{code: "E109", want: 0, text: "[programs.a]\ncommand = 'x'\nlogs = {to = 'file', path = '/x', stderr_path = '/x'}"},
	{code: "E109", want: 0, text: "[programs.a]\ncommand = 'x'\ninstances = 2\nlogs = {to = 'file', path = '/x/${INSTANCE}'}"},
	{code: "E110", want: 1, text: "[supervisor]\ndrain = '24s'"},
	{code: "E110", want: 0, text: "[supervisor]\ndrain = '20s'"},
	{code: "E112", want: 2, text: "[api.keys.a]\nrole = 'viewer'\n[api.keys.b]\nrole = 'operator'\nenv = 'K'\nfile = '/k'", says: "api.keys.a api.keys.b"},
	{code: "E112", want: 0, text: "[api.keys.a]\nrole = 'viewer'\nenv = 'K'"},
	{code: "W107", want: 1, text: "[supervisor]\nlisten = 'off'\nconsole = 'read-only'"},
	{code: "W107", want: 0, text: "[supervisor]\nlisten = 'off'\nconsole = false"},
	{code: "E111", want: 1, text: "[slots.memory.embedder]\nkind = 'http'"},
	{code: "E111", want: 0, text: "[slots.memory.embedder]\nkind = 'http'\nurl = 'http://x'"},
	{code: "E150", want: 3, text: "[programs.a]\ncommand = 'x'\nsandbox = {capabilities = ['CAP_CHOWN', 'FLY'], seccomp = 'strict', allow_syscalls = ['make_coffee'], deny_syscalls = ['ptrace', 'nope']}", says: "FLY"},
	{code: "E150", want: 0, text: "[programs.a]\ncommand = 'x'\nsandbox = {capabilities = ['net_bind_service'], seccomp = 'strict', allow_syscalls = ['ptrace']}"},
	{code: "E150", want: 0, text: "[programs.a]\ncommand = 'x'\nsandbox = {capabilities = ['FLY'], mode = 'off'}"},
	{code: "E151", want: 1, text: "[templates.a]\ncommand = 'x'\nsandbox = {seccomp = 'strict', allow_syscalls = ['ptrace'], deny_syscalls = ['ptrace']}", says: "both name"},
	{code: "E151", want: 1, text: "[programs.a]\ncommand = 'x'\nsandbox = {allow_syscalls = ['ptrace']}", says: "seccomp is not written"},
	{code: "E151", want: 0, text: "[supervisor.defaults]\nsandbox = {seccomp = 'strict'}\n[programs.a]\ncommand = 'x'\nsandbox = {allow_syscalls = ['ptrace']}"},
	{code: "E151", want: 1, text: "[supervisor.defaults]\nsandbox = {seccomp = 'strict'}\n[programs.a]\ncommand = 'x'\nsandbox = {no_new_privileges = false}", says: "contradicts seccomp"},
	{code: "E151", want: 1, text: "[programs.a]\ncommand = 'x'\nsandbox = {no_new_privileges = false, read = ['/'], seccomp = 'strict'}", says: "contradicts seccomp"},
	{code: "E151", want: 0, text: "[programs.a]\ncommand = 'x'\nsandbox = {no_new_privileges = false, capabilities = []}"},
	{code: "W150", want: 2, text: "[supervisor.agents]\nguard = false\n[programs.a]\ncommand = 'x'\nguard = false", says: "trace agentinit"},
	{code: "W150", want: 0, text: "[programs.a]\ncommand = 'x'\nguard = true"},
	{code: "W151", want: 1, text: "[programs.a]\ncommand = 'x'\nsandbox = {read = ['/there', '/missing', '-/missing', '${X}/y']}", says: "/missing, which"},
	{code: "W151", want: 0, text: "[programs.a]\ncommand = 'x'\nsandbox = {read = ['/there']}"},
	{code: "W152", want: 1, text: "[programs.a]\ncommand = 'x'\nsandbox = {seccomp = 'strict', mode = 'audit'}"},
	{code: "W152", want: 0, text: "[programs.a]\ncommand = 'x'\nsandbox = {seccomp = 'strict'}"},
	{code: "W102", want: 1, text: "[supervisor.defaults]\nrestart = 'always'\n[programs.a]\ncommand = 'x'\ntype = 'oneshot'"},
	{code: "W102", want: 0, text: "[programs.a]\ncommand = 'x'\ntype = 'oneshot'"},
	{code: "W103", want: 2, text: "[programs.a]\ncommand = 'x'\nenvironment = {API_KEY = 'hunter2', DB_PASSWORD = 'hunter2', KEYBOARD = 'de', OTHER_TOKEN = '${T}', SSL_KEY = '/etc/key'}", says: "API_KEY DB_PASSWORD"},
	{code: "W104", want: 2, text: "[security.exceptions.gaussian-splatting]\ninherits = ['gpu-cuda', 'gaussian-splatting']", says: "security.exceptions.gaussian-splatting.inherits gpu-cuda"},
	{code: "W104", want: 0, text: "[security.exceptions.gpu-cuda]\n[security.exceptions.gaussian-splatting]\ninherits = ['gpu-cuda']"},
	{code: "W103", want: 0, text: "[programs.a]\ncommand = 'x'\nenvironment = {API_KEY = '${API_KEY}'}"},
	{code: "W100", want: 2, text: "[programs.a]\ncommand = 'x'\nports = ['80:9090', 81]\n[programs.b]\ncommand = 'x'\nports = ['8081:81', '9091/udp']", says: "programs.a.ports[0] programs.b.ports[0]"},
	{code: "W100", want: 0, text: "[programs.a]\ncommand = 'x'\nports = [8000]\nready = {tcp = ':8000'}"},
	{code: "W108", want: 3, text: "[supervisor]\nports = ['80:8080', '127.0.0.1:80:8081', '81:8082', '81:8082']\n[programs.a]\ncommand = 'x'\nports = [80, '9090:9000', '9091:53/udp']", says: "80/tcp supervisor.ports[0] supervisor.ports[1] programs.a.ports[0] programs.a.ports[1] supervisor.listen"},
	{code: "W108", want: 1, text: "[supervisor]\nports = ['127.0.0.1:80:8080', '[::1]:80:8081', '0.0.0.0:80:8080']", says: "supervisor.ports[0] supervisor.ports[2]"},
	{code: "W108", want: 0, text: "[supervisor]\nlisten = '127.0.0.1:9090'\nmetrics_listen = 'off'\nports = ['9090:8080', '127.0.0.1:80:8080', '10.0.0.1:80:8081', '81:8080', '53:53/udp', '53:5300']\n[programs.a]\ncommand = 'x'\nports = ['81:8080']"},
	{code: "W105", want: 1, text: "[programs.a]\ncommand = 'x'\nlogs = {to = 'console', path = '/x'}", says: "programs.a.logs.path"},
	{code: "W105", want: 1, text: "[programs.a]\ncommand = 'x'\nlogs = {to = 'none', stderr_path = '/x'}", says: "programs.a.logs.stderr_path"},
	{code: "W105", want: 0, text: "[programs.a]\ncommand = 'x'\nlogs = {to = 'console', stderr_path = '/x'}"},
	{code: "W105", want: 1, text: "[programs.a]\ncommand = 'x'\ntty = true\nlogs = {stderr_path = '/x'}", says: "programs.a.logs.stderr_path tty"},
	{code: "W105", want: 0, text: "[supervisor.defaults]\nlogs = {stderr_path = '/x-${NAME}'}\n[programs.a]\ncommand = 'x'\ntty = true\nlogs = {path = '/x'}"},
	{code: "W105", want: 0, text: "[supervisor.defaults]\nlogs = {to = 'none'}\n[programs.a]\ncommand = 'x'\nlogs = {path = '/x'}"},
	{code: "W106", want: 3, text: "[programs.a]\ncommand = ['sleep 1']\nready = {exec = ['a b']}\nhooks.pre_start = {command = ['a b']}",
		says: "programs.a.command programs.a.ready.exec programs.a.hooks.pre_start.command"},
	{code: "W106", want: 0, text: "[programs.a]\ncommand = 'sleep 1'\nstop_command = ['sleep', '1 2']\nready = {exec = ['true']}"},
	{code: "E109", want: 1, text: "[programs.a]\ncommand = 'x'\nlogs = {path = '/x'}\n[programs.b]\ncommand = 'x'\nlogs = {path = '/x'}", says: `"a"`},
}

func (c testCase) facts() Facts {
	env := map[string]string{}
	for word := range strings.FieldsSeq(c.env) {
		name, value, _ := strings.Cut(word, "=")
		env[name] = value
	}
	f := Facts{Arch: c.arch, Env: func(name string) (string, bool) { v, ok := env[name]; return v, ok }}
	f.Exists = func(path string) bool { return path == "/there" }
	f.Profiles = func() (all []Profile) {
		for _, dir := range c.headless {
			all = append(all, Profile{Dir: dir, HeadlessOnly: true})
		}
		return append(all, Profile{Dir: "/workspace/profiles/with-a-screen"})
	}
	return f
}

// Programs of the box can write the profiles, so a manifest without a desktop must not depend on them.
func TestProfilesAreReadForADesktopAlone(t *testing.T) {
	for text, want := range map[string]bool{"[programs.a]\ncommand = 'x'": false, "[desktop]\nenabled = true": true} {
		d, bad := schema.Parse("agentbox.toml", []byte(text))
		if bad != nil {
			t.Fatal(bad)
		}
		read := false
		Run(d, Facts{Profiles: func() []Profile { read = true; return nil }})
		if read != want {
			t.Errorf("%q: profiles were read: %v", text, read)
		}
	}
}

func TestRules(t *testing.T) {
	for _, c := range cases {
		d, bad := schema.Parse("agentbox.toml", []byte(c.text))
		if bad != nil {
			t.Errorf("%s: %v\n%s", c.code, bad, c.text)
			continue
		}
		var got []schema.Finding
		messages := ""
		for _, f := range Run(d, c.facts()) {
			if f.Code == c.code {
				got = append(got, f)
				messages += f.Message + "\n"
			}
		}
		if len(got) != c.want {
			t.Errorf("%s: %d findings, want %d\n%s\n%s", c.code, len(got), c.want, c.text, messages)
			continue
		}
		for word := range strings.FieldsSeq(c.says) {
			if !strings.Contains(messages, word) && !strings.Contains(paths(got), word) {
				t.Errorf("%s: %q is not in %q", c.code, word, messages)
			}
		}
		if strings.Contains(messages, "sk-ant") || strings.Contains(messages, "hunter2") {
			t.Errorf("%s shows a secret: %s", c.code, messages)
		}
		for _, f := range got {
			complete(t, f)
		}
	}
}

// W021 names each key once, and each capability once, whatever its spelling.
func TestPrivilegesAreListedOnce(t *testing.T) {
	d, bad := schema.Parse("agentbox.toml", []byte("[skills.browser]\nplaywright = true\n[security.exceptions.playwright]\n"+
		"cap_add = ['SYS_ADMIN', 'CAP_SYS_ADMIN', 'KILL', 'SYS_ADMIN']\nsecurity_opt_override = ['seccomp=unconfined', 'seccomp=unconfined']"))
	if bad != nil {
		t.Fatal(bad)
	}
	const want = `security.exceptions.playwright adds privilege: cap_add "SYS_ADMIN", "KILL"; security_opt_override "seccomp=unconfined"`
	for _, f := range Run(d, Facts{}) {
		if f.Code == "W021" && f.Message == want {
			return
		}
	}
	t.Errorf("no W021 says %s: %v", want, Run(d, Facts{}))
}

func paths(findings []schema.Finding) (all string) {
	for _, f := range findings {
		all += f.Path + "\n"
	}
	return all
}

func complete(t *testing.T, f schema.Finding) {
	t.Helper()
	if f.Line == 0 || f.Path == "" || f.Hint == "" || f.File == "" || f.Severity == "" {
		t.Errorf("incomplete finding %+v", f)
	}
	if want := map[byte]schema.Severity{'E': schema.Error, 'W': schema.Warning}[f.Code[0]]; f.Severity != want {
		t.Errorf("%s has severity %s", f.Code, f.Severity)
	}
}

// The zone is there, but a program has put a FIFO in place of its file: the name is not what is wrong.
func TestAZoneThatCannotBeRead(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("ZONEINFO", dir)
	if err := syscall.Mkfifo(filepath.Join(dir, "CET"), 0o600); err != nil {
		t.Fatal(err)
	}
	d, bad := schema.Parse("agentbox.toml", []byte("[programs.a]\ncommand = 'x'\ntype = 'schedule'\nschedule = '@hourly'\ntimezone = 'CET'"))
	if bad != nil {
		t.Fatal(bad)
	}
	for _, f := range Run(d, testCase{}.facts()) {
		if f.Code == "E104" {
			if complete(t, f); !strings.Contains(f.Message, "is not a regular file") {
				t.Error(f.Message)
			}
			return
		}
	}
	t.Error("there is no E104")
}

// Every rule needs a case that breaks it, and a similar case that does not. Otherwise the rule is
// untested.
func TestEveryRuleHasCases(t *testing.T) {
	breaks, keeps := map[string]bool{}, map[string]bool{}
	for _, c := range cases {
		if c.want > 0 {
			breaks[c.code] = true
		} else {
			keeps[c.code] = true
		}
	}
	seen := map[string]bool{}
	for _, r := range All() {
		if seen[r.Code] {
			t.Errorf("%s stands twice in the table", r.Code)
		}
		seen[r.Code] = true
		if r.Doc == "" {
			t.Errorf("%s has no text", r.Code)
		}
		if r.Check != nil && (!breaks[r.Code] || !keeps[r.Code]) {
			t.Errorf("%s lacks a case that breaks it or a near miss", r.Code)
		}
	}
	for code := range Retired() {
		if seen[code] {
			t.Errorf("%s is retired and in force", code)
		}
	}
}

// Every rule of the older validator exists here.
func TestInventory(t *testing.T) {
	want := strings.Fields(`E000 E001 E002 E003 E004 E005 E006 E007 E008 E010 E013 E014 E016 E017 E018 E019 E020 E021 E022 E023
		E024 E025 E026 E027 E028 E029 E030 E033 E035 E036 E037 E040 E041 E042 E043 E044 E045 E046 E048 E049 E050 E051 E052 E054
		W012 W021 W030 W031 W038 W039 W040 W041 W047 W048 W053`)
	for _, code := range want {
		if _, ok := Find(code); !ok {
			t.Errorf("%s is missing", code)
		}
	}
	old := 0
	for _, r := range All() {
		if r.Code[1] == '0' {
			old++
		}
	}
	if old != len(want) {
		t.Errorf("%d codes below 100, want %d", old, len(want))
	}
}

func TestPlaceholders(t *testing.T) {
	holders := []string{"change-this", "CHANGETHIS", "change_this", "your_key_here", "YourKeyHere", "sk-xxx", "sk_xxxxxx", "skXXX", "AKIA0123456789ABEXAMPLE",
		"akia0123456789abexample", "<your token>", "<a\nb>", "PLACEHOLDER", "todo", "  TODO\n"}
	values := []string{"change-this-secret-key", "changeme", "dummy", "sk-xx", "<>", "<a>b>", "xTODO", "AKIA0123456789EXAMPLE", "your key here", "sk-xxxy"}
	check := func(value string, want bool) {
		d, _ := schema.Parse("x", []byte(anthropic))
		facts := Facts{Env: func(string) (string, bool) { return value, true }}
		found := false
		for _, f := range Run(d, facts) {
			found = found || f.Code == "E018"
			if strings.Contains(f.Error(), value) {
				t.Errorf("a message shows the value %q", value)
			}
		}
		if found != want {
			t.Errorf("%q: placeholder %v, want %v", value, found, want)
		}
	}
	for _, v := range holders {
		check(v, true)
	}
	for _, v := range values {
		check(v, false)
	}
}

// Control characters in keys and values cannot break a line, or start a line with a made-up code.
func TestMessagesStayOnOneLine(t *testing.T) {
	text := `
"evil\nE999 forged" = 1
[adapters]
"x\nE001 forged" = "external"
beads = "a\u001b[2J\nE016 forged"
[providers."p\r\nE017 forged"]
enabled = true
env_var = "V\nE018 forged"
[linked_data]
enabled = true
[linked_data.contexts]
"c\u2028d" = ""
[security.exceptions."x\ny"]
[programs."a\nb"]
command = "x"
`
	r := Validate("dir\nname/agentbox.toml", []byte(text), Facts{}, planFacts())
	if len(r.Findings) < 8 {
		t.Fatalf("only %d findings", len(r.Findings))
	}
	for _, f := range r.Findings {
		for _, c := range f.Error() {
			if c < ' ' || c == 0x7f || c == 0x2028 {
				t.Errorf("control character in %q", f.Error())
			}
		}
	}
}
