package contract

import (
	"cmp"
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

// Answer is how a method uses the answer of a peer.
type Answer int

// The ways to use an answer.
const (
	Parsed    Answer = iota // the method reads and parses the whole answer
	Status                  // the method uses only the status
	Forwarded               // the method passes the bytes on without parsing
	Followed                // the method follows a stream, and opens it again when it breaks
)

// PeerCall is one method of a class. Its arguments are such that a good peer accepts every call.
type PeerCall struct {
	Name   string
	Answer Answer
	Call   func(context.Context) error
}

// PeerClass is a client that calls a peer over HTTP.
type PeerClass struct {
	// Good starts one correct peer. All cases use it.
	Good func(*testing.T) (url string)
	// Open makes a connected client of the peer at url and closes it at the end of the test. Its
	// credentials must contain "sesame". The suite makes the returned calls one at a time, in order.
	Open func(t *testing.T, url string) []PeerCall
	// Failed is the code for a misbehaving peer; "" is UNAVAILABLE.
	Failed adapters.Code
	// Fine names the misbehaviours of part Content that this class may accept as a good answer.
	Fine []string
}

const (
	// lateLimit is the first time limit of a call if the peer is late.
	lateLimit = 150 * time.Millisecond
	// wait is the limit of the other calls. It is long enough for a loaded machine.
	wait = 60 * time.Second
)

// Peers runs every method against every misbehaviour. Each call must return an error with the right
// code within the caller's time limit. The next call, to a good peer, must succeed.
func Peers(t *testing.T, c PeerClass) {
	c.Failed = cmp.Or(c.Failed, adapters.CodeUnavailable)
	good := c.Good(t)
	// The cases mostly wait. All of them run at once, more than t.Parallel would allow, but for the
	// heavy ones: on a slow machine, the others could not keep their time limits beside these.
	for _, heavy := range []bool{false, true} {
		var all sync.WaitGroup
		for _, m := range Misbehaviours() {
			if m.Heavy == heavy {
				all.Go(func() { t.Run(m.Name, func(t *testing.T) { c.meet(t, NewPeer(t, good), m) }) })
			}
		}
		all.Wait()
	}
}

// meet runs every method against one misbehaviour.
func (c PeerClass) meet(t *testing.T, peer *Peer, m Misbehaviour) {
	for _, call := range c.Open(t, peer.URL) {
		if m.Part == Content && (call.Answer != Parsed || slices.Contains(c.Fine, m.Name)) {
			continue // for this call, it is a good answer
		}
		err := call.endure(t, peer, m)
		peer.Heal()
		if bad := c.complaint(m, call, err); bad != "" {
			t.Errorf("%s: %s", call.Name, bad)
		}
		if err := call.within(t, wait); err != nil {
			t.Errorf("%s over a good peer: %v", call.Name, err)
		}
		if m.Heavy && testing.Short() {
			return // all methods read their answers in the same way
		}
	}
}

// endure makes the call while the peer misbehaves.
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
		// The machine was too busy: the request did not arrive in time. Try again with more time.
	}
}

// within makes the call, and fails the test if the call does not return after its context ends.
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

// complaint says what is wrong with the error that a call has returned, "" if it is right.
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
	e, ok := errors.AsType[*adapters.Error](err)
	switch {
	case !ok:
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
