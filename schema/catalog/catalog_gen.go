// Code generated from catalog.toml by make generate; DO NOT EDIT.

package catalog

func generated() *Catalogue {
	return &Catalogue{
		Profile: Profiles{
			Sections:         []string{"core", "federation", "adapters", "gpu", "desktop", "providers", "skills", "toolchains", "integrations", "consultants", "privacy_filter", "sovereign_mesh", "linked_data"},
			PlainEnvironment: []string{"AGENTBOX_CONFIG", "AGENTBOX_VERSION", "AGENTBOX_METRICS_PORT", "AGENTBOX_OTLP_ENDPOINT", "AGENTBOX_LOG_LEVEL", "MANAGEMENT_API_PORT"},
		},
		Baseline: Baseline{
			User:        "1000:1000",
			ReadOnly:    true,
			CapDrop:     []string{"ALL"},
			SecurityOpt: []string{"no-new-privileges:true", "seccomp=default"},
			PidsLimit:   4096,
			Tmpfs:       []string{"/tmp:mode=1777,size=256M", "/run:mode=1777,size=64M", "/var/run:mode=1777,size=16M", "/var/log:mode=1777,size=128M", "/var/log/supervisor:mode=1777,size=64M"},
			PlainTmpfs:  []string{"/tmp:mode=1777,size=256M", "/run:mode=1777,size=64M"},
		},
		Environment: map[string]string{
			"AGENTBOX_AGENT_ID":             "agentbox-core",
			"AGENTBOX_CONFIG":               "/etc/agentbox.toml",
			"AGENTBOX_FEDERATION_MODE":      "{federation.mode}",
			"AGENTBOX_LOG_LEVEL":            "{observability.log_level}",
			"AGENTBOX_METRICS_PORT":         "{observability.metrics_port}",
			"AGENTBOX_ORCHESTRATION":        "{core.orchestration}",
			"AGENTBOX_OTLP_ENDPOINT":        "{observability.otlp_endpoint}",
			"AGENTBOX_RELAY_BIND":           "{sovereign_mesh.relay.bind}",
			"AGENTBOX_RELAY_DATA_DIR":       "{sovereign_mesh.relay.data_dir}",
			"AGENTBOX_RELAY_ENABLED":        "{sovereign_mesh.relay.enabled}",
			"AGENTBOX_RELAY_FANOUT":         "{sovereign_mesh.relay.external_fanout}",
			"AGENTBOX_RELAY_IMPL":           "{sovereign_mesh.relay.implementation}",
			"AGENTBOX_RELAY_POD_BRIDGE":     "{sovereign_mesh.relay.pod_bridge}",
			"AGENTBOX_RELAY_POLICY":         "{sovereign_mesh.relay.ingress_policy}",
			"AGENTBOX_RELAY_PORT":           "{sovereign_mesh.relay.port}",
			"AGENTBOX_RELAY_RETENTION_DAYS": "{sovereign_mesh.relay.retention_days}",
			"AGENTBOX_VERSION":              "{@version}",
			"CLAUDE_CONFIG_DIR":             "/workspace/.claude",
			"COMFYUI_URL":                   "http://127.0.0.1:8188",
			"COMFYUI_WS_URL":                "ws://127.0.0.1:8188/ws",
			"ENABLE_AGENTIC_QE":             "{toolchains.agentic_qe}",
			"ENABLE_AGENT_BROWSER":          "{skills.browser.agent_browser}",
			"ENABLE_BLENDER":                "{skills.spatial_and_3d.blender}",
			"ENABLE_CLAUDE":                 "{toolchains.claude}",
			"ENABLE_CLAUDE_CODE":            "{toolchains.claude_code}",
			"ENABLE_CLAUDE_FLOW":            "{toolchains.claude_flow}",
			"ENABLE_CODEBASE_MEMORY":        "{toolchains.codebase_memory}",
			"ENABLE_CODEX":                  "{toolchains.codex}",
			"ENABLE_COMFYUI_BUILTIN":        "{skills.media.comfyui_builtin}",
			"ENABLE_COMFYUI_EXTERNAL":       "{integrations.comfyui_external.enabled}",
			"ENABLE_DESKTOP":                "{desktop.enabled}",
			"ENABLE_FFMPEG":                 "{skills.media.ffmpeg}",
			"ENABLE_GEMINI_CLI":             "{toolchains.gemini_cli}",
			"ENABLE_IMAGEMAGICK":            "{skills.media.imagemagick}",
			"ENABLE_JUPYTER":                "{skills.data_science.jupyter}",
			"ENABLE_LATEX":                  "{skills.docs.latex}",
			"ENABLE_MERMAID":                "{skills.docs.mermaid}",
			"ENABLE_NAGUAL_QE":              "{toolchains.nagual_qe}",
			"ENABLE_PLAYWRIGHT":             "{skills.browser.playwright}",
			"ENABLE_PYTORCH":                "{skills.data_science.pytorch}",
			"ENABLE_QE_BROWSER":             "{skills.browser.qe_browser}",
			"ENABLE_QGIS":                   "{skills.spatial_and_3d.qgis}",
			"ENABLE_REPORT_BUILDER":         "{skills.docs.report_builder}",
			"ENABLE_RUFLO":                  "{toolchains.ruflo}",
			"ENABLE_RUST_TOOLCHAIN":         "{toolchains.rust}",
			"GPU_BACKEND":                   "{gpu.backend}",
			"HOME":                          "/workspace",
			"MANAGEMENT_API_AUTH_MODE":      "hybrid",
			"MANAGEMENT_API_PORT":           "{supervisor.listen|port}",
			"NOSTR_BRIDGE_ENABLED":          "{sovereign_mesh.nostr_bridge}",
			"NOSTR_BRIDGE_PORT":             "9740",
			"NOSTR_RELAYS":                  "wss://relay.damus.io,wss://relay.primal.net",
			"OPF_ENABLED":                   "{privacy_filter.enabled}",
			"OPF_MODE":                      "{privacy_filter.mode}",
			"OPF_POLICY_BEADS":              "{privacy_filter.policy.beads}",
			"OPF_POLICY_EVENTS":             "{privacy_filter.policy.events}",
			"OPF_POLICY_INBOUND":            "{privacy_filter.policy.inbound}",
			"OPF_POLICY_MEMORY":             "{privacy_filter.policy.memory}",
			"OPF_POLICY_ORCHESTRATOR":       "{privacy_filter.policy.orchestrator}",
			"OPF_POLICY_OUTBOUND":           "{privacy_filter.policy.outbound}",
			"OPF_POLICY_PODS":               "{privacy_filter.policy.pods}",
			"OPF_PORT":                      "{privacy_filter.port}",
			"RUVECTOR_BACKEND":              "{core.vector_db}",
			"RUVECTOR_DATA_DIR":             "/var/lib/ruvector",
			"RUVECTOR_PORT":                 "9700",
			"SHARED_PROJECTS_ROOT":          "/projects",
			"SKILLS_TREE":                   "/opt/agentbox/skills",
			"SOLID_POD_ENABLED":             "{sovereign_mesh.solid_pod}",
			"SOLID_POD_PORT":                "{integrations.solid_pod_rs.port}",
			"SOLID_POD_ROOT":                "{integrations.solid_pod_rs.storage_root}",
			"SOLID_REQUIRE_NIP98":           "{sovereign_mesh.enabled}",
			"SOVEREIGN_MESH_ENABLED":        "{sovereign_mesh.enabled}",
			"WORKSPACE":                     "/workspace",
		},
		Operator: map[string]string{
			"AGENTBOX_AGENT_ID":        "agentbox-core",
			"AGENTBOX_IMAGE_HASH":      "",
			"ANTHROPIC_API_KEY":        "",
			"GEMINI_API_KEY":           "",
			"GITHUB_TOKEN":             "",
			"GOOGLE_GEMINI_API_KEY":    "",
			"MANAGEMENT_API_AUTH_MODE": "hybrid",
			"MANAGEMENT_API_KEY":       "",
			"NOSTR_RELAYS":             "wss://relay.damus.io,wss://relay.primal.net",
			"OLLAMA_BASE_URL":          "http://host.docker.internal:11434",
			"OLLAMA_MODEL":             "qwen2.5:32b-instruct",
			"OPENAI_API_KEY":           "ollama",
			"OPENAI_BASE_URL":          "http://host.docker.internal:11434/v1",
		},
		GPU: []GPU{GPU{
			Backend: "none",
		}, GPU{
			Backend:   "ollama-rocm",
			Exception: "gpu-rocm",
			Sidecar: &Accelerator{
				Image:       "docker.io/ollama/ollama:rocm",
				Devices:     []string{"/dev/kfd", "/dev/dri"},
				GroupAdd:    []string{"video", "988"},
				SecurityOpt: []string{"seccomp=unconfined"},
				Resource:    "amd.com/gpu",
			},
		}, GPU{
			Backend:   "ollama-cuda",
			Exception: "gpu-cuda",
			Sidecar: &Accelerator{
				Image:   "docker.io/ollama/ollama:latest",
				Runtime: "nvidia",
				DeviceRequests: []DeviceRequest{DeviceRequest{
					Driver:       "nvidia",
					Count:        -1,
					Capabilities: [][]string{[]string{"gpu"}},
				}},
				Resource: "nvidia.com/gpu",
			},
		}, GPU{
			Backend:   "local-cuda",
			Exception: "gpu-cuda",
			Environment: map[string]string{
				"CUDA_VISIBLE_DEVICES":       "all",
				"NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
			},
			Main: &Accelerator{
				Runtime: "nvidia",
				DeviceRequests: []DeviceRequest{DeviceRequest{
					Driver:       "nvidia",
					Count:        -1,
					Capabilities: [][]string{[]string{"gpu", "compute", "utility"}},
				}},
				Resource: "nvidia.com/gpu",
			},
			Sidecar: &Accelerator{
				Image:   "docker.io/ollama/ollama:latest",
				Runtime: "nvidia",
				DeviceRequests: []DeviceRequest{DeviceRequest{
					Driver:       "nvidia",
					Count:        -1,
					Capabilities: [][]string{[]string{"gpu", "compute", "utility"}},
				}},
				Resource: "nvidia.com/gpu",
			},
			Packages: []string{"cudaPackages.cuda_cudart", "cudaPackages.libcublas"},
		}},
		Exceptions: []Exception{Exception{
			Name: "desktop",
			When: []string{"desktop.enabled"},
		}, Exception{
			Name:    "gpu-rocm",
			When:    []string{"gpu.backend = ollama-rocm"},
			Sidecar: []string{"gpu.backend = ollama-rocm"},
		}, Exception{
			Name:    "gpu-cuda",
			When:    []string{"gpu.backend = ollama-cuda | local-cuda"},
			Sidecar: []string{"gpu.backend = ollama-cuda"},
		}, Exception{
			Name: "gaussian-splatting",
			When: []string{"skills.spatial_and_3d.gaussian_splatting"},
		}, Exception{
			Name: "playwright",
			When: []string{"skills.browser.playwright"},
		}, Exception{
			Name: "code-server",
			When: []string{"toolchains.code_server"},
		}, Exception{
			Name: "telegram-mirror",
			When: []string{"sovereign_mesh.telegram_mirror"},
		}, Exception{
			Name: "nostr-relay",
			When: []string{"sovereign_mesh.relay.enabled"},
		}, Exception{
			Name: "solid-pod-rs",
			When: []string{"adapters.pods = local-solid-rs"},
		}},
		Features: []Feature{Feature{
			Name:    "management",
			Summary: "Probes, API and metrics of agentinit itself",
			Ports: []Port{Port{
				Name: "management",
				Port: "{supervisor.listen|port}",
				When: []string{"supervisor.listen != off"},
				Bind: "{supervisor.listen|host}",
			}, Port{
				Name: "metrics",
				Port: "{observability.metrics_port}",
				When: []string{"supervisor.metrics_listen != off"},
			}},
			Mounts: []Mount{Mount{
				Source:   "./agentbox.toml",
				Target:   "/etc/agentbox.toml",
				ReadOnly: true,
			}},
		}, Feature{
			Name:    "agentbox",
			Summary: "The directories that every agentbox has",
			When:    []string{"@profile = agentbox"},
			Ports: []Port{Port{
				Name: "vector-store",
				Port: "9700",
			}},
			Mounts: []Mount{Mount{
				Source: "./workspace",
				Target: "/workspace",
			}, Mount{
				Source: "./projects",
				Target: "/projects",
			}, Mount{
				Source: "ruvector-data",
				Target: "/var/lib/ruvector",
			}, Mount{
				Source: "solid-data",
				Target: "/var/lib/solid",
			}, Mount{
				Source: "sovereign-identities",
				Target: "/var/lib/agentbox/identities",
			}},
		}, Feature{
			Name:    "solid-pod",
			Summary: "Local Solid pod server",
			When:    []string{"sovereign_mesh.enabled", "adapters.pods = local-solid-rs"},
			Programs: map[string]map[string]interface{}{
				"solid-pod": map[string]interface{}{
					"command":   []interface{}{"agentctl", "pod-server", "--storage", "."},
					"directory": "${SOLID_POD_ROOT:-{integrations.solid_pod_rs.storage_root}}",
					"environment": map[string]interface{}{
						"HOME":                       "${WORKSPACE:-/workspace}",
						"JSS_BASE_URL":               "{integrations.solid_pod_rs.base_url}",
						"JSS_ENABLE_DID_NOSTR":       "{integrations.solid_pod_rs.enable_did_nostr}",
						"JSS_ENABLE_DPOP_CACHE":      "{integrations.solid_pod_rs.enable_dpop_cache}",
						"JSS_ENABLE_OIDC":            "{integrations.solid_pod_rs.enable_oidc}",
						"JSS_ENABLE_QUOTA":           "{integrations.solid_pod_rs.enable_quota}",
						"JSS_ENABLE_RATE_LIMIT":      "{integrations.solid_pod_rs.enable_rate_limit}",
						"JSS_ENABLE_SCHNORR_VERIFY":  "{integrations.solid_pod_rs.enable_schnorr_verify}",
						"JSS_ENABLE_WEBHOOK_SIGNING": "{integrations.solid_pod_rs.enable_webhook_signing}",
						"JSS_HOST":                   "{integrations.solid_pod_rs.bind}",
						"JSS_LOG_LEVEL":              "{integrations.solid_pod_rs.log_level}",
						"JSS_NOTIFICATIONS":          "{integrations.solid_pod_rs.notifications}",
						"JSS_PORT":                   "{integrations.solid_pod_rs.port}",
						"JSS_QUOTA_DEFAULT_BYTES":    "{integrations.solid_pod_rs.quota_default_bytes}",
						"JSS_RATE_LIMIT_PER_SEC":     "{integrations.solid_pod_rs.rate_limit_per_sec}",
						"JSS_STORAGE":                "{integrations.solid_pod_rs.storage}",
						"JSS_STORAGE_ROOT":           "${SOLID_POD_ROOT:-{integrations.solid_pod_rs.storage_root}}",
						"JSS_V04_COMPAT":             "{integrations.solid_pod_rs.jss_v04_compat}",
						"RUST_LOG":                   "{integrations.solid_pod_rs.log_level}",
					},
					"priority": int64(30),
					"ready": map[string]interface{}{
						"tcp": "{integrations.solid_pod_rs.bind|dial}:{integrations.solid_pod_rs.port}",
					},
					"required": true,
					"restart":  "always",
				},
			},
			Artifacts: []Artifact{Artifact{
				ID:       "solid-pod-rs",
				Class:    "A",
				Entry:    "solid-pod-rs-server",
				Required: new(false),
			}},
			Ports: []Port{Port{
				Name:   "solid-pod",
				Port:   "{integrations.solid_pod_rs.port}",
				Bind:   "{integrations.solid_pod_rs.bind}",
				Expose: true,
			}},
		}, Feature{
			Name:    "https-bridge",
			Summary: "TLS front of the management API",
			When:    []string{"sovereign_mesh.enabled", "sovereign_mesh.https_bridge"},
			Programs: map[string]map[string]interface{}{
				"https-bridge": map[string]interface{}{
					"command":   []interface{}{"node", "/opt/agentbox/https-bridge/https-proxy.js"},
					"directory": "/opt/agentbox/https-bridge",
					"environment": map[string]interface{}{
						"CERT_DIR":            "/var/lib/https-bridge/certs",
						"HOME":                "${WORKSPACE:-/workspace}",
						"MANAGEMENT_API_PORT": "${MANAGEMENT_API_PORT:-{supervisor.listen|port}}",
						"SSL_CERT":            "/var/lib/https-bridge/certs/server.crt",
						"SSL_KEY":             "/var/lib/https-bridge/certs/server.key",
					},
					"priority": int64(32),
					"restart":  "always",
				},
			},
			Artifacts: []Artifact{Artifact{
				ID:    "https-bridge",
				Class: "A",
				Entry: "/opt/agentbox/https-bridge/https-proxy.js",
			}},
			Mounts: []Mount{Mount{
				Source: "https-bridge-certs",
				Target: "/var/lib/https-bridge",
			}},
			Packages: []string{"nodejs"},
		}, Feature{
			Name:    "nostr-relay",
			Summary: "Nostr relay as a program of its own",
			When:    []string{"sovereign_mesh.relay.enabled", "sovereign_mesh.relay.implementation = nostr-rs-relay"},
			Programs: map[string]map[string]interface{}{
				"nostr-relay": map[string]interface{}{
					"command":   []interface{}{"nostr-rs-relay", "--config", "${AGENTBOX_RUNTIME_DIR:-/run/agentbox}/nostr-relay.toml"},
					"directory": "{sovereign_mesh.relay.data_dir}",
					"environment": map[string]interface{}{
						"HOME":     "${WORKSPACE:-/workspace}",
						"RUST_LOG": "info",
					},
					"priority": int64(35),
					"ready": map[string]interface{}{
						"tcp": "{sovereign_mesh.relay.bind|dial}:{sovereign_mesh.relay.port}",
					},
					"restart": "always",
				},
			},
			Artifacts: []Artifact{Artifact{
				ID:       "nostr-rs-relay",
				Class:    "A",
				Entry:    "nostr-rs-relay",
				Command:  []string{"nostr-rs-relay", "--version"},
				Packages: []string{"nostr-rs-relay"},
			}},
			Ports: []Port{Port{
				Name: "nostr-relay",
				Port: "{sovereign_mesh.relay.port}",
				When: []string{"sovereign_mesh.relay.expose"},
				Bind: "{sovereign_mesh.relay.bind}",
			}},
			Volumes: []string{"nostr-relay-data"},
		}, Feature{
			Name:    "embedded-relay",
			Summary: "Nostr relay inside agentinit",
			When:    []string{"sovereign_mesh.relay.enabled", "sovereign_mesh.relay.implementation = embedded"},
			Ports: []Port{Port{
				Name: "nostr-relay",
				Port: "{sovereign_mesh.relay.port}",
				When: []string{"sovereign_mesh.relay.expose"},
				Bind: "{sovereign_mesh.relay.bind}",
			}},
			Volumes: []string{"nostr-relay-data"},
		}, Feature{
			Name:    "telegram-mirror",
			Summary: "Telegram mirror (two credentials of the operator)",
			When:    []string{"sovereign_mesh.telegram_mirror"},
			Operator: map[string]string{
				"CTM_BOT_TOKEN":        "",
				"CTM_TELEGRAM_CHAT_ID": "",
			},
		}, Feature{
			Name:    "desktop",
			Summary: "Desktop over VNC",
			When:    []string{"desktop.enabled"},
			Programs: map[string]map[string]interface{}{
				"i3wm": map[string]interface{}{
					"command": []interface{}{"i3"},
					"environment": map[string]interface{}{
						"DISPLAY": ":1",
						"HOME":    "${WORKSPACE:-/workspace}",
					},
					"needs":         []interface{}{"xvnc"},
					"priority":      int64(41),
					"restart":       "always",
					"start_seconds": int64(3),
				},
				"xvnc": map[string]interface{}{
					"command":  []interface{}{"Xvnc", ":1", "-geometry", "{desktop.resolution}", "-depth", "24", "-SecurityTypes", "None", "-rfbport", "5901", "-localhost"},
					"priority": int64(40),
					"ready": map[string]interface{}{
						"unix": "/tmp/.X11-unix/X1",
					},
					"restart": "always",
				},
			},
			Artifacts: []Artifact{Artifact{
				ID:       "xvnc",
				Class:    "B",
				Entry:    "Xvnc",
				Packages: []string{"tigervnc"},
			}, Artifact{
				ID:       "i3",
				Class:    "B",
				Entry:    "i3",
				Command:  []string{"i3", "--version"},
				Packages: []string{"i3"},
			}},
			Ports: []Port{Port{
				Name: "vnc",
				Port: "5901",
				Bind: "127.0.0.1",
			}, Port{
				Name:    "browser-debug",
				Port:    "9222",
				Expose:  true,
				Publish: new(false),
			}},
		}, Feature{
			Name:    "playwright",
			Summary: "Browser automation",
			When:    []string{"skills.browser.playwright"},
			Programs: map[string]map[string]interface{}{
				"playwright-mcp": map[string]interface{}{
					"command":   []interface{}{"node", "/opt/agentbox/skills/playwright/mcp-server/server.js"},
					"directory": "/opt/agentbox/skills/playwright",
					"environment": map[string]interface{}{
						"HOME":                     "${WORKSPACE:-/workspace}",
						"PLAYWRIGHT_BROWSERS_PATH": "/opt/agentbox/playwright-browsers",
					},
					"priority": int64(200),
					"restart":  "always",
				},
			},
			Artifacts: []Artifact{Artifact{
				ID:    "playwright-mcp",
				Class: "C",
				Entry: "/opt/agentbox/skills/playwright/mcp-server/server.js",
			}, Artifact{
				ID:       "playwright-browsers",
				Class:    "D",
				Entry:    "/opt/agentbox/playwright-browsers",
				Assets:   []string{"/opt/agentbox/playwright-browsers/chromium*"},
				Packages: []string{"playwright-driver.browsers"},
			}},
			Packages: []string{"nodejs"},
		}, Feature{
			Name:    "qe-browser",
			Summary: "Browser for quality work",
			When:    []string{"skills.browser.qe_browser"},
			Artifacts: []Artifact{Artifact{
				ID:    "qe-browser",
				Class: "C",
				Entry: "/opt/agentbox/skills/qe-browser",
			}},
		}, Feature{
			Name:    "agent-browser",
			Summary: "Browser command line for agents",
			When:    []string{"skills.browser.agent_browser"},
			Artifacts: []Artifact{Artifact{
				ID:       "agent-browser",
				Class:    "B",
				Entry:    "agent-browser",
				Command:  []string{"agent-browser", "--version"},
				Packages: []string{"agent-browser"},
			}},
		}, Feature{
			Name:    "ffmpeg",
			Summary: "Audio and video tools",
			When:    []string{"skills.media.ffmpeg"},
			Artifacts: []Artifact{Artifact{
				ID:       "ffmpeg",
				Class:    "B",
				Entry:    "ffmpeg",
				Command:  []string{"ffmpeg", "-version"},
				Packages: []string{"ffmpeg"},
			}},
		}, Feature{
			Name:    "imagemagick",
			Summary: "Image tools",
			When:    []string{"skills.media.imagemagick"},
			Programs: map[string]map[string]interface{}{
				"imagemagick-mcp": map[string]interface{}{
					"command":   []interface{}{"python3", "/opt/agentbox/skills/imagemagick/mcp-server/server.py"},
					"directory": "/opt/agentbox/skills/imagemagick",
					"environment": map[string]interface{}{
						"HOME": "${WORKSPACE:-/workspace}",
					},
					"priority": int64(210),
					"restart":  "always",
				},
			},
			Artifacts: []Artifact{Artifact{
				ID:       "imagemagick",
				Class:    "B",
				Entry:    "magick",
				Command:  []string{"magick", "-version"},
				Packages: []string{"imagemagick"},
			}, Artifact{
				ID:    "imagemagick-mcp",
				Class: "C",
				Entry: "/opt/agentbox/skills/imagemagick/mcp-server/server.py",
			}},
			Packages: []string{"python3"},
		}, Feature{
			Name:    "comfyui-builtin",
			Summary: "Image generation inside the box",
			When:    []string{"skills.media.comfyui_builtin"},
			Programs: map[string]map[string]interface{}{
				"comfyui-builtin": map[string]interface{}{
					"command":   []interface{}{"python3", "main.py", "--listen", "127.0.0.1", "--port", "8188"},
					"directory": "/opt/agentbox/comfyui",
					"environment": map[string]interface{}{
						"COMFYUI_OUTPUT_DIR": "${WORKSPACE:-/workspace}/comfyui-outputs",
						"HOME":               "${WORKSPACE:-/workspace}",
					},
					"priority": int64(220),
					"restart":  "always",
				},
			},
			Artifacts: []Artifact{Artifact{
				ID:    "comfyui",
				Class: "A",
				Entry: "/opt/agentbox/comfyui/main.py",
			}},
			Packages: []string{"python3Packages.torch"},
		}, Feature{
			Name:    "comfyui-external",
			Summary: "Image generation elsewhere",
			When:    []string{"integrations.comfyui_external.enabled"},
			Environment: map[string]string{
				"COMFYUI_URL":    "{integrations.comfyui_external.url}",
				"COMFYUI_WS_URL": "{integrations.comfyui_external.ws_url}",
			},
		}, Feature{
			Name:    "qgis",
			Summary: "Geographic information system",
			When:    []string{"skills.spatial_and_3d.qgis"},
			Programs: map[string]map[string]interface{}{
				"qgis-mcp": map[string]interface{}{
					"command":   []interface{}{"python3", "/opt/agentbox/scripts/qgis_mcp_standalone.py"},
					"directory": "/opt/agentbox/scripts",
					"priority":  int64(230),
					"restart":   "always",
				},
			},
			Artifacts: []Artifact{Artifact{
				ID:       "qgis",
				Class:    "B",
				Entry:    "qgis_process",
				Packages: []string{"qgis"},
			}, Artifact{
				ID:    "qgis-mcp",
				Class: "C",
				Entry: "/opt/agentbox/scripts/qgis_mcp_standalone.py",
			}},
			Packages: []string{"python3"},
		}, Feature{
			Name:    "blender",
			Summary: "3D modelling",
			When:    []string{"skills.spatial_and_3d.blender"},
			Programs: map[string]map[string]interface{}{
				"blender-mcp": map[string]interface{}{
					"command":   []interface{}{"node", "/opt/agentbox/skills/blender/tools/blender-mcp-proxy.js"},
					"directory": "/opt/agentbox/skills/blender",
					"environment": map[string]interface{}{
						"HOME": "${WORKSPACE:-/workspace}",
					},
					"priority": int64(231),
					"restart":  "always",
				},
			},
			Artifacts: []Artifact{Artifact{
				ID:       "blender",
				Class:    "B",
				Entry:    "blender",
				Command:  []string{"blender", "--version"},
				Packages: []string{"blender"},
			}, Artifact{
				ID:    "blender-mcp",
				Class: "C",
				Entry: "/opt/agentbox/skills/blender/tools/blender-mcp-proxy.js",
			}},
			Packages: []string{"nodejs"},
		}, Feature{
			Name:    "gaussian-splatting",
			Summary: "3D reconstruction",
			When:    []string{"skills.spatial_and_3d.gaussian_splatting"},
			Artifacts: []Artifact{Artifact{
				ID:    "gaussian-splatting",
				Class: "C",
				Entry: "/opt/agentbox/skills/gaussian-splatting",
			}},
		}, Feature{
			Name:    "pytorch",
			Summary: "PyTorch",
			When:    []string{"skills.data_science.pytorch"},
			Artifacts: []Artifact{Artifact{
				ID:       "pytorch",
				Class:    "D",
				Entry:    "python3",
				Command:  []string{"python3", "-c", "import torch"},
				Timeout:  "60s",
				Packages: []string{"python3Packages.torch"},
			}},
		}, Feature{
			Name:    "jupyter",
			Summary: "Notebook server",
			When:    []string{"skills.data_science.jupyter"},
			Operator: map[string]string{
				"JUPYTER_TOKEN": "",
			},
			Programs: map[string]map[string]interface{}{
				"jupyter-lab": map[string]interface{}{
					"command":   []interface{}{"jupyter-lab", "--ip=0.0.0.0", "--port=8888", "--no-browser"},
					"directory": "${WORKSPACE:-/workspace}",
					"environment": map[string]interface{}{
						"HOME": "${WORKSPACE:-/workspace}",
					},
					"pass_environment": []interface{}{"*", "JUPYTER_TOKEN"},
					"priority":         int64(232),
					"restart":          "always",
				},
			},
			Artifacts: []Artifact{Artifact{
				ID:       "jupyter-lab",
				Class:    "B",
				Entry:    "jupyter-lab",
				Packages: []string{"python3Packages.jupyterlab"},
			}},
			Ports: []Port{Port{
				Name:   "jupyter",
				Port:   "8888",
				Expose: true,
			}},
		}, Feature{
			Name:    "privacy-filter",
			Summary: "Redaction sidecar",
			When:    []string{"privacy_filter.enabled"},
			Programs: map[string]map[string]interface{}{
				"opf-router": map[string]interface{}{
					"command":   []interface{}{"python3", "/opt/agentbox/scripts/opf-router.py"},
					"directory": "/opt/agentbox/scripts",
					"environment": map[string]interface{}{
						"HF_HOME":            "${WORKSPACE:-/workspace}/.cache/huggingface",
						"HOME":               "${WORKSPACE:-/workspace}",
						"OPF_DTYPE":          "{privacy_filter.dtype}",
						"OPF_MODE":           "{privacy_filter.mode}",
						"OPF_MODEL":          "{privacy_filter.model}",
						"OPF_PORT":           "{privacy_filter.port}",
						"TRANSFORMERS_CACHE": "${WORKSPACE:-/workspace}/.cache/huggingface",
					},
					"priority": int64(240),
					"restart":  "always",
				},
			},
			Artifacts: []Artifact{Artifact{
				ID:    "opf-router",
				Class: "A",
				Entry: "/opt/agentbox/scripts/opf-router.py",
			}, Artifact{
				ID:       "opf-model",
				Class:    "D",
				Entry:    "/workspace/.cache/huggingface",
				Required: new(false),
			}},
			Packages: []string{"python3Packages.torch", "python3Packages.transformers"},
		}, Feature{
			Name:    "latex",
			Summary: "TeX",
			When:    []string{"skills.docs.latex"},
			Artifacts: []Artifact{Artifact{
				ID:       "latex",
				Class:    "B",
				Entry:    "pdflatex",
				Command:  []string{"pdflatex", "--version"},
				Packages: []string{"texliveMedium"},
			}},
		}, Feature{
			Name:    "mermaid",
			Summary: "Diagram renderer",
			When:    []string{"skills.docs.mermaid"},
			Artifacts: []Artifact{Artifact{
				ID:       "mermaid",
				Class:    "B",
				Entry:    "mmdc",
				Packages: []string{"mermaid-cli"},
			}},
		}, Feature{
			Name:    "report-builder",
			Summary: "Report skill; brings TeX",
			When:    []string{"skills.docs.report_builder"},
			Artifacts: []Artifact{Artifact{
				ID:       "latex",
				Class:    "B",
				Entry:    "pdflatex",
				Command:  []string{"pdflatex", "--version"},
				Packages: []string{"texliveMedium"},
			}, Artifact{
				ID:    "report-builder",
				Class: "C",
				Entry: "/opt/agentbox/skills/report-builder",
			}},
		}, Feature{
			Name:    "ontology",
			Summary: "Ontology tools",
			When:    []string{"skills.ontology.enabled"},
			Artifacts: []Artifact{Artifact{
				ID:    "ontology",
				Class: "C",
				Entry: "/opt/agentbox/skills/ontology",
			}},
		}, Feature{
			Name:    "claude",
			Summary: "Claude command line",
			When:    []string{"toolchains.claude"},
			Artifacts: []Artifact{Artifact{
				ID:       "claude",
				Class:    "B",
				Entry:    "claude",
				Packages: []string{"claude-code"},
			}},
		}, Feature{
			Name:    "claude-code",
			Summary: "Claude Code",
			When:    []string{"toolchains.claude_code"},
			Artifacts: []Artifact{Artifact{
				ID:       "claude",
				Class:    "B",
				Entry:    "claude",
				Packages: []string{"claude-code"},
			}},
		}, Feature{
			Name:    "ruflo",
			Summary: "Ruflo orchestrator",
			When:    []string{"toolchains.ruflo"},
			Artifacts: []Artifact{Artifact{
				ID:    "ruflo",
				Class: "B",
				Entry: "ruflo",
			}},
		}, Feature{
			Name:    "claude-flow",
			Summary: "Claude Flow",
			When:    []string{"toolchains.claude_flow"},
			Artifacts: []Artifact{Artifact{
				ID:    "claude-flow",
				Class: "B",
				Entry: "claude-flow",
			}},
		}, Feature{
			Name:    "agentic-qe",
			Summary: "Agentic QE",
			When:    []string{"toolchains.agentic_qe"},
			Artifacts: []Artifact{Artifact{
				ID:    "agentic-qe",
				Class: "B",
				Entry: "aqe",
			}},
		}, Feature{
			Name:    "nagual-qe",
			Summary: "Nagual QE",
			When:    []string{"toolchains.nagual_qe"},
			Artifacts: []Artifact{Artifact{
				ID:    "nagual-qe",
				Class: "B",
				Entry: "nagual-qe",
			}},
		}, Feature{
			Name:    "codebase-memory",
			Summary: "Codebase memory server",
			When:    []string{"toolchains.codebase_memory"},
			Artifacts: []Artifact{Artifact{
				ID:    "codebase-memory",
				Class: "C",
				Entry: "codebase-memory-mcp",
			}},
		}, Feature{
			Name:    "rust",
			Summary: "Rust toolchain",
			When:    []string{"toolchains.rust"},
			Artifacts: []Artifact{Artifact{
				ID:       "rust",
				Class:    "B",
				Entry:    "cargo",
				Assets:   []string{"rustc"},
				Command:  []string{"cargo", "--version"},
				Packages: []string{"cargo", "rustc"},
			}},
		}, Feature{
			Name:    "gemini-cli",
			Summary: "Gemini command line",
			When:    []string{"toolchains.gemini_cli"},
			Artifacts: []Artifact{Artifact{
				ID:       "gemini-cli",
				Class:    "B",
				Entry:    "gemini",
				Packages: []string{"gemini-cli"},
			}},
		}, Feature{
			Name:    "codex",
			Summary: "Codex command line",
			When:    []string{"toolchains.codex"},
			Artifacts: []Artifact{Artifact{
				ID:       "codex",
				Class:    "B",
				Entry:    "codex",
				Packages: []string{"codex"},
			}},
		}, Feature{
			Name:    "code-server",
			Summary: "Web editor; started by hand, so there is a port but no program",
			When:    []string{"toolchains.code_server"},
			Artifacts: []Artifact{Artifact{
				ID:       "code-server",
				Class:    "B",
				Entry:    "code-server",
				Packages: []string{"code-server"},
			}},
			Ports: []Port{Port{
				Name: "code-server",
				Port: "8080",
			}},
		}, Feature{
			Name:    "cuda",
			Summary: "Large CUDA set",
			When:    []string{"toolchains.cuda"},
			Artifacts: []Artifact{Artifact{
				ID:       "cuda",
				Class:    "B",
				Entry:    "nvcc",
				Command:  []string{"nvcc", "--version"},
				Packages: []string{"cudaPackages.cudatoolkit"},
			}},
		}, Feature{
			Name:    "gpu-sidecar",
			Summary: "Model server beside the box",
			When:    []string{"gpu.backend != none"},
			Volumes: []string{"ollama"},
		}, Feature{
			Name:    "consultants",
			Summary: "Audit directory of the consultants",
			When:    []string{"consultants.enabled"},
			Environment: map[string]string{
				"AGENTBOX_CONSULTATIONS_DIR":   "{consultants.log_dir}",
				"AGENTBOX_INTELLIGENCE_SIGNAL": "{consultants.intelligence_signal}",
			},
			Mounts: []Mount{Mount{
				Source: "consultations",
				Target: "{consultants.log_dir}",
			}},
		}, Feature{
			Name:    "consultant-codex",
			Summary: "Consultant codex",
			When:    []string{"consultants.enabled", "consultants.codex.enabled"},
			Environment: map[string]string{
				"AGENTBOX_CODEX_HOME":       "{consultants.codex.home}",
				"AGENTBOX_CODEX_MODEL":      "{consultants.codex.model}",
				"AGENTBOX_CODEX_TIMEOUT_MS": "{consultants.codex.timeout_ms}",
			},
			Artifacts: []Artifact{Artifact{
				ID:    "consultant-codex",
				Class: "C",
				Entry: "/opt/agentbox/consultants/codex",
			}},
		}, Feature{
			Name:    "consultant-gemini",
			Summary: "Consultant gemini",
			When:    []string{"consultants.enabled", "consultants.gemini.enabled"},
			Environment: map[string]string{
				"AGENTBOX_GEMINI_HOME":       "{consultants.gemini.home}",
				"AGENTBOX_GEMINI_MODEL":      "{consultants.gemini.model}",
				"AGENTBOX_GEMINI_TIMEOUT_MS": "{consultants.gemini.timeout_ms}",
			},
			Artifacts: []Artifact{Artifact{
				ID:    "consultant-gemini",
				Class: "C",
				Entry: "/opt/agentbox/consultants/gemini",
			}},
		}, Feature{
			Name:    "consultant-zai",
			Summary: "Consultant zai",
			When:    []string{"consultants.enabled", "consultants.zai.enabled"},
			Environment: map[string]string{
				"AGENTBOX_ZAI_HOME":       "{consultants.zai.home}",
				"AGENTBOX_ZAI_MODEL":      "{consultants.zai.model}",
				"AGENTBOX_ZAI_TIMEOUT_MS": "{consultants.zai.timeout_ms}",
			},
			Artifacts: []Artifact{Artifact{
				ID:    "consultant-zai",
				Class: "C",
				Entry: "/opt/agentbox/consultants/zai",
			}},
		}, Feature{
			Name:    "consultant-perplexity",
			Summary: "Consultant perplexity",
			When:    []string{"consultants.enabled", "consultants.perplexity.enabled"},
			Environment: map[string]string{
				"AGENTBOX_PERPLEXITY_MODEL":      "{consultants.perplexity.model}",
				"AGENTBOX_PERPLEXITY_TIMEOUT_MS": "{consultants.perplexity.timeout_ms}",
			},
			Artifacts: []Artifact{Artifact{
				ID:    "consultant-perplexity",
				Class: "C",
				Entry: "/opt/agentbox/consultants/perplexity",
			}},
		}, Feature{
			Name:    "consultant-deepseek",
			Summary: "Consultant deepseek",
			When:    []string{"consultants.enabled", "consultants.deepseek.enabled"},
			Environment: map[string]string{
				"AGENTBOX_DEEPSEEK_MODEL":      "{consultants.deepseek.model}",
				"AGENTBOX_DEEPSEEK_TIMEOUT_MS": "{consultants.deepseek.timeout_ms}",
			},
			Artifacts: []Artifact{Artifact{
				ID:    "consultant-deepseek",
				Class: "C",
				Entry: "/opt/agentbox/consultants/deepseek",
			}},
		}, Feature{
			Name:    "linked-data-contexts",
			Summary: "Pinned JSON-LD contexts of the image",
			When:    []string{"linked_data.enabled", "linked_data.context_cache_mode = image"},
			Artifacts: []Artifact{Artifact{
				ID:    "linked-data-contexts",
				Class: "D",
				Entry: "{linked_data.context_catalogue}",
			}},
		}, Feature{
			Name:    "linked-data-viewer",
			Summary: "Local viewer for linked data",
			When:    []string{"linked_data.enabled", "linked_data.viewer.mode = local-linkedobjects"},
			Artifacts: []Artifact{Artifact{
				ID:    "linked-data-viewer",
				Class: "D",
				Entry: "{linked_data.viewer.bundle_path}",
			}},
		}},
	}
}
