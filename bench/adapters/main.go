// Command adapters measures the adapter slots against their service levels, each class on a real
// backend. It prints each measured value beside its level. It owns no product code and never fails
// because a level is missed.
//
//	go run ./bench/adapters                      # everything that is installed here
//	go run ./bench/adapters -only 'beads'        # rows whose name contains the text
//	go run ./bench/adapters -seconds 60          # nominal load: the floor for a minute
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"time"
)

func main() {
	if len(os.Args) == 2 && os.Args[1] == emitMode {
		emit(os.Stdout)
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// lab is the state that all rows share.
type lab struct {
	bin           string // directory of agentinit and agentctl
	dir           string // scratch directory
	only          string
	seconds       int
	rows, annRows int
	dim           int
	out           io.Writer
	notes         []string
	stops         []func() // stop the servers, the last started first
}

// target is one class of a slot on one backend. open prepares it once, and only if one of its rows
// is selected.
type target struct {
	slot, class string
	open        func(context.Context) error
	close       func()
	rows        []row
}

// row is one call and its service level.
type row struct {
	call  string
	level time.Duration // maximum p95
	rate  int           // calls a second; 0: not at a fixed rate
	share float64       // maximum share of calls that may fail
	run   func(ctx context.Context, rate, seconds int) (sample, error)
}

func run(ctx context.Context, args []string, out io.Writer) error {
	l := &lab{out: out}
	flags := flag.NewFlagSet("adapters", flag.ContinueOnError)
	flags.StringVar(&l.bin, "bin", "bin", "`directory` of agentinit and agentctl")
	flags.StringVar(&l.only, "only", "", "run only the rows whose \"slot class call\" contains this `text`")
	flags.IntVar(&l.seconds, "seconds", 15, "`seconds` of nominal load for each row")
	flags.IntVar(&l.rows, "rows", 100_000, "`entries` in the namespace that memory is searched in")
	flags.IntVar(&l.annRows, "ann-rows", 10_000, "`entries` there where an index is searched")
	flags.IntVar(&l.dim, "dim", 256, "`dimensions` of their vectors")
	if err := flags.Parse(args); err != nil {
		return err
	}
	var err error
	if l.bin, err = filepath.Abs(l.bin); err != nil {
		return err
	}
	if l.dir, err = os.MkdirTemp("", "bench"); err != nil {
		return err
	}
	defer os.RemoveAll(l.dir)
	if err := os.Chmod(l.dir, 0o755); err != nil { // PostgreSQL runs as a user of its own
		return err
	}
	defer l.stop()
	fmt.Fprintf(out, "%d s a row, open loop\n\n", l.seconds)
	fmt.Fprintln(out, "| slot | class | call | a second | p50 ms | p95 ms | p99 ms | errors | level: p95, errors | |")
	fmt.Fprintln(out, "|---|---|---|---|---|---|---|---|---|---|")
	for _, t := range l.targets() {
		if err := l.measure(ctx, t); err != nil {
			return err
		}
	}
	fmt.Fprintln(out)
	for _, n := range l.notes {
		fmt.Fprintln(out, "-", n)
	}
	return nil
}

func (l *lab) targets() []target {
	all := []target{l.beadsLocal(), l.beadsExternal(), l.podsLocal(), l.podsExternal()}
	all = append(all, l.memory()...)
	return append(all, l.eventsLocal(), l.eventsExternal(), l.agentsLocal(), l.agentsBridge())
}

// measure runs the selected rows of a target. If the target cannot be opened, measure prints a
// note, so that the other targets are still measured.
func (l *lab) measure(ctx context.Context, t target) error {
	var wanted []row
	for _, r := range t.rows {
		if strings.Contains(t.slot+" "+t.class+" "+r.call, l.only) {
			wanted = append(wanted, r)
		}
	}
	if len(wanted) == 0 {
		return nil
	}
	if t.close != nil {
		defer t.close()
	}
	if err := t.open(ctx); err != nil {
		l.note("%s %s was not measured: %v", t.slot, t.class, err)
		return ctx.Err()
	}
	for _, r := range wanted {
		s, err := r.run(ctx, r.rate, l.seconds)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			l.note("%s %s, %s was not measured: %v", t.slot, t.class, r.call, err)
			continue
		}
		l.print(t, r, s)
	}
	return nil
}

func (l *lab) print(t target, r row, s sample) {
	rate, verdict := "–", "met"
	if r.rate > 0 {
		rate = fmt.Sprint(r.rate)
	}
	if s.quantile(0.95) > r.level || s.failedShare() > r.share {
		verdict = "MISSED"
	}
	fmt.Fprintf(l.out, "| %s | %s | %s | %s | %s | %s | %s | %d of %d | %d ms, %g %% | %s |\n", t.slot, t.class, r.call, rate,
		ms(s.quantile(0.5)), ms(s.quantile(0.95)), ms(s.quantile(0.99)), s.failed, len(s.took), r.level.Milliseconds(), 100*r.share, verdict)
	if s.first != nil {
		l.note("%s %s, %s failed first with: %v", t.slot, t.class, r.call, s.first)
	}
}

func (l *lab) note(format string, args ...any) {
	l.notes = append(l.notes, fmt.Sprintf(format, args...))
}

func (l *lab) stop() {
	for i := len(l.stops) - 1; i >= 0; i-- {
		l.stops[i]()
	}
}

func ms(d time.Duration) string { return fmt.Sprintf("%.1f", float64(d.Microseconds())/1000) }
