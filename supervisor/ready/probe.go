package ready

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/dreamlab-ai/agentinit/internal/escape"
	"github.com/dreamlab-ai/agentinit/internal/hostname"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// dialect is one probe that is ready to use. Either poll asks once, or wait returns when the
// program has reported its readiness.
type dialect struct {
	name string
	poll func(ctx context.Context) error
	wait func(ctx context.Context) error
}

// maker makes the dialect of a probe.
type maker func(w *Watcher, t Target, p program.Probe) dialect

// makers has a row for every row of program.Dialects.
var makers = map[string]maker{
	"notify": notifyDialect, "fd": fdDialect, "log": logDialect, "http": httpDialect, "tcp": tcpDialect, "unix": unixDialect,
	"grpc": grpcDialect, "exec": execDialect, "file": fileDialect,
}

func (w *Watcher) dialect(t Target, p program.Probe) dialect {
	if make, ok := makers[p.Dialect]; ok {
		return make(w, t, p)
	}
	return dialect{name: "probe", wait: func(context.Context) error { return errors.New("no dialect is set") }}
}

var (
	errNoNotifier = errors.New("agentinit has no notify socket here")
	errNoLogs     = errors.New("agentinit keeps no logs here")
	errNoExec     = errors.New("agentinit runs no commands here")
	errNoFD       = errors.New("the program was started without the descriptor")
	errReplaced   = errors.New("a newer run has begun")
)

func notifyDialect(w *Watcher, t Target, p program.Probe) dialect {
	wait := func(ctx context.Context) error {
		if w.cfg.Notifier == nil {
			return errNoNotifier
		}
		for {
			st, ok := w.cfg.Notifier.look(ctx, t.Program, t.Run)
			if !ok {
				return errReplaced
			}
			if st.ready {
				return nil
			}
			select {
			case <-st.changed:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	return dialect{name: "notify", wait: wait}
}

// fdMost is how many bytes may come before the newline: reading what a program writes without end
// would keep a processor busy.
const fdMost = 64 << 10

// fdDialect waits for a newline (the s6 convention,
// https://skarnet.org/software/s6/notifywhenup.html).
func fdDialect(_ *Watcher, t Target, p program.Probe) dialect {
	wait := func(ctx context.Context) error {
		if t.ReadyFD == nil {
			return errNoFD
		}
		stop := context.AfterFunc(ctx, func() {
			// This ends a waiting read. It fails only for a closed descriptor, where the read has
			// ended too.
			_ = t.ReadyFD.SetReadDeadline(time.Unix(1, 0))
		})
		defer stop()
		var buf [512]byte
		for seen := 0; seen < fdMost; {
			n, err := t.ReadyFD.Read(buf[:])
			seen += n
			if strings.IndexByte(string(buf[:n]), '\n') >= 0 {
				return nil
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err != nil {
				return errors.New("closed without a newline")
			}
		}
		return fmt.Errorf("no newline in the first %d KiB", fdMost>>10)
	}
	return dialect{name: "fd " + p.Target, wait: wait}
}

func logDialect(w *Watcher, t Target, p program.Probe) dialect {
	wait := func(ctx context.Context) error {
		if w.cfg.Logs == nil {
			return errNoLogs
		}
		re, err := regexp.Compile(p.Target)
		if err != nil {
			return err
		}
		sub := w.cfg.Logs.Subscribe(t.Program, t.Run, re)
		defer sub.Close()
		select {
		case <-sub.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return dialect{name: fmt.Sprintf("log %q", p.Target), wait: wait}
}

func tcpDialect(w *Watcher, _ Target, p program.Probe) dialect {
	poll := func(ctx context.Context) error { return w.dial(ctx, "tcp", p.Target) }
	return dialect{name: "tcp " + p.Target, poll: poll}
}

func unixDialect(w *Watcher, t Target, p program.Probe) dialect {
	poll := func(ctx context.Context) error {
		path := p.Target
		if !strings.HasPrefix(path, "@") {
			path = inDir(t.Dir, path)
		}
		var err error
		for _, network := range []string{"unix", "unixpacket", "unixgram"} {
			if err = w.dial(ctx, network, path); !errors.Is(err, syscall.EPROTOTYPE) {
				break
			}
		}
		return err
	}
	return dialect{name: "unix " + p.Target, poll: poll}
}

func (w *Watcher) dial(ctx context.Context, network, addr string) error {
	conn, err := hostname.Dial(&net.Dialer{})(ctx, network, addr)
	if err != nil {
		return err
	}
	// The probe only checks that the connection is accepted. Over a unix socket, the program may
	// have passed descriptors already.
	w.strays.Interrupt(func() { _ = conn.Close() })
	return nil
}

func execDialect(w *Watcher, t Target, p program.Probe) dialect {
	poll := func(ctx context.Context) error {
		if w.cfg.Exec == nil {
			return errNoExec
		}
		status, output, err := w.cfg.Exec(ctx, t, p.Argv)
		if err != nil || status == 0 {
			return err
		}
		if last := escape.LastLine(string(output), maxError); last != "" {
			return fmt.Errorf("exit status %d: %s", status, last)
		}
		return fmt.Errorf("exit status %d", status)
	}
	return dialect{name: "exec " + escape.Shell(p.Argv...), poll: poll}
}

// fileDialect checks whether a path exists. If the file system hangs, only one goroutine hangs, not
// one for each attempt.
func fileDialect(_ *Watcher, t Target, p program.Probe) dialect {
	var pending chan error
	poll := func(ctx context.Context) error {
		if pending == nil {
			answer := make(chan error, 1)
			pending = answer
			go func() {
				_, err := os.Stat(inDir(t.Dir, p.Target))
				answer <- err
			}()
		}
		select {
		case err := <-pending:
			pending = nil
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return dialect{name: "file " + p.Target, poll: poll}
}

func inDir(dir, path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(dir, path)
}

// plain removes those layers of an error that repeat the probe's name.
func plain(err error) string {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno.Error()
	}
	if dns, ok := errors.AsType[*net.DNSError](err); ok {
		return dns.Error()
	}
	return err.Error()
}
