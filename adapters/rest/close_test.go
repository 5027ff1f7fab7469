package rest

import (
	"context"
	"sync"
	"testing"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// Streams that begin while the server closes are either awaited or refused.
func TestCloseWhileStreamsBegin(t *testing.T) {
	for range 100 {
		s := &Server{streams: make(map[*stream]struct{})}
		s.closing, s.close = context.WithCancel(t.Context())
		var callers sync.WaitGroup
		for range 4 {
			callers.Go(func() {
				for {
					_, leave, err := s.enter(t.Context(), Principal{})
					if err != nil {
						if code := adapters.CodeOf(err); code != adapters.CodeUnavailable {
							t.Errorf("code %s, want %s", code, adapters.CodeUnavailable)
						}
						return
					}
					leave()
				}
			})
		}
		s.Close()
		if n := len(s.streams); n != 0 {
			t.Errorf("%d streams are open after Close", n)
		}
		callers.Wait()
	}
}
