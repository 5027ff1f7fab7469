package contract

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"testing"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// follow returns an agent's events from the given seq to the end of the stream.
func (o orchestra) follow(t *testing.T, id string, from uint64) []adapters.AgentEvent {
	t.Helper()
	s := ok[adapters.AgentStream](t, "stream")(o.StreamEvents(o.ctx, id, from))
	defer s.Close()
	var all []adapters.AgentEvent
	for {
		e, err := s.Next(o.ctx)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatalf("after %d events: %v", len(all), err)
		}
		if e.AgentID != id || e.TS.IsZero() {
			t.Errorf("event: %+v", e)
		}
		all = append(all, e)
	}
}

// until reads an agent's output until it contains text, and returns that output.
func (o orchestra) until(t *testing.T, id, text string) string {
	t.Helper()
	s := ok[adapters.AgentStream](t, "stream")(o.StreamEvents(o.ctx, id, 0))
	defer s.Close()
	var got strings.Builder
	for !strings.Contains(got.String(), text) {
		e, err := s.Next(o.ctx)
		if err != nil {
			t.Fatalf("waiting for %q after %q: %v", text, got.String(), err)
		}
		got.Write(output(t, e))
	}
	return got.String()
}

// output returns the data of an output event, nil for other events.
func output(t *testing.T, e adapters.AgentEvent) []byte {
	t.Helper()
	if e.Kind != adapters.AgentEventStdout && e.Kind != adapters.AgentEventStderr {
		return nil
	}
	var p struct{ Data, Encoding string }
	if err := json.Unmarshal(e.Payload, &p); err != nil {
		t.Fatal(err)
	}
	data := []byte(p.Data)
	if p.Encoding != "" {
		var err error
		if data, err = base64.StdEncoding.DecodeString(p.Data); err != nil || p.Encoding != "base64" {
			t.Fatalf("payload %s: %v", e.Payload, err)
		}
	}
	if len(data) == 0 || len(data) > adapters.MaxAgentOutput {
		t.Errorf("a piece of %d bytes", len(data))
	}
	return data
}

// check checks a complete stream: "started" is the first event, "exit" is the last one, each occurs
// once, and seq grows by one. It returns the output.
func check(t *testing.T, all []adapters.AgentEvent) (stdout, stderr string) {
	t.Helper()
	var out [2]strings.Builder
	for i, e := range all {
		if e.Seq != uint64(i)+1 {
			t.Fatalf("event %d has seq %d", i+1, e.Seq)
		}
		if (e.Kind == adapters.AgentEventStarted) != (i == 0) || (e.Kind == adapters.AgentEventExit) != (i == len(all)-1) {
			t.Fatalf("event %d of %d is %s", i+1, len(all), e.Kind)
		}
		if e.Kind == adapters.AgentEventStderr {
			out[1].Write(output(t, e))
		} else {
			out[0].Write(output(t, e))
		}
	}
	if len(all) < 2 {
		t.Fatalf("only %d events", len(all))
	}
	return out[0].String(), out[1].String()
}

func orchestratorOutput(t *testing.T, o orchestra) {
	a := o.spawn(t, "both")
	all := o.follow(t, a.AgentID, 0)
	stdout, stderr := check(t, all)
	if stdout != "to stdout\n" || stderr != "to stderr\n" {
		t.Errorf("stdout %q, stderr %q", stdout, stderr)
	}
	if last := all[len(all)-1]; string(last.Payload) != `{"code":0,"signal":null}` {
		t.Errorf("exit: %s", last.Payload)
	}
	again := o.follow(t, a.AgentID, 0)
	if len(again) != len(all) {
		t.Errorf("a second reader got %d events, the first %d", len(again), len(all))
	}
}

// orchestratorBinary sends bytes that are not UTF-8, and text in pieces that split multi-byte
// characters. The output must be equal, and no event may split a character.
func orchestratorBinary(t *testing.T, o orchestra) {
	runes := strings.Repeat(strings.Repeat("ä€😀", 1000)+"\n", 20)
	for _, text := range []string{"\xff\xfe bad\n", "nul \x00 nul\n", runes} {
		a := o.start(t, adapters.AgentSpec{Command: o.prog, Args: []string{"cat"}, StdinOpen: true})
		for rest := []byte(text); len(rest) > 0; {
			n := min(len(rest), 60<<10)
			if err := o.SendInput(o.ctx, a.AgentID, rest[:n], n == len(rest)); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		all := o.follow(t, a.AgentID, 0)
		if stdout, _ := check(t, all); stdout != text {
			t.Errorf("got %.60q of %d bytes, want %.60q of %d", stdout, len(stdout), text, len(text))
		}
		for _, e := range all {
			if text == runes && (strings.Contains(string(e.Payload), "base64") || strings.Contains(string(e.Payload), "\ufffd")) {
				t.Fatalf("text was cut inside a rune: %.100s", e.Payload)
			}
		}
	}
}

func orchestratorInput(t *testing.T, o orchestra) {
	a := o.start(t, adapters.AgentSpec{Command: o.prog, Args: []string{"cat"}, Stdin: "first\n"})
	if stdout, _ := check(t, o.follow(t, a.AgentID, 0)); stdout != "first\n" {
		t.Errorf("stdin: %q", stdout)
	}
	a = o.start(t, adapters.AgentSpec{Command: o.prog, Args: []string{"cat"}, Stdin: "one\n", StdinOpen: true})
	for i := range 20 {
		if err := o.SendInput(o.ctx, a.AgentID, fmt.Appendf(nil, "line %d\n", i), false); err != nil {
			t.Fatal(err)
		}
	}
	o.until(t, a.AgentID, "line 19\n")
	if err := o.SendInput(o.ctx, a.AgentID, []byte("last\n"), true); err != nil {
		t.Fatal(err)
	}
	stdout, _ := check(t, o.follow(t, a.AgentID, 0))
	if !strings.HasPrefix(stdout, "one\nline 0\nline 1\n") || !strings.HasSuffix(stdout, "line 19\nlast\n") {
		t.Errorf("input came as %q", stdout)
	}
	want(t, "input after the end", o.SendInput(o.ctx, a.AgentID, []byte("x"), false), adapters.CodeConflict)
	deaf := o.spawn(t, "sleep")
	want(t, "input without standard input", o.SendInput(o.ctx, deaf.AgentID, []byte("x"), false), adapters.CodeConflict)
	want(t, "input for nobody", o.SendInput(o.ctx, "nobody", nil, true), adapters.CodeNotFound)
}

func orchestratorResume(t *testing.T, o orchestra) {
	a := o.start(t, adapters.AgentSpec{Command: o.prog, Args: []string{"cat"}, StdinOpen: true})
	for i := range 5 {
		line := fmt.Sprintf("line %d\n", i)
		if err := o.SendInput(o.ctx, a.AgentID, []byte(line), false); err != nil {
			t.Fatal(err)
		}
		o.until(t, a.AgentID, line) // so that each line is a separate event
	}
	if err := o.SendInput(o.ctx, a.AgentID, nil, true); err != nil {
		t.Fatal(err)
	}
	all := o.follow(t, a.AgentID, 0)
	for from := range uint64(len(all)) {
		got := o.follow(t, a.AgentID, from+1)
		if len(got) != len(all)-int(from) || got[0].Seq != from+1 {
			t.Fatalf("from %d: %d events of %d", from+1, len(got), len(all))
		}
	}
	if got := o.follow(t, a.AgentID, uint64(len(all))+1); len(got) != 0 {
		t.Errorf("after the exit: %+v", got)
	}
}

func orchestratorLagged(t *testing.T, o orchestra) {
	a := o.spawn(t, "spam", strconv.Itoa(4<<20))
	o.wait(t, a.AgentID)
	all := o.follow(t, a.AgentID, 1)
	if all[0].Kind != adapters.AgentEventLagged || all[len(all)-1].Kind != adapters.AgentEventExit {
		t.Fatalf("%d events, first %s, last %s", len(all), all[0].Kind, all[len(all)-1].Kind)
	}
	var p struct {
		Dropped    uint64 `json:"dropped"`
		ResumeFrom uint64 `json:"resume_from"`
	}
	if err := json.Unmarshal(all[0].Payload, &p); err != nil || p.Dropped == 0 || p.ResumeFrom != all[1].Seq || p.Dropped != all[1].Seq-1 {
		t.Errorf("lagged %s before seq %d (%v)", all[0].Payload, all[1].Seq, err)
	}
	held := 0
	for _, e := range all {
		held += len(output(t, e))
	}
	if held == 0 || held > 1<<20 {
		t.Errorf("%d bytes are held", held)
	}
	if oldest := o.follow(t, a.AgentID, 0); oldest[0].Kind == adapters.AgentEventLagged {
		t.Error("whoever asks for the oldest kept has missed nothing")
	}
}

func orchestratorStreamEnds(t *testing.T, o orchestra) {
	a := o.spawn(t, "ignore-term")
	s := ok[adapters.AgentStream](t, "stream")(o.StreamEvents(o.ctx, a.AgentID, 1000))
	brief, cancel := context.WithCancel(o.ctx)
	cancel()
	_, err := s.Next(brief)
	want(t, "next with an ended context", err, adapters.CodeTimeout)
	waiting := make(chan error)
	go func() { _, err := s.Next(o.ctx); waiting <- err }()
	for range 2 {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	want(t, "next while closing", <-waiting, adapters.CodeUnavailable)
	_, err = s.Next(o.ctx)
	want(t, "next after close", err, adapters.CodeUnavailable)

	opened, stop := context.WithCancel(o.ctx)
	s = ok[adapters.AgentStream](t, "stream")(o.StreamEvents(opened, a.AgentID, 1000))
	defer s.Close()
	go func() { _, err := s.Next(o.ctx); waiting <- err }()
	stop()
	want(t, "next after the stream's own context", <-waiting, adapters.CodeTimeout)
}
