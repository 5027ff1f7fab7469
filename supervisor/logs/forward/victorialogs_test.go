package forward

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/internal/foreign"
	"github.com/dreamlab-ai/agentinit/supervisor/logs"
)

// A real log server takes what agentinit sends in each protocol over HTTP, and gives back the same
// lines.
func TestVictoriaLogs(t *testing.T) {
	var sent []logs.Line
	for i, text := range []string{
		"plain", `with "quotes", a \ and a tab	inside`, "\x1b[31mred\x1b[0m", "not UTF-8: \xff\xfe.", "a zero\x00byte", "日本語 🦀", strings.Repeat("long ", 20_000),
	} {
		l := line(uint64(i+1), "web", text)
		l.Time = l.Time.Add(time.Duration(i) * time.Microsecond)
		if i%2 == 1 {
			l.Program, l.Stream, l.PID = "worker:1", logs.Stderr, 8
		}
		sent = append(sent, l)
	}
	for len(sent) < 1000 { // some batches
		i := len(sent)
		l := line(uint64(i+1), fmt.Sprintf("p%d", i%7), "line "+strconv.Itoa(i))
		l.Time = l.Time.Add(time.Duration(i) * time.Millisecond)
		sent = append(sent, l)
	}
	for _, c := range []struct {
		kind, path      string
		program, stream string // the names that the server gives to these fields
		pid             string // "" if the protocol has no place for it
	}{
		{"otlp", "/insert/opentelemetry/v1/logs", "service.name", "log.iostream", "process.pid"},
		{"loki", "/insert/loki/api/v1/push", "program", "stream", ""},
		{"http", "/insert/jsonline?_stream_fields=program&_time_field=time&_msg_field=msg", "program", "stream", "pid"},
	} {
		t.Run(c.kind, func(t *testing.T) {
			server, err := foreign.VictoriaLogs(t.Context())
			foreign.SkipOrFail(t, err)
			t.Cleanup(server.Stop)
			s := newSource(sent...)
			f := start(t, Config{Name: c.kind, Kind: c.kind, URL: server.Address + c.path, Host: "box", BatchLines: 300, OnTrouble: func(err error) { t.Error(err) }}, s)
			finish(t, f, s)
			if st := f.Stats(); st.Sent != uint64(len(sent)) || st.Dropped != 0 {
				t.Errorf("stats %+v", st)
			}
			ask(t, server.Address+"/internal/force_flush")
			var want, got []string
			for _, l := range sent {
				pid := strconv.Itoa(l.PID)
				if c.pid == "" {
					pid = ""
				}
				want = append(want, fmt.Sprintf("%s %s %s %s %q", l.Time.UTC().Format(time.RFC3339Nano), l.Program, l.Stream, pid, valid(l.Text)))
			}
			for answer := range strings.Lines(ask(t, server.Address+"/select/logsql/query?query="+url.QueryEscape("*"))) {
				fields := map[string]string{}
				if err := json.Unmarshal([]byte(answer), &fields); err != nil {
					t.Fatalf("%v: %.300q", err, answer)
				}
				got = append(got, fmt.Sprintf("%s %s %s %s %q", fields["_time"], fields[c.program], fields[c.stream], fields[c.pid], fields["_msg"]))
			}
			slices.Sort(want)
			slices.Sort(got)
			if len(got) != len(want) {
				t.Errorf("the server has %d lines of %d", len(got), len(want))
			}
			for i := range min(len(got), len(want)) {
				if got[i] != want[i] {
					t.Fatalf("line %d:\n%.300s\nwant\n%.300s", i, got[i], want[i])
				}
			}
		})
	}
}

// ask returns the answer to a GET request.
func ask(t *testing.T, url string) string {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}
	resp, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %v: %.300s", resp.Status, err, body)
	}
	return string(body)
}
