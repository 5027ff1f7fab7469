package schema

import (
	"slices"
	"strings"
	"sync"
)

// The words of other tools for keys of a manifest, and what to write instead. The tools are
// supervisord, Docker Compose, Kubernetes, systemd and process-compose. Names are compared in lower
// case without "_" and "-".

// foreignProgramKeys are unknown keys of a program.
var foreignProgramKeys = sync.OnceValue(func() map[string]string {
	return map[string]string{
		"autorestart":           `use restart = "always", "on-failure" or "never"`,
		"restartpolicy":         `use restart = "always", "on-failure" or "never"`,
		"onfailure":             `use restart = "on-failure"`,
		"availability":          `use restart and restart_limit`,
		"numprocs":              `use instances`,
		"numprocsstart":         `instances count from 0; ${INSTANCE} is the number`,
		"replicas":              `use instances`,
		"scale":                 `use instances`,
		"processname":           `the name of the table is the name of the program; several are NAME:0, NAME:1 …`,
		"containername":         `the name of the table is the name of the program`,
		"name":                  `the name of the table is the name of the program: [programs.NAME]`,
		"stdoutlogfile":         `use logs.path; without it the output goes to the console and to agentctl logs`,
		"stderrlogfile":         `use logs.stderr_path; without it stderr goes to the same file as stdout`,
		"logfile":               `use logs.path`,
		"loglocation":           `use logs.path`,
		"logging":               `use logs`,
		"log":                   `use logs; the log that says that a program is ready is ready.log`,
		"stdoutlogfilemaxbytes": `use logs.max_bytes`,
		"stderrlogfilemaxbytes": `use logs.max_bytes`,
		"stdoutlogfilebackups":  `use logs.backups`,
		"stderrlogfilebackups":  `use logs.backups`,
		"redirectstderr":        `drop it: stderr is always logged beside stdout`,
		"killsignal":            `use stop_signal, or stop = ["TERM 10s", "KILL"]`,
		"stopwaitsecs":          `use stop_timeout`,
		"stopgraceperiod":       `use stop_timeout`,
		"timeoutstopsec":        `use stop_timeout`,
		"shutdown":              `use stop and stop_command`,
		"execstop":              `use stop_command`,
		"stopasgroup":           `drop it: kill = "tree", the default, reaches more than the group`,
		"killasgroup":           `drop it: kill = "tree", the default, reaches more than the group`,
		"killmode":              `use kill = "tree", "group" or "process"`,
		"startsecs":             `use start_seconds`,
		"timeoutstartsec":       `use start_timeout`,
		"maxrestarts":           `use restart_limit`,
		"startlimitburst":       `use restart_limit`,
		"restartsec":            `use backoff`,
		"successexitstatus":     `use exit_codes`,
		"successexitcodes":      `use exit_codes`,
		"env":                   `use environment`,
		"envs":                  `use environment`,
		"environmentfile":       `use env_file`,
		"envfiles":              `use env_file`,
		"passenv":               `use pass_environment`,
		"cwd":                   `use directory`,
		"dir":                   `use directory`,
		"chdir":                 `use directory`,
		"workdir":               `use directory`,
		"workingdir":            `use directory`,
		"workingdirectory":      `use directory`,
		"dependson":             `use needs = ["db", "migrate:completed"]`,
		"depends":               `use needs = ["db", "migrate:completed"]`,
		"requires":              `use needs = ["db", "migrate:completed"]`,
		"wants":                 `use needs = ["db", "migrate:completed"]`,
		"after":                 `use needs = ["db:started"]`,
		"before":                `use needs in the other program`,
		"waitfor":               `use needs`,
		"healthcheck":           `use ready for the start and health for the time after`,
		"livenessprobe":         `use health`,
		"liveness":              `use health`,
		"readinessprobe":        `use ready`,
		"readiness":             `use ready`,
		"startupprobe":          `use ready`,
		"probe":                 `use ready or health`,
		"watchdogsec":           `use health.watchdog`,
		"image":                 `all programs run in the image of the box: use supervisor.image`,
		"build":                 `all programs run in the image of the box: use supervisor.image`,
		"expose":                `use ports`,
		"port":                  `use ports`,
		"publish":               `use ports`,
		"mounts":                `use volumes`,
		"volumemounts":          `use volumes`,
		"tmpfs":                 `use writable`,
		"entrypoint":            `use command`,
		"cmd":                   `use command`,
		"exec":                  `use command`,
		"execstart":             `use command`,
		"run":                   `use command`,
		"args":                  `put the arguments into command`,
		"arguments":             `put the arguments into command`,
		"execstartpre":          `use hooks.pre_start`,
		"prestart":              `use hooks.pre_start`,
		"execstartpost":         `use hooks.post_ready`,
		"uid":                   `use user`,
		"runas":                 `use user`,
		"gid":                   `use group`,
		"supplementarygroups":   `use groups`,
		"ulimits":               `use limits`,
		"memlimit":              `use limits.memory`,
		"memorymax":             `use limits.memory`,
		"pidslimit":             `use limits.pids`,
		"tasksmax":              `use limits.pids`,
		"rlimits":               `use limits`,
		"limitnofile":           `use limits.nofile`,
		"nice":                  `use limits.nice`,
		"oomscoreadj":           `use limits.oom_score_adj`,
		"capadd":                `use sandbox.capabilities`,
		"capdrop":               `use sandbox.capabilities, which names what is kept`,
		"capabilityboundingset": `use sandbox.capabilities`,
		"nonewprivileges":       `use sandbox.no_new_privileges`,
		"securityopt":           `use sandbox`,
		"cron":                  `use type = "schedule" and schedule`,
		"interval":              `use type = "schedule" and schedule = "@every 10m"`,
		"oncalendar":            `use type = "schedule" and schedule`,
		"disabled":              `use enabled = false`,
		"daemon":                `drop it: programs stay in the foreground`,
		"isdaemon":              `drop it: programs stay in the foreground`,
		"pidfile":               `drop it: programs stay in the foreground`,
		"ttyenabled":            `use tty`,
		"istty":                 `use tty`,
		"stdinopen":             `use stdin = "pipe" or "inherit"`,
		"stdoutcapturemaxbytes": `drop it`,
		"stdouteventsenabled":   `drop it: agentctl events shows what happens`,
		"stdoutsyslog":          `use [supervisor.log.forward.NAME] with type = "syslog"`,
		"stderrsyslog":          `use [supervisor.log.forward.NAME] with type = "syslog"`,
		"stderreventsenabled":   `drop it: agentctl events shows what happens`,
		"stderrcapturemaxbytes": `drop it`,
		"serverurl":             `drop it: agentctl finds supervisor.socket by itself; to change the box, a program needs control = true`,
		"notify":                `use ready = { notify = true }`,
		"notifyaccess":          `use ready = { notify = true }`,
		"notificationfd":        `use ready = { fd = 3 }`,
		"readylogline":          `use ready = { log = "…" }`,
	}
})

// foreignSupervisorKeys are unknown keys of [supervisor].
var foreignSupervisorKeys = sync.OnceValue(func() map[string]string {
	return map[string]string{
		"nodaemon":                      `drop it: agentinit stays in the foreground`,
		"daemon":                        `drop it: agentinit stays in the foreground`,
		"logfile":                       `drop it: agentinit logs to its own output`,
		"logfilemaxbytes":               `drop it: agentinit logs to its own output`,
		"logfilebackups":                `drop it: agentinit logs to its own output`,
		"silent":                        `use supervisor.log.level`,
		"stripansi":                     `drop it: log files hold what the program wrote`,
		"identifier":                    `drop it`,
		"nocleanup":                     `drop it`,
		"minfds":                        `use supervisor.defaults.limits`,
		"minprocs":                      `use supervisor.defaults.limits`,
		"umask":                         `use supervisor.defaults.umask`,
		"loglevel":                      `use supervisor.log.level`,
		"logformat":                     `use supervisor.log.format`,
		"pidfile":                       `drop it: in a container agentinit has pid 1`,
		"childlogdir":                   `use supervisor.defaults.logs`,
		"stopwaitsecs":                  `use supervisor.stop_grace`,
		"stopgraceperiod":               `use supervisor.stop_grace`,
		"shutdowntimeout":               `use supervisor.stop_grace`,
		"killgracetime":                 `use supervisor.stop_grace`,
		"user":                          `use supervisor.defaults.user`,
		"env":                           `use supervisor.defaults.environment`,
		"environment":                   `use supervisor.defaults.environment`,
		"directory":                     `use supervisor.defaults.directory`,
		"restart":                       `use supervisor.defaults.restart`,
		"expose":                        `use supervisor.ports`,
		"publish":                       `use supervisor.ports`,
		"mounts":                        `use supervisor.volumes`,
		"tmpfs":                         `use supervisor.writable`,
		"socketpath":                    `use supervisor.socket`,
		"serverurl":                     `use supervisor.socket`,
		"address":                       `use supervisor.listen`,
		"port":                          `use supervisor.listen for agentinit itself, supervisor.ports for the box`,
		"terminationgraceperiodseconds": `use supervisor.stop_grace`,
	}
})

// foreignSections are unknown keys at the top of a manifest.
var foreignSections = sync.OnceValue(func() map[string]string {
	return map[string]string{
		"program":        `use [programs.NAME]`,
		"process":        `use [programs.NAME]`,
		"processes":      `use [programs.NAME]`,
		"service":        `use [programs.NAME]`,
		"services":       `use [programs.NAME]`,
		"unit":           `use [programs.NAME]`,
		"container":      `use [programs.NAME]`,
		"containers":     `use [programs.NAME]`,
		"job":            `use [programs.NAME] with type = "oneshot" or "schedule"`,
		"jobs":           `use [programs.NAME] with type = "oneshot" or "schedule"`,
		"cron":           `use [programs.NAME] with type = "schedule"`,
		"supervisord":    `use [supervisor]`,
		"supervisorctl":  `drop it; agentctl finds supervisor.socket by itself`,
		"unixhttpserver": `use supervisor.socket`,
		"inethttpserver": `use supervisor.listen`,
		"rpcinterface":   `drop it`,
		"eventlistener":  `use [programs.NAME] with command = ["agentctl", "listen", "--events", "PROCESS_STATE", "--", "COMMAND"]`,
		"group":          `begin the names of the programs with the same word: agentctl restart "shop-*"`,
		"fcgiprogram":    `use [programs.NAME]; the program opens its socket itself`,
		"include":        `there is no include: write one manifest`,
		"defaults":       `use [supervisor.defaults]`,
		"env":            `use [supervisor.defaults.environment]`,
		"environment":    `use [supervisor.defaults.environment]`,
		"image":          `use supervisor.image`,
		"ports":          `use supervisor.ports, or ports of a program`,
		"volumes":        `use supervisor.volumes, or volumes of a program`,
		"networks":       `use integrations.external_network`,
		"log":            `use [supervisor.log]`,
		"logging":        `use [supervisor.log]`,
		"version":        `drop it: a manifest has no version`,
	}
})

// foreignProbeKeys are unknown keys of ready and health.
var foreignProbeKeys = sync.OnceValue(func() map[string]string {
	return map[string]string{
		"test":                `use exec = ["command", "argument"]`,
		"cmd":                 `use exec = ["command", "argument"]`,
		"command":             `use exec = ["command", "argument"]`,
		"url":                 `use http = "http://127.0.0.1:8080/healthz"`,
		"httpget":             `use http = "http://127.0.0.1:8080/healthz"`,
		"https":               `use http = "https://127.0.0.1:8443/healthz"`,
		"port":                `use tcp = "127.0.0.1:5432"`,
		"tcpsocket":           `use tcp = "127.0.0.1:5432"`,
		"socket":              `use unix = "/run/app.sock"`,
		"path":                `use file or unix`,
		"sdnotify":            `use notify = true`,
		"notificationfd":      `use fd = 3`,
		"logline":             `use log`,
		"regex":               `use log`,
		"period":              `use interval`,
		"periodseconds":       `use interval`,
		"timeoutseconds":      `use timeout`,
		"retries":             `use failures in health; ready tries until its deadline`,
		"failurethreshold":    `use failures in health; ready tries until its deadline`,
		"successthreshold":    `use successes`,
		"startperiod":         `drop it: health begins when ready holds; see ready.deadline`,
		"initialdelay":        `drop it: health begins when ready holds; see ready.deadline`,
		"initialdelayseconds": `drop it: health begins when ready holds; see ready.deadline`,
	}
})

// foreignLogKeys are unknown keys of logs, among them those of Docker's log drivers and of logrotate.
var foreignLogKeys = sync.OnceValue(func() map[string]string {
	return map[string]string{
		"file":       `use path`,
		"filename":   `use path`,
		"logfile":    `use path`,
		"driver":     `use [supervisor.log.forward.NAME] for a collector`,
		"size":       `use max_bytes`,
		"maxsize":    `use max_bytes`,
		"maxsizemb":  `use max_bytes`,
		"keep":       `use backups`,
		"rotate":     `use backups for the number of files, rotate_every or rotate_at for the time`,
		"maxfile":    `use backups`,
		"maxfiles":   `use backups`,
		"maxbackups": `use backups`,
		"daily":      `use rotate_at = "00:00"`,
		"maxagedays": `use max_age; 7 days are "168h"`,
	}
})

var sameName = strings.NewReplacer("_", "", "-", "")

// onlyMarks finds the key that differs from name only in "_", "-" and capitals.
func onlyMarks(name string, keys []key) string {
	for _, k := range keys {
		if sameName.Replace(k.name) == name {
			return "use " + k.name
		}
	}
	return ""
}

// foreignHint is a hint for an unknown key: a key that another tool has under this name, or that
// differs from one of keys only in "_", "-" and capitals. Otherwise the hint is empty.
func foreignHint(path []string, keys []key) string {
	path = slices.DeleteFunc(slices.Clone(path), func(k string) bool { _, element := indexOf(k); return element })
	n := len(path)
	name := sameName.Replace(strings.ToLower(path[n-1]))
	if hint := onlyMarks(name, keys); hint != "" {
		return hint
	}
	switch {
	case n == 1:
		return foreignSections()[name]
	case n == 2 && path[0] == "supervisor":
		return foreignSupervisorKeys()[name]
	case n == 3 && (path[0] == "programs" || path[0] == "supervisor" && path[1] == "defaults"):
		return foreignProgramKeys()[name]
	case n == 4 && (path[2] == "ready" || path[2] == "health"):
		return foreignProbeKeys()[name]
	case n == 4 && path[2] == "logs":
		return foreignLogKeys()[name]
	}
	return ""
}

// Patterns that recognise other formats of a file that a user may pass as a manifest.
const (
	iniText  = `(?mi)^\s*\[((program|group|eventlistener|fcgi-program|rpcinterface):[^\]]+|supervisord|unix_http_server|inet_http_server|supervisorctl)\]\s*(;.*)?$`
	unitText = `(?m)^\s*(\[(Unit|Service|Install)\]\s*$|ExecStart\s*=)`
	yamlText = `(?m)^(services|processes|programs|version|apiVersion):(\s|$)`
	jsonText = `^\s*\{`
)

// foreignFormat names the format of a text that is not TOML, and says what to do. Both are empty if the
// format is unknown.
func foreignFormat(data []byte) (name, hint string) {
	const write = `write each program as [programs.NAME] with command = "…"; texts stand in quotes, comments behind #`
	head := data[:min(len(data), 64<<10)]
	for _, format := range []struct{ pattern, name, hint string }{
		{unitText, "a unit file of systemd", write},
		{iniText, "an INI file of supervisord", "agentctl import supervisord FILE prints its manifest"},
		{yamlText, "YAML", write}, {jsonText, "JSON", write},
	} {
		if regular(format.pattern).Match(head) {
			return format.name, format.hint
		}
	}
	return "", ""
}
