package main

import (
	"context"
	"fmt"
	"os"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/dreamlab-ai/agentinit/bootstrap"
	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/supervisor/logs/forward"
)

// forward starts what sends the output of programs to collectors. Without such a table
// in the manifest it does nothing.
func (b *box) forward(m *schema.Manifest) error {
	host, err := os.Hostname()
	if err != nil {
		host = "agentbox"
	}
	for name, table := range m.Supervisor.Log.Forward {
		b.plane.Redact(b.getenv(table.TokenEnv))
		for header, value := range table.Headers {
			if schema.SecretName(header) {
				b.plane.Redact(value)
			}
		}
		f, err := forward.New(forward.Config{
			Name: name, Kind: table.Type, URL: table.URL, Token: b.getenv(table.TokenEnv), Headers: table.Headers,
			CAFile: table.CAFile, Programs: table.Programs, Host: host,
			BatchLines: table.BatchLines, BatchWait: table.BatchWait.Std(), Timeout: table.Timeout.Std(),
			OnTrouble: func(err error) {
				fields := map[string]any{"forward": name, "message": fmt.Sprintf("forwarding logs to %s works again", name)}
				level := event.Info
				if err != nil {
					level, fields["message"] = event.Warn, err.Error()
				}
				b.publish(level, "LogForwarding", fields)
			},
		})
		if err != nil {
			return &bootstrap.Failure{Code: bootstrap.ExitPrepare, Reason: "log forwarding", Err: err}
		}
		for result, count := range map[string]func(forward.Stats) uint64{
			"sent":    func(s forward.Stats) uint64 { return s.Sent },
			"dropped": func(s forward.Stats) uint64 { return s.Dropped },
			"retried": func(s forward.Stats) uint64 { return s.Retries },
		} {
			if err := b.registry.Register(prometheus.NewCounterFunc(prometheus.CounterOpts{
				Name: "agentinit_log_forward_total", Help: "Lines sent and dropped, and attempts repeated, by collector.",
				ConstLabels: prometheus.Labels{"forward": name, "result": result},
			}, func() float64 { return float64(count(f.Stats())) })); err != nil {
				return err
			}
		}
		f.Start(b.plane)
		b.forwards = append(b.forwards, f)
	}
	return nil
}

// closeForwards sends what is left, as long as ctx lasts, to all collectors at once.
func (b *box) closeForwards(ctx context.Context) {
	var all sync.WaitGroup
	for _, f := range b.forwards {
		all.Go(func() { f.Close(ctx, b.plane) })
	}
	all.Wait()
}
