package main

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/event"
)

// The name of a program's file must not act on the terminal that shows the box's events.
func TestEventsDoNotActOnTheTerminal(t *testing.T) {
	const command = "/bin/\x1b[2J\u009b2J\u202e\u2028\x7fä"
	var out strings.Builder
	newVoice(&out).write(event.Event{Level: event.Warn, Name: EventSignalRefused, Fields: map[string]any{"command": command}})
	if line := out.String(); strings.ContainsAny(line, "\x1b\u009b\u202e\u2028\x7f") || !strings.Contains(line, "ä") {
		t.Errorf("%q", line)
	}
	var e map[string]any
	if err := json.Unmarshal([]byte(out.String()), &e); err != nil || e["command"] != command {
		t.Errorf("%v, %v", e, err)
	}
}

// The line of a call into a slot has the time and the stage, as the events have them, and is escaped
// and held back like them.
func TestLinesThatAreNoEvents(t *testing.T) {
	var out strings.Builder
	v := newVoice(&out)
	log := v.logger("adapters")
	log.Debug().Msg("below the level")
	log.Error().Str("cause", "\u009b2J").Msg("adapter call")
	if strings.Contains(out.String(), "\u009b") {
		t.Errorf("%q", out.String())
	}
	var line struct {
		Time         time.Time
		Stage        string `json:"agentbox.stage"`
		Level, Cause string
	}
	if err := json.Unmarshal([]byte(out.String()), &line); err != nil {
		t.Fatalf("%v: %s", err, out.String())
	}
	if line.Time.IsZero() || line.Stage != "adapters" || line.Level != "error" || line.Cause != "\u009b2J" {
		t.Errorf("%s", out.String())
	}
}

// A line of the log has a change as the API returns it.
func TestChangeInTheLog(t *testing.T) {
	for _, c := range []event.Change{
		{},
		{From: "STARTING", To: "RUNNING", PID: 7, Ready: true},
		{From: "RUNNING", To: "EXITED", Completed: true, Reason: "exit <0> & \"done\"\n\xff"},
	} {
		var out strings.Builder
		newVoice(&out).write(event.Event{Level: event.Info, Name: event.ProgramStateChanged, Change: &c})
		want, err := event.Encode(c)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(out.String(), `"change":`+string(want)+",") {
			t.Errorf("want %s in %s", want, out.String())
		}
	}
	// Its fields are written one by one, so a new one must be added there and to the changes above.
	written := 0
	for field := range reflect.TypeFor[event.Change]().Fields() {
		if field.Tag.Get("json") != "-" {
			written++
		}
	}
	if written != 6 {
		t.Errorf("%d fields of a change are written", written)
	}
}

// The name of an event is its message if it has no other.
func TestMessageFromTheName(t *testing.T) {
	for name, want := range map[string]string{
		"PhaseStarted": "phase started", "Sealed": "sealed", "BoxIDNotKept": "box id not kept", "OOMScoreRestored": "oom score restored",
		"APITrouble": "api trouble", "": "",
	} {
		if got := message(event.Event{Name: name}); got != want {
			t.Errorf("%q is told as %q, want %q", name, got, want)
		}
	}
}

// A destination that works again is no trouble: the event names no error.
func TestLogTroubleEnds(t *testing.T) {
	if e := programTrouble("web", errors.New("disk full")); e.Level != event.Warn || e.Program != "web" || e.Fields["error"] != "disk full" {
		t.Errorf("a failure: %+v", e)
	}
	if e := programTrouble("web", nil); e.Level != event.Info || e.Fields["error"] != nil || message(e) != "output can be written again" {
		t.Errorf("the end of it: %+v", e)
	}
}
