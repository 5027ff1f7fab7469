package rest_test

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters/federation"
	"github.com/dreamlab-ai/agentinit/adapters/rest"
)

// willing is a host that ends every session.
type willing struct{ rest.Host }

func (willing) Evict(context.Context, string, string, bool, time.Duration) error { return nil }
func (willing) Deregister(context.Context, string, federation.Farewell) error    { return nil }
func (willing) Known(context.Context, string) (bool, error)                      { return true, nil }

// The streams of a box end with its session, and no others.
func TestStreamsEndWithTheSession(t *testing.T) {
	for name, end := range map[string]func(*box) answer{
		"evicted":      func(b *box) answer { return b.do("admin", "POST", "/v1/federation/evict", `{"box_id":"one"}`) },
		"deregistered": func(b *box) answer { return b.do("box:one", "POST", federation.DeregisterPath, `{"session_id":"s"}`) },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBox(t, func(cfg *rest.Config) { cfg.Host = willing{} })
			open := func(who string) *bufio.Reader {
				res, err := http.DefaultTransport.RoundTrip(newRequest(t, b, "GET", "/v1/events/stream", "", "Authorization", "Bearer "+who))
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { res.Body.Close() })
				in := bufio.NewReader(res.Body)
				if text, err := in.ReadString('\n'); err != nil || text != "retry: 2000\n" {
					t.Fatalf("%s: %q, %v", who, text, err)
				}
				return in
			}
			one, two, agent := open("box:one"), open("box:two"), open("one")
			if a := end(b); a.status != http.StatusNoContent {
				t.Fatalf("status %d: %s", a.status, a.body)
			}
			if _, err := io.Copy(io.Discard, one); err != nil {
				t.Error(err)
			}
			if a := b.do("admin", "POST", "/v1/events", `{"kind":"note","payload":{}}`); a.status != http.StatusAccepted {
				t.Fatalf("status %d: %s", a.status, a.body)
			}
			for who, in := range map[string]*bufio.Reader{"another box": two, "an agent of the same name": agent} {
				for text := ""; text != "event: note\n"; {
					var err error
					if text, err = in.ReadString('\n'); err != nil {
						t.Fatalf("the stream of %s: %v", who, err)
					}
				}
			}
		})
	}
}
