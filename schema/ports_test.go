package schema

import (
	"slices"
	"strings"
	"testing"
)

// A port has the same meaning here as in container engines.
func TestPortsReadAsTheyAreWritten(t *testing.T) {
	for text, want := range map[string]string{
		"8080": "8080:8080", "80:8080": "80:8080", "127.0.0.1:80:8080": "127.0.0.1:80:8080", "[::1]:80:8080": "[::1]:80:8080",
		"53/udp": "53:53/udp", "127.0.0.1:53:5353/udp": "127.0.0.1:53:5353/udp", "80/tcp": "80:80",
	} {
		p, err := ParsePort(text)
		if err != nil || p.String() != want {
			t.Errorf("%q reads as %+v (%v), want %s", text, p, err, want)
		}
		if again, err := ParsePort(p.String()); err != nil || again != p {
			t.Errorf("%s reads as %+v (%v), want %+v", p, again, err, p)
		}
	}
}

func FuzzParsePort(f *testing.F) {
	for _, seed := range []string{"80", "80:90", "127.0.0.1:1:2/udp", "[::1]:1:2", ":::", "/"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := ParsePort(text)
		if err != nil {
			return
		}
		if again, err := ParsePort(p.String()); err != nil || again != p {
			t.Errorf("%q is %+v, which is written as %s and read as %+v (%v)", text, p, p, again, err)
		}
	})
}

// The source of a volume is a path or a name that docker and podman accept.
func TestParseVolume(t *testing.T) {
	for text, want := range map[string]Volume{
		"data:/x":           {Source: "data", Target: "/x"},
		"a.b_c-D9:/x:ro":    {Source: "a.b_c-D9", Target: "/x", ReadOnly: true},
		".:/x":              {Source: ".", Target: "/x"},
		"../a b/ü:/x:rw":    {Source: "../a b/ü", Target: "/x"},
		"~/data:/x":         {Source: "~/data", Target: "/x"},
		"/srv/100%:/x":      {Source: "/srv/100%", Target: "/x"},
		":/x":               {},
		"conf/nginx:/x":     {},
		"two words:/x":      {},
		"x:/x":              {}, // a drive to compose
		"0:/x":              {},
		"données:/x":        {},
		"-v:/x":             {},
		"./a\tb:/x":         {},
		"./a\rVolume=b:/x":  {},
		"./a\u0000b:/x":     {},
		"data:x":            {},
		"data:/x/../y":      {},
		"data:/x:exec":      {},
		"data:/x:ro:nocopy": {},
	} {
		got, err := ParseVolume(text)
		if got != want || (err == nil) != (want != Volume{}) {
			t.Errorf("%q is %+v, %v", text, got, err)
		}
	}
}

// Every key of supervisord is a key here or has a hint.
func TestSupervisordKeys(t *testing.T) {
	for _, c := range []struct {
		path  []string // of the table
		shape *shape
		keys  string // all keys of the table in supervisord's documentation
	}{
		{[]string{"programs", "web"}, programTable(), `command process_name numprocs numprocs_start priority autostart startsecs startretries
			autorestart exitcodes stopsignal stopwaitsecs stopasgroup killasgroup user redirect_stderr stdout_logfile stdout_logfile_maxbytes
			stdout_logfile_backups stdout_capture_maxbytes stdout_events_enabled stdout_syslog stderr_logfile stderr_logfile_maxbytes
			stderr_logfile_backups stderr_capture_maxbytes stderr_events_enabled stderr_syslog environment directory umask serverurl`},
		{[]string{"supervisor"}, supervisorShape(), `logfile logfile_maxbytes logfile_backups loglevel pidfile umask nodaemon silent minfds
			minprocs nocleanup childlogdir user directory strip_ansi environment identifier`},
		{nil, manifestShape(), "program supervisord supervisorctl unix_http_server inet_http_server include group fcgi-program eventlistener rpcinterface"},
	} {
		for word := range strings.FieldsSeq(c.keys) {
			known := slices.ContainsFunc(c.shape.keys, func(k key) bool { return k.name == word })
			if !known && foreignHint(append(slices.Clone(c.path), word), c.shape.keys) == "" {
				t.Errorf("%s of %q is unknown and has no hint", word, c.path)
			}
		}
	}
}

// A hint names a key that exists. No word of another tool in the table is a key here.
func TestForeignWords(t *testing.T) {
	for _, c := range []struct {
		words map[string]string
		shape *shape
	}{
		{foreignProgramKeys(), programTable()}, {foreignSupervisorKeys(), supervisorShape()},
		{foreignSections(), manifestShape()}, {foreignProbeKeys(), healthShape()},
		{foreignLogKeys(), logsShape()},
	} {
		for _, k := range c.shape.keys {
			if hint, clash := c.words[sameName.Replace(k.name)]; clash {
				t.Errorf("%s is a key and has the hint %q", k.name, hint)
			}
		}
		for word := range c.words {
			if sameName.Replace(word) != word {
				t.Errorf("%q can never be found: names are compared without marks", word)
			}
		}
	}
}

// The volumes of exceptions follow the same rules.
func TestWritableVolumes(t *testing.T) {
	_, _, findings := Load("agentbox.toml", []byte("[security.exceptions.solid-pod-rs]\nwritable_volumes = ['solid-data:/var/lib/solid', 'two words:/x', 'x:/x', 'data:x']\n"))
	var columns []int
	for _, f := range findings {
		if f.Code == "E016" && f.Line == 2 {
			columns = append(columns, f.Column)
		}
	}
	if !slices.Equal(columns, []int{50, 66, 74}) {
		t.Errorf("the errors are in the columns %v of %v", columns, findings)
	}
}
