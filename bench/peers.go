package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// peer is one init: how it is configured for programs, and what is exec'ed.
type peer struct {
	name string
	// setup writes what the init needs below dir to run n copies of command and
	// returns its command line.
	setup func(dir string, n int, command []string) ([]string, error)
	// status is the command that lists all programs, nil when there is none.
	status func(dir string) []string
	// capture is setup with each program's output in files of its own below
	// logsOf(dir), rotated at logMax; nil when the peer captures nothing.
	capture func(dir string, n int, command []string) ([]string, error)
}

const floorName = "floor (C loop)"

func (l *lab) peers() []peer {
	all := []peer{
		{name: floorName, setup: l.floor, capture: l.floorLog},
		{name: "agentinit", setup: l.agentinit, capture: l.agentinitLog, status: func(dir string) []string {
			return []string{filepath.Join(l.bin, "agentctl"), "--socket", filepath.Join(dir, "sock"), "status"}
		}},
	}
	if found("s6-svscan") {
		all = append(all, peer{name: "s6", setup: serviceDirs("s6-svscan", "-c", "2000"), capture: loggedDirs("s6-svscan", "s6-log",
			fmt.Sprintf("n%d s%d \"$1\"", logKeep, logMax))})
	}
	if found("runsvdir") {
		all = append(all, peer{name: "runit", setup: serviceDirs("runsvdir"), capture: loggedDirs("runsvdir", "svlogd", "\"$1\""), status: func(dir string) []string {
			services, err := filepath.Glob(filepath.Join(dir, "services", "*"))
			if err != nil {
				return nil
			}
			return append([]string{"sv", "status"}, services...)
		}})
	}
	if found("supervisord") {
		all = append(all, peer{name: "supervisord", setup: supervisord, capture: supervisordLog, status: func(dir string) []string {
			return []string{"supervisorctl", "-c", filepath.Join(dir, "supervisord.conf"), "status"}
		}})
	}
	return all
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
		"[supervisor.defaults]\nrestart = \"always\"\nbackoff = { initial = \"0s\" }\nrestart_limit = { count = 0, window = \"1m\" }\nstop = [\"TERM 2s\", \"KILL\"]\n" +
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

// serviceDirs lays out one directory a service, as s6 and runit want them. s6
// takes 500 unless told otherwise.
func serviceDirs(scanner string, options ...string) func(string, int, []string) ([]string, error) {
	return func(dir string, n int, command []string) ([]string, error) {
		services := filepath.Join(dir, "services")
		for i := range n {
			d := filepath.Join(services, fmt.Sprintf("p%04d", i))
			if err := os.MkdirAll(d, 0o755); err != nil {
				return nil, err
			}
			// Milliseconds from TERM to KILL; runit has no such thing.
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

// loggedDirs is serviceDirs with a logger beside each service: sh gets the
// directory of the logs as $1.
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
			if logger == "svlogd" { // it reads its limits from a file
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
