package contract

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// Answer is what a method makes of a peer's answer.
type Answer int

// The kinds of methods.
const (
	Parsed    Answer = iota // read whole and understood
	Status                  // only its status counts
	Forwarded               // its bytes are the caller's, whatever they mean
	Followed                // a stream that is opened again when it breaks off
)

// PeerCall is one method of a class, called with arguments that the good peer
// takes as often as they come.
type PeerCall struct {
	Name   string
	Answer Answer
	Call   func(context.Context) error
}

// PeerClass is something that speaks HTTP to a peer.
type PeerClass struct {
	// Good starts the peer as it should be that all use.
	Good func(*testing.T) (url string)
	// Open makes the client of the peer at url, connected, with "sesame" among
	// its credentials, and ended with the test. What it returns is called in order,
	// one at a time.
	Open func(t *testing.T, url string) []PeerCall
	// Failed is the code of a peer that is not what it should be; "" is
	// UNAVAILABLE.
	Failed adapters.Code
	// Fine names rows of the part Content that this class may understand.
	Fine []string
}

// lateLimit is what a call has at first when the peer is late.
const lateLimit = 150 * time.Millisecond

// Peers runs every method against every misbehaviour: each is an error with
// the right code, in the time that the caller gave, and the next call over a
// good peer works.
func Peers(t *testing.T, c PeerClass) {
	if c.Failed == "" {
		c.Failed = adapters.CodeUnavailable
	}
	// They wait more than they work, so more of them go on at once than
	// t.Parallel would let.
	var all sync.WaitGroup
	defer all.Wait()
	good := c.Good(t)
	for _, m := range Misbehaviours() {
		all.Go(func() { t.Run(m.Name, func(t *testing.T) { c.meet(t, NewPeer(t, good), m) }) })
	}
}

// meet runs every method against one misbehaviour.
func (c PeerClass) meet(t *testing.T, peer *Peer, m Misbehaviour) {
	for _, call := range c.Open(t, peer.URL) {
		if m.Part == Content && (call.Answer != Parsed || slices.Contains(c.Fine, m.Name)) {
			continue // it is a good answer
		}
		err := call.endure(t, peer, m)
		peer.Heal()
		if bad := c.complaint(m, call, err); bad != "" {
			t.Errorf("%s: %s", call.Name, bad)
		}
		if err := call.within(t, wait); err != nil {
			t.Errorf("%s over a good peer: %v", call.Name, err)
		}
	}
}

// endure is one call while the peer misbehaves.
func (c PeerCall) endure(t *testing.T, peer *Peer, m Misbehaviour) error {
	t.Helper()
	hit := peer.Misbehave(m)
	limit := wait
	if m.Late || c.Answer == Followed || m.Part == Whole && c.Answer == Forwarded {
		limit = lateLimit
	}
	for ; ; limit *= 4 {
		err := c.within(t, min(limit, wait))
		select {
		case <-hit:
			return err
		default:
		}
		if limit >= wait {
			t.Errorf("%s: the peer was not asked", c.Name)
			return err
		}
		// The machine was too busy for the request to arrive in time.
	}
}

// within calls and fails the test when the call outlives its context.
func (c PeerCall) within(t *testing.T, limit time.Duration) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(adapters.WithMeta(t.Context(), adapters.Meta{Actor: "ann", SessionID: "s"}), limit)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- c.Call(ctx) }()
	select {
	case err := <-done:
		return err
	case <-time.After(2 * wait):
		t.Fatalf("%s hangs", c.Name)
		return nil
	}
}

// complaint says what is wrong with what a call made of the misbehaviour, ""
// when nothing is.
func (c PeerClass) complaint(m Misbehaviour, call PeerCall, err error) string {
	if m.Part == Whole && call.Answer == Status && err == nil {
		return ""
	}
	codes := []adapters.Code{c.Failed}
	if m.Late {
		codes = []adapters.Code{adapters.CodeTimeout}
	}
	if m.Heavy {
		codes = append(codes, adapters.CodeTimeout)
	}
	switch {
	case m.Part == Whole && call.Answer == Forwarded:
		codes = append(codes, c.Failed, adapters.CodeTimeout, adapters.CodePayloadTooLarge)
	case call.Answer == Followed:
		codes = append(codes, adapters.CodeTimeout, adapters.CodeUnsupported)
	}
	var e *adapters.Error
	switch {
	case !errors.As(err, &e):
		return fmt.Sprintf("an untyped error %v, want one of %v", err, codes)
	case !slices.Contains(codes, e.Code):
		return fmt.Sprintf("%v, want one of %v", err, codes)
	case strings.Contains(err.Error(), "sesame"):
		return fmt.Sprintf("the error tells the credentials: %v", err)
	case len(err.Error()) > 1000:
		return fmt.Sprintf("the error repeats the peer: %d bytes", len(err.Error()))
	}
	return ""
}
