package pods

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// quota is what the reference server may hold in all, in bytes.
const quota = 24 << 20

// reference is the Community Solid Server of this test binary, started by the
// first test that needs it: file backend, Web Access Control with the identity
// named by "Authorization: WebID <iri>", and a quota.
var reference struct {
	once sync.Once
	base string // http://localhost:PORT
	err  error
	cmd  *exec.Cmd
	dir  string
	pods atomic.Int64 // made so far
}

var errNotInstalled = errors.New("needs node and community-server 7.2.0: run .ci/counterparties community-server")

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if c := reference.cmd; c != nil {
			_ = c.Process.Kill() // it may have ended by itself
			_ = c.Wait()         // it was killed: that is no news
		}
		if reference.dir != "" {
			if err := os.RemoveAll(reference.dir); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}
		os.Exit(code)
	}))
}

// solidServer returns the base URL of the running reference server.
func solidServer(t testing.TB) string {
	t.Helper()
	reference.once.Do(func() { reference.base, reference.err = startReference() })
	if errors.Is(reference.err, errNotInstalled) {
		t.Skip(reference.err)
	}
	if reference.err != nil {
		t.Fatal(reference.err)
	}
	return reference.base
}

func startReference() (string, error) {
	node, err := exec.LookPath("node")
	module := filepath.Join(cacheDir(), "npm", "community-server", "node_modules", "@solid", "community-server")
	if err != nil || !installed(module, "7.2.0") {
		return "", errNotInstalled
	}
	if reference.dir, err = os.MkdirTemp("", "solid-*"); err != nil {
		return "", err
	}
	config, err := referenceConfig(module)
	if err != nil {
		return "", err
	}
	file := filepath.Join(reference.dir, "config.json")
	if err := os.WriteFile(file, config, 0o600); err != nil {
		return "", err
	}
	log, err := os.Create(filepath.Join(reference.dir, "log"))
	if err != nil {
		return "", err
	}
	defer log.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	base := fmt.Sprintf("http://localhost:%d", port)
	cmd := exec.Command(node, filepath.Join(module, "bin", "server.js"), "-p", fmt.Sprint(port), "-b", base+"/",
		"-c", file, "-f", filepath.Join(reference.dir, "data"), "-l", "warn", "--mainModulePath", module)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return "", err
	}
	reference.cmd = cmd
	if err := awaitServer(base + "/"); err != nil {
		said, _ := os.ReadFile(log.Name())
		return "", fmt.Errorf("%w; it said: %s", err, said)
	}
	return base, nil
}

func cacheDir() string {
	if d := os.Getenv("AGENTINIT_TEST_CACHE"); d != "" {
		return d
	}
	d, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(d, "agentinit-test")
}

func installed(module, version string) bool {
	raw, err := os.ReadFile(filepath.Join(module, "package.json"))
	var p struct{ Version string }
	return err == nil && json.Unmarshal(raw, &p) == nil && p.Version == version
}

// referenceConfig is the server's own file-root.json with other parts.
func referenceConfig(module string) ([]byte, error) {
	raw, err := os.ReadFile(filepath.Join(module, "config", "file-root.json"))
	if err != nil {
		return nil, err
	}
	text := strings.NewReplacer(
		"authentication/dpop-bearer.json", "authentication/debug-auth-header.json",
		"backend/file.json", "backend/global-quota-file.json",
		"resource-locker/file.json", "resource-locker/memory.json",
		"key-value/resource-store.json", "key-value/memory.json",
	).Replace(string(raw))
	var config map[string]any
	if err := json.Unmarshal([]byte(text), &config); err != nil {
		return nil, err
	}
	config["@graph"] = []any{map[string]any{
		"@id": "urn:solid-server:default:QuotaStrategy", "@type": "GlobalQuotaStrategy", "limit_amount": quota, "limit_unit": "bytes",
	}}
	return json.Marshal(config)
}

func awaitServer(url string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 5 * time.Second}
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return errors.New("the reference server did not come up in 3 minutes")
		case <-tick.C:
		}
		if res, err := client.Get(url); err == nil {
			res.Body.Close()
			if res.StatusCode == http.StatusOK {
				return nil
			}
		}
	}
}

// webID authorises as the reference server is configured to believe.
type webID string

func (w webID) Authorize(r *http.Request, _ []byte) error {
	if w != "" {
		r.Header.Set("Authorization", "WebID "+string(w))
	}
	return nil
}

// emptyPod is a fresh place on the reference server.
func emptyPod(t testing.TB) Config {
	t.Helper()
	return Config{BaseURL: fmt.Sprintf("%s/pod-%d/", solidServer(t), reference.pods.Add(1))}
}

func mustSolid(t testing.TB, build func(Config) (*Solid, error), cfg Config) *Solid {
	t.Helper()
	s, err := build(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// connected is a client that is connected for the test.
func connected(t testing.TB, cfg Config) *Solid {
	t.Helper()
	s := mustSolid(t, NewExternal, cfg)
	t.Cleanup(func() {
		if err := s.Disconnect(context.Background()); err != nil {
			t.Error(err)
		}
	})
	if err := s.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}
