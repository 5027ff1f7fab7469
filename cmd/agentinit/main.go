// Command agentinit is PID 1 of the box: it reads the manifest, boots, supervises
// the manifest's programs, answers the probes and stops everything in order.
//
// Called as "agentinit -- CMD", it is a plain init for one child and ends before main: see
// initmode. main.go only reads the command line. wire.go builds the box and is the only file that
// knows all packages.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	_ "github.com/dreamlab-ai/agentinit/cmd/agentinit/ahead"
	"github.com/dreamlab-ai/agentinit/cmd/agentinit/early"
	_ "github.com/dreamlab-ai/agentinit/cmd/agentinit/initmode"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// Set by the linker.
var (
	version = "dev"
	commit  = "unknown"
)

func main() {
	// Signals are caught even before main: see early. An earlier signal ends agentinit. And before
	// the Go runtime has installed its handlers, the kernel drops a signal to PID 1, so that
	// stopping the container takes its whole time limit. No code of this module can run earlier.
	time.Local = program.LocalZone(os.LookupEnv("TZ"))
	// The thread of this goroutine is there for signals, see early.
	code := make(chan int)
	go func() { code <- run(os.Args[1:], os.Environ(), os.Stdout, os.Stderr, early.Caught()) }()
	os.Exit(<-code)
}

// options are what the command line says.
type options struct {
	manifest string   // --manifest; empty: the environment or the default applies
	root     string   // --root: prefix of every path
	command  []string // after "--": runs as the essential program "main"
}

const usageText = `agentinit: PID 1 and process supervisor of a container

usage:
  agentinit [--manifest FILE] [--root DIR]          boot the box
  agentinit --manifest FILE [--root DIR] -- CMD …   the same, and run CMD as the essential program "main"
  agentinit [-g] [-s] -- CMD …                      plain init for one command, without a manifest
  agentinit --version

The manifest is --manifest, else $AGENTBOX_CONFIG, else /etc/agentbox.toml.
With --root every path is below DIR, so that a box boots unprivileged.
Without --manifest and --root before --, agentinit reads no manifest and runs CMD alone,
even if $AGENTBOX_CONFIG is set. "agentinit init CMD …" means "agentinit -- CMD …".
With -g, signals go to the process group of CMD, not to CMD alone. -s, known from tini, has no effect:
agentinit becomes a subreaper by itself if it is not PID 1.

signals: TERM, INT stop the box (a second one gives the programs 1 s at most, a third kills now);
  QUIT the same with a goroutine dump; HUP applies the manifest again;
  USR1 writes the status to the log; USR2 reopens log files.

exit: 0 asked to stop · 1 internal error · 2 usage · 64 manifest invalid · 65 immutable root violated ·
  66 artifact missing · 67 required program FATAL before the seal · 68 seal timeout · 69 orchestrator adapter ·
  70 adapter contract · 73 directory, socket, key, identity or log collector · else the status of the program that ended the box
`

// parseOptions reads the command line. handled is true if it asked for help or the version, or was
// wrong. code is then the exit status.
func parseOptions(args []string, stdout, stderr io.Writer) (o options, code int, handled bool) {
	flags := flag.NewFlagSet("agentinit", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&o.manifest, "manifest", "", "")
	flags.StringVar(&o.root, "root", "", "")
	showVersion := flags.Bool("version", false, "")
	err := flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stdout, usageText)
		return o, 0, true
	case err != nil:
		fmt.Fprintf(stderr, "agentinit: %s; agentinit --help shows the usage\n", reworded(err))
		return o, 2, true
	case *showVersion:
		fmt.Fprintf(stdout, "agentinit %s (%s)\n", version, commit)
		return o, 0, true
	}
	// The flag package drops "--"; words without it are an error.
	rest := flags.Args()
	if len(rest) > 0 {
		before := args[:len(args)-len(rest)]
		if len(before) == 0 || before[len(before)-1] != "--" {
			fmt.Fprintf(stderr, "agentinit: unexpected argument %q; write --manifest FILE for a manifest, -- CMD for a command to run\n", rest[0])
			return o, 2, true
		}
		o.command = rest
	}
	return o, 0, false
}

// reworded says what the flag package reports, with the two dashes of the help.
func reworded(err error) string {
	if name, ok := strings.CutPrefix(err.Error(), "flag provided but not defined: -"); ok {
		return "unknown flag --" + name
	}
	if name, ok := strings.CutPrefix(err.Error(), "flag needs an argument: -"); ok {
		return "--" + name + " needs a value"
	}
	return err.Error()
}
