package events

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/contract"
	"go.uber.org/goleak"
)

func testSource() string { return "urn:agentbox:test" }

func TestMain(m *testing.M) {
	contract.CrashChild(crashChild)
	goleak.VerifyTestMain(m)
}

func newLocal(t testing.TB, cfg LocalConfig) *Local {
	t.Helper()
	if cfg.Source == nil {
		cfg.Source = testSource
	}
	l, err := NewLocal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestContractLocal(t *testing.T) {
	for _, fsync := range []string{"1s", "always"} {
		t.Run(fsync, func(t *testing.T) {
			contract.Events(t, func(t testing.TB) adapters.Events { return newLocal(t, LocalConfig{Dir: t.TempDir(), Fsync: fsync}) })
		})
	}
}

func TestContractOff(t *testing.T) {
	contract.Events(t, func(testing.TB) adapters.Events { return adapters.WrapEvents(nil, nil) })
}

// A page ends when it has maxPageBytes, and the next page goes on behind it.
func TestPagesAreBoundedInBytes(t *testing.T) {
	l := start(t, LocalConfig{Dir: t.TempDir()})
	payload := json.RawMessage(`{"a":"` + strings.Repeat("y", adapters.MaxEventPayload-100) + `"}`)
	const dispatched = maxPageBytes/adapters.MaxEventPayload + 10
	for range dispatched {
		if _, err := l.Dispatch(t.Context(), adapters.Event{Kind: "x", ID: adapters.NewID(), Payload: payload}); err != nil {
			t.Fatal(err)
		}
	}
	page, err := l.History(t.Context(), adapters.EventFilter{}, adapters.PageOpt{Limit: 1000})
	if n := len(page.Items); err != nil || n != maxPageBytes/adapters.MaxEventPayload+1 {
		t.Errorf("a page of %d events, %v", n, err)
	}
	if all := history(t, l); len(all) != dispatched {
		t.Errorf("%d of %d events on all pages", len(all), dispatched)
	}
}
