package logs

import (
	"os"
	"os/exec"
	"slices"
	"syscall"
	"testing"
)

// A web server under another user than agentinit opens /dev/stdout for its access log.
func TestProgramOfAnotherUserOpensItsOutputAgain(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: to become another user")
	}
	const nobody = 65534
	p := newPlane(t, Config{})
	c, err := p.Open(Options{Program: "web", To: ToNone})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/bin/sh", "-c", `
echo out > /dev/stdout
echo err > /dev/stderr
if (exec 3< /dev/stdout) 2>/dev/null; then echo readable; fi`)
	cmd.Dir, cmd.Stdout, cmd.Stderr = "/", c.Stdout, c.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c.Started(cmd.Process.Pid)
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	<-c.Done()
	flush(t, p)
	got := texts(all(p, Query{Programs: []string{"web"}}))
	for _, want := range []string{"out", "err"} {
		if !slices.Contains(got, want) {
			t.Errorf("the output %q lacks the line %q", got, want)
		}
	}
	if slices.Contains(got, "readable") {
		t.Errorf("the output %q shows that the program could read its own pipe", got)
	}
}
