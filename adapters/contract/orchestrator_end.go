package contract

import (
	"context"
	"errors"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// wait waits until the agent has ended, and returns it.
func (o orchestra) wait(t *testing.T, id string) adapters.Agent {
	t.Helper()
	s := ok[adapters.AgentStream](t, "stream")(o.StreamEvents(o.ctx, id, 0))
	defer s.Close()
	for {
		if _, err := s.Next(o.ctx); errors.Is(err, io.EOF) {
			return ok[adapters.Agent](t, "get")(o.GetAgent(o.ctx, id))
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

func orchestratorTerminate(t *testing.T, o orchestra) {
	a := o.spawn(t, "trap-and-exit-after", "1", "7")
	o.until(t, a.AgentID, "ready")
	var wg sync.WaitGroup
	ends := make([]adapters.Agent, 8)
	for i := range ends {
		wg.Go(func() { ends[i] = ok[adapters.Agent](t, "terminate")(o.TerminateAgent(o.ctx, a.AgentID, -1)) })
	}
	wg.Wait()
	ends = append(ends, ok[adapters.Agent](t, "terminate again")(o.TerminateAgent(o.ctx, a.AgentID, 0)))
	for _, e := range ends {
		if e.Status != adapters.AgentTerminated || e.ExitCode == nil || *e.ExitCode != 7 || e.EndedAt != ends[0].EndedAt {
			t.Errorf("terminated: %+v", e)
		}
	}
	if stdout, _ := check(t, o.follow(t, a.AgentID, 0)); stdout != "ready\ntrapped\n" {
		t.Errorf("said %q", stdout)
	}
	done := o.spawn(t, "exit", "0")
	o.wait(t, done.AgentID)
	if e := ok[adapters.Agent](t, "terminate the ended")(o.TerminateAgent(o.ctx, done.AgentID, 0)); e.Status != adapters.AgentExited {
		t.Errorf("what ended by itself is %s", e.Status)
	}
}

// orchestratorTree terminates an agent whose grandchild has left the agent's session.
func orchestratorTree(t *testing.T, o orchestra) {
	a := o.spawn(t, "double-fork")
	said := strings.Fields(o.until(t, a.AgentID, "ready"))
	e := ok[adapters.Agent](t, "terminate")(o.TerminateAgent(o.ctx, a.AgentID, 100*time.Millisecond))
	if e.Status != adapters.AgentTerminated {
		t.Errorf("%+v", e)
	}
	gone(t, strconv.Itoa(a.PID), said[0])
}

// gone fails the test if one of the processes still exists, even as a zombie.
func gone(t *testing.T, pids ...string) {
	t.Helper()
	for _, pid := range pids {
		if _, err := os.Stat("/proc/" + pid); err == nil {
			status, _ := os.ReadFile("/proc/" + pid + "/status")
			t.Errorf("process %s is still there: %.200s", pid, status)
		}
	}
}

func orchestratorDeaf(t *testing.T, o orchestra) {
	for _, verb := range []string{"ignore-term", "stopped"} {
		a := o.spawn(t, verb)
		o.until(t, a.AgentID, "\n")
		e := ok[adapters.Agent](t, "terminate")(o.TerminateAgent(o.ctx, a.AgentID, 50*time.Millisecond))
		if e.Status != adapters.AgentTerminated || verb == "ignore-term" && e.Signal != "SIGKILL" {
			t.Errorf("%s: %+v", verb, e)
		}
		gone(t, strconv.Itoa(a.PID))
	}
	a := o.spawn(t, "ignore-term")
	o.until(t, a.AgentID, "ready")
	brief, cancel := context.WithTimeout(o.ctx, 50*time.Millisecond)
	defer cancel()
	_, err := o.TerminateAgent(brief, a.AgentID, time.Second)
	want(t, "terminate with a short deadline", err, adapters.CodeTimeout)
	if e := o.wait(t, a.AgentID); e.Status != adapters.AgentTerminated {
		t.Errorf("the end was given up with its caller: %+v", e)
	}
}

// orchestratorLeftBehind checks an agent that exits and leaves a child behind. The agent has ended
// only when the child has ended too.
func orchestratorLeftBehind(t *testing.T, o orchestra) {
	a := o.spawn(t, "setsid-escape")
	said := strings.TrimSpace(o.until(t, a.AgentID, "\n"))
	if e := o.wait(t, a.AgentID); e.Status != adapters.AgentExited {
		t.Errorf("%+v", e)
	}
	gone(t, said)
}

func orchestratorTimeout(t *testing.T, o orchestra) {
	a := o.start(t, adapters.AgentSpec{Command: o.prog, Args: []string{"sleep"}, TimeoutS: 1})
	all := o.follow(t, a.AgentID, 0)
	check(t, all)
	if e := all[len(all)-2]; e.Kind != adapters.AgentEventError || !strings.Contains(string(e.Payload), string(adapters.CodeTimeout)) {
		t.Errorf("before the exit: %+v", e)
	}
	if e := ok[adapters.Agent](t, "get")(o.GetAgent(o.ctx, a.AgentID)); e.Status != adapters.AgentFailed || e.Signal != "SIGTERM" {
		t.Errorf("%+v", e)
	}
}
