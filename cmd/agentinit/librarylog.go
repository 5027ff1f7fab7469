package main

import (
	"log"
	"time"

	"github.com/dreamlab-ai/agentinit/internal/escape"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
)

// maxLibraryMessage is how many bytes of a message an event carries.
const maxLibraryMessage = 512

// libraryLog is the output of Go's standard logger. agentinit does not use this logger, but libraries
// do: net/http prints 4 KiB of what a server has sent unasked. Without libraryLog these texts would
// stand between the lines of agentinit's log, as many as the server likes.
type libraryLog struct {
	bus   *event.Bus
	quiet event.Throttle
}

// hearLibraries makes events of what libraries print through the standard logger.
func hearLibraries(bus *event.Bus) {
	log.SetFlags(0)
	log.SetOutput(&libraryLog{bus: bus})
}

func (l *libraryLog) Write(p []byte) (int, error) {
	if suppressed, ok := l.quiet.Pass(time.Now()); ok {
		fields := map[string]any{"message": escape.Line(string(p), maxLibraryMessage)}
		if suppressed > 0 {
			fields["suppressed"] = suppressed
		}
		l.bus.Publish(event.Event{Level: event.Warn, Stage: "supervisor", Name: "LibraryMessage", Fields: fields})
	}
	return len(p), nil
}
