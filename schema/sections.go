package schema

// The sections that the older manifest has too. Their rules are in schema/rules, their effects in
// schema/catalog.

const hostPortNote = " Published on the host."

func coreShape() *shape {
	return table("Names of the box's central parts.",
		field("orchestration", text("Name of the agent orchestrator; only the default is implemented. Becomes AGENTBOX_ORCHESTRATION.").def("ruflo-v3")),
		field("vector_db", text("Name of the local vector store; only the default is implemented. Becomes RUVECTOR_BACKEND.").def("ruvector-embedded")),
	)
}

func federationShape() *shape {
	return table("Whether the box stands alone, is a client of a host mesh, or is a host.",
		field("mode", enum("Role of the box among other boxes. Without the key, the rules take the box for neither standalone nor client: if every key of [adapters] is off, write standalone (E004).", "standalone", "client", "host").eg("standalone")),
		field("external_url", text("Base address of the host mesh; handed to every external adapter. Needed in client mode by E001 and E027.").def("").eg("https://mesh.example.org")),
		field("registry", text("Of mode host: PostgreSQL connection string of the registry that several hosts share; empty keeps it in SQLite in the workspace. AGENTBOX_FEDERATION_REGISTRY wins, and keeps a password out of the manifest.").def("").own()),
		field("heartbeat", duration("Of mode host: time between two heartbeats of a box, 5s to 5m.").def("30s").own()),
		field("allowed_pubkeys", texts("Of mode host: keys of boxes, 64 hexadecimal digits or npub, that may register with a signature. Others need AGENTBOX_FEDERATION_TOKEN.").def([]string{}).own()),
		field("relay_urls", texts("Of mode host: Nostr relays, at most 8, that boxes use for as long as their session lasts, if their manifests let them use outside relays.").def([]string{}).eg([]any{"wss://relay.example.org"}).own()),
	)
}

func adaptersShape() *shape {
	return table("The class of each of the five durable-state slots. Settings of a slot live in [slots.<slot>].",
		field("beads", enum("Structured receipts of agent work.", "local-sqlite", "external", "off").def("off").eg("local-sqlite")),
		field("pods", enum("Linked-data storage. local-solid-rs is the pod server of the box: solid-pod-rs-server if the image has it, otherwise agentctl pod-server. Without a value there is no solid-pod program either.", "local-solid-rs", "external", "off").def("off").eg("local-solid-rs")),
		field("memory", enum("Vector memory.", "embedded-ruvector", "external-pg", "off").def("off").eg("embedded-ruvector")),
		field("events", enum("Sink for agent lifecycle events.", "local-jsonl", "external", "off").def("off").eg("local-jsonl")),
		field("orchestrator", enum("Channel that spawns and watches agents. With stdio-bridge the box is ready while a host is attached.", "local-process-manager", "stdio-bridge", "off").def("off").eg("local-process-manager")),
	)
}

func gpuShape() *shape {
	return table("How a GPU is used.",
		field("backend", enum("Becomes GPU_BACKEND. local-cuda is for x86_64 only (E008).", "none", "ollama-rocm", "ollama-cuda", "local-cuda").def("none")),
	)
}

func desktopShape() *shape {
	return table("A desktop over VNC on port 5901. Xvnc asks for no password, so it listens inside the box alone and the port is not published: forward it (ssh -L, kubectl port-forward).",
		field("enabled", onOff("Desktop on port 5901. Becomes ENABLE_DESKTOP. Needs [security.exceptions.desktop] (E021).")),
		field("stack", enum("Desktop flavour. It has no effect: the programs are Xvnc with i3 in any case.", "hyprland-wayland", "x11-openbox").def("hyprland-wayland")),
		field("resolution", text("Size of the virtual screen, WIDTHxHEIGHT in pixels.").match(`^[0-9]+x[0-9]+$`, `a size such as "1920x1080"`).def("1920x1080")),
	)
}

func observabilityShape() *shape {
	return table("Metrics, traces and the log threshold.",
		field("metrics_port", port("Port of the Prometheus endpoint."+hostPortNote+" Must not be a reserved port (E013).").def(9091).overrides("AGENTBOX_METRICS_PORT")),
		field("otlp_endpoint", text("Trace exporter address; empty means no traces.").def("").eg("http://collector:4318").overrides("AGENTBOX_OTLP_ENDPOINT")),
		field("log_level", logLevel("Log threshold.").def("info").overrides("AGENTBOX_LOG_LEVEL")),
	)
}

func logLevel(doc string) *shape {
	return enum(doc, "trace", "debug", "info", "warn", "error")
}

func providersShape() *shape {
	return mapping("Credential sources, one table for each; the name is free.", nil, table("One credential source.",
		must("enabled", boolean("Whether the credential is needed (E017).")),
		must("env_var", text("Environment variable that holds the key or token; never the value itself.").eg("ANTHROPIC_API_KEY")),
		field("optional_env_vars", texts("Further variables that may be passed on; never demanded.").def([]string{}).eg([]any{"OPENAI_BASE_URL"})),
		field("auth_mode", enum("oauth leaves the login to the tool inside the container; honoured for anthropic, openai and zai only (W040).", "api_key", "oauth").def("api_key")),
	))
}

func skillsShape() *shape {
	return table("Skills of the agents, in six groups.",
		field("browser", table("Browsers.",
			field("playwright", onOff("Browser automation; starts playwright-mcp; exception playwright.")),
			field("qe_browser", onOff("Browser for quality work.")),
			field("agent_browser", onOff("Browser command line for agents.")),
		)),
		field("media", table("Sound and images.",
			field("ffmpeg", onOff("Audio and video tools.")),
			field("imagemagick", onOff("Image tools; starts imagemagick-mcp.")),
			field("comfyui_builtin", onOff("Image generation inside the container on port 8188; excludes the external one (E007).")),
		)),
		field("spatial_and_3d", table("Maps and 3D.",
			field("blender", onOff("Starts blender-mcp.")),
			field("qgis", onOff("Starts qgis-mcp.")),
			field("gaussian_splatting", onOff("3D reconstruction; needs gpu.backend = \"local-cuda\" (E006); exception gaussian-splatting.")),
		)),
		field("data_science", table("Data science.",
			field("pytorch", onOff("PyTorch in the image.")),
			field("jupyter", onOff("Starts jupyter-lab on port 8888.")),
		)),
		field("docs", table("Documents.",
			field("latex", onOff("TeX.")),
			field("mermaid", onOff("Diagram renderer.")),
			field("report_builder", onOff("Report skill; brings TeX too.")),
		)),
		field("ontology", table("Ontologies.",
			field("enabled", onOff("Ontology tools.")),
		)),
	)
}

func toolchainsShape() *shape {
	return table("Command-line tools in the image.",
		field("claude", onOff("Needed by consultant zai (E037).")),
		field("claude_code", onOff("Puts the tool into the image.")),
		field("ruflo", onOff("Puts the tool into the image.")),
		field("claude_flow", onOff("Puts the tool into the image.")),
		field("agentic_qe", onOff("Puts the tool into the image.")),
		field("nagual_qe", onOff("Puts the tool into the image.")),
		field("codebase_memory", onOff("Puts the tool into the image.")),
		field("rust", onOff("Puts the Rust toolchain into the image.")),
		field("gemini_cli", onOff("Needed by consultant gemini (E037).")),
		field("codex", onOff("Needed by consultant codex (E037).")),
		field("code_server", onOff("Web editor on port 8080; exception code-server.")),
		field("cuda", onOff("Large CUDA set; needs gpu.backend = \"local-cuda\" (E019).")),
	)
}

func integrationsShape() *shape {
	return table("What runs beside or outside the box.",
		field("ruvector_external", table("A PostgreSQL server for adapters.memory = \"external-pg\".",
			field("enabled", onOff("Not read by any rule.")),
			field("conninfo", text("PostgreSQL connection string (E002). agentinit reads ~/.pgpass and the certificates in ~/.postgresql only if passfile, sslrootcert, sslcert or sslkey names them. Behind PgBouncer, its ignore_startup_parameters must name statement_timeout and idle_in_transaction_session_timeout.").def("").eg("postgres://agentbox@db.example.org/memory").hidden()),
		)),
		field("solid_pod_rs", solidPodShape()),
		field("external_orchestrator", table("An orchestrator outside the box (E003).",
			field("enabled", onOff("Uses it.")),
			field("protocol", enum("Its protocol.", "stdio", "http", "mcp").def("stdio")),
		)),
		field("external_events", table("Sinks for adapters.events = \"external\": at least one of url, relay_urls, mcp_endpoint (E005).",
			field("enabled", onOff("Not read by any rule.")),
			field("url", text("Event sink. agentinit POSTs events to URL/v1/events as CloudEvents, in order and at least once, with a bearer token if one is set; any 2xx answer accepts them. A sink that describes itself at URL/v1/meta is another box; every other answer there is that of a plain sink. slots.events.format = \"json\" POSTs single events to the URL itself.").eg("https://events.example.org")),
			field("relay_urls", texts("Nostr relays as event sink.").eg([]any{"wss://relay.example.org"})),
			field("mcp_endpoint", text("MCP server as event sink.").eg("http://mcp:8000/mcp")),
		)),
		field("external_network", table("An existing container network to join.",
			field("enabled", onOff("Joins it.")),
			field("network", text("Its name.").eg("mesh")),
		)),
		field("comfyui_external", table("An image generator elsewhere; excludes the built-in one (E007).",
			field("enabled", onOff("Uses it.")),
			field("url", text("Its HTTP address (COMFYUI_URL).").def("http://comfyui:8188")),
			field("ws_url", text("Its WebSocket address (COMFYUI_WS_URL).").def("ws://comfyui:8188/ws")),
		)),
	)
}

func solidPodShape() *shape {
	return table("The local pod server. If the image has no solid-pod-rs-server, agentctl pod-server is the server; what it has not, its program refuses at its start.",
		field("port", port("Listening port (E025, E028).").def(8484)),
		field("bind", text("Listening address.").def("127.0.0.1").formOf(decodesHost)),
		field("storage", enum("Storage backend. agentctl has only fs.", "fs", "memory", "s3").def("fs")),
		field("storage_root", text("Directory of the file backend; also the working directory and a readiness path.").def("/var/lib/solid").overrides("SOLID_POD_ROOT")),
		field("base_url", text("Public base address. With agentctl it ends with the host and port.").def("http://127.0.0.1:8484")),
		field("enable_oidc", onOff("Solid-OIDC login. agentctl has none.")),
		field("enable_schnorr_verify", boolean("NIP-98 signature check. agentctl always checks.").def(true)),
		field("enable_dpop_cache", onOff("DPoP replay cache; needs enable_oidc (E033).")),
		field("notifications", enum("Change notification transport. agentctl has no webhook.", "websocket", "webhook", "off").def("websocket")),
		field("log_level", logLevel("Log threshold of the pod server.").def("info")),
		field("enable_did_nostr", boolean("Resolver for did:nostr (E049).").def(true)),
		field("enable_webhook_signing", boolean("Signs outgoing webhooks. agentctl sends none.").def(true)),
		field("enable_rate_limit", boolean("Request limiter.").def(true)),
		field("enable_quota", boolean("Storage quota per pod.").def(true)),
		field("jss_v04_compat", boolean("Compatibility with an older server's behaviour. Without effect with agentctl.").def(true)),
		field("rate_limit_per_sec", integer("Ceiling for each connection and for each key, requests a second.").from(1).def(20)),
		field("quota_default_bytes", integer("Quota per pod in bytes.").from(0).def(10737418240)),
	)
}

func consultantsShape() *shape {
	one := func(doc, model, home string, timeout int) *shape {
		keys := []key{
			field("enabled", onOff("Uses it.")),
			field("model", text("Model name.").def(model)),
		}
		if home != "" {
			keys = append(keys, field("home", text("Home directory of its tool.").def(home)))
		}
		keys = append(keys, field("timeout_ms", integer("Limit of one consultation, in milliseconds.").between(1000, 600000).def(timeout)))
		return table(doc, keys...)
	}
	return table("Second opinions from other models; stdio servers that a coordinator starts on demand.",
		field("enabled", onOff("Master switch (E036).")),
		field("log_dir", text("Directory of the JSON-lines audit files.").def("/var/lib/agentbox/consultations").overrides("AGENTBOX_CONSULTATIONS_DIR")),
		field("intelligence_signal", onOff("Also write a quality signal per consultation (W038).")),
		field("codex", one("Needs provider openai (E035) and toolchain codex (E037).", "gpt-5.4", "/home/openai-user/.codex", 180000)),
		field("gemini", one("Needs provider gemini (E035) and toolchain gemini_cli (E037).", "gemini-2.5-pro", "/home/gemini-user", 180000)),
		field("zai", one("Needs provider zai (E035) and toolchain claude (E037).", "glm-5", "/home/zai-user", 180000)),
		field("perplexity", one("Needs provider perplexity (E035).", "sonar-pro", "", 60000)),
		field("deepseek", one("Needs provider deepseek (E035).", "deepseek-reasoner", "", 120000)),
	)
}

func privacyShape() *shape {
	policy := func(slot, def string) key {
		return field(slot, enum("strict: redact or refuse. soft: redact when possible, write anyway otherwise and count it. off: no call.", "strict", "soft", "off").def(def))
	}
	direction := func(name, variable string) key {
		return field(name, enum("For programs that pass prompts on: they get it as "+variable+". No prompt passes through agentinit.", "strict", "soft", "off").def("soft"))
	}
	return table("Redaction of personal data before it is stored or sent.",
		field("enabled", onOff("Starts the redaction sidecar. OPF_ENABLED.")),
		field("mode", enum("Where the model runs (E022, E023). OPF_MODE.", "off", "local-gpu", "local-cpu").def("off")),
		field("port", port("Loopback port of the sidecar (E025). OPF_PORT.").def(9092)),
		field("dtype", enum("Precision; q4 on the CPU only (E024). OPF_DTYPE.", "bf16", "f32", "q4").def("bf16")),
		field("model", text("Model identifier. OPF_MODEL.").def("openai/privacy-filter")),
		field("policy", table("What happens to text that is written, for each slot and direction. OPF_POLICY_<SLOT>. An import of beads and a restore are written as they are, because they put back what was stored before.",
			policy("pods", "strict"), policy("memory", "strict"), policy("events", "soft"), policy("beads", "soft"),
			policy("orchestrator", "off"), direction("inbound", "OPF_POLICY_INBOUND"), direction("outbound", "OPF_POLICY_OUTBOUND"),
		)),
		field("entities", table("What is redacted.",
			field("enabled", list("Kinds of personal data; an empty list means all eight.", enum("", "account_number",
				"private_address", "private_email", "private_person", "private_phone", "private_url", "private_date", "secret")).def([]string{})),
		)),
	)
}

func meshShape() *shape {
	return table("Identity and mesh services.",
		field("enabled", onOff("Switches them on. SOVEREIGN_MESH_ENABLED, SOLID_REQUIRE_NIP98.")),
		field("solid_pod", onOff("Pod served for the identity. SOLID_POD_ENABLED; needed by E044.")),
		field("nostr_bridge", onOff("In-process Nostr client. NOSTR_BRIDGE_ENABLED.")),
		field("https_bridge", onOff("TLS front; starts https-bridge.")),
		field("publish_agent_events", onOff("Publish agent events; /ready then needs a relay that answers.")),
		field("telegram_mirror", onOff("Telegram mirror; needs two variables (E014); exception telegram-mirror.")),
		field("relay", relayShape()),
		field("operator", table("Whom the box belongs to.",
			field("pubkey_hex", text("Public key, hexadecimal.").eg("3bf0c63fcb93463407af97a5e5ee64fa883d107ef9e558472c4eb9aaaefa459d")),
			field("npub", text("The same key as npub.").eg("npub180cvv07tjdrrgpa0j7j7tmnyl2yr6yr7l8j4s3evf6u64th6gkwsyjh6w6")),
			field("display_name", text("Name to show.").eg("Operator")),
			field("relay_urls", texts("Relays of the operator.").def([]string{})),
		)),
	)
}

func relayShape() *shape {
	return table("The embedded Nostr relay.",
		field("enabled", onOff("Switches it on; exception nostr-relay.")),
		field("implementation", enum("Which relay. `nostr-rs-relay` is a program of the image; `embedded` is agentinit itself.", "nostr-rs-relay", "embedded", "external", "off").def("nostr-rs-relay")),
		field("port", port("Port (E028).").def(7777)),
		field("bind", text("Address (E029).").def("127.0.0.1").formOf(decodesHost)),
		field("expose", onOff("Publish the port on the host.")),
		field("data_dir", text("Database directory.").def("/var/lib/nostr-relay")),
		field("ingress_policy", enum("Who may write (E030, W030, W039).", "allowlist", "signed-only", "open").def("allowlist")),
		field("allowed_pubkeys", texts("Writers under allowlist, 64 hexadecimal digits each (W116); empty leaves only the own key.").def([]string{})),
		field("allowed_kinds", list("Accepted event kinds.", integer("").from(0)).def([]int{1, 1059, 30078, 27235, 38000, 38100})),
		field("pod_bridge", boolean("Copy accepted events into the pod inbox.").def(true)),
		field("external_fanout", enum("Traffic with outside relays.", "bidirectional", "publish-only", "subscribe-only", "off").def("off")),
		field("max_event_bytes", integer("Event size limit in bytes.").from(1024).def(131072)),
		field("messages_per_sec", integer("Rate limit per connection.").from(1).def(5)),
		field("retention_days", integer("Lifetime of events without an expiry, at most 100 years; 0 keeps them for ever.").from(0).def(30)),
		field("max_bytes", size("Of implementation embedded: largest size of the database, at least 1MiB. When the database is full, the relay deletes the oldest events: those of strangers first, then those of allowed_pubkeys, then the box's own. An event never makes the relay delete those of a higher group; without room, the relay refuses it.").from(1<<20).def("256MiB").formOf(decodes[storeSize]).own()),
		field("allow_nip04", onOff("Accept the older direct-message form (W031).")),
		field("info_description", text("Relay information document.").def("Agentbox sovereign relay")),
		field("info_contact", text("Same; left out when empty.").def("")),
	)
}

func securityShape() *shape {
	reason := field("reason", text("Why the privilege is needed; text for the audit record.").eg("Chromium's own sandbox makes namespaces."))
	groups := field("group_add", texts("Further groups."))
	opts := field("security_opt_override", texts("Security options that replace the baseline's of the same key (W021).").eg([]any{"seccomp=unconfined"}))
	runtime := field("runtime_override", text("Container runtime instead of the engine's default.").eg("nvidia"))
	// Every block may have these keys: any privilege may need them, and its reason.
	block := func(doc string, own ...key) *shape {
		return table(doc, append(own, reason, groups, opts, runtime)...).absent()
	}
	volumes := func(example string) key {
		return field("writable_volumes", list("Volumes mounted writable.", text("").formOf(decodes[Volume])).eg([]any{example}))
	}
	return table("Hardening of the container: exceptions from the baseline.",
		field("audit_acknowledged", onOff("The additions named by W021 are known and wanted.").own()),
		field("enforce", onOff("What the kernel refuses of the declared profile is fatal instead of a warning.").own()),
		field("exceptions", table("One block for each feature that needs more than the baseline. A block without its feature is E020, a feature without its block E021.",
			field("desktop", block("Active with desktop.enabled.", field("tmpfs", texts("Further tmpfs mounts.").eg([]any{"/tmp/.X11-unix", "/run/user/1000"})))),
			field("gpu-rocm", block("Active with gpu.backend = \"ollama-rocm\".", field("devices", texts("Device nodes.").eg([]any{"/dev/kfd", "/dev/dri"})))),
			field("gpu-cuda", block("Active with gpu.backend = \"ollama-cuda\" or \"local-cuda\".",
				field("runtime", enum("Container runtime.", "nvidia")),
				field("device_requests", list("Device reservations.", table("",
					field("driver", text("Device driver.").eg("nvidia")),
					field("count", integer("How many; -1 is all.").eg(int64(-1))),
					field("capabilities", list("Alternatives of capability sets.", texts("")).eg([]any{[]any{"gpu"}})),
				))),
			)),
			field("gaussian-splatting", block("Active with skills.spatial_and_3d.gaussian_splatting.", field("inherits", texts("Exceptions whose additions apply first.").eg([]any{"gpu-cuda"})))),
			field("playwright", block("Active with skills.browser.playwright.", field("cap_add", texts("Capabilities given back.").eg([]any{"SYS_ADMIN"})))),
			field("code-server", block("Active with toolchains.code_server.", volumes("codeserver-config:/home/devuser/.local/share/code-server"))),
			field("telegram-mirror", block("Active with sovereign_mesh.telegram_mirror.", volumes("ctm-config:/home/devuser/.config/claude-telegram-mirror"))),
			field("nostr-relay", block("Active with sovereign_mesh.relay.enabled.", volumes("nostr-relay-data:/var/lib/nostr-relay"))),
			field("solid-pod-rs", block("Active with adapters.pods = \"local-solid-rs\".", volumes("solid-data:/var/lib/solid"))),
		)),
	)
}

func linkedDataShape() *shape {
	surface := func(name, doc string, of ...string) key {
		return field(name, enum(doc, of...).def("off"))
	}
	return table("Linked-data surfaces.",
		field("enabled", onOff("Master switch of all surfaces (E040).")),
		surface("pods", "Pod representations (E041).", "on", "emit", "off"),
		surface("events", "Nostr payloads (E042).", "on", "emit", "off"),
		surface("credentials", "Verifiable credentials (E043).", "emit", "off"),
		surface("did_documents", "DID documents (E044, E049).", "emit", "off"),
		surface("provenance", "Provenance receipts.", "emit", "off"),
		surface("capability_descriptors", "Descriptions of MCP servers.", "emit", "off"),
		surface("skill_metadata", "Skill descriptions, at build time.", "emit", "off"),
		surface("payments", "Mandates and receipts (E043).", "on", "emit", "off"),
		surface("memory_catalogue", "Catalogue of memory namespaces.", "emit", "off"),
		surface("architecture_docs", "Front matter of design documents, at build time.", "emit", "off"),
		surface("http_meta", "Linked-data answers of the meta endpoints.", "emit", "off"),
		field("default_form", enum("JSON-LD form.", "compacted", "expanded", "flattened", "framed").def("compacted")),
		field("context_catalogue", text("Directory of pinned contexts.").def("/opt/agentbox/contexts")),
		field("context_cache_mode", enum("Where contexts come from (E046).", "image", "bind", "off").def("image")),
		field("unknown_context_policy", enum("Treatment of unpinned contexts (W047).", "fail-closed", "fail-open").def("fail-closed")),
		field("canonicalisation", enum("Canonical form (E043).", "jcs", "none").def("jcs")),
		field("round_trip_in_dispatch", boolean("Self-check on each dispatch.").def(true)),
		field("contexts", mapping("Prefix to IRI (not empty: E045).", nil, text("IRI.").eg("https://schema.org/"))),
		field("did", table("DID documents.",
			field("method", enum("DID method (E049).", "nostr", "key", "web").def("nostr")),
			field("service_endpoints", list("Services listed in the DID document.", enum("", "pod", "relay")).def([]string{"pod", "relay"})),
			field("publish_to_well_known", boolean("Serve it under the well-known path.").def(true)),
		)),
		field("privacy_handoff", table("Order of redaction and linked data.",
			field("order", enum("States what the code does anyway (E048).", "after").def("after")),
		)),
		field("viewer", table("Viewer for linked data.",
			field("mode", enum("Which one (E050, E051, W053).", "off", "local-linkedobjects", "external").def("off")),
			field("mount_path", text("Route prefix (E054).").match(`^/[A-Za-z0-9_-]+$`, `one path segment such as "/lo"`).def("/lo")),
			field("bundle_path", text("Files of the local viewer.").def("/opt/agentbox/browser")),
			field("external_url", text("Viewer elsewhere (E051).").def("")),
			field("sri_hash", text("Integrity hash of an outside bundle (E052).").def("")),
			field("expose_port", onOff("Reachable from outside the host.")),
			field("extra_panes", texts("Further panes of the operator.").def([]string{})),
			field("upstream_panes_visible", boolean("Show the panes of the bundle.").def(true)),
			field("source_code_header", text("Override of the source-code response header.").def("")),
		)),
	)
}
