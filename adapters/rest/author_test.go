package rest_test

import (
	"fmt"
	"testing"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// The author of a stored event is the caller, whatever author or source the event names.
func TestEventsHaveAnAuthor(t *testing.T) {
	b := newBox(t)
	b.do("agent-1", "POST", "/v1/events", `{"kind":"tool.used","source":"/agents/2","author":"agent-2","session_id":"s2"}`).is(202)
	if e := b.stored(); e.Author != "agent-1" || e.Source != "/agents/2" {
		t.Errorf("%+v", e)
	}
}

func TestNobodyEmitsInTheNameOfAgentinit(t *testing.T) {
	b := newBox(t)
	cloud := func(kind, source string) (body string, header []string) {
		return fmt.Sprintf(`{"specversion":"1.0","id":"1","source":%q,"type":%q}`, source, kind), []string{"Content-Type", "application/cloudevents+json"}
	}
	refused := func(who, body string, header ...string) {
		t.Helper()
		b.do(who, "POST", "/v1/events", body, header...).is(403).problem(adapters.CodePermissionDenied)
	}
	for _, who := range []string{"agent-1", "host"} {
		refused(who, `{"kind":"agentbox.box.sealed"}`)
		refused(who, `{"kind":"box.sealed"}`)
		refused(who, `{"kind":"x","source":"AgentInit"}`)
		body, header := cloud("agentbox.box.sealed", "agentinit")
		refused(who, body, header...)
		body, header = cloud("agentbox.box.sealed", "urn:x")
		refused(who, body, header...)
		refused(who, "["+body+"]", "Content-Type", "application/cloudevents-batch+json")
	}
	body, header := cloud("agentbox.tool.used", "urn:x")
	refused("agent-1", body, header...)
	b.do("host", "POST", "/v1/events", body, header...).is(202) // a host forwards the events of boxes
	body, header = cloud("tool.used", "urn:x")
	b.do("agent-1", "POST", "/v1/events", body, header...).is(202)
}
