package supervisord

import (
	"errors"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/schema/plan"
	"github.com/dreamlab-ai/agentinit/schema/rules"
)

// disk serves included files. Its root is "/".
func disk(files fstest.MapFS) Files {
	return Files{
		Read: func(name string) ([]byte, error) { return fs.ReadFile(files, strings.TrimPrefix(name, "/")) },
		Glob: func(pattern string) (names []string, err error) {
			found, err := fs.Glob(files, strings.TrimPrefix(pattern, "/"))
			for _, name := range found {
				names = append(names, "/"+name)
			}
			return names, err
		},
	}
}

func convert(text string, files fstest.MapFS) (string, int, error) {
	manifest, marks, err := Convert("s.conf", "/etc", []byte(text), disk(files))
	return string(manifest), marks, err
}

// box is a machine on which the variables of the tests are set.
var box = plan.Facts{Env: map[string]string{"PORT": "80", "PATH": "/bin", "HOME": "/root", "HOSTNAME": "box", "X": "x"}}

// check returns the errors of agentctl config validate.
func check(manifest string) (out []schema.Finding) {
	lookup := func(name string) (string, bool) { v, ok := box.Env[name]; return v, ok }
	for _, f := range rules.Validate("m", []byte(manifest), rules.Facts{Env: lookup, Arch: "amd64"}, box).Findings {
		if f.Severity == schema.Error {
			out = append(out, f)
		}
	}
	return out
}

// TestConversions: each text becomes a valid manifest with these lines, without the lines that begin
// with "!", and with so many marks.
func TestConversions(t *testing.T) {
	const sleep = "[program:a]\ncommand=sleep 9\n"
	for name, tc := range map[string]struct {
		text  string
		lines []string
		marks int
	}{
		"a program":         {sleep, []string{"[programs.a]", `command = ["sleep", "9"]`, `pass_environment = "all"`, "start_retries = 3", "restart_limit = { count = 0 }", `stdin = "pipe"`, "!barrier = \"none\""}, 0},
		"upper case":        {"[program:Web]\ncommand=w", []string{"[programs.web]"}, 0},
		"a dot in the name": {"[program:a.b]\ncommand=w\nenvironment=A=1", []string{`[programs."a.b"]`, `[programs."a.b".environment]`}, 0},
		"key in capitals":   {"[program:a]\nCOMMAND : w", []string{`command = ["w"]`}, 0},
		"last value wins":   {sleep + "priority=1\n[x]\n[program:a]\npriority=2\nPriority=3", []string{"priority = 3", "!priority = 1", "!priority = 2"}, 1},
		"comments":          {"# c\n[program:a] ; c\n  ; c\ncommand=w a;b #c\n", []string{`command = ["w", "a;b"]`}, 0},
		"continued":         {"[program:a]\ncommand=w\n  a\n\n\tb\npriority=1\n", []string{`command = ["w", "a", "b"]`, "priority = 1"}, 0},
		"CRLF":              {"[program:a]\r\ncommand=w\r\n", []string{`command = ["w"]`}, 0},
		"quotes":            {`[program:a]` + "\n" + `command=w "a \$ \" \\" 'b\' c\ d ""`, []string{`command = ["w", "a \\$ \" \\", "b\\", "c d", ""]`}, 0},
		"percent":           {"[program:a]\ncommand=date +%%s", []string{`command = ["date", "+%s"]`}, 0},
		"dollars":           {"[program:a]\ncommand=sh -c 'echo $HOME ${HOME} $$ $%(ENV_X)s $'", []string{`command = ["sh", "-c", "echo $HOME $${HOME} $$$$ $$${X} $"]`}, 1},
		"dollars in a row":  {"[program:a]\ncommand=sh -c 'echo $$$ $$$${X}'", []string{`command = ["sh", "-c", "echo $$$$$$ $$$$$$$${X}"]`}, 0},
		"bare dollars":      {"[program:a]\ncommand=$X -d ${X}/b $$\nenvironment=A=$X", []string{`command = ["$X", "-d", "$${X}/b", "$$$$"]`, `A = "$X"`}, 0},
		"names":             {"[program:A]\ncommand=%(program_name)s %(group_name)s %(numprocs)d %(process_num)02d %(program_name)3s", []string{`command = ["A", "A", "1", "00", "A"]`}, 0},
		"here":              {"[program:a]\ncommand=%(here)s/w\ndirectory=%(here)s", []string{`command = ["/etc/w"]`, `directory = "/etc"`}, 1},
		"host":              {"[program:a]\ncommand=w\nenvironment=H=%(host_node_name)s", []string{`H = "${HOSTNAME}"`}, 1},
		"environment": {sleep + `environment=A="b,c",B='x y',C=d,` + "\n  D=\"%(ENV_X)s\",E=",
			[]string{`A = "b,c"`, `B = "x y"`, `C = "d"`, `D = "${X}"`, `E = ""`}, 0},
		"quotes of variables": {sleep + `environment=A="a\\b",B='{"c":1}',C=d"e"f,G="it's"`, []string{`A = "a\\\\b"`, `B = "{\"c\":1}"`, `C = "d\"e\"f"`, `G = "it's"`}, 0},
		"escaped quotes":      {sleep + `environment=A="a \"b\", c",B="\"",C='d\',E="\\\"f\n"`, []string{`A = "a \"b\", c"`, `B = "\""`, `C = "d\\"`, `E = "\\\"f\\n"`}, 0},
		"names of variables":  {sleep + "environment=my-var=1,1A=2,node.name=3,(=4", []string{`my-var = "1"`, `1A = "2"`, `"node.name" = "3"`, `"(" = "4"`}, 0},
		"environment of all": {"[supervisord]\nenvironment=ROOT=/srv\n" + sleep + "environment=DATA=%(ENV_ROOT)s/data",
			[]string{"[supervisor.defaults.environment]", `ROOT = "/srv"`, `DATA = "/srv/data"`}, 0},
		"restart":               {sleep + "autorestart=unexpected\nexitcodes=0, 2\nstartretries=5\nstartsecs=0\nautostart=off", []string{`restart = "on-failure"`, "exit_codes = [0, 2]", "start_retries = 5", "start_seconds = 0", "autostart = false"}, 0},
		"no expected code":      {sleep + "exitcodes=", []string{"exit_codes = []"}, 0},
		"restart always":        {sleep + "autorestart=true", []string{`restart = "always"`}, 0},
		"a job":                 {sleep + "autorestart=false\nstartsecs=0", []string{`restart = "never"`, "start_seconds = 0", "!type = \"oneshot\""}, 0},
		"a server that leaves":  {sleep + "autorestart=false\nstartsecs=0", []string{`kill = "process"`}, 0},
		"a group that leaves":   {sleep + "startsecs=0\nstopasgroup=true", []string{`kill = "group"`}, 0},
		"a server that returns": {sleep + "autorestart=true\nstartsecs=0", []string{"!kill"}, 0},
		"without a limit":       {sleep + "startretries=4294967295\nstopwaitsecs=4294967295", []string{"start_retries = 1000000", `stop = ["TERM 277h46m40s", "KILL"]`}, 0},
		"stop":                  {sleep + "stopsignal=SIGINT\nstopwaitsecs=40\nstopasgroup=true\nkillasgroup=true", []string{`stop = ["INT 40s", "KILL"]`, `stop_grace = "42s"`}, 0},
		"stop at once":          {sleep + "stopwaitsecs=0", []string{`stop = ["TERM 1s", "KILL"]`}, 0},
		"stop by KILL":          {sleep + "stopsignal=9\nstopwaitsecs=1", []string{`stop = ["9 1s", "KILL"]`}, 0},
		"kill":                  {sleep + "stopsignal=KILL\nkillasgroup=false", []string{`stop = ["KILL"]`, `kill = "process"`}, 0},
		"kill as group":         {sleep + "killasgroup=true", nil, 1},
		"instances": {sleep + "numprocs=3\nprocess_name=%(program_name)s_%(process_num)02d\nenvironment=N=%(process_num)d",
			[]string{"instances = 3", `N = "${INSTANCE}"`, "# CHECK: the processes are a:0 to a:2, whatever process_name says"}, 1},
		"instances from 8000": {sleep + "numprocs=2\nnumprocs_start=8000\nenvironment=N=%(process_num)d", []string{`N = "${INSTANCE}"`}, 2},
		"one of number 7":     {sleep + "numprocs_start=7\nenvironment=N=%(process_num)03d", []string{`N = "007"`}, 0},
		"another name":        {sleep + "process_name=b", []string{"# CHECK: process_name = b: the program is a"}, 1},
		"account":             {sleep + "user=www\numask=022\ndirectory=/srv", []string{`user = "www"`, `umask = "022"`, `directory = "/srv"`}, 0},
		"account by number":   {sleep + "user=1000", []string{"user = 1000"}, 0},
		"logs": {sleep + "stdout_logfile=/l/a%%%%b\nstdout_logfile_maxbytes=5MB\nstdout_logfile_backups=2\nstderr_logfile=/l/e\nstderr_logfile_backups=2\nstderr_logfile_maxbytes=5MB",
			[]string{`logs = { backups = 2, max_bytes = "5MiB", path = "/l/a%b", stderr_path = "/l/e" }`}, 0},
		"logs at home": {sleep + "stdout_logfile=~/a\nstderr_logfile=~www/e", []string{
			`logs = { path = "${HOME}/a", stderr_path = "~www/e" }`,
			"# CHECK: stderr_logfile = ~www/e: supervisord replaced the word that begins with ~ by the home directory of that user; write that directory",
		}, 1},
		"log limits differ": {sleep + "stdout_logfile=/l/a\nstdout_logfile_maxbytes=0\nstderr_logfile=/l/e\nstderr_logfile_maxbytes=1KB", []string{`logs = { max_bytes = "0", path = "/l/a", stderr_path = "/l/e" }`}, 1},
		"log of errors":     {sleep + "stdout_logfile=AUTO\nstderr_logfile=/l/e\nstderr_logfile_maxbytes=9", []string{`logs = { max_bytes = "9", stderr_path = "/l/e" }`}, 0},
		"stderr redirected": {sleep + "stdout_logfile=/l/a\nstderr_logfile=/l/e\nredirect_stderr=yes", []string{`logs = { path = "/l/a" }`}, 0},
		"no logs":           {sleep + "stdout_logfile=NONE\nstderr_logfile=off", []string{`logs = { to = "none" }`}, 0},
		"only errors":       {sleep + "stdout_logfile=/dev/null\nstderr_logfile=/l/e", []string{`logs = { stderr_path = "/l/e" }`}, 1},
		"no errors":         {sleep + "stdout_logfile=/l/a\nstderr_logfile=NONE", []string{`logs = { path = "/l/a" }`}, 1},
		"console":           {sleep + "stdout_logfile=/dev/fd/1\nstdout_logfile_maxbytes=0\nstderr_logfile=/dev/stderr\nstderr_logfile_maxbytes=0", []string{"!logs"}, 0},
		"console of PID 1":  {sleep + "stdout_logfile=/proc/1/fd/1\nstderr_logfile=/proc/1/fd/2", []string{"!logs"}, 0},
		"one log of two":    {sleep + "stdout_logfile=/l/a\n[program:b]\ncommand=b\nstdout_logfile=/l/a", []string{`logs = { path = "/l/a" }`, `logs = { path = "/l/a-b" }`}, 1},
		"log of instances":  {sleep + "numprocs=2\nstdout_logfile=/l/a", []string{`logs = { path = "/l/a-${INSTANCE}" }`}, 2},
		"both to one log": {sleep + "numprocs=2\nstdout_logfile=/l/a\nstderr_logfile=/l/a\n[program:b]\ncommand=b\nstdout_logfile=/l/b\n[program:c]\ncommand=c\nstdout_logfile=/l/b\nstderr_logfile=/l/b",
			[]string{`logs = { path = "/l/a-${INSTANCE}" }`, `logs = { path = "/l/b-c" }`}, 3},
		"syslog": {sleep + "stdout_syslog=true\nstderr_syslog=true", []string{"[supervisor.log.forward.syslog]", `programs = ["a"]`}, 0},
		"stderr to syslog": {sleep + "stderr_syslog=true", []string{`programs = ["a"]`,
			"# CHECK: stderr_syslog = true: stdout goes to syslog too, because a collector gets both streams of a program"}, 1},
		"stdout to syslog": {sleep + "stdout_logfile=syslog", []string{`programs = ["a"]`,
			"# CHECK: stdout_logfile = syslog: stderr goes to syslog too, because a collector gets both streams of a program"}, 1},
		"both as one to syslog":     {sleep + "stdout_syslog=true\nredirect_stderr=true", []string{`programs = ["a"]`}, 0},
		"no stderr to send":         {sleep + "stderr_syslog=true\nredirect_stderr=true", []string{"![supervisor.log"}, 0},
		"event listener and syslog": {"[supervisord]\n[eventlistener:e]\ncommand=e\nevents=TICK_5\nstderr_syslog=true", []string{`programs = ["e"]`}, 1},
		"numbers without an equal": {sleep + "startsecs=-1\nstartretries=-99999999999999999999\nstopwaitsecs=-5\nstdout_logfile=/l\nstdout_logfile_backups=-1\npriority=99999999999", []string{
			"# CHECK: s.conf:3: startsecs = -1: it must be from 0 to 4294967295 here, so 0 is used", "start_seconds = 0", "start_retries = 0",
			`stop = ["TERM 1s", "KILL"]`, `logs = { backups = 0, path = "/l" }`, "priority = 1000000"}, 5},
		"one of number -2": {sleep + "numprocs_start=-2\nenvironment=N=%(process_num)d", []string{`N = "-2"`}, 0},
		"no instances": {sleep + "numprocs=0", []string{"enabled = false", "!instances",
			"# CHECK: s.conf:3: numprocs = 0: supervisord makes no process of the program; enabled = false does the same"}, 1},
		"many instances": {sleep + "numprocs=20000", []string{"instances = 10000"}, 2},
		"words beside a value": {sleep + "environment=A=\"secret,B=\"c\"\n[program:b]\ncommand=b", []string{
			`# CHECK: s.conf:3: environment: the value of A is not one word, and supervisord drops or mixes up the rest; no variable of this line was converted; write NAME="value",NAME="value"`, "[programs.b]", "!A ="}, 1},
		"a command that cannot be split": {"[program:c]\ncommand='a b\nautostart=true\n" + sleep, []string{"[programs.a]", "![programs.c]", "# command = 'a b", "# autostart = true",
			`# CHECK: s.conf:2: command: [program:c] is not converted, and supervisord cannot start it: a quote is not closed; close the quote, or double the backslash; " ;" and " #" begin a comment in this file`}, 1},
		"other outputs": {sleep + "stdout_capture_maxbytes=1MB\nstderr_events_enabled=true\nstdout_events_enabled=false\nserverurl=http://x", nil, 3},
		"priorities":    {sleep + "priority=-1\n[program:b]\ncommand=b", []string{"priority = 0", `barrier = "none"`}, 1},
		"a group": {sleep + "priority=1\n[program:b]\ncommand=b %(group_name)s\npriority=2\n[group:g]\nprograms=a, b\npriority=7",
			[]string{"priority = 7", "!priority = 1", "!priority = 2", `command = ["b", "g"]`}, 1},
		"from the environment": {sleep + "autostart=%(ENV_X)s\nnumprocs=%(ENV_X)s", []string{"# CHECK: autostart = %(ENV_X)s: a variable cannot stand here; write the value itself", "!instances"}, 2},
		"split":                {"[program:a]\ncommand=w %(ENV_X)s", []string{`command = ["w", "${X}"]`}, 1},
		"an unknown key":       {sleep + "restart=1", []string{"# CHECK: restart = 1: supervisord has no such key"}, 1},
		"a section without ]":  {sleep + "[program:b\ncommand=b", []string{`command = ["b"]`, "# CHECK: line 3 begins a section without ], so supervisord reads it as a key, and the keys below it belong to [program:a]; add the ]"}, 1},
		"only FastCGI":         {"[fcgi-program:f]\ncommand=f", nil, 1},
		"a socket for others": {"[unix_http_server]\nfile=/s\nchmod=0770\nchown=www:www\n" + sleep, []string{
			"# CHECK: chmod = 0770 of [unix_http_server]: only root and the user of agentinit may change the box; members of [supervisor] socket_group may read",
			"# CHECK: chown = www:www of [unix_http_server]: only root and the user of agentinit may change the box; members of [supervisor] socket_group may read",
		}, 2},
		"a socket for root": {"[unix_http_server]\nfile=/s\nchmod=0700\nchown=root:root\nusername=u\n" + sleep, nil, 0},
		"the box": {"[supervisord]\nnodaemon=true\nuser=nobody\numask=027\ndirectory=/srv\nminfds=65536\nminprocs=500\nloglevel=critical\nlogfile=/dev/null\nstrip_ansi=true\n" + sleep,
			[]string{`user = "nobody"`, `umask = "027"`, `directory = "/srv"`, "nofile = 65536", `level = "error"`}, 4},
		"root":     {"[supervisord]\nuser=root\nloglevel=blather\n" + sleep, []string{"!user = \"root\"", `level = "trace"`}, 0},
		"no equal": {"[supervisord]\n[unix_http_server]\nfile=/s\n[inet_http_server]\nport=1\n[supervisorctl]\n[rpcinterface:supervisor]\n[rpcinterface:x]\n[eventlistener:e]\ncommand=e\n\tf\nevents=process_log\n[fcgi-program:f]\ncommand=f", []string{"# command = e f", "!command"}, 4},
		"an event listener": {sleep + "[eventlistener:Mail]\ncommand=crashmail -m \"a b\"\nevents=PROCESS_STATE_EXITED, tick_60",
			[]string{"[programs.mail]", `command = ["agentctl", "listen", "--events", "PROCESS_STATE_EXITED,TICK_60", "--", "crashmail", "-m", "a b"]`, "priority = 0", `barrier = "none"`, "!logs",
				`# CHECK: if the event listener changes the box, as memmon does, it needs control = true; if it only ends the box, drop it: essential = true or on_fatal = "shutdown" in a program does that`}, 1},
		"a pool of listeners": {"[supervisord]\n[eventlistener:e]\ncommand=e\nevents=EVENT\nbuffer_size=5000\nnumprocs=2\nprocess_name=%(process_num)d\npriority=5\nautorestart=true\nuser=www\n" +
			"result_handler=a:b\nstdout_logfile=/l/o\nstdout_logfile_maxbytes=1\nstderr_logfile=/l/e\nstderr_logfile_maxbytes=2",
			[]string{`command = ["agentctl", "listen", "--events", "EVENT", "--buffer", "1000", "--", "e"]`, "instances = 2", "priority = 5", `restart = "always"`, `user = "www"`,
				`logs = { max_bytes = "2", path = "/l/e-${INSTANCE}" }`, "# CHECK: buffer_size = 5000: the most is 1000",
				"# CHECK: result_handler = a:b: agentinit runs no Python code; each result but OK means that the event was rejected",
				"# CHECK: stdout_logfile = /l/o: standard output of an event listener is for the protocol alone and goes to no log"}, 6},
		"the usual buffer":    {"[supervisord]\n[eventlistener:e]\ncommand=e\nevents=TICK_5\nbuffer_size=10\nresult_handler=supervisor.dispatchers:default_handler", []string{`command = ["agentctl", "listen", "--events", "TICK_5", "--", "e"]`}, 1},
		"some events":         {"[supervisord]\n[eventlistener:e]\ncommand=e\nevents=TICK_5,REMOTE_COMMUNICATION", []string{`command = ["agentctl", "listen", "--events", "TICK_5", "--", "e"]`, "# CHECK: events: REMOTE_COMMUNICATION: agentinit has no such event; there is no sendRemoteCommEvent"}, 2},
		"events of variables": {sleep + "[eventlistener:e]\ncommand=e\nevents=%(ENV_X)s", []string{"# CHECK: [eventlistener:e] is not converted: its events depend on a variable"}, 2},
		"nginx and PHP": {"[supervisord]\nnodaemon=true\nuser=root\nlogfile=/dev/stdout\nlogfile_maxbytes=0\npidfile=/run/s.pid\n\n" +
			"[program:php-fpm]\ncommand=php-fpm -F\nautorestart=true\nstdout_logfile=/dev/stdout\nstdout_logfile_maxbytes=0\nstderr_logfile=/dev/stderr\nstderr_logfile_maxbytes=0\npriority=5\n\n" +
			"[program:nginx]\ncommand = nginx -g \"daemon off;\"\nstopsignal=QUIT\npriority=10\n",
			[]string{`command = ["nginx", "-g", "daemon off;"]`, `stop = ["QUIT 10s", "KILL"]`, `barrier = "none"`, "!logs"}, 0},
		"celery": {"; celery\n[program:celery-worker]\ncommand=/venv/bin/celery -A app worker -n default@%%h --loglevel=info\ndirectory=/app\nuser=celery\nnumprocs=1\n" +
			"stdout_logfile=/var/log/celery/worker.log\nstderr_logfile=/var/log/celery/worker.log\nstartsecs=10\n\n; tasks end first\nstopwaitsecs = 600  ; ten minutes\nstopasgroup=true\npriority=1000\n" +
			"environment=PYTHONPATH=/app:/lib,DJANGO_SETTINGS_MODULE=\"app.settings\"\n",
			[]string{`command = ["/venv/bin/celery", "-A", "app", "worker", "-n", "default@%h", "--loglevel=info"]`, `stop = ["TERM 10m", "KILL"]`, `stop_grace = "10m2s"`, `logs = { path = "/var/log/celery/worker.log" }`, `PYTHONPATH = "/app:/lib"`}, 0},
		"syslog as a file": {sleep + "stdout_logfile=syslog\nstderr_logfile=syslog", []string{`logs = { to = "none" }`, `type = "syslog"`}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			got, marks, err := convert(tc.text, nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range check(got) {
				t.Error(f)
			}
			for _, want := range tc.lines {
				not := strings.HasPrefix(want, "!")
				if strings.Contains(got, "\n"+strings.TrimPrefix(want, "!")) == not {
					t.Errorf("line %s", want)
				}
			}
			if marks != tc.marks || strings.Count(got, mark) != marks {
				t.Errorf("%d marks, want %d", marks, tc.marks)
			}
			if again, _, _ := convert(tc.text, nil); again != got {
				t.Errorf("the second conversion differs:\n%s", again)
			}
			if t.Failed() {
				t.Log(got)
			}
		})
	}
}

// The negative twin of the check in TestConversions: a manifest with a mistake has findings.
func TestMistakesOfManifestsAreFound(t *testing.T) {
	if len(check("[programs.a]\ncommand = [\"a\"]\nlogs = { path = \"/l\" }\n[programs.b]\ncommand = [\"b\"]\nlogs = { path = \"/l\" }\n")) == 0 {
		t.Error("two programs write one log file, and there is no finding")
	}
}

func TestIncludes(t *testing.T) {
	files := fstest.MapFS{
		"etc/d/b.conf":       {Data: []byte("[program:b]\ncommand=%(here)s/b\n[program:a]\npriority=2\n")},
		"etc/d/a.conf":       {Data: []byte("[program:a]\ncommand=a\npriority=1\n[include]\nfiles=/never.conf\n")},
		"etc/d/.hidden.conf": {Data: []byte("no ini")},
		"opt/c.conf":         {Data: []byte("[program:c]\ncommand=c\n")},
		"never.conf":         {Data: []byte("[program:never]\ncommand=n\n")},
		"etc/broken.conf":    {Data: []byte("[program:x]\ncommand\n")},
	}
	got, marks, err := convert("[include]\nfiles = d/*.conf %(here)s/../opt/[!ab].conf\n  none/*", files)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"[programs.a]", "priority = 2", `command = ["/etc/d/b"]`, "[programs.c]", "# CHECK: no file matches /etc/none/* of [include] on this machine; if the image has such files, run the import there"} {
		if !strings.Contains(got, "\n"+want+"\n") {
			t.Errorf("no line %s", want)
		}
	}
	if strings.Contains(got, "never") || marks != 2 || strings.Index(got, "[programs.a]") > strings.Index(got, "[programs.b]") {
		t.Errorf("%d marks:\n%s", marks, got)
	}
	if _, _, err := convert("[include]\nfiles = broken.conf", files); err == nil || !strings.HasPrefix(err.Error(), "/etc/broken.conf:2: [program:x] a line is no key") {
		t.Errorf("an included file that is no INI file: %v", err)
	}
	unreadable := disk(files)
	unreadable.Read = func(string) ([]byte, error) { return nil, errors.New("permission denied") }
	_, _, err = Convert("s.conf", "/etc", []byte("[include]\nfiles = d/a.conf"), unreadable)
	if want := `s.conf:2: [include] files = "d/a.conf": cannot read /etc/d/a.conf: permission denied; make it readable, or take it out of files`; err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

func TestRefused(t *testing.T) {
	const a = "[program:a]\ncommand=a\n"
	for _, tc := range []struct{ text, want string }{
		{"", "s.conf:1: the file has neither [supervisord] nor a [program:NAME]; name a supervisord.conf"},
		{"a=1", "s.conf:1: a line comes before the first [section]; name a supervisord.conf, which is an INI file"},
		{a + "[eventlistener:e]\ncommand=e\nevents=TICK_5\nredirect_stderr=true", `s.conf:6: [eventlistener:e] redirect_stderr = "true": supervisord refuses it in an event listener; drop it: standard output is for the protocol alone`},
		{a + "[eventlistener:e]\ncommand=e", "s.conf:3: [eventlistener:e] the event listener names no event; write events=PROCESS_STATE, or the events that it needs"},
		{a + "[eventlistener:e]\ncommand=e\nevents=TICK_7", `s.conf:5: [eventlistener:e] events = "TICK_7": supervisord has no event "TICK_7"; PROCESS_STATE and TICK_60 are two; write names of supervisord's events with commas between them`},
		{a + "[eventlistener:e]\ncommand=e\nevents=TICK_5\nbuffer_size=0", `s.conf:6: [eventlistener:e] buffer_size = "0": supervisord refuses it; write a number of 1 or more`},
		{a + "[eventlistener:a]\ncommand=e\nevents=TICK_5", "s.conf:3: [eventlistener:a] the program has the same name as [program:a] at s.conf:1, because names are in lower case; rename one of the two"},
		{"[x]\n\xff", "s.conf:2: the file is not UTF-8; convert it first, for example with iconv"},
		{"[x]\na=\x00", "s.conf:2: the file has a NUL byte; name a text file"},
		{"[program:a]\nfoo", "s.conf:2: [program:a] a line is no key with a value; write KEY=VALUE, or indent a line that continues a value"},
		{"[program:a]\n", "s.conf:1: [program:a] the program has no command; write command=/path/of/program"},
		{"[program:a]\ncommand=a %(b)s", `s.conf:2: [program:a] command: supervisord has no value for "%(b)s"; write %% for a percent sign`},
		{"[program:a]\ncommand=date +%s", `s.conf:2: [program:a] command: a % begins no name such as %(here)s; write %% for a percent sign`},
		{a + "[program:A]\ncommand=a\n", "s.conf:3: [program:A] the program has the same name as [program:a] at s.conf:1, because names are in lower case; rename one of the two"},
		{"[program:_a]\ncommand=a", "s.conf:1: [program:_a] a program cannot have this name; rename it: 1 to 63 letters, digits, _, . and -, a letter or digit first"},
		{"[program:bootstrap]\ncommand=a", "s.conf:1: [program:bootstrap] agentinit reserves this name; rename the program"},
		{a + "startsecs=5s", `s.conf:3: [program:a] startsecs = "5s": it is no whole number; write digits alone, such as 10`},
		{a + "autostart=perhaps", `s.conf:3: [program:a] autostart = "perhaps": it is neither true nor false; write true or false`},
		{a + "autorestart=always", `s.conf:3: [program:a] autorestart = "always": it is not known; write true, false or unexpected`},
		{a + "exitcodes=0,256", `s.conf:3: [program:a] exitcodes = "0,256": it is no list of exit codes; write numbers from 0 to 255 with commas between them`},
		{a + "stopsignal=BOGUS", `s.conf:3: [program:a] stopsignal = "BOGUS": Linux has no such signal; write a name such as TERM or QUIT, see signal(7)`},
		{a + "stopasgroup=1\nkillasgroup=0", `s.conf:4: [program:a] killasgroup = "0": supervisord refuses it together with stopasgroup = true; drop one of the two`},
		{a + "umask=9", `s.conf:3: [program:a] umask = "9": it is no octal number; write a umask such as 022`},
		{a + "environment=secret", `s.conf:3: [program:a] environment: pair 1 is no NAME=VALUE; write NAME="value",NAME="value"`},
		{a + "environment=A=\"secret", `s.conf:3: [program:a] environment: the quote of the value of A is not closed; write NAME="value",NAME="value"`},
		{a + "stdout_logfile_maxbytes=5TB2", `s.conf:3: [program:a] stdout_logfile_maxbytes = "5TB2": it is no size; write a number of bytes, or a number with KB, MB or GB`},
		{a + "[group:g]\nprograms=a,b", `s.conf:4: [group:g] programs = "a,b": there is no [program:b]; add the program, or take it out of the group`},
		{a + "[group:g]\n", "s.conf:3: [group:g] programs is missing; write programs=NAME,NAME"},
		{a + "[supervisord]\nloglevel=loud", `s.conf:4: [supervisord] loglevel = "loud": it is not known; write critical, error, warn, info, debug, trace or blather`},
		{"[supervisord]\nnodaemon=true\n  [program:a]\n  command=a", "s.conf:3: [supervisord] nodaemon: an indented line continues the value, and this one looks like a section; remove the blanks before it"},
		{"[include]\nfiles=%(host_node_name)s/*", `s.conf:2: [include] files = "%(host_node_name)s/*": the path depends on the environment; write the path itself`},
		{"[include]\nfiles=%(here)s/a.conf %(ENV_X)s.conf", `s.conf:2: [include] files = "%(ENV_X)s.conf": the path depends on the environment; write the path itself`},
		{"[include]\nfiles=%(ENV_X)s", `s.conf:2: [include] files = "%(ENV_X)s": the path depends on the environment; write the path itself`},
	} {
		if got, _, err := convert(tc.text, nil); err == nil || err.Error() != tc.want {
			t.Errorf("%q:\ngot  %v %s\nwant %s", tc.text, err, got, tc.want)
		}
	}
}

// A large file is read in a time that grows with its size alone.
func TestLargeFiles(t *testing.T) {
	const n = 1 << 17
	got, _, err := convert("[program:a]\ncommand=a"+strings.Repeat("\n", n)+" b\n"+strings.Repeat("[x]\n", n), nil)
	if err != nil || !strings.Contains(got, `command = ["a", "b"]`) {
		t.Errorf("%v, %d bytes", err, len(got))
	}
}

// FuzzConvert: each file is converted to TOML in canonical layout, or refused with its name.
func FuzzConvert(f *testing.F) {
	for _, seed := range []string{
		"[supervisord]\nenvironment=A=1\nminfds=9999\n[program:a]\ncommand=a $%(ENV_B)s '%%' \\\n numprocs=2\nstdout_logfile=/l\n",
		"[group:g]\nprograms=a\n[program:a]\ncommand:b\nprocess_name=%(process_num)099d\nstopsignal=INT\nenvironment=A=\"\\\"\",B=''\n",
		"[include]\nfiles=*\n[eventlistener:x]\ncommand=\x1b[0m\u2028\n",
		"[eventlistener:x]\ncommand=a\nevents=TICK_5,process_log\nbuffer_size=2\n[eventlistener:y]\nevents=PROCESS_LOG\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		manifest, marks, err := Convert("s.conf", "/etc", text, disk(fstest.MapFS{"etc/a": {Data: []byte("[program:z]\ncommand=z\n")}}))
		if err != nil {
			if !strings.HasPrefix(err.Error(), "s.conf:") {
				t.Fatalf("an error without the file: %v", err)
			}
			return
		}
		if n := strings.Count(string(manifest), mark); n < marks {
			t.Errorf("%d comments, %d marks", n, marks)
		}
		_, _, findings := schema.Load("m", manifest)
		for _, finding := range findings {
			if finding.Severity == schema.Error {
				t.Errorf("%v\n%s", finding, manifest)
			}
		}
	})
}
