package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// startLimit is how long a server may take to answer.
const startLimit = 2 * time.Minute

// start runs a server until the end of the run. answers is asked until it gives
// no error.
func (l *lab) start(ctx context.Context, name string, cmd *exec.Cmd, answers func(context.Context) error) error {
	log, err := os.CreateTemp(l.dir, name+"-*.log")
	if err != nil {
		return err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	l.stops = append(l.stops, func() {
		_ = cmd.Process.Signal(syscall.SIGINT) // it may have ended by itself
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			_ = cmd.Process.Kill()
			<-ended
		}
	})
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	for {
		err := answers(ctx)
		if err == nil {
			return nil
		}
		select {
		case end := <-ended:
			ended <- end
			said, readErr := os.ReadFile(log.Name())
			return fmt.Errorf("%s ended: %v, %v; it said: %.500s", name, end, readErr, said)
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("%s does not answer: %w", name, err)
		}
	}
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

func reachable(url string) func(context.Context) error {
	return func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s answers %s", url, resp.Status)
		}
		return nil
	}
}

// box is a running agentinit.
type box struct{ dir, url, key string }

// box starts an agentinit with these slots.
func (l *lab) box(ctx context.Context, slots string) (*box, error) {
	dir, err := os.MkdirTemp(l.dir, "box")
	if err != nil {
		return nil, err
	}
	port, err := freePort()
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
	cmd.Env = append(os.Environ(), "MANAGEMENT_API_KEY="+b.key, "MANAGEMENT_API_HOST=127.0.0.1")
	return b, l.start(ctx, "agentinit", cmd, reachable(b.url+"/ready"))
}

// socket is where --root puts the manifest's /s.
func (b *box) socket() string { return filepath.Join(b.dir, "s") }
func (b *box) token() string  { return b.key }

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

// cache is where .ci/counterparties puts the foreign servers.
func cache() string {
	if dir := os.Getenv("AGENTINIT_TEST_CACHE"); dir != "" {
		return filepath.Join(dir, "npm")
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "agentinit-test", "npm")
}

// solidServer starts the Community Solid Server on files.
func (l *lab) solidServer(ctx context.Context) (url string, err error) {
	module := filepath.Join(cache(), "community-server", "node_modules", "@solid", "community-server")
	script := filepath.Join(module, "bin", "server.js")
	node, err := exec.LookPath("node")
	if _, statErr := os.Stat(script); err != nil || statErr != nil {
		return "", fmt.Errorf("%w: community-server (.ci/counterparties)", errMissing)
	}
	port, err := freePort()
	if err != nil {
		return "", err
	}
	url = fmt.Sprintf("http://localhost:%d/", port)
	cmd := exec.Command(node, script, "-p", strconv.Itoa(port), "-b", url, "-c", filepath.Join(module, "config", "file-root.json"),
		"-f", filepath.Join(l.dir, "solid"), "-l", "warn", "--mainModulePath", module)
	return url, l.start(ctx, "community-server", cmd, reachable(url))
}

// postgres starts PostgreSQL 15 on an empty directory.
func (l *lab) postgres(ctx context.Context) (conninfo string, err error) {
	const bin = "/usr/lib/postgresql/15/bin"
	if _, err := os.Stat(filepath.Join(bin, "initdb")); err != nil {
		return "", fmt.Errorf("%w: postgresql-15", errMissing)
	}
	dir := filepath.Join(l.dir, "pg")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", err
	}
	attr := &syscall.SysProcAttr{}
	if os.Geteuid() == 0 { // it refuses to run as root
		if attr.Credential, err = credential("postgres"); err != nil {
			return "", err
		}
		if err := os.Chown(dir, int(attr.Credential.Uid), int(attr.Credential.Gid)); err != nil {
			return "", err
		}
	}
	data := filepath.Join(dir, "data")
	initdb := exec.CommandContext(ctx, filepath.Join(bin, "initdb"), "-D", data, "-A", "trust", "--no-sync", "-U", "postgres", "-E", "UTF8", "--locale=C.UTF-8")
	initdb.SysProcAttr, initdb.Dir = attr, dir
	if said, err := initdb.CombinedOutput(); err != nil {
		return "", fmt.Errorf("initdb: %w: %s", err, said)
	}
	cmd := exec.Command(filepath.Join(bin, "postgres"), "-D", data, "-k", dir, "-c", "listen_addresses=")
	cmd.SysProcAttr, cmd.Dir = attr, dir
	conninfo = "host=" + dir + " user=postgres dbname=postgres"
	return conninfo, l.start(ctx, "postgres", cmd, knock(conninfo))
}

func credential(name string) (*syscall.Credential, error) {
	u, err := user.Lookup(name)
	if err != nil {
		return nil, err
	}
	uid, err := strconv.Atoi(u.Uid)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.Atoi(u.Gid)
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, err
}

// pglite starts PGlite with pgvector. It has one backend behind all connections,
// so one connection is all that is used.
func (l *lab) pglite(ctx context.Context) (conninfo string, err error) {
	dir := filepath.Join(cache(), "pglite")
	script := filepath.Join(dir, "node_modules", "@electric-sql", "pglite-socket", "dist", "scripts", "server.js")
	node, err := exec.LookPath("node")
	if _, statErr := os.Stat(script); err != nil || statErr != nil {
		return "", fmt.Errorf("%w: pglite (.ci/counterparties)", errMissing)
	}
	port, err := freePort()
	if err != nil {
		return "", err
	}
	cmd := exec.Command(node, script, "-p", strconv.Itoa(port), "-e", "@electric-sql/pglite-pgvector:vector", "-m", "8")
	cmd.Dir = dir // where the extension's package is looked for
	conninfo = fmt.Sprintf("host=127.0.0.1 port=%d user=postgres dbname=postgres sslmode=disable default_query_exec_mode=exec pool_max_conns=1", port)
	return conninfo, l.start(ctx, "pglite", cmd, knock(conninfo))
}

func knock(conninfo string) func(context.Context) error {
	return func(ctx context.Context) error { return ask(ctx, conninfo, "SELECT 1", new(int)) }
}

// ask reads one value over a connection of its own.
func ask(ctx context.Context, conninfo, query string, to any) error {
	cfg, err := pgxpool.ParseConfig(conninfo)
	if err != nil {
		return err
	}
	c, err := pgx.ConnectConfig(ctx, cfg.ConnConfig)
	if err != nil {
		return err
	}
	err = c.QueryRow(ctx, query).Scan(to)
	if closeErr := c.Close(ctx); err == nil {
		err = closeErr
	}
	return err
}
