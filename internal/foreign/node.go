package foreign

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
)

// cacheDir is where .ci/counterparties installs packages from registries: AGENTINIT_TEST_CACHE or, if
// that is not set, a directory below the user's cache directory. It is "" if there is none.
func cacheDir() string {
	if dir := os.Getenv("AGENTINIT_TEST_CACHE"); dir != "" {
		return dir
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "agentinit-test")
}

// node finds the interpreter and a module that .ci/counterparties installs.
func node(install, module, version string) (interpreter, dir string, err error) {
	dir = filepath.Join(cacheDir(), "npm", install, "node_modules", filepath.FromSlash(module))
	interpreter, err = exec.LookPath("node")
	raw, readErr := os.ReadFile(filepath.Join(dir, "package.json"))
	var p struct{ Version string }
	if err != nil || readErr != nil || json.Unmarshal(raw, &p) != nil || p.Version != version {
		return "", "", &MissingError{fmt.Sprintf("node and %s %s: run .ci/counterparties %s", install, version, install)}
	}
	return interpreter, dir, nil
}

// SolidConfig makes a configuration of the Solid server from the server's own file-root.json.
type SolidConfig func(fileRoot []byte) ([]byte, error)

// Solid starts the Community Solid Server with files as storage. Its Address is a base URL without
// a slash at the end. configure may be nil.
func Solid(ctx context.Context, configure SolidConfig) (*Server, error) {
	interpreter, module, err := node("community-server", "@solid/community-server", "7.2.0")
	if err != nil {
		return nil, err
	}
	raw, err := os.ReadFile(filepath.Join(module, "config", "file-root.json"))
	if err == nil && configure != nil {
		raw, err = configure(raw)
	}
	if err != nil {
		return nil, err
	}
	return inScratch("solid", func(dir string) (*Server, error) {
		config := filepath.Join(dir, "config.json")
		if err := os.WriteFile(config, raw, 0o600); err != nil {
			return nil, err
		}
		// At its start, the server parses the component descriptions of every package that it finds from
		// --mainModulePath. In its own installation that is 168 packages, but it uses only its own components.
		scope := filepath.Join(dir, "node_modules", "@solid")
		if err := os.MkdirAll(scope, 0o700); err != nil {
			return nil, err
		}
		if err := os.Symlink(module, filepath.Join(scope, "community-server")); err != nil {
			return nil, err
		}
		return onFreePort(func(port int) (*Server, error) {
			base := fmt.Sprintf("http://localhost:%d", port)
			// With a quota, the server adds up the sizes of all its files, and nothing waits for the sum. If
			// a file is deleted meanwhile, that fails, and node would end the server.
			cmd := exec.Command(interpreter, "--unhandled-rejections=warn", filepath.Join(module, "bin", "server.js"), "-p", strconv.Itoa(port), "-b", base+"/",
				"-c", config, "-f", filepath.Join(dir, "data"), "-l", "warn", "--mainModulePath", dir)
			cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // an interrupt of the tests must not stop the server
			s, err := Start(ctx, cmd, dir, Answers(base+"/"))
			if err != nil {
				return nil, err
			}
			s.Address, s.quit = base, syscall.SIGKILL
			return s, nil
		})
	})
}

// PGlite starts PGlite with pgvector: PostgreSQL as WebAssembly. All connections share one backend,
// so use only one connection: transactions on two connections wait for each other for ever.
func PGlite(ctx context.Context) (*Server, error) {
	interpreter, module, err := node("pglite", "@electric-sql/pglite-socket", "0.2.17")
	if err != nil {
		return nil, err
	}
	return inScratch("pglite", func(dir string) (*Server, error) {
		return onFreePort(func(port int) (*Server, error) {
			cmd := exec.Command(interpreter, filepath.Join(module, "dist", "scripts", "server.js"), "-p", strconv.Itoa(port),
				"-e", "@electric-sql/pglite-pgvector:vector", "-m", "8")
			cmd.Dir = filepath.Join(cacheDir(), "npm", "pglite") // PGlite looks for the extension's package here
			conninfo := fmt.Sprintf("host=127.0.0.1 port=%d user=postgres dbname=postgres sslmode=disable default_query_exec_mode=exec pool_max_conns=1", port)
			s, err := Start(ctx, cmd, dir, knock(conninfo))
			if err != nil {
				return nil, err
			}
			s.Address, s.quit = conninfo, syscall.SIGKILL
			return s, nil
		})
	})
}

// SolidClient is the interpreter and the package directory of Inrupt's client for
// Solid servers, for scripts of tests.
func SolidClient() (interpreter, module string, err error) {
	return node("solid-client", "@inrupt/solid-client", "3.0.0")
}

// NostrTools runs a script with node and nostr-tools and returns its output. The environment
// variable NOSTR_TOOLS names the directory of the modules for the script.
func NostrTools(ctx context.Context, stdin io.Reader, script string, args ...string) ([]byte, error) {
	interpreter, module, err := node("nostr-tools", "nostr-tools", "2.25.2")
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, interpreter, append([]string{script}, args...)...)
	cmd.Env = append(os.Environ(), "NOSTR_TOOLS="+filepath.Dir(module))
	cmd.Stdin, cmd.Stderr = stdin, os.Stderr
	return cmd.Output()
}
