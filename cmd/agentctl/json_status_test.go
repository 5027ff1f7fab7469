package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// A script reads the answer as JSON and still relies on the exit status.
func TestExitStatusIsTheSameWithJSON(t *testing.T) {
	for _, c := range []struct {
		command, answer string
		status          int
	}{
		{"mem rm k", `{"deleted":true}`, exitOK},
		{"mem rm k", `{"deleted":false}`, exitFailure},
		{"pod rm /a", `{"deleted":false}`, exitFailure},
		{"mesh publish hello", `{"status":"failed"}`, exitFailure},
		{"agent logs a", "event: exit\ndata: {\"payload\":{\"code\":0}}\n\n", exitOK},
		{"agent logs a", "event: exit\ndata: {\"payload\":{\"code\":3}}\n\n", exitFailure},
		{"agent logs a", "event: stdout\ndata: {\"payload\":{\"data\":\"x\"}}\n\n", exitFailure}, // the box has ended
	} {
		box := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, c.answer) }))
		for _, form := range []string{"", "--json "} {
			var out, errs strings.Builder
			none := func(string) (string, bool) { return "", false }
			args := strings.Fields("--url " + box.URL + " " + form + c.command)
			if got := run(t.Context(), args, none, strings.NewReader(""), &out, &errs); got != c.status {
				t.Errorf("%s%s with %s: exit %d, want %d\n%s%s", form, c.command, c.answer, got, c.status, &out, &errs)
			}
			if (form != "") != strings.HasPrefix(out.String(), "{") {
				t.Errorf("%s%s prints %q", form, c.command, &out)
			}
		}
		box.Close()
	}
}

// The end of input may come after the end of the agent: no byte is lost then. A line that comes too
// late is lost, which is an error. So is an end of input that is refused for another reason: the agent
// may wait for it.
func TestRefusedInputOfAnAgent(t *testing.T) {
	for _, c := range []struct {
		input, answer string
		fails         bool
	}{
		{"", `{"status":409,"code":"CONFLICT","detail":"the agent has ended"}`, false},
		{"line\n", `{"status":409,"code":"CONFLICT","detail":"the agent has ended"}`, true},
		{"", `{"status":503,"code":"UNAVAILABLE","detail":"no host is attached"}`, true},
	} {
		var problem struct{ Status int }
		if err := json.Unmarshal([]byte(c.answer), &problem); err != nil {
			t.Fatal(err)
		}
		box := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(problem.Status)
			fmt.Fprint(w, c.answer)
		}))
		cli := &cli{url: box.URL, stdin: strings.NewReader(c.input), lookupEnv: func(string) (string, bool) { return "", false }}
		if err := cli.feed(t.Context(), "a"); (err != nil) != c.fails {
			t.Errorf("input %q, answer %s: %v", c.input, c.answer, err)
		}
		box.Close()
	}
}
