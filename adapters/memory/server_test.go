package memory

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/contract"
)

// servers are the foreign programs that tests of this package share. They start
// with the first test that needs them and end with the package's tests.
type servers struct {
	postgres, pglite server
}

type server struct {
	once     sync.Once
	missing  string // why there is none
	failed   error
	conninfo string
	stop     func()
	schemas  atomic.Int64
}

var foreign servers

// ownPostgres is a running server that no other test uses.
func ownPostgres(t *testing.T) *postgresServer {
	t.Helper()
	s, err := initPostgres()
	t.Cleanup(s.remove)
	if s.missing != "" {
		t.Skip(s.missing)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.kill)
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *servers) end() {
	for _, one := range []*server{&s.postgres, &s.pglite} {
		if one.stop != nil {
			one.stop()
		}
	}
}

const startLimit = time.Minute

// conn gives a test a schema of its own on a shared server.
func (s *server) conn(t testing.TB, start func(*server)) string {
	t.Helper()
	s.once.Do(func() { start(s) })
	if s.missing != "" {
		t.Skip(s.missing)
	}
	if s.failed != nil {
		t.Fatal(s.failed)
	}
	return s.conninfo
}

// dial opens one connection, with a conninfo that is meant for a pool.
func dial(ctx context.Context, conninfo string) (*pgx.Conn, error) {
	cfg, err := pgxpool.ParseConfig(conninfo)
	if err != nil {
		return nil, err
	}
	return pgx.ConnectConfig(ctx, cfg.ConnConfig)
}

// statements runs SQL on the server directly, as another program would.
func statements(t testing.TB, conninfo string, list ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	c, err := dial(ctx, conninfo)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(ctx)
	for _, q := range list {
		if _, err := c.Exec(ctx, q, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatalf("%s: %v", q, err)
		}
	}
}

// realPostgres returns the conninfo of an empty schema on PostgreSQL 15.
func realPostgres(t testing.TB) string {
	t.Helper()
	base := foreign.postgres.conn(t, startPostgres)
	name := fmt.Sprintf("t%d", foreign.postgres.schemas.Add(1))
	statements(t, base, "CREATE SCHEMA "+name)
	return base + " search_path=" + name
}

func startPostgres(s *server) {
	pg, err := initPostgres()
	if s.stop = pg.remove; err != nil {
		s.missing, s.failed = pg.missing, err
		return
	}
	s.stop = func() {
		pg.kill()
		pg.remove()
	}
	s.conninfo, s.failed = pg.conninfo(), pg.start()
}

// postgresServer is one PostgreSQL with a directory of its own, reached by the
// socket in it.
type postgresServer struct {
	bin, dir string
	missing  string // why there is none
	attr     *syscall.SysProcAttr
	cmd      *exec.Cmd
}

// initPostgres makes the directory of a server, which is not started.
func initPostgres() (*postgresServer, error) {
	s := &postgresServer{}
	found, err := filepath.Glob("/usr/lib/postgresql/15/bin/initdb")
	if err != nil || len(found) == 0 {
		s.missing = "needs postgresql-15"
		return s, errors.New(s.missing)
	}
	s.bin = filepath.Dir(found[0])
	if s.dir, err = os.MkdirTemp("", "pg"); err != nil {
		return s, err
	}
	s.attr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGQUIT}
	if os.Geteuid() == 0 {
		if s.attr.Credential, err = postgresUser(s.dir); err != nil {
			s.missing = "needs postgresql-15: " + err.Error()
			return s, err
		}
	}
	initdb := s.command("initdb", "-A", "trust", "--no-sync", "-U", "postgres", "-E", "UTF8", "--locale=C.UTF-8")
	if out, err := initdb.CombinedOutput(); err != nil {
		return s, fmt.Errorf("initdb: %w: %s", err, out)
	}
	return s, nil
}

func (s *postgresServer) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(s.bin, name), append([]string{"-D", filepath.Join(s.dir, "data")}, args...)...)
	cmd.SysProcAttr, cmd.Dir = s.attr, s.dir
	return cmd
}

func (s *postgresServer) conninfo() string { return "host=" + s.dir + " user=postgres dbname=postgres" }

// start returns once the server answers.
func (s *postgresServer) start() error {
	s.cmd = s.command("postgres", "-k", s.dir, "-c", "listen_addresses=")
	if err := s.cmd.Start(); err != nil {
		return err
	}
	return waitFor(s.conninfo())
}

// kill ends the server at once: PostgreSQL's immediate shutdown, after which
// the next start recovers from the log.
func (s *postgresServer) kill() {
	if s.cmd == nil || s.cmd.Process == nil {
		return
	}
	// It may have ended by itself, which Wait says the same way.
	_ = s.cmd.Process.Signal(syscall.SIGQUIT)
	_ = s.cmd.Wait()
}

func (s *postgresServer) remove() {
	if s.dir != "" {
		os.RemoveAll(s.dir)
	}
}

func postgresUser(dir string) (*syscall.Credential, error) {
	u, err := user.Lookup("postgres")
	if err != nil {
		return nil, err
	}
	uid, err := strconv.Atoi(u.Uid)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.Atoi(u.Gid)
	if err != nil {
		return nil, err
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, os.Chown(dir, uid, gid)
}

// waitFor knocks until the server answers.
func waitFor(conninfo string) error {
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		c, err := dial(ctx, conninfo)
		if err == nil {
			return c.Close(ctx)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return err
		}
	}
}

// pglite returns the conninfo of PGlite with pgvector, emptied. It has one
// backend behind all connections: one test at a time uses it, with one
// connection, because transactions on two of them wait for each other for ever.
func pglite(t testing.TB) string {
	t.Helper()
	conninfo := foreign.pglite.conn(t, startPGlite)
	statements(t, conninfo, "DROP TABLE IF EXISTS memory_postings, memory_entries, memory_spaces, memory_tombstones, memory_meta CASCADE")
	return conninfo
}

func cacheDir() string {
	if dir := os.Getenv("AGENTINIT_TEST_CACHE"); dir != "" {
		return dir
	}
	home, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(home, "agentinit-test")
}

func startPGlite(s *server) {
	dir := filepath.Join(cacheDir(), "npm", "pglite")
	script := filepath.Join(dir, "node_modules", "@electric-sql", "pglite-socket", "dist", "scripts", "server.js")
	node, err := exec.LookPath("node")
	if _, serr := os.Stat(script); err != nil || serr != nil {
		s.missing = "needs node: pglite (.ci/counterparties)"
		return
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.failed = err
		return
	}
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	cmd := exec.Command(node, script, "-p", strconv.Itoa(port), "-e", "@electric-sql/pglite-pgvector:vector", "-m", "8")
	cmd.Dir = dir // where the extension's package is looked for
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		s.failed = err
		return
	}
	if err := cmd.Start(); err != nil {
		s.failed = err
		return
	}
	done := make(chan struct{})
	listening := make(chan struct{})
	go func() {
		defer close(done)
		scan := bufio.NewScanner(out)
		said := false
		for scan.Scan() {
			if !said && strings.Contains(scan.Text(), "listening") {
				said = true
				close(listening)
			}
		}
	}()
	s.stop = func() {
		_ = cmd.Process.Kill()
		<-done
		_ = cmd.Wait()
	}
	select {
	case <-listening:
	case <-done:
		s.failed = fmt.Errorf("pglite ended at once")
		return
	case <-time.After(startLimit):
		s.failed = fmt.Errorf("pglite did not begin to listen")
		return
	}
	s.conninfo = fmt.Sprintf("host=127.0.0.1 port=%d user=postgres dbname=postgres sslmode=disable default_query_exec_mode=exec pool_max_conns=1", port)
	s.failed = waitFor(s.conninfo)
}

func newPostgres(t testing.TB, c PostgresConfig) *Memory {
	t.Helper()
	if c.Embedder == nil {
		c.Embedder = hashV1{}
	}
	m, err := NewPostgres(c)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func postgresClass(conninfo func(testing.TB) string, c PostgresConfig) contract.MemoryClass {
	open := func(e Embedder) func(*testing.T) adapters.Memory {
		return func(t *testing.T) adapters.Memory {
			own := c
			own.Conninfo, own.Embedder = conninfo(t), e
			return newPostgres(t, own)
		}
	}
	return contract.MemoryClass{New: open(hashV1{}), Deaf: open(deaf{})}
}
