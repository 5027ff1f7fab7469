package main

import (
	"sync"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/event"
)

// logTroubles publishes when a destination of logs begins to fail, and when it works again. A program
// that owns its log directory, or a collector, can make that happen many times a second, and so push
// all other events out of the ring. So of each a few such events pass at once, and then one a minute,
// which says how it is by then.
type logTroubles struct {
	publish func(event.Event)
	event   func(name string, err error) event.Event // of an error, or of nil when it works again

	mu sync.Mutex
	of map[string]*logTrouble // by program, "" for the console, or by collector
}

type logTrouble struct {
	throttle   event.Throttle
	err        error
	suppressed uint64
	due        *time.Timer // will publish; nil if nothing is held back
}

// logTroubleBurst and logTroubleEvery bound the events of one program or collector.
const (
	logTroubleBurst = 6
	logTroubleEvery = time.Minute
)

// report is logs.Config.OnTrouble for programs.
func (l *logTroubles) report(name string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.of[name]
	if t == nil {
		t = &logTrouble{throttle: event.Throttle{Burst: logTroubleBurst, Every: logTroubleEvery}}
		if l.of == nil {
			l.of = map[string]*logTrouble{}
		}
		l.of[name] = t
	}
	t.err = err
	if t.due != nil {
		t.suppressed++
		return
	}
	if _, ok := t.throttle.Pass(time.Now()); ok {
		l.publish(l.next(name, t))
		return
	}
	t.due = time.AfterFunc(logTroubleEvery, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		t.due = nil
		t.throttle.Pass(time.Now())
		l.publish(l.next(name, t))
		t.suppressed = 0
	})
}

// next is the event that says how it is now.
func (l *logTroubles) next(name string, t *logTrouble) event.Event {
	e := l.event(name, t.err)
	if t.suppressed > 0 {
		e.Fields["suppressed"] = t.suppressed
	}
	return e
}

// programTrouble is the event of a program's log, or of the console.
func programTrouble(program string, err error) event.Event {
	e := event.Event{Level: event.Warn, Stage: "supervisor", Name: "LogTrouble", Program: program}
	if err != nil {
		e.Fields = map[string]any{"error": err.Error()}
	} else {
		e.Level, e.Fields = event.Info, map[string]any{"message": "output can be written again"}
	}
	return e
}
