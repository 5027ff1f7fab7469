package rest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// An agent or a box that takes all streams and tickets that it gets does not keep out the operator.
func TestGuestsLeaveRoom(t *testing.T) {
	for _, role := range []string{RoleAgent, RoleBox} {
		s := &Server{streams: make(map[*stream]struct{})}
		s.closing, s.close = context.WithCancel(t.Context())
		guest, operator := Principal{Role: role, ID: "x"}, Principal{Role: RoleAdmin, ID: "y"}
		stream := func(who Principal) error {
			_, _, err := s.enter(t.Context(), who)
			return err
		}
		ticket := func(who Principal) error {
			_, err := s.tickets.issue(who, time.Now())
			return err
		}
		for name, c := range map[string]struct {
			take         func(Principal) error
			guests, more int
		}{
			"streams": {stream, maxGuestStreams, maxStreams - maxGuestStreams},
			"tickets": {ticket, maxGuestTickets, maxTickets - maxGuestTickets},
		} {
			for who, n := range map[Principal]int{guest: c.guests, operator: c.more} {
				for range n {
					if err := c.take(who); err != nil {
						t.Fatalf("%s of %s: %v", name, who.Role, err)
					}
				}
			}
			for _, who := range []Principal{guest, operator} {
				if err := c.take(who); !errors.Is(err, adapters.ErrRateLimited) {
					t.Errorf("one more of %s of %s: %v", name, who.Role, err)
				}
			}
		}
	}
}

// A stream that ends leaves its place to another.
func TestGuestsGiveBack(t *testing.T) {
	s := &Server{streams: make(map[*stream]struct{})}
	s.closing, s.close = context.WithCancel(t.Context())
	for range 2 * maxGuestStreams {
		_, leave, err := s.enter(t.Context(), Principal{Role: RoleAgent})
		if err != nil {
			t.Fatal(err)
		}
		leave()
	}
}
