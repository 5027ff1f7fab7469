package foreign

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// VictoriaLogs starts a log server that takes the protocols of several others: OTLP logs, the push
// API of Loki, and JSON lines. Its Address is a base URL without a slash at the end.
func VictoriaLogs(ctx context.Context) (*Server, error) {
	const version = "v1.52.1"
	program := filepath.Join(cacheDir(), "go", "victoria-logs-"+version, "victoria-logs")
	if _, err := os.Stat(program); err != nil {
		return nil, &MissingError{"VictoriaLogs " + version + ": run .ci/counterparties victoria-logs"}
	}
	return inScratch("victoria-logs", func(dir string) (*Server, error) {
		return onFreePort(func(port int) (*Server, error) {
			address := fmt.Sprintf("127.0.0.1:%d", port)
			cmd := exec.Command(program, "-httpListenAddr="+address, "-storageDataPath="+filepath.Join(dir, "data"), "-retentionPeriod=100y")
			cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // an interrupt of the tests must not stop the server
			s, err := Start(ctx, cmd, dir, Answers("http://"+address+"/health"))
			if err != nil {
				return nil, err
			}
			s.Address = "http://" + address
			return s, nil
		})
	})
}
