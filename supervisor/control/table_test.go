package control_test

import (
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/control/controltest"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// TestTable: the short answer has the same values for a table as the long answer.
func TestTable(t *testing.T) {
	b := controltest.New(controltest.Program("db"), controltest.Program("web"), stoppedProgram("idle"))
	b.Set("web", func(p *supervisor.Status) {
		soon := controltest.Epoch.Add(time.Second)
		p.State, p.PID, p.Ready, p.Reason, p.Text, p.Restarts, p.Deadline = program.Backoff, 0, false, "exit status 1", "said so", 4, &soon
	})
	b.LogTroubles = map[string]error{"db": errors.New("no space left")}
	c := dial(t, b.Own())
	long, err := c.Status(t.Context())
	must(t, err)
	usage, err := c.Usage(t.Context())
	must(t, err)
	short, err := c.Table(t.Context())
	must(t, err)
	equal(t, names(short.Programs), names(long.Programs))
	equal(t, long.Programs[0].LogTrouble, "no space left")
	for i, p := range short.Programs {
		whole := long.Programs[i]
		equal(t, p.Usage.CPUSeconds, usage.Programs[i].CPUSeconds)
		equal(t, p.Usage.MemoryBytes, usage.Programs[i].MemoryBytes)
		p.Usage = nil
		equal(t, p, api.Program{
			Name: whole.Name, State: whole.State, Shown: whole.Shown, Ready: whole.Ready, Healthy: whole.Healthy, Reason: whole.Reason,
			Text: whole.Text, PID: whole.PID, Restarts: whole.Restarts, Since: whole.Since, Deadline: whole.Deadline, LastExit: whole.LastExit,
			LogTrouble: whole.LogTrouble,
		})
	}
	some, err := c.Table(t.Context(), "w*")
	must(t, err)
	equal(t, names(some.Programs), []string{"web"})
	_, err = c.Table(t.Context(), "nobody")
	equal(t, api.CodeOf(err), api.CodeUnknownProgram)
}

// TestText: the text is the table of agentctl, and its header tells whether all programs run.
func TestText(t *testing.T) {
	b := controltest.New(controltest.Program("db"), controltest.Program("web"), stoppedProgram("idle"))
	b.Set("web", func(p *supervisor.Status) { p.Text = "\x1b[2J" })
	socket := controltest.Serve(t, b.Own())
	const head, web = "NAME  STATE    PID    FOR   CPU  MEMORY  RESTARTS  INFO\n", `web   RUNNING  103  3m12s  1.5s    4.0K         0  \x1b[2J` + "\n"
	for query, want := range map[string]struct{ running, text string }{
		"text=true": {"false", head + "db    RUNNING  102  3m12s  1.5s    4.0K         0\n" + web +
			"idle  STOPPED    -  3m12s  1.5s       -         0  not started yet\n"},
		"text=true&name=web":            {"true", head + web},
		"text=true&table=true&name=web": {"true", head + web},
	} {
		header, body := get(t, socket, "/v1/status?"+query)
		equal(t, body, want.text)
		equal(t, header.Get(api.HeaderAllRunning), want.running)
		equal(t, header.Get("Content-Type"), "text/plain; charset=utf-8")
		equal(t, header.Get("Content-Length"), strconv.Itoa(len(body)))
	}
	header, _ := get(t, socket, "/v1/status?text=false")
	equal(t, header.Get("Content-Type"), "application/json")
	equal(t, header.Get(api.HeaderAllRunning), "")
}

// TestScheduledInResults: a result tells that a schedule waits for its next run, also after a failed run.
func TestScheduledInResults(t *testing.T) {
	b := controltest.New(controltest.Program("nightly"), controltest.Program("web"))
	b.Set("nightly", func(p *supervisor.Status) {
		p.State, p.PID, p.Schedule = program.Exited, 0, &program.ScheduleStatus{}
	})
	b.Refuse = []string{"nightly", "web"}
	r, err := dial(t, b.Own()).Start(t.Context(), api.ActionRequest{Names: []string{"nightly", "web"}})
	must(t, err)
	for i, want := range []bool{true, false} {
		if got := r.Results[i]; got.Scheduled != want || got.Changed || got.Error != nil {
			t.Errorf("%+v", got)
		}
	}
}
