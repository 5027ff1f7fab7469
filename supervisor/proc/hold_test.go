package proc

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/internal/testprog/built"
)

// script writes an executable one.
func script(t *testing.T, file, text string) string {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return file
}

// A program whose exec is held up is given up on, and everything else goes on
// meanwhile: the garbage collector would wait for an exec without the shim, for
// the 45 seconds of a lease.
func TestHeldUpExec(t *testing.T) {
	bin := built.Path(t)
	dir := t.TempDir()
	leased := script(t, filepath.Join(dir, "leased"), "#!/bin/sh\nexit 0\n")
	byLeased := script(t, filepath.Join(dir, "script"), "#!"+leased+"\n")
	o := newOwner(t, Options{})
	o.shimPatience = 200 * time.Millisecond
	holder := startTester(t, o, prog(bin, "lease", leased))
	if said := holder.line(t); said != "held" {
		t.Fatalf("the holder says %q", said)
	}
	for _, file := range []string{leased, byLeased} {
		failed := make(chan error)
		go func() {
			_, err := o.Start(Command{Path: file})
			failed <- err
		}()
		for err := error(nil); err == nil; {
			select {
			case err = <-failed:
				if err == nil || !strings.Contains(err.Error(), "did not get to the program within 200ms") {
					t.Fatalf("start of %s: %v", file, err)
				}
			default:
				runtime.GC()
			}
		}
	}
	if err := o.Kill(holder.ID); err != nil {
		t.Fatal(err)
	}
	next(t, o, holder.ID, Emptied)
	o.shimPatience = shimPatience // it is no root's file everywhere
	p := mustStart(t, o, Command{Path: byLeased})
	if e := next(t, o, p.ID, Exited); e.Status.ExitStatus() != 0 {
		t.Errorf("without the lease: %+v", e)
	}
}

func TestHoldExec(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to make files of root and of others")
	}
	dir := t.TempDir()
	sub := func(names ...string) string { return filepath.Join(append([]string{dir}, names...)...) }
	theirs := func(file string) string {
		t.Helper()
		if err := os.Chown(file, 65534, 65534); err != nil {
			t.Fatal(err)
		}
		return file
	}
	mkdir := func(name string, mode os.FileMode) string {
		t.Helper()
		if err := os.Mkdir(sub(name), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(sub(name), mode); err != nil { // the umask
			t.Fatal(err)
		}
		return sub(name)
	}
	link := func(target, file string) string {
		t.Helper()
		if err := os.Symlink(target, file); err != nil {
			t.Fatal(err)
		}
		return file
	}
	const text = "#!/bin/sh -e\n"
	ours := script(t, sub("ours"), text)
	mkdir("open", 0o777)
	mkdir("sticky", 0o777|os.ModeSticky)
	theirs(mkdir("theirs", 0o755))
	for _, tc := range []struct {
		name, file, dir string
		want            bool
	}{
		{"root's", ours, "", true},
		{"a binary", "/proc/self/exe", "", true},
		{"relative", "./ours", dir, true},
		{"relative to nowhere", "ours", "", false},
		{"in a missing directory", "./ours", sub("missing"), false},
		{"a link", link(ours, sub("link")), "", true},
		{"a relative link", link("../"+filepath.Base(dir)+"/ours", sub("back")), "", true},
		{"a link to itself", link("loop", sub("loop")), "", false},
		{"missing", sub("missing"), "", false},
		{"a directory", dir, "", false},
		{"below a file", filepath.Join(ours, "x"), "", false},
		{"theirs", theirs(script(t, sub("t1"), text)), "", false},
		{"for all to write", script(t, sub("w1"), text), "", false},
		{"in an open directory", script(t, sub("open", "s"), text), "", false},
		{"in a sticky directory", script(t, sub("sticky", "s"), text), "", true},
		{"theirs in a sticky directory", theirs(script(t, sub("sticky", "t"), text)), "", false},
		{"in their directory", script(t, sub("theirs", "s"), text), "", false},
		{"a link to theirs", link(sub("theirs", "s"), sub("out")), "", false},
		{"out of their directory", sub("theirs") + "/../ours", "", false},
		{"run by theirs", script(t, sub("by"), "#!"+sub("t1")+"\n"), "", false},
		{"run by itself", script(t, sub("self"), "#! "+sub("self")+"\t-x\n"), "", false},
		{"run by nothing", script(t, sub("none"), "#!\n"), "", true},
	} {
		if tc.name == "for all to write" {
			if err := os.Chmod(tc.file, 0o777); err != nil {
				t.Fatal(err)
			}
		}
		h, ok := holdExec(&Command{Dir: tc.dir}, tc.file)
		h.close()
		if ok != tc.want {
			t.Errorf("%s (%s): %v", tc.name, tc.file, ok)
		}
	}
}
