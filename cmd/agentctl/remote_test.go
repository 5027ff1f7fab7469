package main

import (
	"bufio"
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/control/controltest"
)

// A wait without a timeout waits until agentinit answers, and reports that it waits.
func TestWaitForTheSocket(t *testing.T) {
	socket := controltest.SocketPath(t)
	read, write := io.Pipe()
	code := make(chan int, 1)
	go func() {
		none := func(string) (string, bool) { return "", false }
		code <- run(t.Context(), []string{"--socket", socket, "wait", "web"}, none, strings.NewReader(""), io.Discard, write)
		write.Close()
	}()
	said := bufio.NewScanner(read)
	if !said.Scan() || !strings.HasSuffix(said.Text(), "; waiting for agentinit") {
		t.Fatalf("it says %q", said.Text())
	}
	controltest.ServeAt(t, controltest.New(controltest.Program("web")).Own(), socket)
	for said.Scan() {
		t.Errorf("it says %q, too", said.Text())
	}
	if got := <-code; got != exitOK {
		t.Errorf("exit status %d", got)
	}
}

// In a box whose PID 1 is agentinit, another process on its socket cannot report that the box is
// ready. If the user names a socket, agentctl uses that socket.
func TestImpostor(t *testing.T) {
	socket := controltest.Serve(t, controltest.New().Own())
	dir := filepath.Dir(socket)
	for name, write := range map[string]error{
		"1":      os.Mkdir(filepath.Join(dir, "1"), 0o700),
		"1/comm": os.WriteFile(filepath.Join(dir, "1", "comm"), []byte("agentinit\n"), 0o600),
		"self":   os.Symlink(strconv.Itoa(os.Getpid()), filepath.Join(dir, "self")),
	} {
		if write != nil {
			t.Fatal(name, write)
		}
	}
	env := func(key string) (string, bool) { return socket, key == api.EnvSocket }
	for _, c := range []struct {
		proc string
		args []string
		want int
		says string
	}{
		{dir, []string{"ready"}, exitFailure, "not PID 1, which is the agentinit here"},
		{dir, []string{"status"}, exitUnreachable, "not PID 1, which is the agentinit here"},
		{dir, []string{"ready", "--socket", socket}, exitOK, ""},
		{"none", []string{"ready"}, exitOK, ""},
	} {
		var stdout, stderr bytes.Buffer
		cli := &cli{proc: c.proc, lookupEnv: env, stdin: strings.NewReader(""), stderr: &stderr}
		if code := cli.run(t.Context(), c.args, &stdout); code != c.want || !strings.Contains(stderr.String(), c.says) {
			t.Errorf("%s in %s: status %d, stderr %q", c.args, c.proc, code, &stderr)
		}
	}
}
