package control_test

import (
	"sync/atomic"
	"testing"

	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/control/controltest"
)

func TestChangesAndRefusalsAreRecorded(t *testing.T) {
	b := controltest.New(controltest.Program("web"))
	var inside atomic.Bool
	b.Owners = func(int) (string, bool) { return "web", inside.Load() }
	path := controltest.Serve(t, b.Own())
	c := api.NewClient(path)
	_, err := c.Stop(t.Context(), api.ActionRequest{Names: []string{"web"}})
	must(t, err)
	inside.Store(true) // from here, the test's process counts as a program
	if _, err := api.NewClient(path).Stop(t.Context(), api.ActionRequest{Names: []string{"web"}}); err == nil {
		t.Error("a program may stop others")
	}
	var got []api.AuditEntry
	must(t, c.Audit(t.Context(), 0, func(e api.AuditEntry) error {
		got = append(got, e)
		return nil
	}))
	equal(t, len(got), 2)
	equal(t, got[0].Action, "stop")
	equal(t, string(got[0].Details["programs"]), `["web"]`)
	equal(t, got[1].Outcome, "refused")
	equal(t, got[1].Peer.Program, "web")
	equal(t, got[1].Prev, got[0].Hash)
}
