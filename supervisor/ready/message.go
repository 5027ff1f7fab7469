package ready

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/dreamlab-ai/agentinit/internal/escape"
)

// Message is one datagram of the sd_notify protocol (sd_notify(3)) whose sender
// belongs to Program's run.
type Message struct {
	Program string
	Run     uint64
	Sender  int // pid of the process that sent it

	Ready bool // READY=1
	// Withdrawn says why the program is not ready any more (RELOADING=1, STOPPING=1). Of several
	// such lines and READY=1 in one datagram, the last one counts, as for systemd.
	Withdrawn string
	Status    *string // STATUS=, printable, at most 1024 bytes; nil if absent
	// MainPID is the process that the program declares as its main process, 0 if absent. It belongs
	// to the same run: this was checked.
	MainPID int
	// Extend is EXTEND_TIMEOUT_USEC=: how much longer the program needs, from now on.
	Extend time.Duration

	Watchdog        bool          // WATCHDOG=1: a sign of life
	WatchdogTrigger bool          // WATCHDOG=trigger: the program reports its own failure
	WatchdogTimeout time.Duration // WATCHDOG_USEC=: a new timeout, 0 if absent
}

// maxMessage is systemd's limit for a datagram (PIPE_BUF).
const maxMessage = 4096

const maxStatus = 1024

// parseMessage reads the text of a datagram. It skips unknown keys, as sd_notify(3) requires. A
// known key with an invalid value is an error, and the whole datagram is then ignored.
func parseMessage(b []byte) (Message, error) {
	var m Message
	if len(b) > maxMessage {
		return m, fmt.Errorf("message is longer than %d bytes", maxMessage)
	}
	b = bytes.TrimSuffix(b, []byte{0})
	if bytes.IndexByte(b, 0) >= 0 {
		return m, errors.New("message holds a NUL byte")
	}
	for line := range strings.Lines(string(b)) {
		key, value, found := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		if !found {
			continue
		}
		field := messageFields[key]
		if field == nil {
			continue
		}
		if err := field(&m, value); err != nil {
			return Message{}, fmt.Errorf("%s: %w", key, err)
		}
	}
	return m, nil
}

var messageFields = map[string]func(*Message, string) error{
	"READY":     ifOne(func(m *Message) { m.Ready, m.Withdrawn = true, "" }),
	"RELOADING": ifOne(func(m *Message) { m.Ready, m.Withdrawn = false, "it reloads its configuration (RELOADING=1)" }),
	"STOPPING":  ifOne(func(m *Message) { m.Ready, m.Withdrawn = false, "it says that it stops (STOPPING=1)" }),
	"STATUS": func(m *Message, v string) error {
		s := escape.Line(v, maxStatus)
		m.Status = &s
		return nil
	},
	"MAINPID": func(m *Message, v string) (err error) {
		m.MainPID, err = number(v, math.MaxInt32)
		return err
	},
	"EXTEND_TIMEOUT_USEC": func(m *Message, v string) (err error) {
		m.Extend, err = microseconds(v)
		return err
	},
	"WATCHDOG_USEC": func(m *Message, v string) (err error) {
		m.WatchdogTimeout, err = microseconds(v)
		return err
	},
	"WATCHDOG": func(m *Message, v string) error {
		switch v {
		case "1":
			m.Watchdog = true
		case "trigger":
			m.WatchdogTrigger = true
		default:
			return fmt.Errorf("%q is neither 1 nor trigger", escape.Line(v, 32))
		}
		return nil
	},
}

// ifOne ignores values other than 1, as systemd does.
func ifOne(set func(*Message)) func(*Message, string) error {
	return func(m *Message, v string) error {
		if v == "1" {
			set(m)
		}
		return nil
	}
}

func number(v string, high int) (int, error) {
	n, err := strconv.Atoi(v)
	if err != nil || n < 1 || n > high {
		return 0, fmt.Errorf("%q is not a number from 1 to %d", escape.Line(v, 32), high)
	}
	return n, nil
}

// microseconds accepts 1 µs to about 292 years, the range of time.Duration.
func microseconds(v string) (time.Duration, error) {
	n, err := number(v, math.MaxInt64/int(time.Microsecond))
	return time.Duration(n) * time.Microsecond, err
}
