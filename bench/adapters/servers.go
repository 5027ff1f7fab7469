package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/dreamlab-ai/agentinit/bootstrap/identity"
	"github.com/dreamlab-ai/agentinit/internal/foreign"
)

// keep registers a server to be stopped at the end of the run.
func (l *lab) keep(s *foreign.Server, err error) (string, error) {
	if err != nil {
		return "", err
	}
	l.stops = append(l.stops, s.Stop)
	return s.Address, nil
}

// box is a running agentinit.
type box struct{ dir, url, key string }

// box starts an agentinit with these slots and waits until the probe answers. The probe is /ready,
// or /livez for a box that becomes ready only when a host attaches to its bridge.
func (l *lab) box(ctx context.Context, probe, slots string) (*box, error) {
	dir, err := os.MkdirTemp(l.dir, "box")
	if err != nil {
		return nil, err
	}
	port, err := foreign.FreePort()
	if err != nil {
		return nil, err
	}
	b := &box{dir: dir, url: fmt.Sprintf("http://127.0.0.1:%d", port), key: "0123456789abcdef0123456789abcdef"}
	manifest := fmt.Sprintf("[supervisor]\nlisten = \"127.0.0.1:%d\"\nmetrics_listen = \"off\"\nsocket = \"/s\"\n%s", port, slots)
	file := filepath.Join(dir, "agentbox.toml")
	if err := os.WriteFile(file, []byte(manifest), 0o644); err != nil {
		return nil, err
	}
	cmd := exec.Command(filepath.Join(l.bin, "agentinit"), "--manifest", file, "--root", dir)
	cmd.Env = append(os.Environ(), "MANAGEMENT_API_KEY="+b.key, "MANAGEMENT_API_HOST=127.0.0.1",
		"PATH="+l.bin+":"+os.Getenv("PATH")) // the command of the pod server is agentctl
	_, err = l.keep(foreign.Start(ctx, cmd, l.dir, foreign.Answers(b.url+probe)))
	return b, err
}

// socket is the path of the manifest's socket "/s" below --root.
func (b *box) socket() string { return filepath.Join(b.dir, "s") }
func (b *box) token() string  { return b.key }

// identity is the private key of a box.
func (l *lab) identity(ctx context.Context, b *box) (*identity.Key, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(l.bin, "agentctl"), "--socket", b.socket(), "identity", "export", "--reveal")
	var said bytes.Buffer
	cmd.Stderr = &said
	nsec, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("agentctl identity export: %w: %.200s", err, said.Bytes())
	}
	return identity.ParseKey(strings.TrimSpace(string(nsec)))
}

// request sends one call of the management API; the caller closes the body.
func (b *box) request(ctx context.Context, method, path string, in any) (*http.Response, error) {
	raw, err := json.Marshal(in)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, method, b.url+path, bytes.NewReader(raw))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+b.key)
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err == nil && resp.StatusCode >= 300 {
		said, readErr := io.ReadAll(resp.Body)
		resp.Body.Close()
		return nil, fmt.Errorf("%s %s: %s: %.200s %v", method, path, resp.Status, said, readErr)
	}
	return resp, err
}

// ask runs a query for one value over a new connection.
func ask(ctx context.Context, conninfo, query string, to any) error {
	c, err := foreign.Dial(ctx, conninfo)
	if err != nil {
		return err
	}
	err = c.QueryRow(ctx, query).Scan(to)
	if closeErr := c.Close(ctx); err == nil {
		err = closeErr
	}
	return err
}
