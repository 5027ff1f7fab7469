package supervisord

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
)

// Listener is the protocol with one listener, as far as it depends on what the listener writes. Its zero
// value is a listener that has written nothing yet. It holds less than 100 bytes, whatever comes.
type Listener struct {
	state listenerState
	held  []byte // of a line, or of a result
	left  int    // bytes of the result that have not come yet; for the state answering
}

type listenerState int

const (
	acknowledged listenerState = iota // it must say that it is ready
	ready                             // it waits for an event, and must write nothing
	busy                              // it has an event, and must say how long its result is
	answering                         // it writes its result
)

// Verdict is what a listener says about the event that it has.
type Verdict int

// The verdicts.
const (
	Undecided Verdict = iota
	Processed
	Rejected
)

const (
	readyLine   = "READY\n"
	resultStart = "RESULT "
	resultOK    = "OK"

	maxResultLine = 40 // bytes
	maxResult     = 64 << 10
)

// Ready tells whether the listener waits for an event.
func (l *Listener) Ready() bool { return l.state == ready }

// Sent tells that the listener has got an event. It must be ready.
func (l *Listener) Sent() { l.state = busy }

// Feed takes what the listener has written. There is at most one verdict, because only Sent begins the wait
// for another one. An error means that the listener has violated the protocol; the verdict counts even so.
func (l *Listener) Feed(data []byte) (verdict Verdict, violation error) {
	for len(data) > 0 {
		var err error
		switch l.state {
		case acknowledged:
			data, err = l.awaitReady(data)
		case ready:
			err = fmt.Errorf("it wrote %s while it had no event to answer", quoted(data))
		case busy:
			data, err = l.awaitLength(data)
			if err == nil && l.state == answering && l.left == 0 {
				verdict = l.decide()
			}
		case answering:
			n := min(len(data), l.left)
			l.keep(data[:n])
			l.left -= n
			data = data[n:]
			if l.left == 0 {
				verdict = l.decide()
			}
		}
		if err != nil {
			return verdict, err
		}
	}
	return verdict, nil
}

func (l *Listener) awaitReady(data []byte) (rest []byte, err error) {
	n := min(len(data), len(readyLine)-len(l.held))
	l.held = append(l.held, data[:n]...)
	if !strings.HasPrefix(readyLine, string(l.held)) {
		return nil, fmt.Errorf("it wrote %s in place of READY and a line feed", quoted(l.held))
	}
	if len(l.held) == len(readyLine) {
		l.state, l.held = ready, nil
	}
	return data[n:], nil
}

func (l *Listener) awaitLength(data []byte) (rest []byte, err error) {
	line, rest, whole := bytes.Cut(data, []byte("\n"))
	l.held = append(l.held, line[:min(len(line), maxResultLine+1-len(l.held))]...)
	if len(l.held) > maxResultLine || !whole && !mayBeResult(l.held) {
		return nil, badResult(l.held)
	}
	if !whole {
		return nil, nil
	}
	number, ok := strings.CutPrefix(string(l.held), resultStart)
	n, err := strconv.ParseUint(strings.TrimSpace(number), 10, 64)
	switch {
	case !ok || err != nil:
		return nil, badResult(l.held)
	case n > maxResult:
		return nil, fmt.Errorf("it announced a result of %d bytes; the most is %d", n, maxResult)
	}
	l.state, l.held, l.left = answering, nil, int(n)
	return rest, nil
}

// mayBeResult tells whether more bytes can make the line of a result of it.
func mayBeResult(begun []byte) bool {
	n := min(len(begun), len(resultStart))
	return string(begun[:n]) == resultStart[:n]
}

func badResult(line []byte) error {
	return fmt.Errorf("it wrote %s in place of RESULT, the length of its result and a line feed", quoted(line))
}

// quoted is the beginning of what a listener wrote.
func quoted(data []byte) string { return strconv.Quote(string(data[:min(len(data), maxResultLine)])) }

// keep holds as much of a result as tells whether it is OK.
func (l *Listener) keep(part []byte) {
	l.held = append(l.held, part[:min(len(part), len(resultOK)+1-len(l.held))]...)
}

func (l *Listener) decide() Verdict {
	result := string(l.held)
	l.state, l.held = acknowledged, nil
	if result == resultOK {
		return Processed
	}
	return Rejected
}
