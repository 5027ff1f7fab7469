package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// peer is one init: how to configure it for programs, and its command line. A field is nil if the
// init has no such feature.
type peer struct {
	name string
	// setup writes below dir the files that the init needs to run n copies of command. It returns
	// the init's command line.
	setup func(dir string, n int, command []string) ([]string, error)
	// status is the command that lists all programs. running is the text that it prints once for
	// each running program.
	status  func(dir string) []string
	running string
	// capture is like setup, but each program's output goes to its own files below logsOf(dir),
	// rotated at logMax.
	capture func(dir string, n int, command []string) ([]string, error)
	// init is the command line of an init that runs one child.
	init func(child ...string) []string
}

// peers returns the floor, agentinit and the other peers that are installed. If names is not empty,
// it lists the other peers that are wanted.
func (l *lab) peers(names string) ([]peer, error) {
	all := []peer{
		{name: floorName, setup: l.floor, capture: l.floorLog},
		{name: ours, setup: l.agentinit, capture: l.agentinitLog, running: "RUNNING", status: func(dir string) []string {
			return []string{filepath.Join(l.bin, "agentctl"), "--socket", filepath.Join(dir, "sock"), "status"}
		}, init: func(child ...string) []string {
			return append([]string{filepath.Join(l.bin, "agentinit"), "--"}, child...)
		}},
	}
	if names == "" {
		return append(all, others()...), nil
	}
	wanted := strings.Split(names, ",")
	for _, other := range others() {
		if i := slices.Index(wanted, other.name); i >= 0 {
			all, wanted = append(all, other), slices.Delete(wanted, i, i+1)
		}
	}
	if len(wanted) > 0 {
		return nil, fmt.Errorf("-peers: %s is not installed, or no peer; the peers are dinit, s6, runit, supervisord and tini", strings.Join(wanted, ","))
	}
	return all, nil
}

// others lists the other peers that are on PATH.
func others() []peer {
	var all []peer
	if found("dinit") && found("dinitctl") {
		all = append(all, peer{name: dinitName, setup: dinit, running: "(pid:", status: func(dir string) []string {
			return []string{"dinitctl", "-p", filepath.Join(dir, "dinit.sock"), "list"}
		}})
	}
	if found("s6-svscan") {
		all = append(all, peer{name: "s6", setup: serviceDirs("s6-svscan", "-c", "2000"), capture: loggedDirs("s6-svscan", "s6-log",
			fmt.Sprintf("n%d s%d \"$1\"", logKeep, logMax))})
	}
	if found("runsvdir") {
		all = append(all, peer{name: "runit", setup: serviceDirs("runsvdir"), capture: loggedDirs("runsvdir", "svlogd", "\"$1\""), status: svStatus, running: "run: "})
	}
	if found("supervisord") {
		all = append(all, peer{name: superName, setup: supervisord, capture: supervisordLog, running: "RUNNING", status: func(dir string) []string {
			return []string{"supervisorctl", "-c", filepath.Join(dir, "supervisord.conf"), "status"}
		}})
	}
	if found(tiniName) {
		all = append(all, peer{name: tiniName, init: func(child ...string) []string { return append([]string{tiniName, "-s", "--"}, child...) }})
	}
	return all
}

func svStatus(dir string) []string {
	services, err := filepath.Glob(filepath.Join(dir, "services", "*"))
	if err != nil {
		return nil
	}
	return append([]string{"sv", "status"}, services...)
}

// dinit writes a service file for each program and a target that waits for all programs.
func dinit(dir string, n int, command []string) ([]string, error) {
	services := filepath.Join(dir, "dinit.d")
	if err := os.MkdirAll(services, 0o755); err != nil {
		return nil, err
	}
	var all strings.Builder
	all.WriteString("type = internal\n")
	text := "type = process\ncommand = " + strings.Join(command, " ") + "\nrestart = yes\nrestart-delay = 0\nrestart-limit-count = 0\nstop-timeout = 2\n"
	for i := range n {
		name := fmt.Sprintf("p%04d", i)
		fmt.Fprintf(&all, "waits-for: %s\n", name)
		if err := os.WriteFile(filepath.Join(services, name), []byte(text), 0o644); err != nil {
			return nil, err
		}
	}
	bin, err := exec.LookPath(dinitName)
	if err != nil {
		return nil, err
	}
	return []string{bin, "--container", "--quiet", "-l", filepath.Join(dir, "dinit.log"), "-d", services, "-p", filepath.Join(dir, "dinit.sock")},
		os.WriteFile(filepath.Join(services, "boot"), []byte(all.String()), 0o644)
}

func found(name string) bool {
	_, err := exec.LookPath(name)
	return err == nil
}

func (l *lab) floor(_ string, n int, command []string) ([]string, error) {
	return append([]string{l.path("floor"), strconv.Itoa(n)}, command...), nil
}

func (l *lab) floorLog(dir string, n int, command []string) ([]string, error) {
	return append([]string{l.path("floorlog"), strconv.Itoa(n), strconv.Itoa(logMax), logsOf(dir)}, command...), nil
}

func (l *lab) agentinit(dir string, n int, command []string) ([]string, error) {
	programs := fmt.Sprintf("[programs.p]\nlogs = { to = \"none\" }\ncommand = [%s]\n", quoteAll(command))
	if n > 1 {
		programs += fmt.Sprintf("instances = %d\n", n)
	}
	return l.manifest(dir, programs)
}

// agentinitFull is agentinit with its listeners, and with a local class in every slot.
func (l *lab) agentinitFull(dir string, n int, command []string) ([]string, error) {
	return l.agentinitWith(dir, n, command, "",
		"[adapters]\nbeads = \"local-sqlite\"\nmemory = \"embedded-ruvector\"\nevents = \"local-jsonl\"\norchestrator = \"local-process-manager\"\n")
}

// agentinitConsole is agentinit with its listeners and the console on or off.
func (l *lab) agentinitConsole(on bool) func(string, int, []string) ([]string, error) {
	return func(dir string, n int, command []string) ([]string, error) {
		return l.agentinitWith(dir, n, command, fmt.Sprintf("console = %t\n", on), "")
	}
}

// agentinitWith is agentinit with its listeners, additional keys of [supervisor] and additional
// sections.
func (l *lab) agentinitWith(dir string, n int, command []string, keys, sections string) ([]string, error) {
	argv, err := l.agentinit(dir, n, command)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "agentbox.toml")
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	full := strings.NewReplacer("listen = \"off\"\nmetrics_listen = \"off\"\n", "listen = \"127.0.0.1:0\"\nmetrics_listen = \"127.0.0.1:0\"\n"+keys).Replace(string(text)) +
		"[bootstrap]\nprofile = \"none\"\n" + sections
	return append(argv, "--root", dir), os.WriteFile(file, []byte(full), 0o644)
}

func (l *lab) agentinitLog(dir string, n int, command []string) ([]string, error) {
	var programs strings.Builder
	for i := range n {
		fmt.Fprintf(&programs, "[programs.p%d]\ncommand = [%s]\nlogs = { to = \"file\", path = %q, max_bytes = %d, backups = %d }\n",
			i, quoteAll(command), filepath.Join(logsOf(dir), strconv.Itoa(i), "current"), logMax, logKeep)
	}
	return l.manifest(dir, programs.String())
}

func (l *lab) manifest(dir, programs string) ([]string, error) {
	text := fmt.Sprintf("[supervisor]\nsocket = %q\nlisten = \"off\"\nmetrics_listen = \"off\"\n", filepath.Join(dir, "sock")) +
		"[supervisor.defaults]\nrestart = \"always\"\nbackoff = { initial = \"0s\" }\nrestart_limit = { count = 0, window = \"1m\" }\nstart_seconds = 0\nstop = [\"TERM 2s\", \"KILL\"]\n" +
		programs
	file := filepath.Join(dir, "agentbox.toml")
	return []string{filepath.Join(l.bin, "agentinit"), "--manifest", file}, os.WriteFile(file, []byte(text), 0o644)
}

func quoteAll(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = strconv.Quote(w)
	}
	return strings.Join(quoted, ", ")
}

// serviceDirs makes a directory for each service, as s6 and runit require. By default, s6 accepts
// only 500 services.
func serviceDirs(scanner string, options ...string) func(string, int, []string) ([]string, error) {
	return func(dir string, n int, command []string) ([]string, error) {
		services := filepath.Join(dir, "services")
		for i := range n {
			d := filepath.Join(services, fmt.Sprintf("p%04d", i))
			if err := os.MkdirAll(d, 0o755); err != nil {
				return nil, err
			}
			// Milliseconds from TERM to KILL. runit has no such setting.
			if err := os.WriteFile(filepath.Join(d, "timeout-kill"), []byte("2000\n"), 0o644); err != nil {
				return nil, err
			}
			if len(command) == 1 {
				if err := os.Symlink(command[0], filepath.Join(d, "run")); err != nil {
					return nil, err
				}
				continue
			}
			script := "#!/bin/sh\nexec " + strings.Join(command, " ") + "\n"
			if err := os.WriteFile(filepath.Join(d, "run"), []byte(script), 0o755); err != nil {
				return nil, err
			}
		}
		bin, err := exec.LookPath(scanner)
		return append(append([]string{bin}, options...), services), err
	}
}

// loggedDirs is serviceDirs with a logger for each service. The directory of the logs is $1 of the
// logger's shell command.
func loggedDirs(scanner, logger, args string) func(string, int, []string) ([]string, error) {
	return func(dir string, n int, command []string) ([]string, error) {
		if _, err := exec.LookPath(logger); err != nil {
			return nil, err
		}
		argv, err := serviceDirs(scanner)(dir, n, command)
		if err != nil {
			return nil, err
		}
		for i := range n {
			logs := filepath.Join(logsOf(dir), strconv.Itoa(i))
			service := filepath.Join(dir, "services", fmt.Sprintf("p%04d", i), "log")
			for _, d := range []string{logs, service} {
				if err := os.MkdirAll(d, 0o755); err != nil {
					return nil, err
				}
			}
			script := fmt.Sprintf("#!/bin/sh\nset -- %s\nexec %s %s\n", logs, logger, args)
			if err := os.WriteFile(filepath.Join(service, "run"), []byte(script), 0o755); err != nil {
				return nil, err
			}
			if logger == "svlogd" { // svlogd reads its limits from a file
				config := fmt.Sprintf("s%d\nn%d\n", logMax, logKeep)
				if err := os.WriteFile(filepath.Join(logs, "config"), []byte(config), 0o644); err != nil {
					return nil, err
				}
			}
		}
		return argv, nil
	}
}

func supervisord(dir string, n int, command []string) ([]string, error) {
	return supervisordWith(dir, n, command, "stdout_logfile=NONE")
}

func supervisordLog(dir string, n int, command []string) ([]string, error) {
	for i := range n {
		if err := os.MkdirAll(filepath.Join(logsOf(dir), strconv.Itoa(i)), 0o755); err != nil {
			return nil, err
		}
	}
	return supervisordWith(dir, n, command, fmt.Sprintf("stdout_logfile=%s/%%(process_num)d/current\nstdout_logfile_maxbytes=%d\nstdout_logfile_backups=%d",
		logsOf(dir), logMax, logKeep))
}

func supervisordWith(dir string, n int, command []string, stdout string) ([]string, error) {
	conf := filepath.Join(dir, "supervisord.conf")
	text := fmt.Sprintf(`[supervisord]
nodaemon=true
logfile=/dev/null
logfile_maxbytes=0
pidfile=%[1]s/supervisord.pid
childlogdir=%[1]s
minfds=8192
[unix_http_server]
file=%[1]s/supervisor.sock
[rpcinterface:supervisor]
supervisor.rpcinterface_factory = supervisor.rpcinterface:make_main_rpcinterface
[supervisorctl]
serverurl=unix://%[1]s/supervisor.sock
[program:p]
command=%[2]s
numprocs=%[3]d
process_name=p%%(process_num)04d
autorestart=true
startsecs=0
stopwaitsecs=2
%[4]s
stderr_logfile=NONE
`, dir, strings.Join(command, " "), n, stdout)
	bin, err := exec.LookPath("supervisord")
	if err != nil {
		return nil, err
	}
	return []string{bin, "-c", conf}, os.WriteFile(conf, []byte(text), 0o644)
}
