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
// counts. A cursor of an earlier life counts by its time.
type cursor struct {
	boot string
	seq  uint64
	time time.Time
}

// String is "boot.seq.time", the numbers in base 36, the time in nanoseconds.
func (c cursor) String() string {
	return fmt.Sprintf("%.8s.%s.%s", cmp.Or(c.boot, "-"), strconv.FormatUint(c.seq, 36), strconv.FormatInt(c.time.UnixNano(), 36))
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
	if parts[0] == fmt.Sprintf("%.8s", cmp.Or(boot, "-")) {
		q.After = seq
		return nil
	}
	q.After, q.Files = 0, true
	if after := time.Unix(0, nanoseconds+1); after.After(q.Since) {
		q.Since = after
	}
	return nil
}

func badCursor(text string) error {
	return api.Errorf(api.CodeBadRequest, "%.100q is not a valid cursor; use the cursor field of a line", text)
}
