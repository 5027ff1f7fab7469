package schema

import (
	"errors"
	"path"
	"strings"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// DefaultArtifactTimeout bounds the look for the files of an artifact, and then its command.
const DefaultArtifactTimeout = 10 * time.Second

// The sections that the older manifest does not have: programs and the box around them.

func newManifestShape() *shape {
	return table("Manifest of one box. Every table is optional; unknown keys are refused (E016).",
		field("core", coreShape()),
		field("federation", federationShape()),
		field("adapters", adaptersShape()),
		field("gpu", gpuShape()),
		field("desktop", desktopShape()),
		field("observability", observabilityShape()),
		field("providers", providersShape()),
		field("skills", skillsShape()),
		field("toolchains", toolchainsShape()),
		field("integrations", integrationsShape()),
		field("consultants", consultantsShape()),
		field("privacy_filter", privacyShape()),
		field("sovereign_mesh", meshShape()),
		field("security", securityShape()),
		field("linked_data", linkedDataShape()),

		field("programs", mapping("Supervised programs. A program of the feature catalogue is overridden key by key under its name.", programNames, programTable()).own()),
		field("artifacts", list("Probes of the image: each proves that one capability is present and runnable.", artifactShape()).own()),
		field("supervisor", supervisorShape().own()),
		field("bootstrap", bootstrapShape().own()),
		field("slots", slotsShape().own()),
		field("api", apiShape().own()),
		field("templates", mapping("What tasks and intents may start.", programNames, templateShape()).own()),
		field("adapters_compat", compatShape().own()),
	)
}

func programShape() *shape {
	keys := append(programKeys(), deploymentKeys("the program")...)
	return table("One supervised program. The value of a key comes from the first of these that has one: this table, the feature catalogue, [supervisor.defaults], the default.", keys...).own()
}

// programDefaultsShape is the same table, but every key is optional and has no default: a default
// here would override the catalogue.
func programDefaultsShape() *shape {
	s := table("Default values for the keys of every program.", programKeys()...)
	return s.absent()
}

// groups is the key for the supplementary groups beside user.
func groups() key {
	return field("groups", list("Supplementary groups; absent: those that /etc/group of the box lists for the user.", account("")).eg([]any{"ssl-cert"}))
}

func programKeys() []key {
	keys := []key{
		field("command", command("The command: an argument vector, or one string. agentinit splits a string into words as a shell does, but runs no shell. ${X} is the value of a variable; if the variable is not set, the manifest is refused (E120). ${X:-default} is the default if the variable is not set or empty; in that case ${X:?message} refuses the manifest and shows the message. $$ is a dollar, and so is a $ before any other character. A value is never split into words. Required, unless the feature catalogue has it.").eg([]any{"/usr/bin/server", "--port", "8000"}, "server --port ${PORT:-8000}")),
		field("enabled", boolean("false leaves the program out.").def(true)),
		field("when", text("Manifest path of a boolean. If it is not true, the program is left out.").eg("desktop.enabled")),
		field("type", enum("A service runs until it is stopped. A oneshot is COMPLETED when it exits 0. A schedule starts at its times.", "service", "oneshot", "schedule").def("service")),
		field("schedule", text("When a schedule runs: five cron fields, @hourly and the like, or @every 10m. A failed run is not repeated before the next time, unless the program sets restart or start_retries.").eg("0 3 * * *", "@every 10m")),
		field("overlap", enum("What happens if a run is due while the previous run is active: skip leaves it out, queue starts it afterwards, kill stops the previous run first.", "skip", "queue", "kill").def("skip")),
		field("timezone", text("Time zone of the schedule (IANA name); empty is the box's own.").def("").eg("Europe/Berlin")),
		field("priority", integer("Programs start in ascending order of priority and stop in descending order; programs of equal priority start together.").between(0, 1000000).def(999)),
		field("needs", list("Programs that this one waits for: \"db\" (ready), \"db:started\", \"migrate:completed\". A restart waits for them too. needs takes precedence over priority.", text("").formOf(decodes[Need])).def([]string{}).eg([]any{"db", "migrate:completed"})),
		field("instances", integer("Number of instances. One instance is called NAME, several are called NAME:0 … NAME:n-1; ${INSTANCE} is the number.").between(1, 10000).def(1)),
		field("autostart", boolean("Start with the box.").def(true)),
		field("required", onOff("The seal and /ready wait for the program.")),
		field("restart", enum("When to restart a program that ended. on-failure: after an unexpected exit code or a signal. The default of a schedule is never.", "always", "on-failure", "never").def("on-failure")),
		field("exit_codes", list("Expected exit codes.", integer("").between(0, 255)).def([]int{0})),
		field("start_seconds", duration("A program without ready is RUNNING after this time. If it ends earlier, the start has failed, even with an expected exit code; use type = \"oneshot\" for a program that ends by itself. 0: RUNNING at once.").def("1s")),
		field("start_timeout", duration("If the program is not RUNNING after this time, the start has failed. 0: no limit. If start_seconds, or the deadline of ready, is 60s or more, the default is 60s more than that. A oneshot and a schedule have no limit by default.").def("60s")),
		field("backoff", table("Wait before every restart.",
			field("initial", duration("First wait; 0s restarts at once.").def("500ms")),
			field("factor", number("Each wait is this many times the previous one.").between(1, 1000).def(int64(2))),
			field("max", duration("Longest wait.").def("10s")),
			field("jitter", number("Random share that is added or subtracted; 0.1 is ten per cent.").between(0, 1).def(0.1)),
			field("reset_after", duration("After this time in RUNNING, the next wait is initial again.").def("30s")),
		)),
		field("restart_limit", table("More than count restarts within window are FATAL, and so are more than count failed starts in a row, however long they take. A start for which the kernel had no process, memory or open file left does not count.",
			field("count", integer("0 has no limit.").between(0, 1000000).def(10)),
			field("window", duration("How far back restarts count.").def("5m")),
		)),
		field("start_retries", integer("How many failed starts in a row are tried again, as supervisord counts them; one more is FATAL. -1: restart_limit counts instead.").between(-1, 1000000).def(-1)),
		field("ready", readyShape()),
		field("health", healthShape()),
		field("stop", stopShape()),
		field("stop_signal", text("First signal of a stop; with stop_timeout, the short form of stop.").match(`^(SIG)?[A-Z0-9+-]+$`, `a signal name such as "TERM"`).eg("INT")),
		field("stop_timeout", duration("Wait after stop_signal before KILL.").def(program.DefaultStopWait)),
		field("stop_command", hook("Command that runs before the first signal of a stop.").eg("nginx -s quit")),
		field("kill", enum("Which processes a stop signal and the final KILL reach: the whole tree, the process group or the process alone.", "tree", "group", "process").def("tree")),
		field("essential", onOff("The exit of the program stops the box, which exits with the program's code.")),
		field("on_fatal", enum("shutdown: FATAL stops the box.", "ignore", "shutdown").def("ignore")),
		field("user", account("User, by name or number, or \"user:group\"; absent inherits.").eg("www-data", int64(1000))),
		field("group", account("Group, by name or number; absent follows the user.").eg("www-data")),
		groups(),
		field("umask", mode("File mode creation mask, in octal; absent inherits.").eg("0022")),
		field("directory", text("Working directory, also of the hooks; absent inherits. agentinit does not make it.").eg("/srv/app")),
		field("environment", mapping("Variables. ${X}, ${X:-default}, ${X:?message} and $$ mean the same as in command, in every text of the table.", variableNames, text("").hidden())),
		field("env_file", stringOrList("Files of NAME=VALUE lines. agentinit reads them when it boots and when the manifest is applied, not at each start of the program. A leading - marks a file that may be missing.").eg("/etc/app.env")),
		field("pass_environment", passShape()),
		field("limits", limitsShape()),
		field("guard", guardShape()),
		field("sandbox", sandboxShape()),
		field("logs", logsShape()),
		field("hooks", table("Commands around the program's life; they never block the supervisor.",
			field("pre_start", hook("Before each start; if it fails, the start has failed.").eg("mkdir -p /run/web")),
			field("post_ready", hook("When the program is ready.")),
			field("pre_stop", hook("Before the first signal of a stop.")),
			field("post_exit", hook("After each exit.")),
		)),
		field("stdin", enum("Standard input: null is empty, pipe stays open without any input, inherit is agentinit's own.", "null", "pipe", "inherit").def("null")),
		field("tty", onOff("The program gets a terminal of its own.")),
		field("control", onOff("Processes of the program that run as root or as the user of agentinit may make changes through the control socket, such as starting and stopping programs.")),
	}
	return keys
}

func account(doc string) *shape {
	return (&shape{kinds: kString | kInteger, doc: doc, minLen: 1}).between(0, 4294967294)
}

func stringOrList(doc string) *shape {
	return &shape{kinds: kString | kArray, doc: doc, items: text("").nonEmpty(), minLen: 1}
}

func stopShape() *shape {
	step := text("").formOf(decodesStep)
	s := &shape{kinds: kArray | kString, doc: "Signals to send and how long to wait after each. After a signal without a time, agentinit sends the next one at once. The last signal is KILL; agentinit adds it if it is missing. So \"INT\" alone means INT and KILL at once: write \"INT 10s\".", items: step, minItem: 1, minLen: 1}
	return s.formOf(decodes[StopLadder]).def([]any{"TERM " + asRead(program.DefaultStopWait).(string), "KILL"}).eg([]any{"INT 5s", "TERM 10s", "KILL"})
}

func decodesVariables(v any) error {
	if _, err := path.Match(v.(string), ""); err != nil || strings.Contains(v.(string), "=") {
		return errors.New(`the name of a variable, or a pattern of names such as "LC_*"`)
	}
	return nil
}

func decodesStep(v any) error {
	_, err := ParseStopStep(v.(string))
	return err
}

func passShape() *shape {
	s := &shape{kinds: kString | kBool | kArray, doc: "Which variables of agentinit the program inherits. \"safe\" (true): all but secrets. A variable is a secret if its name ends in TOKEN, SECRET, PASSWORD, KEY or the like, or if providers, slots, log collectors or [api.keys] name it. \"all\": all. \"none\" (false): none. Names and patterns: only these. A pattern passes no secret; a whole name does.", items: text("").nonEmpty().formOf(decodesVariables)}
	return s.match(`^(safe|all|none)$`, `"safe", "all", "none", a boolean or an array of names`).def("safe").eg([]any{"PATH", "LC_*", "ANTHROPIC_API_KEY"})
}

// dialectKeys are the keys of the probe dialects that ready or, if health is true, health may use.
func dialectKeys(health bool) []key {
	var keys []key
	for _, d := range program.Dialects {
		if d.Health || !health {
			keys = append(keys, field(d.Name, dialectShape(d)))
		}
	}
	return keys
}

func dialectShape(d program.Dialect) *shape {
	var s *shape
	switch d.Value {
	case program.FlagValue:
		s = boolean(d.Doc)
	case program.DescriptorValue:
		s = integer(d.Doc).between(3, 255)
	case program.CommandValue:
		s = command(d.Doc)
	default:
		s = text(d.Doc).nonEmpty()
		if d.Name == "http" {
			s.addressed()
		}
	}
	if d.Check != nil {
		s = s.formOf(func(v any) error { return checkUnexpanded(d, v) })
	}
	return s.eg(d.Example)
}

func probeTiming(interval time.Duration) []key {
	return []key{
		field("interval", duration("Time between two tries.").def(interval)),
		field("timeout", duration("Limit of one try.").def(program.DefaultProbeTimeout)),
		field("successes", integer("Number of good answers in a row that are needed.").between(1, 1000).def(1)),
	}
}

// oneOrMany is a table or an array of such tables.
func oneOrMany(doc string, keys ...key) *shape {
	s := table(doc, keys...)
	s.kinds |= kArray
	s.items, s.minItem = table("", keys...), 1
	return s.absent()
}

func readyShape() *shape {
	keys := append(dialectKeys(false), probeTiming(250*time.Millisecond)...)
	keys = append(keys,
		field("any", boolean("true: one condition is enough; false: all must hold.").def(false)),
		field("deadline", duration("If the program is not ready after this time, the start has failed. start_timeout is a limit too: the shorter one counts.").eg("30s")),
	)
	return oneOrMany("When the program counts as ready: one table, or several that must all hold. Without ready, a RUNNING program is ready.", keys...).
		eg(map[string]any{"http": "http://127.0.0.1:8000/healthz", "deadline": "30s"}).formOf(decodes[Ready])
}

func healthShape() *shape {
	keys := append(dialectKeys(true), probeTiming(program.DefaultHealthInterval)...)
	keys = append(keys,
		field("failures", integer("Number of bad answers in a row before the action.").between(1, 1000).def(program.DefaultHealthFailures)),
		field("action", enum("What agentinit does after that many failures.", "restart", "none", "shutdown").def("restart")),
		field("watchdog", duration("Expects WATCHDOG=1 on $NOTIFY_SOCKET at least this often; 0 is off.").def("0s")),
		field("no_output", duration("The program is wedged if it does not write to standard output or error for this long; 0 is off.").def("0s")),
		field("spinning", duration("The program is wedged if its processes use or wait for 90 % of a processor or more, and do not write, for this long; 0 is off.").def("0s")),
		field("blocked", duration("The program is wedged if one of its processes is in an uninterruptible sleep (state D) at every look for this long; 0 is off.").def("0s")),
		field("stack_signal", text("Signal that agentinit sends to a wedged program one second before the action, so that it writes its stacks.").match(`^(SIG)?[A-Z0-9+-]+$`, `a signal name such as "QUIT"`).eg("QUIT")),
	)
	return oneOrMany("Checks of a RUNNING program; without health there are none.", keys...).
		eg(map[string]any{"tcp": "127.0.0.1:5432", "action": "restart"}).formOf(decodes[Health])
}

func limitsShape() *shape {
	limit := func(doc string) *shape {
		return (&shape{kinds: kString | kInteger, doc: doc}).from(0).formOf(decodes[Limit])
	}
	count := func(doc string) *shape { return limit(doc).eg("1024:4096", "unlimited") }
	bytes := func(doc string) *shape { return limit(doc).eg("512MiB", "400MiB:500MiB", "unlimited") }
	cpus := &shape{kinds: kString | kArray, doc: "Processors that the program may run on.", items: integer("").between(0, maxCPU), minItem: 1, minLen: 1}
	return table("Limits that the kernel enforces; an absent limit is inherited. A limit is a number, a size such as \"64MiB\", \"soft:hard\" or \"unlimited\" (setrlimit(2)).",
		field("nofile", count("Open files.")),
		field("pids", count("Processes and threads of the program at once, by its cgroup. The default is three quarters of what the box may have after 100 are reserved for agentinit. Without a writable cgroup v2 there is no default, and a limit counts all processes of the user.")),
		field("memory", bytes("Memory of the program, bytes, at least 128KiB, by its cgroup: above the soft limit the kernel takes memory back, at the hard one it kills. Without a writable cgroup v2 each process gets it as limit of its data (RLIMIT_DATA).").formOf(decodes[memoryLimit])),
		field("nproc", count("Processes of the user.")),
		field("core", bytes("Core file, bytes.")),
		field("as", bytes("Address space, bytes; at least 128KiB.").formOf(decodes[memoryLimit])),
		field("cpu", limit("CPU time, seconds.").eg(3600, "unlimited")),
		field("fsize", bytes("File size, bytes.")),
		field("memlock", bytes("Locked memory, bytes.")),
		field("stack", bytes("Stack, bytes.")),
		field("nice", integer("Nice value.").between(-20, 19).eg(10)),
		field("ionice", text("I/O class and level.").match(`^(idle|(best-effort|realtime):[0-7])$`, `"idle", "best-effort:0" to ":7" or "realtime:0" to ":7"`).eg("best-effort:4")),
		field("oom_score_adj", integer("Badness for the OOM killer.").between(-1000, 1000).eg(500)),
		field("cpus", cpus.formOf(decodes[CPUList]).eg("0-3")),
	)
}

func guardShape() *shape {
	return boolean("For a program that runs as agentinit's user or as root: true prevents it from signalling, limiting, scheduling and tracing agentinit, and from gaining privileges by exec.").def(true)
}

func sandboxShape() *shape {
	ports := func(doc string) *shape { return list(doc, integer("").between(0, 65535)) }
	paths := func(doc string) *shape {
		return list(doc, text("").match(`^-?(/|\$\{)`, `an absolute path such as "/usr", or "-/opt" if it may be missing`))
	}
	return table("What the program may reach (Landlock, seccomp, capabilities); absent: everything.",
		field("no_new_privileges", boolean("The program cannot gain privileges by exec.").def(true)),
		field("preset", enum("Values for the keys that are not written here: for a web server, a Python or Node.js worker, or an agent.", "web", "python", "node", "agent")),
		field("capabilities", texts("Capabilities that are kept; absent changes none, an empty list keeps none.").eg([]any{"NET_BIND_SERVICE"})),
		field("read", paths("Paths that may be read; absent means all. A path that may be missing begins with \"-\", here and below.").eg([]any{"/usr", "/etc"})),
		field("write", paths("Paths that may be read and written; absent means all. /dev/null and the like are always among them.").eg([]any{"/workspace"})),
		field("execute", paths("Paths that may be read and executed; absent means all. The dynamic loader is executed, too.").eg([]any{"/usr"})),
		field("tcp_bind", ports("Ports it may listen on; absent means all.")),
		field("tcp_connect", ports("Ports it may connect to; absent means all.")),
		field("seccomp", enum("System call filter: default allows what container engines allow, strict less.", "default", "strict")),
		field("allow_syscalls", texts("System calls that the filter allows in addition.").eg([]any{"ptrace"})),
		field("deny_syscalls", texts("System calls that fail with EPERM, with or without a filter. If `io_uring` can do one of them too, `io_uring_setup` fails as well, unless `allow_syscalls` names it.").eg([]any{"ptrace"})),
		field("private_tmp", onOff("The program gets /tmp and /var/tmp of its own, in memory; needs CAP_SYS_ADMIN.")),
		field("mode", enum("audit only reports what would be refused.", "enforce", "audit", "off").def("enforce")),
	).absent()
}

func logFile(doc string) *shape {
	return text(doc).match(`(^|[^/])$`, `the path of a file, without a "/" at the end`)
}

func logsShape() *shape {
	return table("Where the output of the program goes, besides agentinit's memory and the collectors.",
		field("to", enum("none: the output stays in memory (agentctl logs) and goes to collectors only.", "console", "file", "none").def("console")),
		field("path", logFile("The file; it implies to = \"file\".").eg("/var/log/web.log")),
		field("stderr_path", logFile("A file for stderr alone, with to = \"file\" or \"console\"; absent: where stdout goes.").eg("/var/log/web.err")),
		field("max_bytes", size("Rotate beyond this; 0 never rotates by size.").def("50MB")),
		field("rotate_every", duration("Rotate a log that is this old; 0 never rotates by age.").def("0s").eg("24h")),
		field("rotate_at", text("Rotate every day at this local time, HH:MM.").match(`^([01][0-9]|2[0-3]):[0-5][0-9]$`, `a time of day such as "03:30"`).eg("00:00")),
		field("backups", integer("Rotated files that are kept; 0 keeps none.").between(0, 10000).def(10)),
		field("max_age", duration("Rotated files older than this are removed, at most an hour late; 0 has no limit.").def("0s")),
		field("compress", compression()),
		field("rate_lines", integer("Most lines of the program in rate_interval; the others are counted and dropped. 0 has no limit.").between(0, 1000000000).def(0)),
		field("rate_bytes", size("Most bytes of the program in rate_interval; 0 has no limit.").def(0)),
		field("rate_interval", duration("Time in which rate_lines and rate_bytes count.").def("1s")),
		field("total_bytes", size("Most bytes of the file and its rotated files together; 0 has no limit. If max_bytes is 0 or larger than this, the file is rotated at half of it.").def(0)),
		field("max_line", size("Longest line, 1KiB to 16MiB: agentinit divides a longer one into several, and marks each but the last as truncated.").def("1MiB").formOf(decodes[lineSize])),
		field("flush_after", duration("How long a line without its newline waits for the rest, 10ms to 1h. After this time, agentinit shows what there is of the line, marked as truncated. 0 waits until the line ends.").def("1s").formOf(decodes[flushTime])),
	)
}

func forwardShape() *shape {
	return table("One collector. Lines that it cannot take wait in the rings; agentinit counts the lines that a ring drops before they are sent.",
		must("type", enum("syslog is RFC 5424, over unix:// the form of syslog(3), loki the push API, otlp OTLP/HTTP in binary protobuf, http one JSON object a line.", "syslog", "loki", "otlp", "http")),
		must("url", text("Where to: unix:///dev/log, udp://host:514, tcp://host:514 or tls://host:6514 for syslog, else http:// or https://.").match(`^(unix|udp|tcp|tls|http|https)://.+`, "a URL such as https://logs.example/ingest, or tcp://logs.example:514 for syslog").addressed().eg("tls://logs.example:6514", "http://loki:3100")),
		field("token_env", text("Variable that holds a bearer token; never the token itself. Not for syslog.").eg("LOKI_TOKEN")),
		field("headers", mapping("Headers of every request, such as X-Scope-OrgID. Not for syslog.", nil, text("").hidden())),
		field("ca_file", text("PEM certificates to trust in place of the system's.").eg("/etc/ssl/logs.pem")),
		field("programs", texts("Names and globs of the programs whose output is sent; a name means all its instances. Without names, the output of all programs is sent.").def([]string{}).eg([]any{"web", "worker:*"})),
		field("events", boolean("Send agentinit's own events too, as lines of the program \"agentinit\" in JSON, from supervisor.log.level on.").def(false)),
		field("batch_lines", integer("Most lines sent at once.").between(1, 100000).def(1000)),
		field("batch_wait", duration("How long a line waits for others.").def("1s")),
		field("timeout", duration("Limit of one attempt. A failed attempt is repeated after about 0.5 s, then after twice as long each time up to about 30 s, or as late as the collector's Retry-After asks, at most 5 minutes. A syslog receiver that took only the first lines of a batch gets the others.").def("10s")),
	)
}

func compression() *shape {
	s := &shape{kinds: kString | kBool, doc: "Compress rotated logs in the background: \"gzip\", \"zstd\" or \"none\"; true is gzip."}
	return s.match(`^(none|gzip|zstd)$`, `"gzip", "zstd", "none" or a boolean`).def(false).eg("zstd")
}

func artifactShape() *shape {
	return table("One probe.",
		must("id", text("Capability id.").nonEmpty().eg("playwright")),
		field("class", enum("A locally built service, B command-line tool, C skill server, D prefetched bundle.", "A", "B", "C", "D").def("B")),
		field("entry", text("Entry point path; globs allowed.").eg("/opt/agentbox/bin/tool")),
		field("assets", texts("Further paths or globs that must exist.").def([]string{})),
		field("command", list("Argument vector that must exit 0; never a shell string.", text("")).def([]string{}).eg([]any{"tool", "--version"})),
		field("timeout", duration("Of the command, more than 0; before that, the storage must answer within the same time.").def(DefaultArtifactTimeout).formOf(decodes[budget])),
		field("required", onOff("If the probe fails, the boot fails.")),
	)
}

func supervisorShape() *shape {
	keys := []key{
		field("socket", text("Control socket; a leading @ is abstract.").nonEmpty().def("/run/agentbox/agentinit.sock")),
		field("socket_mode", mode("Permission bits of the control socket, in octal.").def("0660")),
		field("socket_group", account("Group whose members may read.")),
		field("listen", listen("Management listener: off, which the environment cannot change, or host:port. When the key is absent and agentinit runs outside a container, the host is 127.0.0.1.").def("0.0.0.0:9090").overrides("MANAGEMENT_API_HOST, MANAGEMENT_API_PORT")),
		field("metrics_listen", listen("Metrics listener, host:port or off. When the key is absent, the port is observability.metrics_port, and the host is 0.0.0.0 in a container and 127.0.0.1 outside one. The environment wins: MANAGEMENT_API_HOST is the host, AGENTBOX_METRICS_PORT the port. But off stays off, whatever the environment says.")),
		field("stop_grace", duration("Time that the whole shutdown may take (its budget); more than 0.").def(program.DefaultStopGrace).formOf(decodes[budget])),
		field("drain", duration("Time between the first 503 of /ready and the first stop; part of stop_grace.").def("0s")),
		field("barrier", enum("What each wave waits for in the previous wave. ready: a program with ready is ready, any other has been started. running: each program is RUNNING and ready. In both cases a oneshot has completed. none: no wait.", "ready", "running", "none").def("ready")),
		field("on_all_exited", enum("exit ends the box when all programs have ended and none will start again.", "stay", "exit").def("stay")),
		field("console", consoleShape()),
		field("defaults", programDefaultsShape()),
		field("agents", table("User, limits and sandbox of agents. A template takes precedence.",
			field("user", account("User, by name or number; absent: if agentinit runs as root, each agent gets a user id that no other process has; otherwise agents run as agentinit's user.").eg("worker", int64(1000))),
			field("group", account("Group, by name or number; absent follows the user.")),
			groups(),
			field("umask", mode("File mode creation mask, in octal; absent inherits.")),
			field("limits", limitsShape()),
			field("guard", guardShape()),
			field("sandbox", sandboxShape()),
		)),
		field("log", table("agentinit's own log, and the format of the console.",
			field("format", enum("auto: console on a terminal, else json.", "auto", "json", "console", "raw").def("auto")),
			field("level", logLevel("Lowest level of agentinit's own log lines; absent: that of observability.log_level.").eg("debug")),
			field("forward", mapping("Collectors to which the output of programs is sent, one table for each. Changes take effect at the next boot.", programNames, forwardShape())),
		)),
		field("image", text("Image of the box, for agentctl generate; absent: that of --image, else agentbox:runtime-SYSTEM, as make image names it.").match(imageReference, `an image reference such as "registry.example.org/web:1.2"`).eg("registry.example.org/web:1.2")),
	}
	return table("agentinit itself, and the box around the programs.", append(keys, deploymentKeys("the box")...)...)
}

// imageReference matches the references of container engines (distribution/reference, reference.go): a
// registry, a path in lower case, a tag and a digest.
const imageReference = `^([A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]+)?/)?` +
	`[a-z0-9]+((\.|__?|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|__?|-+)[a-z0-9]+)*)*` +
	`(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@[A-Za-z][A-Za-z0-9]*([+._-][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,})?$`

// ImageReference reports whether container engines read a text as the reference of an image.
func ImageReference(s string) bool { return regular(imageReference).MatchString(s) }

func consoleShape() *shape {
	s := &shape{kinds: kString | kBool, doc: "Web console at /ui of the management listener. It needs a key to log in with: the management key, or one of [api.keys]. \"read-only\" lets no session change anything."}
	return s.match(`^read-only$`, `true, false or "read-only"`).def(false).formOf(decodes[ConsoleMode])
}

// portPattern matches numbers up to 65535. With a higher port, a box could never listen, and would
// retry for ever.
const portPattern = `([0-9]{1,4}|[0-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])`

func listen(doc string) *shape {
	return text(doc).match(`^(off|(\[[0-9A-Fa-f:.%a-z]*\]|[^\[\]:\s]*):`+portPattern+`)$`, `"off" or an address such as "0.0.0.0:9090", the port at most 65535`)
}

func bootstrapShape() *shape {
	return table("The boot, from exec to seal.",
		field("profile", enum("agentbox: all phases and mounts. none: a plain container with programs. auto: agentbox when the manifest has any section of an agentbox.", "auto", "agentbox", "none").def("auto")),
		field("seal_timeout", duration("Time in which the required programs must be ready; more than 0. If the key is absent, agentinit takes a longer time where the programs may need longer to start or to become FATAL (W124).").def(program.DefaultSealTimeout).formOf(decodes[budget]).overrides("BOOTSTRAP_SEAL_TIMEOUT")),
		field("on_seal_timeout", enum("exit ends the box with 68.", "stay", "exit").def("stay")),
	)
}

func slotsShape() *shape {
	with := func(doc string, own ...key) *shape {
		return table(doc, append(own,
			field("auth", enum("How the external class logs in.", "bearer", "nip98").def("bearer")),
			field("token_env", text("Variable that holds the token; never the token itself.").eg("MESH_TOKEN")),
		)...)
	}
	return table("Settings of the adapters.",
		field("beads", with("Slot beads.", field("path", text("Database file; absent: beads.db in the workspace.")))),
		field("pods", with("Slot pods. The local class uses these keys too. Without them, and without AGENTBOX_PODS_TOKEN, it signs its requests with the key of the box (NIP-98).")),
		field("memory", with("Slot memory.",
			field("dir", text("Directory of the embedded store; absent: $RUVECTOR_DATA_DIR.")),
			field("embedder", table("Turns text into vectors.",
				field("kind", enum("hash-v1 is built in; http is OpenAI-compatible.", "hash-v1", "http").def("hash-v1")),
				field("url", text("Base address, with kind = \"http\".").eg("http://ollama:11434")),
				field("model", text("Model name, with kind = \"http\".")),
				field("key_env", text("Variable that holds the key.")),
			)),
		)),
		field("events", with("Slot events.",
			field("fsync", enum("When an event reaches the disk: always is before the answer, 1s is within a second.", "1s", "always").def("1s")),
			field("retention_days", integer("agentinit removes older journal files; 0 keeps all.").between(0, maxRetentionDays).def(30)),
			field("max_bytes", size("Most bytes of all journal files together; 0 has no limit.").def("1GiB")),
			field("spool_bytes", size("Most bytes of events that wait for an external sink.").def("64MiB")),
			field("format", enum("What the sink of integrations.external_events.url is sent. cloudevents: CloudEvents 1.0 in JSON, one or a batch of up to 100 in each POST to URL/v1/events. json: one event as plain JSON in each POST to the URL exactly as it is written.", "cloudevents", "json").def("cloudevents")),
		)),
		field("orchestrator", with("Slot orchestrator.")),
	)
}

func apiShape() *shape {
	return table("The management listener as clients see it.",
		field("public_urls", list("Origins at which the box is reached: their hosts are names of the box, and signed requests name them.", text("").formOf(decodesPublicURL)).def([]string{}).eg([]any{"https://box.example.org"}).overrides("MANAGEMENT_API_PUBLIC_URLS")),
		field("trusted_proxies", list("Addresses or prefixes of proxies whose X-Forwarded-For or Forwarded header counts; if a request has both and they differ, neither counts.", text("").formOf(decodesPrefix)).def([]string{}).eg([]any{"10.0.0.0/8"})),
		field("cors_origins", list("Origins that browsers may call from, compared exactly.", text("").formOf(decodesOrigin)).def([]string{}).eg([]any{"https://app.example.org"})),
		field("rate_limit", integer("Requests per second of each principal; 0 has no limit.").between(0, 1000000).def(1000)),
		field("keys", mapping("Bearer keys beside the management key, one table for each; the name stands in the audit trail.", programNames, table("One key. Exactly one of env and file says where it is; it has 16 characters or more.",
			must("role", enum("viewer may read programs, logs, events and slots; operator may also start, stop, restart, signal and apply.", "viewer", "operator")),
			field("env", text("Variable that holds the key; never the key itself.").nonEmpty().eg("CONSOLE_KEY")),
			field("file", text("File that holds the key.").nonEmpty().eg("/run/secrets/console-key")),
		))),
	)
}

func templateShape() *shape {
	return table("One template.",
		must("command", command("The command.")),
		field("args", texts("Further arguments.").def([]string{})),
		field("environment", mapping("Variables.", variableNames, text("").hidden())),
		field("directory", text("Working directory.")),
		field("timeout", duration("Limit of one run; 0 has none.").def("0s")),
		field("user", account("User, by name or number; absent follows [supervisor.agents].").eg("worker", int64(1000))),
		field("group", account("Group, by name or number; absent follows the user.")),
		groups(),
		field("umask", mode("File mode creation mask, in octal; absent follows [supervisor.agents].")),
		field("limits", limitsShape()),
		field("guard", guardShape()),
		field("sandbox", sandboxShape()),
		field("stdin", enum("Standard input: null is empty; pipe holds the text of the task or the message.", "null", "pipe").def("null")),
		field("intents", list("Kinds of intents in the mailbox that start it, with the message on standard input.", integer("").between(38000, 38099)).def([]int{}).eg([]int{38000})),
	)
}

func compatShape() *shape {
	slot := func(name string) key {
		return field(name, text("Old contract version that is still spoken.").match(`^v[1-9][0-9]*$`, `a version such as "v1"`).eg("v1"))
	}
	return table("Old adapter contracts, for the time of a migration.",
		slot("beads"), slot("pods"), slot("memory"), slot("events"), slot("orchestrator"))
}
