package control

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// A client describes an end in the words of the box.
func TestExitHasOneWording(t *testing.T) {
	for _, e := range []program.Exit{
		{}, {Code: 7}, {Code: -1, Signal: "KILL"}, {Code: -1, Signal: "SEGV", Core: true}, {Code: -1, Signal: "KILL", Cause: "killed by the kernel: out of memory"},
	} {
		if box, client := e.String(), toExit(e).String(); box != client {
			t.Errorf("%q in the box, %q at the client", box, client)
		}
	}
}

func TestEnding(t *testing.T) {
	begun := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	over := begun.Add(2100 * time.Millisecond)
	for _, c := range []struct {
		exit program.Exit
		want string
	}{
		{program.Exit{Code: 1}, "exited with code 1, 2.1s after its start"},
		{program.Exit{Code: 127}, "exited with code 127 (command not found), 2.1s after its start"},
		{program.Exit{Code: -1, Signal: "SEGV", Core: true}, "ended by signal SEGV (core dumped) (invalid memory access), 2.1s after its start"},
		{program.Exit{Code: -1, Signal: "USR1"}, "ended by signal USR1, 2.1s after its start"},
	} {
		p := at(program.Backoff, 2, "")
		p.PID, p.LastExit, p.StartedAt, p.EndedAt = 0, &c.exit, &begun, &over
		if got := ending(p); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
		p.PID = 7
		if got := ending(p); got != "" {
			t.Errorf("a run under way has the ending %q", got)
		}
	}
}

// needing is a program with needs.
func needing(p supervisor.Status, name string, needs ...string) supervisor.Status {
	p.Name, p.Spec = name, &program.Spec{Name: name, Autostart: true}
	for _, n := range needs {
		p.Spec.Needs = append(p.Spec.Needs, program.Need{Program: n, Condition: program.NeedReady})
	}
	return p
}

// TestWaitsForWhat: the reason of a wait is followed to its root. A shared need is shown once, and
// needs that are met are not followed.
func TestWaitsForWhat(t *testing.T) {
	stopped, up, dead := at(program.Stopped, 0, ""), at(program.Running, 1, "ready"), at(program.Fatal, 1, "")
	all := []supervisor.Status{
		needing(dead, "db"), needing(up, "cache"), needing(stopped, "left", "db", "cache"), needing(stopped, "right", "db"),
		needing(stopped, "web", "cache", "left", "right"),
	}
	why := explain(all[4], supervisor.Snapshot{Programs: all}, "")
	var text func([]api.WhyNeed) string
	text = func(needs []api.WhyNeed) string {
		var parts []string
		for _, n := range needs {
			parts = append(parts, n.Program+"("+text(n.Needs)+")")
		}
		return strings.Join(parts, " ")
	}
	if got, want := text(why.Needs), "cache() left(db()) right(db())"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got := advice(all[4], all, ""); !slices.Equal(got, []string{"agentctl why db", "agentctl start web"}) {
		t.Errorf("got %q", got)
	}
}

// A program whose turn has not come names the program that the boot waits for.
func TestWhoseTurnItIs(t *testing.T) {
	web, slow := needing(at(program.Stopped, 0, ""), "web"), needing(at(program.Starting, 1, ""), "slow")
	web.Queued = true
	why := explain(web, supervisor.Snapshot{Awaited: "slow", Programs: []supervisor.Status{slow, web}}, "")
	if want := "agentinit starts it when slow is ready, has given up or exceeds its start_timeout"; why.Next != want {
		t.Errorf("got %q, want %q", why.Next, want)
	}
	if want := []string{"agentctl why slow", "agentctl start web"}; !slices.Equal(why.Do, want) {
		t.Errorf("got %q, want %q", why.Do, want)
	}
}

func TestAdvice(t *testing.T) {
	failed := at(program.Fatal, 2, "")
	failed.LastExit = &program.Exit{Code: 1}
	waits := needing(at(program.Stopped, 1, "queued"), "p", "db")
	paused := at(program.Stopped, 1, "")
	paused.Schedule = &program.ScheduleStatus{Paused: true}
	loop := at(program.Backoff, 2, "")
	loop.LastExit = &program.Exit{Code: 1}
	for _, c := range []struct {
		p    supervisor.Status
		want string
	}{
		{at(program.Running, 1, "ready"), ""},
		{at(program.Running, 1, ""), "agentctl logs -f p, agentctl restart p"},
		{at(program.Stopping, 1, ""), "agentctl logs -f p, agentctl signal KILL p"},
		{failed, "agentctl logs p, agentctl start p"},
		{at(program.Fatal, 0, ""), "agentctl plan '/srv/my box.toml', agentctl start p"},
		{loop, "agentctl logs p, agentctl restart p"},
		{at(program.Backoff, 2, ""), "agentctl plan '/srv/my box.toml', agentctl restart p"}, // never executed
		{at(program.Exited, 2, "schedule"), "agentctl logs p, agentctl run p"},
		{at(program.Fatal, 2, "schedule"), "agentctl plan '/srv/my box.toml', agentctl run p"},
		{at(program.Stopped, 0, "schedule"), "agentctl run p"},
		{paused, "agentctl start p, agentctl run p"},
		{at(program.Stopped, 1, ""), "agentctl start p"},
		{waits, "agentctl why db, agentctl start p"},
	} {
		if got := strings.Join(advice(c.p, []supervisor.Status{c.p, needing(at(program.Stopped, 1, ""), "db")}, "/srv/my box.toml"), ", "); got != c.want {
			t.Errorf("%s: got %q, want %q", c.p.State, got, c.want)
		}
	}
}
