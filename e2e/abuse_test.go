package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A process can send a fault signal such as SIGSEGV with kill(2). agentinit ignores every fault
// signal that was sent.
func TestSentFaultsAreIgnored(t *testing.T) {
	b := boot(t, asPID1, onlyWeb)
	b.sealed()
	for _, s := range []syscall.Signal{syscall.SIGSEGV, syscall.SIGBUS, syscall.SIGFPE, syscall.SIGILL, syscall.SIGABRT, syscall.SIGTRAP, syscall.SIGSYS} {
		b.signal(s)
		if status, body := b.get("/livez"); status != 200 {
			t.Errorf("after %v: %d %s", s, status, body)
		}
	}
	b.stopsWell()
}

// A TERM at any moment of the boot causes a clean shutdown.
func TestTermDuringTheBoot(t *testing.T) {
	for _, name := range []string{"BootstrapStarted", "PhaseStarted", "RuntimeClosureValidated", "BootstrapSealStarted", "ProgramStateChanged"} {
		t.Run(name, func(t *testing.T) {
			b := boot(t, asPID1, onlyWeb)
			b.event(name)
			b.stopsWell()
		})
	}
}

// A box whose output is never read still ends, with TERM and with QUIT. The dump of QUIT is lost.
func TestEndWithoutAReader(t *testing.T) {
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGQUIT} {
		t.Run(s.String(), func(t *testing.T) {
			b := place(t, asPID1, header+`
[programs.web]
command = ["/bin/sh", "-c", "echo up > UP; exec sleep 1000"]
required = true
`)
			up := filepath.Join(b.dir, "up")
			if err := syscall.Mkfifo(up, 0o600); err != nil {
				t.Fatal(err)
			}
			b.write(strings.ReplaceAll(b.manifest(), "UP", up))
			b.unread = fullPipe(t)
			b.start()
			// Waits for the program's line: the output of the box itself cannot be read.
			if said, err := os.ReadFile(up); err != nil || string(said) != "up\n" {
				t.Fatalf("%q, %v", said, err)
			}
			b.signal(s)
			if code := b.ended(); code != 0 {
				t.Errorf("ended with %d", code)
			}
		})
	}
}

// fullPipe returns the write end of a pipe whose buffer is full.
func fullPipe(t *testing.T) *os.File {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	raw, err := w.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var full error
	err = raw.Write(func(fd uintptr) bool {
		for full == nil {
			_, full = syscall.Write(int(fd), make([]byte, 4096))
		}
		return true
	})
	if err != nil || full != syscall.EAGAIN {
		t.Fatal(err, full)
	}
	return w
}

// If the manifest has become invalid, SIGHUP and apply change nothing in the box.
func TestInvalidManifestOnHangup(t *testing.T) {
	b := boot(t, asPID1, onlyWeb)
	b.sealed()
	before := b.programs()["web"]
	b.write("[programs.web]\ncommand = 7\nneeds = ['nosuch']\n")
	b.signal(syscall.SIGHUP)
	for _, want := range []string{"command", "nosuch"} {
		if e := b.event("ManifestFinding"); !strings.Contains(e["message"].(string), want) || e["line"] == nil {
			t.Errorf("told %v, want one of %s", e, want)
		}
	}
	if e := b.event("ApplyFailed"); !strings.Contains(e["message"].(string), "the box is unchanged") {
		t.Errorf("told %v", e)
	}
	if out, code := b.ctl("apply"); code == 0 || !strings.Contains(out, "nosuch") || !strings.Contains(out, "command") {
		t.Errorf("apply: %d %s", code, out)
	}
	if now := b.programs()["web"]; now != before {
		t.Errorf("was %+v, is %+v", before, now)
	}
}

// If the client of an apply goes away, the box completes the apply. Until then, the box reports the
// checksum of the old manifest.
func TestApplyWithoutItsCaller(t *testing.T) {
	b := boot(t, asPID1, onlyWeb)
	b.sealed()
	checksum := func() string {
		_, text := b.get("/v1/meta")
		var meta struct {
			Checksum string `json:"manifest_checksum"`
		}
		if err := json.Unmarshal([]byte(text), &meta); err != nil {
			t.Fatalf("%v in %s", err, text)
		}
		return meta.Checksum
	}
	before, up := checksum(), filepath.Join(b.dir, "up")
	b.write(strings.Replace(b.manifest(), "required", fmt.Sprintf("ready = { file = %q, interval = \"10ms\" }\nrequired", up), 1))
	apply := exec.Command(binary(t, "agentctl"), "--socket", b.socket(), "apply")
	if err := apply.Start(); err != nil {
		t.Fatal(err)
	}
	b.event("ProgramsApplied")
	if err := apply.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = apply.Wait() // killed
	if now := checksum(); now != before {
		t.Errorf("%s is in force before web has returned", now)
	}
	if err := os.WriteFile(up, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(patience); checksum() == before; {
		if time.Now().After(deadline) {
			t.Fatalf("the box still says %s, and runs %+v", before, b.programs())
		}
	}
	if out := b.mustCtl("apply", "--dry-run"); !strings.Contains(out, "unchanged") {
		t.Errorf("web is not what the manifest says: %s", out)
	}
	b.stopsWell()
}

// apply lists the settings that a running box cannot change.
func TestApplySaysWhatWaitsForTheNextBoot(t *testing.T) {
	const web = "[programs.web]\ncommand = ['sleep', '1000']\n"
	b := boot(t, unprivileged, header+web)
	b.sealed()
	b.write("[supervisor]\nstop_grace = '20s'\n" + web)
	for range 2 { // the second apply still lists the setting
		out := b.mustCtl("apply")
		if !strings.Contains(out, "not before the next boot: supervisor.") || !strings.Contains(out, "supervisor.stop_grace\n") {
			t.Errorf("apply says %s", out)
		}
	}
}

// If a program removes the control socket, agentinit restores it.
func TestControlSocketComesBack(t *testing.T) {
	for name, mode := range map[string]how{"pid 1": asPID1, "unprivileged": unprivileged} {
		t.Run(name, func(t *testing.T) {
			b := boot(t, mode, header+`
[programs.thief]
command = ["sh", "-c", "rm CONTROL; exec sleep 1000"]
`)
			if e := b.event("ControlSocketLost"); e["found"] != "nothing" || e["restored"] != true {
				t.Errorf("told %v", e)
			}
			b.mustCtl("version")
			b.stopsWell()
		})
	}
}

// If a live agentinit already uses the directory, a second agentinit is refused before it changes
// anything there.
func TestSecondInTheSamePlace(t *testing.T) {
	b := boot(t, unprivileged, onlyWeb)
	b.sealed()
	before, err := os.Stat(b.sentinel())
	if err != nil {
		t.Fatal(err)
	}
	second := b.again()
	end := second.event("Terminated")["message"].(string)
	if code := second.ended(); code != 73 || !strings.Contains(end, "another process listens there; stop it") {
		t.Errorf("the second ended with %d: %s", code, end)
	}
	if now, err := os.Stat(b.sentinel()); err != nil || !os.SameFile(before, now) {
		t.Errorf("the sentinel was %v, is %v, %v", before, now, err)
	}
	if out := b.mustCtl("status"); !strings.Contains(out, "RUNNING") {
		t.Errorf("the first one says %s", out)
	}
	if code := b.stop(); code != 0 {
		t.Errorf("the first one ended with %d", code)
	}
}

// On a full disk, the box supervises, answers and ends as usual. When the disk has space again, the
// box writes its logs again.
func TestFullDisk(t *testing.T) {
	needsRoot(t)
	b := place(t, asPID1, header+`
[programs.web]
command = ["sh", "-c", "while :; do echo still here; sleep 0.05; done"]
required = true
backoff = { initial = "50ms" }
logs = { to = "file", path = "/var/log/web.log", max_bytes = 65536, backups = 2 }
`)
	manifest := b.manifest()
	if err := syscall.Mount("tmpfs", b.dir, "tmpfs", 0, "size=2m,mode=777"); err != nil {
		t.Skipf("needs root: cannot mount a tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(b.dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	b.write(manifest)
	b.start()
	b.sealed()
	filler := filepath.Join(b.dir, "filler")
	if err := os.WriteFile(filler, make([]byte, 4<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}
	for range 2 {
		was := b.programs()["web"]
		if err := syscall.Kill(b.hostPIDs()[was.PID], syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		waitFor(t, "web runs again", func() bool {
			now := b.programs()["web"]
			return now.State == "RUNNING" && now.PID != was.PID
		})
	}
	b.mustCtl("restart", "web")
	if out := b.mustCtl("logs", "web"); !strings.Contains(out, "still here") {
		t.Errorf("logs: %s", out)
	}
	if out, code := b.ctl("apply"); code != 0 {
		t.Errorf("apply: %d %s", code, out)
	}
	if status, body := b.get("/livez"); status != 200 {
		t.Errorf("/livez: %d %s", status, body)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(b.dir, "var/log/web.log")
	size := func() int64 {
		info, err := os.Stat(log)
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	was := size()
	waitFor(t, "the log is written again", func() bool { return size() > was })
	// The box also ends normally on a full disk.
	if err := os.WriteFile(filler, make([]byte, 4<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}
	b.stopsWell()
}
