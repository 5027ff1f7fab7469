package proc

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dreamlab-ai/agentinit/internal/testprog/built"
	"github.com/dreamlab-ai/agentinit/supervisor/proc/filter"
)

// needsLandlock skips the test if the kernel's Landlock is too old for it.
func needsLandlock(t *testing.T, abi int) {
	t.Helper()
	if have := LandlockABI(); have < abi {
		t.Skipf("needs Landlock ABI %d, the kernel has %d", abi, have)
	}
}

func compiled(t testing.TB, pol filter.Policy) []unix.SockFilter {
	t.Helper()
	f, err := filter.Compile(runtime.GOARCH, pol)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// Paths outside the lists are refused, and paths inside work. Without a sandbox, all paths work.
func TestSandboxPaths(t *testing.T) {
	needsLandlock(t, 3)
	o := newOwner(t, Options{})
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	in, out := filepath.Join(dir, "in"), filepath.Join(dir, "out")
	for _, d := range []string{in, out} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(d+"/file", []byte("x\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		script(t, d+"/run", "#!/bin/sh\nexit 0\n")
	}
	system := []string{"-/usr", "-/bin", "-/lib", "-/lib64", "-/etc", "-/nix"}
	for _, tc := range []struct {
		name    string
		sandbox *Sandbox
		works   string
		fails   string
	}{
		{"none", nil, "cat " + out + "/file; echo y >" + out + "/new; rm " + out + "/new; " + out + "/run", "false"},
		{"read", &Sandbox{Read: append([]string{in}, system...)}, "cat " + in + "/file; echo y >" + out + "/new; rm " + out + "/new", "cat " + out + "/file"},
		{"write", &Sandbox{Write: []string{in}}, "echo y >" + in + "/new; mkdir " + in + "/d; mv " + in + "/new " + in + "/d/; cat " + out + "/file; echo >/dev/null", "echo y >" + out + "/new"},
		{"write a file", &Sandbox{Write: []string{in + "/file"}}, "echo y >" + in + "/file", "echo y >" + in + "/other"},
		{"unlink", &Sandbox{Write: []string{in}}, "true", "rm " + out + "/file"},
		{"execute", &Sandbox{Execute: append([]string{in}, system...)}, in + "/run; cat " + out + "/file", out + "/run"},
		{"optional", &Sandbox{Read: append([]string{"-/no/such", in}, system...)}, "cat " + in + "/file", "cat " + out + "/file"},
		{"with a guard", &Sandbox{Write: []string{in}}, "kill -0 $$", "kill -0 " + "$PPID"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := sh("set -e; " + tc.works + "; if (" + tc.fails + ") 2>/dev/null; then exit 9; fi")
			c.Sandbox, c.NoNewPrivs = tc.sandbox, true
			if tc.name == "with a guard" {
				needsLandlock(t, 6)
				c.Guard = GuardFull
			}
			r, err := o.Run(t.Context(), c, 1000)
			if err != nil || r.Exit.Code() != 0 {
				t.Errorf("%s %+v, %v", r.Output, r.Exit, err)
			}
		})
	}
	_, err := o.Start(Command{Path: "/bin/true", NoNewPrivs: true, Sandbox: &Sandbox{Read: []string{"/no/such/path"}}})
	if err == nil || !strings.Contains(err.Error(), "sandbox read /no/such/path: no such file or directory") {
		t.Errorf("got %v", err)
	}
}

func TestSandboxPorts(t *testing.T) {
	needsLandlock(t, 4)
	bin := built.Path(t)
	o := newOwner(t, Options{})
	c := prog(bin, "get", "http://127.0.0.1:9")
	for _, ports := range [][]int{{9}, {}} {
		c.Sandbox, c.NoNewPrivs = &Sandbox{TCPConnect: ports}, true
		r, err := o.Run(t.Context(), c, 1000)
		if err != nil || strings.Contains(string(r.Output), "permission denied") == (len(ports) > 0) {
			t.Errorf("%v: %s, %v", ports, r.Output, err)
		}
	}
}

func TestSandboxFilter(t *testing.T) {
	o := newOwner(t, Options{})
	for preset, works := range map[string]bool{"": true, "default": false, "strict": false} {
		c := sh("unshare --user true 2>/dev/null")
		c.NoNewPrivs = true
		if preset != "" {
			c.Sandbox = &Sandbox{Filter: compiled(t, filter.Policy{Preset: preset})}
		}
		if preset == "" && os.Geteuid() != 0 {
			continue // for an ordinary user, another rule may refuse the call
		}
		r, err := o.Run(t.Context(), c, 1000)
		if err != nil || (r.Exit.Code() == 0) != works {
			t.Errorf("%q: %s %+v, %v", preset, r.Output, r.Exit, err)
		}
	}
	// An ordinary program runs with the strict preset, the guard and no capabilities together.
	bin := built.Path(t)
	c := prog(bin, "env", "A")
	c.Env = []string{"A=b"}
	c.Guard, c.Sandbox = GuardFull, &Sandbox{Filter: compiled(t, filter.Policy{Preset: "strict"}), Capabilities: []int{}}
	if r, err := o.Run(t.Context(), c, 1000); err != nil || string(r.Output) != "A=b\n" {
		t.Errorf("%q %+v, %v", r.Output, r.Exit, err)
	}
}

func TestSandboxCapabilities(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to have capabilities")
	}
	if ownCapabilities()&(1<<unix.CAP_SETUID|1<<unix.CAP_NET_BIND_SERVICE) != 1<<unix.CAP_SETUID|1<<unix.CAP_NET_BIND_SERVICE {
		t.Skip("needs root with CAP_SETUID and CAP_NET_BIND_SERVICE")
	}
	o := newOwner(t, Options{})
	bind := uint64(1) << unix.CAP_NET_BIND_SERVICE
	for _, tc := range []struct {
		name string
		c    Command
		want string // effective, ambient
	}{
		{"root keeps none", Command{Sandbox: &Sandbox{Capabilities: []int{}}}, "0 0"},
		{"root keeps one", Command{Sandbox: &Sandbox{Capabilities: []int{unix.CAP_NET_BIND_SERVICE}}}, "400 400"},
		{"a user keeps one", Command{Credential: &Credential{UID: 12345, GID: 12345}, Sandbox: &Sandbox{Capabilities: []int{unix.CAP_NET_BIND_SERVICE}}}, "400 400"},
		{"a user has none", Command{Credential: &Credential{UID: 12345, GID: 12345}}, "0 0"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := sh(`awk '/^CapEff|^CapAmb/ {sub("^0*", "", $2); print $2 == "" ? 0 : $2}' /proc/self/status | tr '\n' ' '`)
			c.Credential, c.Sandbox, c.NoNewPrivs = tc.c.Credential, tc.c.Sandbox, true
			r, err := o.Run(t.Context(), c, 1000)
			if got := strings.TrimSpace(string(r.Output)); err != nil || got != tc.want {
				t.Errorf("got %q, want %q (bind is %x); %v", got, tc.want, bind, err)
			}
		})
	}
}

func TestSandboxPrivateTmp(t *testing.T) {
	if os.Geteuid() != 0 || ownCapabilities()&(1<<unix.CAP_SYS_ADMIN) == 0 {
		t.Skip("needs root and CAP_SYS_ADMIN to mount")
	}
	o := newOwner(t, Options{})
	mark, err := os.CreateTemp("/tmp", "private")
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(mark.Name())
	mark.Close()
	for private, code := range map[bool]int{true: 0, false: 1} {
		c := sh("test ! -e " + mark.Name() + " && touch /tmp/own && rm /tmp/own")
		c.Sandbox = &Sandbox{PrivateTmp: private}
		c.Credential = &Credential{UID: 12345, GID: 12345}
		r, err := o.Run(t.Context(), c, 1000)
		if err != nil || r.Exit.Code() != code {
			t.Errorf("private %v: %s %+v, %v", private, r.Output, r.Exit, err)
		}
	}
}

func TestMissing(t *testing.T) {
	full := Sandbox{Read: []string{"/"}, Write: []string{"/"}, TCPBind: []int{1}}
	for abi, want := range map[int]int{0: 2, 1: 2, 3: 1, 4: 0, 7: 0} {
		if got := full.Missing(abi); len(got) != want {
			t.Errorf("ABI %d: %q", abi, got)
		}
		rest := full.WithoutMissing(abi)
		if left := rest.Missing(abi); abi >= 3 && len(left) > 0 {
			t.Errorf("ABI %d, without: %q", abi, left)
		}
	}
	if got := (&Sandbox{}).Missing(0); len(got) != 0 {
		t.Errorf("nothing asked, %q missing", got)
	}
}
