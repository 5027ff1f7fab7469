package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/control/supervisord"
)

func newListen(c *cli) *cobra.Command {
	var q api.ListenQuery
	cmd := &cobra.Command{
		Use:   "listen --events EVENT,... -- COMMAND [ARG...]",
		Short: "Run an event listener of supervisord",
		Long: `Run COMMAND in place of agentctl, with standard input and output connected to
agentinit, which speaks the protocol of supervisord's event listeners there.
Write it into the command of a program in the manifest:

  command = ["agentctl", "listen", "--events", "TICK_60", "--", "memmon", "-a"]

The events are PROCESS_STATE, PROCESS_GROUP, SUPERVISOR_STATE_CHANGE and TICK,
each also with what supervisord appends, as in PROCESS_STATE_FATAL or TICK_60,
and EVENT for all of them. Events wait for the listener until it says that it is
ready. Of more than --buffer events, agentinit drops the oldest.

The instances of a program share its events: each event goes to one of them. If
COMMAND ends or violates the protocol, the event that it had is sent again to
another instance, or to the next run.

COMMAND also gets the variables SUPERVISOR_ENABLED=1 and SUPERVISOR_SERVER_URL,
unless they are set. With the URL it can call the XML-RPC interface.`,
		Example: `  agentctl listen --events PROCESS_STATE_EXITED,TICK_60 -- /usr/local/bin/listener.py`,
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case len(q.Events) == 0:
				return errors.New("listen needs --events")
			case len(args) == 0:
				return errors.New("listen needs the command of the listener")
			}
			return nil
		},
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveDefault
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			client := c.client()
			conn, err := client.Listen(cmd.Context(), q)
			if err != nil {
				return failed(err)
			}
			raw, err := conn.SyscallConn()
			if err != nil {
				return failed(err)
			}
			environ := listenerEnviron(os.Environ(), client.Socket())
			// COMMAND takes the place of this process before raw lets go of the descriptor.
			err = errors.Join(raw.Control(func(fd uintptr) { err = becomeListener(int(fd), args, environ) }), err)
			return failed(fmt.Errorf("cannot run %s: %w", printable(args[0]), err))
		},
	}
	cmd.Flags().SetInterspersed(false)
	cmd.Flags().StringSliceVar(&q.Events, "events", nil, "the events to get, with commas between them")
	cmd.Flags().IntVar(&q.Buffer, "buffer", supervisord.DefaultBuffer, fmt.Sprintf("how many events wait at most, up to %d", supervisord.MaxBuffer))
	cmd.Flags().StringVar(&q.Pool, "pool", "", "`NAME` of the pool in the events; without it, the name of the program")
	return cmd
}

// becomeListener makes the connection standard input and output, and runs a command in place of this
// process. It returns only if it cannot.
func becomeListener(conn int, argv, environ []string) error {
	for fd := range 2 {
		if err := unix.Dup3(conn, fd, 0); err != nil {
			return os.NewSyscallError("dup3", err)
		}
	}
	// Go's connections do not block; a listener expects that reading waits.
	if err := unix.SetNonblock(0, false); err != nil {
		return os.NewSyscallError("fcntl", err)
	}
	return execute(argv, environ)
}

// execute is execvpe(3): it looks for a command without a slash in PATH, and runs a file that the kernel
// does not know as a script of sh. But a directory of PATH that may not be searched has no such command.
func execute(argv, environ []string) error {
	files, searched := []string{argv[0]}, !strings.Contains(argv[0], "/")
	if searched {
		files = nil
		path, ok := os.LookupEnv("PATH")
		if !ok {
			path = "/bin:/usr/bin"
		}
		for dir := range strings.SplitSeq(path, ":") {
			files = append(files, cmp.Or(dir, ".")+"/"+argv[0])
		}
	}
	var denied error
	for _, file := range files {
		err := syscall.Exec(file, argv, environ)
		if errors.Is(err, unix.ENOEXEC) {
			err = syscall.Exec("/bin/sh", slices.Concat([]string{"/bin/sh", file}, argv[1:]), environ)
		}
		switch {
		case errors.Is(err, unix.EACCES):
			if _, hidden := os.Stat(file); !searched || hidden == nil {
				denied = err
			}
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		default:
			return err
		}
	}
	return cmp.Or(denied, error(fs.ErrNotExist))
}

// listenerEnviron adds the variables by which a listener knows that it runs under supervisord, and finds
// the XML-RPC interface.
func listenerEnviron(environ []string, socket string) []string {
	add := func(name, value string) {
		if value != "" && !slices.ContainsFunc(environ, func(v string) bool { return strings.HasPrefix(v, name+"=") }) {
			environ = append(environ, name+"="+value)
		}
	}
	add("SUPERVISOR_ENABLED", "1")
	if !strings.HasPrefix(socket, "@") { // a URL cannot name an abstract socket
		add("SUPERVISOR_SERVER_URL", "unix://"+socket)
	}
	return environ
}
