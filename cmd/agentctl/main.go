// Command agentctl controls agentinit over its unix socket. It also works on manifests without a
// running agentinit. It must never start or signal a process itself. The command listen executes its
// COMMAND in its own place.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	_ "github.com/dreamlab-ai/agentinit/cmd/agentctl/quick" // the usual status, before main
	"github.com/dreamlab-ai/agentinit/internal/plural"
	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
)

func main() { os.Exit(start("/proc", "/etc")) }

func start(proc, etc string) int {
	c := &cli{proc: proc, etc: etc, lookupEnv: os.LookupEnv, stdin: os.Stdin, stderr: os.Stderr}
	if asSupervisorctl(os.Args[0]) {
		return c.runSupervisorctl(context.Background(), os.Args[1:], os.Stdout)
	}
	ctx, stop := untilSignal(context.Background())
	defer stop()
	overdue, cancel := outliving(ctx, signalGrace)
	defer cancel()
	exit := context.AfterFunc(overdue, func() { os.Exit(tell(c.stderr, failed(context.Cause(overdue)))) })
	defer exit()
	return c.run(ctx, os.Args[1:], os.Stdout)
}

// signalGrace is how long a command has to end after a signal. A command that reads a terminal, a FIFO
// or a file of a dead file system does not notice the end of its context.
const signalGrace = time.Second

// signalled is the cause of a context that a signal has ended. The cause that signal.NotifyContext
// gives names the signal only in its text.
type signalled struct{ signal os.Signal }

func (s *signalled) Error() string { return s.signal.String() + " signal received" }

func (*signalled) Unwrap() error { return context.Canceled }

// untilSignal is a context that Ctrl-C or SIGTERM ends. stop releases the signals.
func untilSignal(parent context.Context) (ctx context.Context, stop context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		select {
		case s := <-signals:
			cancel(&signalled{s})
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		cancel(nil)
		signal.Stop(signals)
	}
}

// Exit statuses. Commands that supervisorctl has use supervisorctl's numbers.
const (
	exitOK          = 0
	exitFailure     = 1 // the request failed, a check failed, or stdout could not be written
	exitUsage       = 2 // the command line is wrong
	exitNotRunning  = 3 // status: one of the programs is not running
	exitUnreachable = 4 // agentinit cannot be reached, or no such program
)

// exitError is an error with its exit status. An empty message prints nothing, because the command
// has already printed the reason.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// cli is what every command needs from outside.
type cli struct {
	proc, etc      string // the paths of /proc and /etc
	tty            string // the terminal of top; empty means /dev/tty
	lookupEnv      func(string) (string, bool)
	stdin          io.Reader
	stdout, stderr io.Writer
	json           bool              // --json
	socket         string            // --socket, otherwise AGENTCTL_SOCKET, otherwise the default
	url, nostr     string            // --url, --nostr
	transport      http.RoundTripper // of --url; nil, except in tests, means that of package http
}

func (c *cli) run(ctx context.Context, args []string, stdout io.Writer) int {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	out := &output{Writer: stdout, end: cancel}
	c.stdout = out
	root := newRoot(c)
	root.SetArgs(args)
	root.SetIn(c.stdin)
	root.SetOut(out)
	root.SetErr(c.stderr)
	root.InitDefaultCompletionCmd() // it remembers the present stdout
	refuseUnknown(root)
	refuseForeign(root)
	cmd, err := root.ExecuteContextC(ctx)
	code := tell(c.stderr, withUsage(cmd, out.reason(err)))
	if out.err != nil {
		return tell(c.stderr, &exitError{exitFailure, fmt.Errorf("cannot write the output: %w", out.err)})
	}
	return code
}

// refuseUnknown makes commands that only contain others refuse an unknown word and no word at all.
// Otherwise cobra would print their help and exit with 0, and a script would not notice.
func refuseUnknown(parent *cobra.Command) {
	for _, cmd := range parent.Commands() {
		refuseUnknown(cmd)
		if !cmd.Runnable() {
			cmd.Args = cobra.ArbitraryArgs
			cmd.RunE = nameOne
		}
	}
}

// nameOne lists the commands that a command contains.
func nameOne(cmd *cobra.Command, args []string) error {
	var names []string
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			names = append(names, sub.Name())
		}
	}
	_, path, _ := strings.Cut(cmd.CommandPath(), " ")
	list := strings.Join(names, ", ")
	if len(args) > 0 {
		return usageError("%s has no command %q; it has %s", path, args[0], list)
	}
	return usageError("%s: name one of its commands: %s; agentctl help %s says what they do", path, list, path)
}

// noArgs refuses arguments. Cobra's own function calls an argument an unknown command.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("%s takes no argument, but got %q", cmd.Name(), args[0])
	}
	return nil
}

// withUsage says in our words what cobra and pflag report about a command line, and adds what the
// command takes.
func withUsage(cmd *cobra.Command, err error) error {
	if _, ok := errors.AsType[*exitError](err); err == nil || ok {
		return err
	}
	hint := ""
	if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok {
		hint = nearestFlag(cmd, unknown.GetSpecifiedName())
		if cmd.Name() == "signal" && unknown.GetSpecifiedShortnames() != "" { // as in kill -9
			hint = " (write the signal without -, as in: agentctl signal KILL web)"
		}
	}
	if cmd.HasSubCommands() {
		return usageError("%w%s", err, hint)
	}
	return usageError("%w%s; usage: %s", reworded(cmd, err), hint, cmd.UseLine())
}

// nearestFlag names the flag of cmd that an unknown one was probably meant to be. A letter means a flag
// of the command itself that has no letter: -v is --version.
func nearestFlag(cmd *cobra.Command, name string) string {
	if name == "o" || name == "output" { // as in kubectl get -o json
		return " (for JSON write --json)"
	}
	if name == "tail" && cmd.Name() == "logs" { // as in docker logs --tail 10
		return " (for the newest 10 lines write -n 10)"
	}
	var known []string
	if len(name) == 1 {
		cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
			if f.Shorthand == "" && strings.HasPrefix(f.Name, name) {
				known = append(known, f.Name)
			}
		})
		if len(known) != 1 {
			return ""
		}
		return " (did you mean --" + known[0] + "?)"
	}
	var begun []string // getopt_long(3) takes an abbreviation, so people write --prev
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		known = append(known, f.Name)
		if strings.HasPrefix(f.Name, name) {
			begun = append(begun, f.Name)
		}
	})
	if len(begun) == 1 {
		return " (did you mean --" + begun[0] + "?)"
	}
	if near, ok := schema.Nearest(name, known); ok {
		return " (did you mean --" + near + "?)"
	}
	return ""
}

// reworded replaces messages of cobra and pflag that are written for the author of a command, such as
// "accepts 1 arg(s), received 0".
func reworded(cmd *cobra.Command, err error) error {
	text := err.Error()
	_, path, _ := strings.Cut(cmd.CommandPath(), " ")
	var least, most, got int
	counted := func(format string, n ...any) bool {
		_, miss := fmt.Sscanf(text, format, n...)
		return miss == nil
	}
	switch {
	case counted("accepts %d arg(s), received %d", &most, &got):
		return fmt.Errorf("%s takes %s, but got %d", path, plural.Of(most, "argument"), got)
	case counted("requires at least %d arg(s), only received %d", &least, &got):
		return fmt.Errorf("%s takes at least %s, but got %d", path, plural.Of(least, "argument"), got)
	case counted("accepts at most %d arg(s), received %d", &most, &got):
		return fmt.Errorf("%s takes at most %s, but got %d", path, plural.Of(most, "argument"), got)
	case counted("accepts between %d and %d arg(s), received %d", &least, &most, &got):
		return fmt.Errorf("%s takes %d to %s, but got %d", path, least, plural.Of(most, "argument"), got)
	}
	if _, set, ok := strings.Cut(text, "none of the others can be; ["); ok {
		set, _, _ = strings.Cut(set, "]")
		return fmt.Errorf("--%s exclude each other: leave one out", strings.ReplaceAll(set, " ", " and --"))
	}
	number, isNumber := errors.AsType[*strconv.NumError](err)
	if bad, ok := errors.AsType[*pflag.InvalidValueError](err); ok && isNumber {
		want := "write a whole number"
		switch {
		case number.Func == "ParseBool":
			want = "write true or false"
		case errors.Is(number, strconv.ErrRange):
			want = "the number is too large"
		}
		return fmt.Errorf("--%s %q: %s", bad.GetFlag().Name, shortened(bad.GetValue()), want)
	}
	return err
}

// tell prints why a command failed and returns its exit status.
func tell(stderr io.Writer, err error) int {
	if err == nil {
		return exitOK
	}
	coded, ok := errors.AsType[*exitError](err)
	if !ok {
		coded = &exitError{code: exitUsage, err: err}
	}
	if msg := coded.Error(); msg != "" {
		fmt.Fprintln(stderr, "agentctl: "+msg)
	}
	return coded.code
}

const rootHelp = `agentctl asks a running agentinit over its control socket, and works on
manifests without one.

A NAME is the name of a program with all its instances, one instance
("worker:0"), a glob ("w*"), or a prefix that only one program has.

agentctl help TOPIC shows the reference: the manifest, its rules, states,
signals, environment, files and more; agentctl help help lists the topics.

Exit status:
  0  done
  1  the request failed, a check said no, or the output cannot be written
  2  the command line is wrong
  3  status: a program that you asked about is not running
  4  agentinit cannot be reached, or there is no such program
The verb ready is made for health checks and exits with 0 or 1 only.`

// newRoot builds the command tree. One function builds each command; to add a command, add a row
// here.
func newRoot(c *cli) *cobra.Command {
	root := &cobra.Command{
		Use:           "agentctl",
		Short:         "Remote control of agentinit, and tool for its manifests",
		Long:          rootHelp,
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       version,
	}
	root.SetVersionTemplate(ownVersion() + "\n")
	root.Flags().Bool("version", false, "print the version of agentctl")
	root.PersistentFlags().BoolVar(&c.json, "json", false, "print JSON")
	root.PersistentFlags().StringVar(&c.socket, "socket", "", "control socket (default $AGENTCTL_SOCKET, else "+api.DefaultSocket+")")
	root.PersistentFlags().StringVar(&c.url, "url", "", "ask the management listener at this address instead, about slots, identity and federation")
	root.PersistentFlags().StringVar(&c.nostr, "nostr", "", "with --url: sign requests (NIP-98) with the nsec in this file; - is $NOSTR_NSEC")
	for _, g := range groups(c) {
		root.AddGroup(&cobra.Group{ID: g.title, Title: g.title + ":"})
		for _, cmd := range g.commands {
			cmd.GroupID = g.title
			root.AddCommand(cmd)
		}
	}
	root.SetHelpCommand(newHelp(c))
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), ".FlagUsages", ".FlagUsagesWrapped 80"))
	root.PersistentPreRunE = c.refuseURL
	return root
}

// overHTTP are the commands that --url sends to a management listener.
var overHTTP = []string{"adapters", "agent", "backup", "bead", "event", "federation", "identity", "mem", "mesh", "pod", "restore"}

// refuseURL refuses --url for a command that asks the control socket: the command would change or
// show the box of the socket instead of the box that the user named.
func (c *cli) refuseURL(cmd *cobra.Command, _ []string) error {
	for cmd.HasParent() && cmd.Parent().HasParent() {
		cmd = cmd.Parent()
	}
	if c.url == "" || cmd.GroupID == "" || slices.Contains(overHTTP, cmd.Name()) {
		return nil
	}
	return usageError("agentctl %s does not work with --url; use --socket, or run agentctl in the box", cmd.Name())
}

// verbs are the commands under one title of the help.
type verbs struct {
	title    string
	commands []*cobra.Command
}

// groups are all commands in the order of the help.
func groups(c *cli) []verbs {
	return []verbs{
		{"See programs and the box", []*cobra.Command{
			newStatus(c), newTop(c), newWhy(c), newLogs(c), newEvents(c), newListen(c), newCrash(c), newBoot(c), newMetrics(c), newAudit(c), newVersion(c),
		}},
		{"Change programs and the box", []*cobra.Command{
			newStart(c), newStop(c), newRestart(c), newRun(c), newSignal(c), newApply(c), newLogLevel(c), newShutdown(c),
		}},
		{"Wait and check", []*cobra.Command{newReady(c), newWait(c), newDoctor(c), newSandbox(c)}},
		{"Work on manifests, without a running agentinit", []*cobra.Command{newConfig(c), newImport(c), newPlan(c), newGenerate(c), newSecurity(c)}},
		{"Agents and their data", []*cobra.Command{
			newAdapters(c), newAgent(c), newBead(c), newMem(c), newPod(c), newPodServer(c), newEvent(c), newBridge(c), newBackup(c), newRestore(c),
		}},
		{"Identity and other boxes", []*cobra.Command{newIdentity(c), newFederation(c), newMesh(c)}},
	}
}
