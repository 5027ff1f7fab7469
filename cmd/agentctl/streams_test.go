package main

import (
	"bufio"
	"context"
	"io"
	"strings"
	"testing"

	"github.com/dreamlab-ai/agentinit/supervisor/control/controltest"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
)

// TestFollowTheNewestEvents: -n with --follow shows each later event, and each event once.
func TestFollowTheNewestEvents(t *testing.T) {
	for n, old := range map[string]string{"2": "e2 e3 ", "9": "e1 e2 e3 "} {
		b := controltest.New()
		socket := controltest.Serve(t, b.Own())
		publish := func(names ...string) {
			for _, name := range names {
				b.Bus.Publish(event.Event{Level: event.Info, Name: name})
			}
		}
		publish("e1", "e2", "e3")
		read, write := io.Pipe()
		ctx, cancel := context.WithCancel(t.Context())
		none := func(string) (string, bool) { return "", false }
		ended := make(chan int, 1)
		go func() {
			ended <- run(ctx, []string{"--socket", socket, "events", "-f", "-n", n}, none, strings.NewReader(""), write, io.Discard)
			write.Close()
		}()
		shown, got := bufio.NewScanner(read), ""
		upTo := func(name string) {
			for !strings.HasSuffix(got, name+" ") && shown.Scan() {
				fields := strings.Fields(shown.Text())
				got += fields[len(fields)-1] + " "
			}
		}
		upTo("e3")
		publish("e4", "e5")
		upTo("e5")
		cancel()
		if code := <-ended; code != exitOK || got != old+"e4 e5 " {
			t.Errorf("-n %s: exit status %d, events %q", n, code, got)
		}
	}
}
