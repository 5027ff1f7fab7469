// Package logs owns the output of supervised programs: the pipes it comes
// through, the rings it is kept in, and the ways out of the box (the inherited
// stdout and stderr, or rotated files).
//
// One line written by a program is one line in every place it goes to; lines of
// different programs never mix. A program is never held up by somebody who reads
// its logs slowly: what cannot be delivered is dropped, counted and marked in
// the text. The package must never open /dev/stdout (it fails for pipes of other
// users and for sockets), never let what a program prints look like another
// program's line, and never keep more than a bounded number of bytes.
//
// It starts no process and knows nothing of a program but its name, run number
// and pid.
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
	// Seq orders all lines of the box; it only grows. 0 in a line that marks a
	// loss.
	Seq     uint64    `json:"seq"`
	Time    time.Time `json:"time"` // when agentinit read it
	Program string    `json:"program"`
	Stream  Stream    `json:"stream"`
	PID     int       `json:"pid"` // of the program's first process, 0 when unknown
	Run     uint64    `json:"run"`
	// Text is what the program wrote without the newline (and without the
	// carriage return before it). It may hold any bytes.
	Text string `json:"text"`
	// Truncated says that the text does not end where the program's line ended:
	// a line over Config.MaxLine goes on in the next Line.
	Truncated bool `json:"truncated,omitempty"`
	// Dropped, when not 0, is how many lines this reader has missed here because
	// the ring went round before it came; Text then says so in words.
	Dropped uint64 `json:"dropped,omitempty"`
}

// StreamStats counts what one stream of a program has produced since the program
// was first opened. The counters never fall.
type StreamStats struct {
	Program string
	Stream  Stream
	Bytes   uint64 // read from the program
	Lines   uint64
	// Suppressed counts bytes over the program's rate: they are nowhere.
	Suppressed uint64
	Dropped    uint64 // bytes that did not reach the console or the file; the ring had them
}
