package main

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"os"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/dreamlab-ai/agentinit/bootstrap"
	"github.com/dreamlab-ai/agentinit/internal/plural"
	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/supervisor/logs"
	"github.com/dreamlab-ai/agentinit/supervisor/logs/forward"
)

// forward makes the forwarders that send the output of programs to collectors, and starts none: if a later
// table has a mistake, no forwarder may run that is never closed. It does nothing if the manifest has no
// such table.
func (b *box) forward(m *schema.Manifest) (all []forwarding, err error) {
	host, err := os.Hostname()
	if err != nil {
		host = "agentbox"
	}
	for _, name := range slices.Sorted(maps.Keys(m.Supervisor.Log.Forward)) {
		table := m.Supervisor.Log.Forward[name]
		b.plane.Redact(b.tokenIn(table.TokenEnv))
		b.plane.Redact(passwordsOf(table.URL)...)
		for header, value := range table.Headers {
			if schema.SecretName(header) {
				b.plane.Redact(value)
			}
		}
		readers, err := b.forwardTo(name, table, host)
		if err != nil {
			return nil, err
		}
		all = append(all, readers...)
	}
	return all, nil
}

// forwardTo makes the forwarders for one collector: one for the programs' output and, if the table
// asks for it, one for agentinit's own events.
func (b *box) forwardTo(name string, table schema.LogForward, host string) ([]forwarding, error) {
	troubles := &logTroubles{publish: func(e event.Event) { b.bus.Publish(e) }, event: forwardTrouble}
	outage := &outage{report: func(err error) { troubles.report(name, err) }}
	config := forward.Config{
		Name: name, Kind: table.Type, URL: table.URL, Token: b.tokenIn(table.TokenEnv), Headers: table.Headers,
		CAFile: table.CAFile, Programs: table.Programs, Host: host,
		BatchLines: table.BatchLines, BatchWait: table.BatchWait.Std(), Timeout: table.Timeout.Std(),
	}
	readers := []forwarding{{name: name, source: b.plane}}
	if table.Events {
		readers = append(readers, forwarding{name: name, source: ownEvents{b}})
	}
	for i := range readers {
		config.OnTrouble = outage.teller()
		f, err := forward.New(config)
		if err != nil {
			return nil, &bootstrap.Failure{Code: bootstrap.ExitPrepare, Reason: "log forwarding", Err: err}
		}
		readers[i].Forwarder = f
		config.Programs = nil // the second reader has one program, agentinit
	}
	for result, count := range map[string]func(forward.Stats) uint64{
		"sent":    func(s forward.Stats) uint64 { return s.Sent },
		"dropped": func(s forward.Stats) uint64 { return s.Dropped },
		"retried": func(s forward.Stats) uint64 { return s.Retries },
	} {
		if err := b.registry.Register(prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "agentinit_log_forward_total", Help: "Lines sent and dropped, and attempts repeated, by collector.",
			ConstLabels: prometheus.Labels{"forward": name, "result": result},
		}, func() (sum float64) {
			for _, r := range readers {
				sum += float64(count(r.Stats()))
			}
			return sum
		})); err != nil {
			return nil, err
		}
	}
	return readers, nil
}

// startForwards begins to send.
func startForwards(forwards []forwarding) {
	for _, f := range forwards {
		f.Start(f.source)
	}
}

// outage reports the failure of a collector once, although it may have two forwarders that fail and
// recover at different times.
type outage struct {
	report  func(error)
	mu      sync.Mutex
	failing int    // forwarders
	said    string // the error that was reported last
}

// teller returns the OnTrouble of a forwarder. It reports the failure of the first forwarder, another
// error of a forwarder that fails already, and the recovery of the last one.
func (o *outage) teller() func(error) {
	failing := false
	return func(err error) {
		o.mu.Lock()
		defer o.mu.Unlock()
		switch {
		case err == nil:
			failing = false
			if o.failing--; o.failing > 0 {
				return
			}
		case !failing:
			failing = true
			if o.failing++; o.failing > 1 {
				return
			}
		case err.Error() == o.said:
			return
		}
		if err != nil {
			o.said = err.Error()
		}
		o.report(err)
	}
}

// forwardTrouble is the event of a collector.
func forwardTrouble(name string, err error) event.Event {
	e := event.Event{Level: event.Info, Stage: "supervisor", Name: eventLogForwarding, Fields: map[string]any{
		"forward": name, "message": fmt.Sprintf("forwarding logs to %s works again", name),
	}}
	if err != nil {
		e.Level, e.Fields["message"] = event.Warn, err.Error()
	}
	return e
}

// eventLogForwarding is not forwarded, because it reports the forwarding itself.
const eventLogForwarding = "LogForwarding"

// forwarding is a forwarder and what it reads.
type forwarding struct {
	*forward.Forwarder
	name   string // of the collector
	source forward.Source
}

// ownEvents presents agentinit's events as lines of a program: it implements forward.Source. The
// Seq of a line is the number of its event.
type ownEvents struct{ b *box }

func (o ownEvents) Read(ctx context.Context, q logs.Query) iter.Seq[logs.Line] {
	return func(yield func(logs.Line) bool) {
		for events := o.b.bus.Watch(q.After); ; {
			e, ok := events.TryNext()
			if !ok {
				if !q.Follow {
					return
				}
				var err error
				if e, err = events.Next(ctx); err != nil {
					return
				}
			}
			if line, ok := o.line(e); ok && !yield(line) {
				return
			}
		}
	}
}

// line returns false for an event that is not sent.
func (o ownEvents) line(e event.Event) (logs.Line, bool) {
	line := logs.Line{Seq: e.Seq, Time: e.Time, Program: "agentinit", Stream: logs.Stdout, PID: os.Getpid(), Run: 1}
	if e.Name == event.Lagged {
		dropped, _ := e.Fields["dropped"].(uint64)
		line.Seq, line.Dropped = 0, dropped
		return line, true
	}
	if e.Name == eventLogForwarding || !o.b.voice.speaks(e) {
		return line, false
	}
	line.Level = string(e.Level)
	if e.Level == event.Warn || e.Level == event.Error {
		line.Stream = logs.Stderr // Loki and http get no level
	}
	text, err := json.Marshal(e)
	line.Text = string(text)
	return line, err == nil
}

// closeForwards sends the remaining lines to all collectors at once, until ctx ends. It returns one line
// of text for each collector that did not get all of them.
func closeForwards(ctx context.Context, forwards []forwarding) (report []byte) {
	var all sync.WaitGroup
	missed := make([]uint64, len(forwards))
	for i, f := range forwards {
		all.Go(func() { missed[i] = f.Close(ctx, f.source) })
	}
	all.Wait()
	total := map[string]uint64{} // a collector may have two forwarders
	for i, f := range forwards {
		total[f.name] += missed[i]
	}
	for _, name := range slices.Sorted(maps.Keys(total)) {
		if n := total[name]; n > 0 {
			report = fmt.Appendf(report, "agentinit: %s not forwarded to %s: the collector did not take them before the box ended\n", plural.Of(n, "line"), name)
		}
	}
	return report
}
