package control

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/logs"
)

// cursor is the position of a line in the output of a box. In the same life of agentinit the number
// counts. A cursor of an earlier life counts by its time, among the files of earlier lives; all lines
// of this life come after it.
type cursor struct {
	boot string
	seq  uint64
	time time.Time
}

// bootMark tells the lives of a box apart in cursors and ids.
func bootMark(boot string) string { return fmt.Sprintf("%.8s", cmp.Or(boot, "-")) }

// eventID is the id of a server-sent event: "boot.number". The number alone would mean another event
// after a restart.
func eventID(boot string, seq uint64) string {
	return bootMark(boot) + "." + strconv.FormatUint(seq, 10)
}

// eventNumber reads a position in the events: an id of eventID or a number. An id of an earlier boot
// stands before all events.
func eventNumber(text, boot string) (uint64, error) {
	of, number, isID := strings.Cut(text, ".")
	if !isID {
		number = text
	}
	seq, err := strconv.ParseUint(number, 10, 63)
	if err != nil {
		return 0, api.Errorf(api.CodeBadRequest, "%.100q is not the number or id of an event", text)
	}
	if isID && of != bootMark(boot) {
		return 0, nil
	}
	return seq, nil
}

// String is "boot.seq.time", the numbers in base 36, the time in nanoseconds.
func (c cursor) String() string {
	return fmt.Sprintf("%s.%s.%s", bootMark(c.boot), strconv.FormatUint(c.seq, 36), strconv.FormatInt(c.time.UnixNano(), 36))
}

// resume makes q continue after the cursor, instead of at its own start.
func resume(q *logs.Query, text, boot string) error {
	parts := strings.Split(text, ".")
	if len(parts) != 3 {
		return badCursor(text)
	}
	seq, err := strconv.ParseUint(parts[1], 36, 64)
	if err != nil {
		return badCursor(text)
	}
	nanoseconds, err := strconv.ParseInt(parts[2], 36, 64)
	if err != nil {
		return badCursor(text)
	}
	if parts[0] == bootMark(boot) {
		q.After = seq
		return nil
	}
	q.After, q.Files, q.Resume = 0, true, time.Unix(0, nanoseconds+1)
	return nil
}

func badCursor(text string) error {
	return api.Errorf(api.CodeBadRequest, "%.100q is not a valid cursor; use the cursor field of a line", text)
}
