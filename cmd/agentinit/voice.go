package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/dreamlab-ai/agentinit/internal/escape"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/supervisor/logs"
)

// voice writes the events of the box as JSON lines. It is one more reader of the ring: a slow
// console loses lines but never delays the box.
type voice struct {
	log   zerolog.Logger
	level atomic.Int32
}

// levels are the names that AGENTBOX_LOG_LEVEL, the manifest and the API accept.
var levels = map[string]zerolog.Level{
	"trace": zerolog.TraceLevel, "debug": zerolog.DebugLevel, "info": zerolog.InfoLevel,
	"warn": zerolog.WarnLevel, "error": zerolog.ErrorLevel,
}

func newVoice(w io.Writer) *voice {
	v := &voice{log: zerolog.New(escaped{w})}
	v.level.Store(int32(zerolog.InfoLevel))
	return v
}

// escaped writes JSON without the characters that a terminal would act on: events name commands and
// files of programs.
type escaped struct{ w io.Writer }

func (e escaped) Write(line []byte) (int, error) {
	_, err := e.w.Write(escape.JSON(line))
	return len(line), err
}

// SetLevel changes which events are written from now on.
func (v *voice) SetLevel(name string) error {
	level, ok := levels[name]
	if !ok {
		return fmt.Errorf("unknown log level %q: write trace, debug, info, warn or error", name)
	}
	v.level.Store(int32(level))
	return nil
}

// Level returns the name of the level in force.
func (v *voice) Level() string {
	return zerolog.Level(v.level.Load()).String()
}

// logger returns a logger for lines that are no events; they look like those of the events.
func (v *voice) logger(stage string) zerolog.Logger {
	return v.log.With().Str("agentbox.stage", stage).Logger().Hook(v)
}

// Run applies the present level to the loggers that logger makes, and writes the time.
func (v *voice) Run(e *zerolog.Event, level zerolog.Level, _ string) {
	if level < zerolog.Level(v.level.Load()) {
		e.Discard()
		return
	}
	e.Str("time", time.Now().UTC().Format(event.TimeFormat))
}

// follow writes every event until ctx ends, and then those that were published before that.
func (v *voice) follow(ctx context.Context, events *event.Watcher) {
	for {
		e, err := events.Next(ctx)
		if err != nil {
			break
		}
		v.write(e)
	}
	for e, ok := events.TryNext(); ok; e, ok = events.TryNext() {
		v.write(e)
	}
}

// speaks tells whether the event has at least the present level.
func (v *voice) speaks(e event.Event) bool { return severity(e) >= zerolog.Level(v.level.Load()) }

func severity(e event.Event) zerolog.Level {
	level, ok := levels[string(e.Level)]
	if !ok {
		return zerolog.ErrorLevel // an unknown level is a mistake, so show the event
	}
	return level
}

func (v *voice) write(e event.Event) {
	level := severity(e)
	if !v.speaks(e) {
		return
	}
	line := v.log.WithLevel(level).
		Str("time", e.Time.UTC().Format(event.TimeFormat)).
		Str("agentbox.stage", e.Stage).Str("event", e.Name).Uint64("seq", e.Seq)
	if e.Program != "" {
		line = line.Str("program", e.Program)
	}
	if e.Run != 0 {
		line = line.Uint64("run", e.Run)
	}
	if e.Change != nil {
		line = line.Dict("change", change(e.Change))
	}
	for _, key := range slices.Sorted(maps.Keys(e.Fields)) {
		if key != "message" {
			line = field(line, key, e.Fields[key])
		}
	}
	line.Msg(message(e))
}

// change is the JSON of a change, made without reflection: most events of a start or a stop have one.
func change(c *event.Change) *zerolog.Event {
	d := zerolog.Dict().Str("from", c.From).Str("to", c.To)
	if c.PID != 0 {
		d = d.Int("pid", c.PID)
	}
	d = d.Bool("ready", c.Ready)
	if c.Completed {
		d = d.Bool("completed", true)
	}
	if c.Reason != "" {
		d = d.Str("reason", c.Reason)
	}
	return d
}

// field writes the usual types without reflection.
func field(line *zerolog.Event, key string, value any) *zerolog.Event {
	switch v := value.(type) {
	case string:
		return line.Str(key, v)
	case int:
		return line.Int(key, v)
	case float64:
		return line.Float64(key, v)
	}
	return line.Interface(key, value)
}

// message is the event in words.
func message(e event.Event) string {
	if text, ok := e.Fields["message"].(string); ok {
		return text
	}
	if c := e.Change; c != nil {
		text := e.Program + " " + c.From + " → " + c.To
		if c.From == c.To {
			text = e.Program + " " + c.To // a fact has changed, not the state
		}
		if c.Reason != "" {
			text += ": " + c.Reason
		}
		return text
	}
	return words(e.Name)
}

// words splits CamelCase: "BoxIDNotKept" becomes "box id not kept".
func words(name string) string {
	upper := func(i int) bool { return 'A' <= name[i] && name[i] <= 'Z' }
	var b strings.Builder
	for i := range len(name) {
		if i > 0 && upper(i) && (!upper(i-1) || i+1 < len(name) && !upper(i+1)) {
			b.WriteByte(' ')
		}
		b.WriteByte(name[i])
	}
	return strings.ToLower(b.String())
}

// speak opens the console in the manifest's format, or in the default one if there is no manifest.
func (b *box) speak(loadErr error) {
	format, level := logs.FormatAuto, "info"
	if loadErr == nil {
		m := b.manifest()
		format, level = logs.Format(m.Supervisor.Log.Format), m.LogLevel()
	}
	b.plane = logs.New(logs.Config{
		Stdout: os.Stdout, Stderr: os.Stderr, Format: format,
		Color:     b.getenv("NO_COLOR") == "",
		OnTrouble: (&logTroubles{publish: func(e event.Event) { b.bus.Publish(e) }, event: programTrouble}).report,
	})
	b.bus.SetMask(b.plane.Mask)
	if loadErr == nil {
		b.redact(b.boot.Current())
	}
	b.voice = newVoice(b.plane.Writer())
	if err := b.voice.SetLevel(cmp.Or(b.getenv("AGENTBOX_LOG_LEVEL"), level)); err != nil {
		b.publish(event.Warn, "BadLogLevel", map[string]any{"message": "AGENTBOX_LOG_LEVEL: " + err.Error()})
	}
	events := b.bus.Watch(0)
	b.background(func() { b.voice.follow(b.stopped, events) })
}
