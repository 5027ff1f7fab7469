// Command federation measures one host with many registered boxes, all on this machine. The host is
// a real agentinit on one processor. Each box is the real federation session of a box, with its own
// connection and address. The command measures registrations of all boxes within a second,
// heartbeats at rest, and the same boxes after an absence of the host. It owns no product code and
// never judges the numbers, except that it exits 1 if a session is lost.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters/federation"
	"github.com/dreamlab-ai/agentinit/internal/sleep"
)

func main() {
	os.Exit(run())
}

func run() int {
	var o options
	flag.IntVar(&o.boxes, "boxes", 10_000, "boxes, 1 to 60000")
	flag.DurationVar(&o.heartbeat, "heartbeat", federation.DefaultInterval, "what the host asks boxes to leave between two heartbeats, 5s to 5m")
	flag.DurationVar(&o.rest, "rest", time.Minute, "how long heartbeats are measured at rest")
	flag.DurationVar(&o.away, "away", 5*time.Minute, "how long the host is away; 0 leaves that part out")
	flag.StringVar(&o.bin, "bin", "bin", "directory of agentinit")
	flag.Parse()
	if o.boxes < 1 || o.boxes > 60_000 || o.heartbeat < federation.MinInterval || o.heartbeat > federation.MaxInterval || flag.NArg() > 0 {
		flag.Usage()
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := measure(ctx, os.Stdout, o); err != nil {
		fmt.Fprintln(os.Stderr, "federation:", err)
		return 1
	}
	return 0
}

type options struct {
	boxes                 int
	heartbeat, rest, away time.Duration
	bin                   string
}

func measure(ctx context.Context, out io.Writer, o options) error {
	if err := machine(o.boxes); err != nil {
		return err
	}
	h, err := newHost(o.bin, o.heartbeat)
	if err != nil {
		return err
	}
	defer h.remove()
	if err := h.start(ctx); err != nil {
		return err
	}
	c, err := newCrowd(o.boxes, h.url())
	if err != nil {
		return err
	}
	defer c.stop()
	alone := h.usage()

	begun := time.Now()
	c.start(ctx)
	if err := c.await(ctx, begun); err != nil {
		return err
	}
	fmt.Fprintf(out, "herd: %d boxes started within a second are all registered after %.1f s\n", o.boxes, time.Since(begun).Seconds())
	report(out, c.take(), "register")
	herd, sessions := h.usage(), c.sessions()
	fmt.Fprintf(out, "      host: %.1f s of CPU, RSS %.1f MiB (%.1f before the first box), registry %.1f MiB\n\n",
		(herd.cpu - alone.cpu).Seconds(), mib(herd.rss), mib(alone.rss), mib(herd.registry))

	if !sleep.For(ctx, o.rest) {
		return ctx.Err()
	}
	rest, s := h.usage(), c.take()
	fmt.Fprintf(out, "rest: %.0f s of heartbeats, %.0f a second\n", o.rest.Seconds(), float64(len(s.took["heartbeat"]))/o.rest.Seconds())
	report(out, s, "heartbeat")
	beats := float64(max(len(s.took["heartbeat"]), 1))
	fmt.Fprintf(out, "      host: %.0f %% of one processor, RSS %.1f MiB, registry %.1f MiB; a heartbeat is %.0f bytes sent and %.0f received\n\n",
		100*float64(rest.cpu-herd.cpu)/float64(o.rest), mib(rest.rss), mib(rest.registry), float64(s.sent)/beats, float64(s.received)/beats)
	if o.away > 0 {
		if err := absence(ctx, out, o, h, c); err != nil {
			return err
		}
	}
	lost := c.lost(sessions)
	fmt.Fprintf(out, "%d of %d sessions lost since the herd\n", lost, o.boxes)
	if lost > 0 {
		return errors.New("sessions were lost")
	}
	return nil
}

// absence kills the host and starts it again after a while.
func absence(ctx context.Context, out io.Writer, o options, h *host, c *crowd) error {
	h.kill()
	if !sleep.For(ctx, o.away) {
		return ctx.Err()
	}
	fmt.Fprintf(out, "away: the host was killed; %s later the boxes are %v\n", o.away, c.states())
	c.take()
	if err := h.start(ctx); err != nil {
		return err
	}
	begun := time.Now()
	if err := c.await(ctx, begun); err != nil {
		return err
	}
	fmt.Fprintf(out, "      all are active again %.1f s after the host answers\n", time.Since(begun).Seconds())
	report(out, c.take(), "heartbeat")
	u := h.usage()
	fmt.Fprintf(out, "      host: %.1f s of CPU, RSS %.1f MiB, at most %.1f MiB\n\n", u.cpu.Seconds(), mib(u.rss), mib(u.peak))
	return nil
}

// report prints the times of one kind of request, and the failures by reason.
func report(out io.Writer, s sample, kind string) {
	q := func(p float64) float64 { return float64(s.quantile(kind, p).Microseconds()) / 1000 }
	fmt.Fprintf(out, "      %s: %d answered, p50 %.1f ms, p95 %.1f ms, p99 %.1f ms, slowest %.1f ms\n", kind, len(s.took[kind]), q(0.5), q(0.95), q(0.99), q(1))
	for _, f := range s.failures() {
		fmt.Fprintf(out, "      %d times: %s\n", s.failed[f], f)
	}
}

func mib(n int64) float64 { return float64(n) / (1 << 20) }
