package console_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// BenchmarkWatched measures the processor time of agentinit while a browser shows
// a page of the console: 1001 programs, for a minute after the page has come to
// rest. Without "restarts" no program changes its state. bench/README.md has numbers.
func BenchmarkWatched(b *testing.B) {
	for _, c := range []struct{ name, hash, first string }{
		{"programs", "#/", "sleep 1000"},
		{"usage", "#/usage", "sleep 1000"},
		{"logs", "#/logs", "while :; do echo a line; sleep 1; done"},
		{"program", "#/program/crowd:7", "sleep 1000"},
		{"programs,restarts", "#/", "sleep 1"},
	} {
		b.Run(c.name, func(b *testing.B) {
			ctx, base, pid := browser(b), "", 0
			base, pid = start(b, "true", fmt.Sprintf(crowd, c.first))
			login(b, ctx, base, adminKey)
			do(b, ctx, "page", open(c.hash), until(`document.querySelector("main h2") !== null`))
			<-time.After(10 * time.Second) // the page reads everything once
			for b.Loop() {
				before := processorTime(b, pid)
				<-time.After(time.Minute)
				b.ReportMetric((processorTime(b, pid)-before).Seconds()/60*100, "%cpu")
			}
			var alive bool
			do(b, ctx, "connected", chromedp.Evaluate(`!document.getElementById("box").textContent.includes("Not connected")`, &alive))
			if !alive {
				b.Error("the page lost its connection")
			}
		})
	}
}

const crowd = `
[supervisor]
listen = %%q
metrics_listen = "off"
console = %%s
[programs.first]
command = ["/bin/sh", "-c", %q]
restart = "always"
restart_limit = { count = 1000, window = "1m" }
backoff = { initial = "10ms" }
[programs.crowd]
command = ["/bin/sleep", "1000"]
instances = 1000
`

// processorTime is what the threads of a process have used so far (proc_pid_schedstat
// has nanoseconds; proc_pid_stat would count in hundredths of a second).
func processorTime(t testing.TB, pid int) time.Duration {
	t.Helper()
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		t.Fatal(err)
	}
	var sum time.Duration
	for _, task := range tasks {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/schedstat", pid, task.Name()))
		if err != nil {
			t.Fatal(err)
		}
		ns, err := strconv.ParseInt(strings.Fields(string(text))[0], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		sum += time.Duration(ns)
	}
	return sum
}
