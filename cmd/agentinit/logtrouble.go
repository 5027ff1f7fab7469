package main

import (
	"sync"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/event"
)

// logTroubles publishes when a destination of logs begins to fail, and when it works again. A program
// that owns its log directory can make that happen many times a second, and so push all other events
// out of the ring. So of each program a few such events pass at once, and then one a minute, which
// says how it is by then.
type logTroubles struct {
	publish func(event.Event)

	mu sync.Mutex
	of map[string]*logTrouble // by program, "" for the console
}

type logTrouble struct {
	throttle   event.Throttle
	err        error
	suppressed uint64
	due        *time.Timer // will publish; nil if nothing is held back
}

// logTroubleBurst and logTroubleEvery bound the events of one program.
const (
	logTroubleBurst = 6
	logTroubleEvery = time.Minute
)

// report is logs.Config.OnTrouble.
func (l *logTroubles) report(program string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.of[program]
	if t == nil {
		t = &logTrouble{throttle: event.Throttle{Burst: logTroubleBurst, Every: logTroubleEvery}}
		if l.of == nil {
			l.of = map[string]*logTrouble{}
		}
		l.of[program] = t
	}
	t.err = err
	if t.due != nil {
		t.suppressed++
		return
	}
	if _, ok := t.throttle.Pass(time.Now()); ok {
		l.publish(t.event(program))
		return
	}
	t.due = time.AfterFunc(logTroubleEvery, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		t.due = nil
		t.throttle.Pass(time.Now())
		l.publish(t.event(program))
		t.suppressed = 0
	})
}

func (t *logTrouble) event(program string) event.Event {
	e := event.Event{Level: event.Warn, Stage: "supervisor", Name: "LogTrouble", Program: program}
	if t.err != nil {
		e.Fields = map[string]any{"error": t.err.Error()}
	} else {
		e.Level, e.Fields = event.Info, map[string]any{"message": "output can be written again"}
	}
	if t.suppressed > 0 {
		e.Fields["suppressed"] = t.suppressed
	}
	return e
}
