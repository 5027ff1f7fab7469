// Command bench measures agentinit and its peers in one run. The floor is a bare C loop of the same
// system calls. The other peers are dinit, s6, runit and supervisord, where they are installed.
// Command bench owns no product code and never fails because a goal is missed: it prints a table
// and, if asked, writes the numbers as JSON and two pictures as SVG.
//
// Every init is exec'ed in the same way (as PID 1 of a pid namespace when bench runs as root) and
// supervises the same static C program, which reports over a FIFO. A measurement lasts from the
// exec to the last report. The peers take turns within each round, so that other load on the
// machine affects all of them equally.
package main

import (
	"context"
	"embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
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
	root bool   // bench runs as root, so it can make pid namespaces
}

type options struct {
	bin, only, peers   string
	jsonFile, svgStart string
	svgCapture         string
	rounds             int
	quick              bool
}

func parse(args []string) (o options, err error) {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.StringVar(&o.bin, "bin", "bin", "`directory` of agentinit and agentctl")
	flags.StringVar(&o.only, "only", "", "run only the measurements whose name contains this `text`")
	flags.StringVar(&o.peers, "peers", "", "measure only these peers beside agentinit and the floor (`names` with commas)")
	flags.IntVar(&o.rounds, "rounds", 5, "how often each measurement is repeated; the peers take turns in each round")
	flags.BoolVar(&o.quick, "quick", false, "without the rows of 1000 programs; captures a sixteenth of the output")
	flags.StringVar(&o.jsonFile, "json", "", "write the numbers to this `file`")
	flags.StringVar(&o.svgStart, "svg-start", "", "draw the starts to this `file`")
	flags.StringVar(&o.svgCapture, "svg-capture", "", "draw the captures to this `file`")
	err = flags.Parse(args)
	if err == nil && o.rounds < 1 {
		err = errors.New("-rounds must be at least 1")
	}
	return o, err
}

func run(ctx context.Context, args []string, out io.Writer) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	l, err := newLab(ctx, o.bin)
	if err != nil {
		return err
	}
	defer os.RemoveAll(l.dir)
	machine, err := lookAtMachine()
	if err != nil {
		return err
	}
	machine.print(out)
	report := Report{Machine: machine}
	peers, err := l.peers(o.peers)
	if err != nil {
		return err
	}
	for _, m := range measurements(o) {
		if !strings.Contains(m.title, o.only) {
			continue
		}
		row, err := l.measure(ctx, m, peers)
		if err != nil {
			return err
		}
		if err := row.print(out); err != nil {
			return err
		}
		report.Rows = append(report.Rows, row)
	}
	if len(report.Rows) == 0 {
		return fmt.Errorf("-only %q: no row has this text in its name", o.only)
	}
	return errors.Join(report.writeJSON(o.jsonFile), report.writeSVG(o.svgStart, startChart), report.writeSVG(o.svgCapture, captureChart))
}

func newLab(ctx context.Context, bin string) (*lab, error) {
	abs, err := filepath.Abs(bin)
	if err != nil {
		return nil, err
	}
	for _, name := range []string{"agentinit", "agentctl"} {
		if _, err := os.Stat(filepath.Join(abs, name)); err != nil {
			return nil, fmt.Errorf("%w: run make build first, or say where with -bin", err)
		}
	}
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return nil, err
	}
	l := &lab{dir: dir, bin: abs, root: os.Geteuid() == 0}
	if err := l.compile(ctx); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return l, nil
}

// measure measures every peer once in each round. A peer that fails is marked as failed and is not
// measured again.
func (l *lab) measure(ctx context.Context, m measurement, peers []peer) (Row, error) {
	row := Row{Name: m.title, Columns: m.columns}
	for _, p := range peers {
		if m.on(p) {
			row.Results = append(row.Results, Result{peer: p, Peer: p.name})
		}
	}
	for round := range m.rounds {
		for i := range row.Results {
			if ctx.Err() != nil {
				return row, ctx.Err()
			}
			r := &row.Results[(i+round)%len(row.Results)] // the order rotates, so no peer is always the first
			if r.Failed != "" {
				continue
			}
			values, err := m.run(ctx, l, r.peer)
			if err != nil {
				r.Failed = err.Error()
				continue
			}
			r.rounds = append(r.rounds, values)
		}
	}
	for i := range row.Results {
		row.Results[i].sum(len(m.columns))
	}
	return row, nil
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
