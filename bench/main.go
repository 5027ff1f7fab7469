// Command bench measures agentinit beside its peers in one run: a bare C loop of
// the same system calls as the floor, and supervisord, s6 and runit where they are
// installed. It owns no product code and asserts nothing: it prints a table.
//
// Every init is exec'ed the same way (as PID 1 of a pid namespace when bench runs
// as root) and supervises the same static C program, which reports over a fifo;
// a measurement goes from exec to the last report.
package main

import (
	"context"
	"embed"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"text/tabwriter"
)

//go:embed c/*.c
var programs embed.FS

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// lab is a directory with the compiled C programs and everything a peer needs.
type lab struct {
	dir  string
	bin  string // agentinit and agentctl
	root bool   // pid namespaces are to be had
	out  io.Writer
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	bin := flags.String("bin", "bin", "`directory` of agentinit and agentctl")
	only := flags.String("only", "", "run only the measurements whose name contains this `text`")
	quick := flags.Bool("quick", false, "fewer repetitions, no thousands")
	if err := flags.Parse(args); err != nil {
		return err
	}
	abs, err := filepath.Abs(*bin)
	if err != nil {
		return err
	}
	for _, name := range []string{"agentinit", "agentctl"} {
		if _, err := os.Stat(filepath.Join(abs, name)); err != nil {
			return fmt.Errorf("%w: run make build first, or say where with -bin", err)
		}
	}
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	l := &lab{dir: dir, bin: abs, root: os.Geteuid() == 0, out: out}
	if err := l.compile(ctx); err != nil {
		return err
	}
	peers := l.peers()
	for _, m := range measurements(*quick) {
		if !strings.Contains(m.name, *only) {
			continue
		}
		fmt.Fprintf(out, "\n%s (%s)\n", m.name, m.unit)
		w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
		for _, p := range peers {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			result, err := m.run(ctx, l, p)
			if err != nil {
				result = "failed: " + err.Error()
			}
			if result != "" {
				fmt.Fprintf(w, "  %s\t%s\n", p.name, result)
			}
		}
		if err := w.Flush(); err != nil {
			return err
		}
	}
	return nil
}

func (l *lab) compile(ctx context.Context) error {
	files, err := programs.ReadDir("c")
	if err != nil {
		return err
	}
	for _, f := range files {
		source, err := programs.ReadFile("c/" + f.Name())
		if err != nil {
			return err
		}
		name := strings.TrimSuffix(f.Name(), ".c")
		cmd := exec.CommandContext(ctx, "gcc", "-O2", "-static", "-x", "c", "-o", l.path(name), "-")
		cmd.Stdin = strings.NewReader(string(source))
		if msg, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("gcc %s: %w: %s", f.Name(), err, msg)
		}
	}
	return nil
}

func (l *lab) path(name string) string { return filepath.Join(l.dir, name) }
