package foreign

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// PostgreSQL starts PostgreSQL 15 with an empty data directory. It listens on a unix socket.
// PostgreSQL refuses to run as root, so root runs it as user postgres.
func PostgreSQL(ctx context.Context) (*Server, error) {
	const bin = "/usr/lib/postgresql/15/bin"
	if _, err := os.Stat(filepath.Join(bin, "initdb")); err != nil {
		return nil, &MissingError{"postgresql-15"}
	}
	return inScratch("pg", func(dir string) (*Server, error) {
		attr := &syscall.SysProcAttr{Setpgid: true} // an interrupt of the tests must not stop the server
		if os.Geteuid() == 0 {
			var err error
			if attr.Credential, err = ownedBy("postgres", dir); err != nil {
				return nil, err
			}
		}
		data := filepath.Join(dir, "data")
		initdb := exec.CommandContext(ctx, filepath.Join(bin, "initdb"), "-D", data, "-A", "trust", "--no-sync", "-U", "postgres", "-E", "UTF8", "--locale=C.UTF-8")
		initdb.SysProcAttr, initdb.Dir = attr, dir
		if said, err := initdb.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("initdb: %w: %s", err, said)
		}
		cmd := exec.Command(filepath.Join(bin, "postgres"), "-D", data, "-k", dir, "-c", "listen_addresses=")
		cmd.SysProcAttr, cmd.Dir = attr, dir
		conninfo := "host=" + dir + " user=postgres dbname=postgres"
		s, err := Start(ctx, cmd, dir, knock(conninfo))
		if err != nil {
			return nil, err
		}
		s.Address, s.quit = conninfo, syscall.SIGQUIT // SIGQUIT stops at once; no data is kept
		return s, nil
	})
}

// ownedBy makes a user the owner of dir and returns the credential to run a process as that user.
func ownedBy(name, dir string) (*syscall.Credential, error) {
	u, err := user.Lookup(name)
	if err != nil {
		return nil, &MissingError{"the user " + name}
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

// Dial opens one connection. conninfo may contain settings of a pool.
func Dial(ctx context.Context, conninfo string) (*pgx.Conn, error) {
	cfg, err := pgxpool.ParseConfig(conninfo)
	if err != nil {
		return nil, err
	}
	return pgx.ConnectConfig(ctx, cfg.ConnConfig)
}

func knock(conninfo string) func(context.Context) error {
	return func(ctx context.Context) error {
		c, err := Dial(ctx, conninfo)
		if err != nil {
			return err
		}
		return c.Close(ctx)
	}
}

// HostileHome puts files into a home directory that a PostgreSQL client reads there by default, but that hold
// no certificates.
func HostileHome(home string) error {
	dir := filepath.Join(home, ".postgresql")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	for _, name := range []string{"root.crt", "postgresql.crt", "postgresql.key"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("no certificate"), 0o600); err != nil {
			return err
		}
	}
	return nil
}
