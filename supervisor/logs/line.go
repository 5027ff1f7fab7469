// Package logs owns the output of supervised programs: the pipes it comes
// through, the rings it is kept in, and the ways out of the box (the inherited
// stdout and stderr, or rotated files).
//
// One line written by a program is one line in every place it goes to; lines of different programs
// never mix. A slow reader of the logs never delays a program: what cannot be delivered is dropped,
// counted and marked in the text. The package must never open /dev/stdout, because that fails for
// sockets and for pipes of other users. It must never let a program's output look like another
// program's line. It must never keep more than a bounded number of bytes.
//
// It starts no process. Of a program it knows only the name, the run number and the pid.
package logs

import (
	"fmt"
	"time"
)

// Stream is one of a program's two output streams.
type Stream uint8

// The streams.
const (
	Stdout Stream = 1
	Stderr Stream = 2
)

// String returns "stdout" or "stderr".
func (s Stream) String() string {
	switch s {
	case Stdout:
		return "stdout"
	case Stderr:
		return "stderr"
	}
	return fmt.Sprintf("Stream(%d)", uint8(s))
}

// MarshalText writes the stream's name.
func (s Stream) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads a stream's name.
func (s *Stream) UnmarshalText(text []byte) error {
	switch string(text) {
	case "stdout":
		*s = Stdout
	case "stderr":
		*s = Stderr
	default:
		return fmt.Errorf("unknown stream %q: want stdout or stderr", text)
	}
	return nil
}

// Line is one line of output.
type Line struct {
	// Seq orders all lines of the box and only grows. It is 0 in a line that marks a loss.
	Seq     uint64    `json:"seq"`
	Time    time.Time `json:"time"` // when agentinit read it
	Program string    `json:"program"`
	Stream  Stream    `json:"stream"`
	PID     int       `json:"pid"` // of the program's first process, 0 if unknown
	Run     uint64    `json:"run"`
	// Text is what the program wrote without the newline (and without the
	// carriage return before it). It may hold any bytes.
	Text string `json:"text"`
	// Truncated says that the program's line is longer than this text: a line over Config.MaxLine
	// continues in the next Line.
	Truncated bool `json:"truncated,omitempty"`
	// Dropped, if not 0, is how many lines this reader has missed at this place. Text then says so, and
	// why, in words. For a file that cannot be read it is 1, however many lines the file has.
	Dropped uint64 `json:"dropped,omitempty"`
	// Level is the level of an event of agentinit that is sent as a line. It is "" in a line of a program.
	Level string `json:"-"`
}

// StreamStats counts what one stream of a program has produced since the program
// was first opened. The counters never fall.
type StreamStats struct {
	Program string
	Stream  Stream
	Bytes   uint64 // read from the program
	// Suppressed counts bytes above the program's rate limit; they are kept nowhere.
	Suppressed uint64
	Dropped    uint64 // bytes that did not reach the console or the file, but were in the ring
}
