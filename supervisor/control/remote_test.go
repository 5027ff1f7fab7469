package control_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/control"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/control/controltest"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/supervisor/logs"
)

// remoteServer serves the box over HTTP. X-Role in a request stands for the credential that the
// management listener has checked.
func remoteServer(t *testing.T, b *controltest.Box) *httptest.Server {
	t.Helper()
	grants := map[string]control.Grant{
		"viewer":   {Access: control.Read, Principal: "key:view"},
		"operator": {Access: control.Write, Principal: "key:op"},
		"agent":    {Access: control.Open, Principal: "agent:a1"},
	}
	srv := httptest.NewServer(control.New(b.Own()).Remote(func(r *http.Request) control.Grant { return grants[r.Header.Get("X-Role")] }))
	t.Cleanup(srv.Close)
	return srv
}

func askRemote(t *testing.T, srv *httptest.Server, role, method, path, body string, out any) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, srv.URL+path, strings.NewReader(body))
	must(t, err)
	req.Header.Set("X-Role", role)
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := srv.Client().Do(req)
	must(t, err)
	defer resp.Body.Close()
	if h := resp.Header; h.Get("X-Content-Type-Options") != "nosniff" || h.Get("Cache-Control") != "no-store" {
		t.Errorf("the answer to %s %s has the headers %v", method, path, h)
	}
	if out != nil {
		must(t, json.NewDecoder(resp.Body).Decode(out))
	}
	return resp.StatusCode
}

func TestRemoteByRole(t *testing.T) {
	for _, c := range []struct {
		method, path, body      string
		agent, viewer, operator int
	}{
		{"GET", "/v1/programs", "", 403, 200, 200},
		{"GET", "/v1/programs/web", "", 403, 200, 200},
		{"GET", "/v1/programs/web/why", "", 403, 200, 200},
		{"GET", "/v1/programs/web/logs", "", 403, 200, 200},
		{"GET", "/v1/programs/absent", "", 403, 404, 404},
		{"GET", "/v1/logs?name=web", "", 403, 200, 200},
		{"GET", "/v1/box/events", "", 403, 200, 200},
		{"GET", "/v1/box/usage", "", 403, 200, 200},
		{"GET", "/v1/box/ready", "", 200, 200, 200},
		{"GET", "/v1/box/openapi.json", "", 200, 200, 200},
		{"POST", "/v1/programs/web/restart", "", 403, 403, 200},
		{"POST", "/v1/programs/web/run", "", 403, 403, 200},
		{"POST", "/v1/programs/web/signal", `{"signal":"HUP"}`, 403, 403, 200},
		{"POST", "/v1/programs/web/stop", `{"names":["db"]}`, 403, 403, 400},
		{"POST", "/v1/programs/web/stop", `{"all":true}`, 403, 403, 400},
		{"POST", "/v1/programs/web/stop", `{"nonsense":1}`, 403, 403, 400},
		{"POST", "/v1/box/apply", `{"dry_run":true}`, 403, 403, 200},
		{"POST", "/v1/box/apply", `{"dry_run":null}`, 403, 403, 400},
		{"POST", "/v1/box/apply", `null`, 403, 403, 400},
		{"DELETE", "/v1/programs/web", "", 405, 405, 405},
		{"POST", "/v1/box/shutdown", "", 404, 404, 404},
		{"GET", "/v1/programs//why", "", 404, 404, 404},
		{"POST", "/v1/programs/x/../web/stop", "", 404, 404, 404},
	} {
		t.Run(c.method+" "+c.path+c.body, func(t *testing.T) {
			srv := remoteServer(t, controltest.New(controltest.Program("db"), controltest.Program("web")))
			for role, want := range map[string]int{"agent": c.agent, "viewer": c.viewer, "operator": c.operator, "": 403} {
				if role == "" && (want > c.viewer || c.agent == 200 || c.agent >= 404) {
					continue
				}
				if got := askRemote(t, srv, role, c.method, c.path, c.body, nil); got != want {
					t.Errorf("%q got %d, want %d", role, got, want)
				}
			}
		})
	}
}

// A page of any site can make a browser send a form or a body without a type. Only a body that is
// declared as JSON is read.
func TestRemoteReadsOnlyJSON(t *testing.T) {
	const form = "application/x-www-form-urlencoded"
	const chunked = "chunked:" // the length of the body is not declared
	for _, c := range []struct {
		path, contentType, body string
		want                    int
	}{
		{"/v1/box/apply", "text/plain", "", 200},
		{"/v1/box/apply", "", chunked + "{}", 415},
		{"/v1/box/apply", form, chunked, 415},
		{"/v1/box/apply", "application/json", chunked + `{"dry_run":true}`, 200},
		{"/v1/box/apply", "application/json", `{"dry_run":true}`, 200},
		{"/v1/box/apply", "application/json; charset=utf-8", `{"dry_run":true}`, 200},
		{"/v1/box/apply", "", "", 200},
		{"/v1/box/apply", "", `{"dry_run":true}`, 415},
		{"/v1/box/apply", "text/plain", `{"dry_run":true}`, 415},
		{"/v1/box/apply", form, "", 200},
		{"/v1/box/apply", "not a type", `{}`, 415},
		{"/v1/programs/web/signal", "application/json", `{"signal":"HUP"}`, 200},
		{"/v1/programs/web/signal", "text/plain;a=application/json", `{"signal":"HUP"}`, 415},
		{"/v1/programs/web/stop", "multipart/form-data; boundary=x", "a", 415},
		{"/v1/programs/web/restart", "", "", 200},
	} {
		b := controltest.New(controltest.Program("web"))
		srv := remoteServer(t, b)
		text, unknownLength := strings.CutPrefix(c.body, chunked)
		req, err := http.NewRequestWithContext(t.Context(), "POST", srv.URL+c.path, strings.NewReader(text))
		must(t, err)
		if unknownLength {
			req.ContentLength, req.TransferEncoding = -1, []string{"chunked"}
		}
		req.Header.Set("X-Role", "operator")
		if c.contentType != "" {
			req.Header.Set("Content-Type", c.contentType)
		}
		resp, err := srv.Client().Do(req)
		must(t, err)
		var e api.Error
		must(t, json.NewDecoder(resp.Body).Decode(&e))
		resp.Body.Close()
		if resp.StatusCode != c.want || c.want == 415 && (e.Code != api.CodeMediaType || len(b.Signals()) > 0) {
			t.Errorf("%s %q %q: %d %+v", c.path, c.contentType, c.body, resp.StatusCode, e)
		}
	}
}

// The name in the path decides: a body cannot add other programs. The audit trail names the holder
// of the credential.
func TestRemoteActsOnTheProgramOfThePath(t *testing.T) {
	b := controltest.New(controltest.Program("db"), controltest.Program("web"))
	srv := remoteServer(t, b)
	var out api.ActionResult
	if got := askRemote(t, srv, "operator", "POST", "/v1/programs/web/signal", `{"signal":"USR1"}`, &out); got != 200 {
		t.Fatal(got)
	}
	equal(t, b.Signals(), []string{"web USR1"})
	events := b.Bus.Watch(0)
	for {
		e, ok := events.TryNext()
		if !ok {
			t.Fatal("no audit event names the principal")
		}
		if e.Name == control.EventChange && e.Fields["principal"] == "key:op" {
			return
		}
	}
}

func TestRemoteStreamsServerSentEvents(t *testing.T) {
	b := controltest.New(controltest.Program("web"))
	b.Lines = []logs.Line{{Seq: 7, Program: "web", Text: "one\ntwo </script>"}}
	srv := remoteServer(t, b)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range 3 {
		b.Bus.Publish(event.Event{Name: "Tested"})
	}
	req, err := http.NewRequestWithContext(ctx, "GET", srv.URL+"/v1/box/events?follow=true", nil)
	must(t, err)
	req.Header.Set("X-Role", "viewer")
	req.Header.Set("Accept", "text/event-stream")
	req.Header.Set("Last-Event-ID", "2")
	resp, err := srv.Client().Do(req)
	must(t, err)
	defer resp.Body.Close()
	equal(t, resp.Header.Get("Content-Type"), "text/event-stream")
	in := bufio.NewScanner(resp.Body)
	var got []string
	for len(got) < 2 && in.Scan() {
		got = append(got, in.Text())
	}
	if len(got) < 2 || got[0] != "id: b00t.3" || !strings.HasPrefix(got[1], "data: {") || !strings.Contains(got[1], `"seq":3,`) {
		t.Errorf("resumed after 2 with %q", got)
	}
	cancel()

	req, err = http.NewRequestWithContext(t.Context(), "GET", srv.URL+"/v1/logs", nil)
	must(t, err)
	req.Header.Set("X-Role", "viewer")
	req.Header.Set("Accept", "text/event-stream")
	resp, err = srv.Client().Do(req)
	must(t, err)
	defer resp.Body.Close()
	in, got = bufio.NewScanner(resp.Body), nil
	for in.Scan() {
		got = append(got, in.Text())
	}
	if !slices.ContainsFunc(got, isID) || !slices.Contains(got, "event: end") {
		t.Errorf("the stream of logs is %q", got)
	}
}

// A reader that was connected before agentinit was restarted gets the events of the new boot.
func TestEventsGoOnInTheNextBoot(t *testing.T) {
	b := controltest.New(controltest.Program("web"))
	srv := remoteServer(t, b)
	for range 3 {
		b.Bus.Publish(event.Event{Name: "Tested"})
	}
	const all = "id: b00t.1 id: b00t.2 id: b00t.3"
	for _, c := range []struct{ query, last, want string }{
		{"", "3", ""}, {"", "4", all}, {"?since=900", "", all}, {"?since=900", "2", "id: b00t.3"},
		{"", "b00t.3", ""}, {"", "b00t.2", "id: b00t.3"}, {"", "b00t.4", all}, {"?since=b00t.2", "", "id: b00t.3"},
		// The same number of an earlier boot is another event.
		{"", "an0ther.2", all}, {"?since=an0ther.2", "", all}, {"?since=1", "an0ther.2", all},
	} {
		req, err := http.NewRequestWithContext(t.Context(), "GET", srv.URL+"/v1/box/events"+c.query, nil)
		must(t, err)
		req.Header.Set("X-Role", "viewer")
		req.Header.Set("Accept", "text/event-stream")
		if c.last != "" {
			req.Header.Set("Last-Event-ID", c.last)
		}
		resp, err := srv.Client().Do(req)
		must(t, err)
		var ids []string
		for in := bufio.NewScanner(resp.Body); in.Scan(); {
			if isID(in.Text()) {
				ids = append(ids, in.Text())
			}
		}
		must(t, resp.Body.Close())
		equal(t, strings.Join(ids, " "), c.want)
	}
}

func isID(line string) bool { return strings.HasPrefix(line, "id: ") }

// A client that resumes a log stream sends the id of its last line. It gets the missed lines once
// each, even if agentinit was restarted meanwhile.
func TestLogStreamResumes(t *testing.T) {
	b := controltest.New(controltest.Program("web"))
	for i := range 5 {
		b.Lines = append(b.Lines, logs.Line{
			Seq: uint64(i + 1), Time: controltest.Epoch.Add(time.Duration(i) * time.Second), Program: "web", Text: fmt.Sprint("line ", i+1),
		})
	}
	srv := remoteServer(t, b)
	read := func(query, last string) (status int, ids, lines []string) {
		req, err := http.NewRequestWithContext(t.Context(), "GET", srv.URL+"/v1/logs"+query, nil)
		must(t, err)
		req.Header.Set("X-Role", "viewer")
		req.Header.Set("Accept", "text/event-stream")
		if last != "" {
			req.Header.Set("Last-Event-ID", last)
		}
		resp, err := srv.Client().Do(req)
		must(t, err)
		defer resp.Body.Close()
		for in := bufio.NewScanner(resp.Body); in.Scan(); {
			if id, ok := strings.CutPrefix(in.Text(), "id: "); ok {
				ids = append(ids, id)
			}
			var line api.LogLine
			if data, ok := strings.CutPrefix(in.Text(), "data: {"); ok && json.Unmarshal([]byte("{"+data), &line) == nil && line.Text != "" {
				lines = append(lines, line.Text)
			}
		}
		return resp.StatusCode, ids, lines
	}
	_, ids, lines := read("", "")
	equal(t, len(ids), 5)
	equal(t, len(lines), 5)
	_, _, lines = read("?lines=1", ids[1])
	equal(t, lines, []string{"line 3", "line 4", "line 5"})
	_, _, lines = read("?after="+ids[0], ids[3]) // the query stays that of the first request
	equal(t, lines, []string{"line 5"})
	for i := range 4 { // only the last line is of this life
		b.Lines[i].Seq = 0
	}
	_, _, lines = read("", "another0"+ids[2][strings.Index(ids[2], "."):])
	equal(t, lines, []string{"line 4", "line 5"})
	if status, _, _ := read("", "17"); status != http.StatusBadRequest {
		t.Errorf("an id that this stream never gave: %d", status)
	}
}
