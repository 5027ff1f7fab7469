package rest_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/rest"
	"github.com/dreamlab-ai/agentinit/adapters/tasks"
)

// oneTemplate has only the template "coder".
type oneTemplate struct{}

func (oneTemplate) Spec(name, task string) (adapters.AgentSpec, error) {
	if name != "coder" {
		return adapters.AgentSpec{}, adapters.NotFound("template", name)
	}
	return adapters.AgentSpec{Command: "/bin/coder", Args: []string{task}}, nil
}

// newTaskBox serves tasks kept in dir.
func newTaskBox(t *testing.T, dir string) *box {
	t.Helper()
	b := &box{t: t, agents: newAgentsFake()}
	set := newSet(t, map[adapters.Slot]adapters.Adapter{adapters.SlotOrchestrator: b.agents})
	manager, err := tasks.New(tasks.Config{
		Dir: dir, Templates: oneTemplate{}, Orchestrator: set.Orchestrator(), Report: func(id string, err error) { t.Errorf("task %s: %v", id, err) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(manager.Close)
	b.serve(set, func(c *rest.Config) { c.Tasks = manager })
	return b
}

func (b *box) start(pairs ...string) rest.TaskAccepted {
	b.t.Helper()
	var out rest.TaskAccepted
	b.do("admin", "POST", "/v1/tasks", `{"agent":"coder","task":"write it","provider":"p1"}`, pairs...).is(202).into(&out)
	return out
}

func TestTaskFromStartToEnd(t *testing.T) {
	dir := t.TempDir()
	b := newTaskBox(t, dir)
	task := b.start()
	path := "/v1/tasks/" + task.TaskID
	if task.Status != "accepted" || task.TaskDir != filepath.Join(dir, task.TaskID) {
		t.Errorf("%+v", task)
	}
	spec := b.agents.agents["agent-1"].spec
	if spec.Command != "/bin/coder" || spec.Env["AGENTBOX_TASK_ID"] != task.TaskID || spec.Env["AGENTBOX_PROVIDER"] != "p1" || spec.Labels["task"] != task.TaskID {
		t.Errorf("%+v", spec)
	}
	active := b.do("reader", "GET", "/v1/tasks", "").is(200).fields()
	if active["count"] != 1.0 || active["activeTasks"].([]any)[0].(map[string]any)["taskId"] != task.TaskID {
		t.Errorf("%v", active)
	}

	b.agents.say("agent-1", "one\ntw")
	s := b.open("reader", path+"/logs/stream")
	first := s.want("29", "") // 24 bytes of time, a space, "one" and a newline
	b.agents.say("agent-1", "o\nhalf")
	second, _ := s.next()
	b.agents.exit("agent-1", 0)
	third, _ := s.next()
	for i, e := range []sseEvent{first, second, third} {
		var l rest.TaskLine
		if err := json.Unmarshal([]byte(e.data), &l); err != nil || l.Line != []string{"one", "two", "half"}[i] || l.Timestamp == 0 {
			t.Errorf("line %d: %v %s", i, err, e.data)
		}
	}
	end := s.want("", "task-complete")
	if !strings.Contains(end.data, `"status":"completed"`) || !strings.Contains(end.data, `"exitCode":0`) {
		t.Errorf("%s", end.data)
	}
	s.ended()

	// A reader that resumes gets the lines that it missed, and no line twice.
	again := b.do("reader", "GET", path+"/logs/stream", "", "Last-Event-ID", first.id).is(200)
	wantEvents(t, again.body, second.id, third.id, "task-complete")
	for _, at := range []string{"100000", "9223372036854770000", "9223372036854775807"} { // beyond the end
		wantEvents(t, b.do("reader", "GET", path+"/logs/stream?after="+at, "").is(200).body, "task-complete")
	}
	b.do("reader", "GET", path+"/logs/stream?after=9223372036854775808", "").is(400).problem(adapters.CodeValidation)

	status := b.do("reader", "GET", path, "").is(200).fields()
	if status["status"] != "completed" || status["exitCode"] != 0.0 || status["provider"] != "p1" || len(status["logTail"].([]any)) != 3 {
		t.Errorf("%v", status)
	}
	over := b.do("admin", "DELETE", path, "").is(409).problem(adapters.CodeConflict)
	if over["currentStatus"] != "completed" || over["retryable"] != false {
		t.Errorf("%v", over)
	}
	b.do("reader", "GET", "/v1/tasks/nobody", "").is(404).problem(adapters.CodeNotFound)
	b.do("admin", "POST", "/v1/tasks", `{"agent":"painter","task":"x"}`).is(404).problem(adapters.CodeNotFound)
	b.do("admin", "POST", "/v1/tasks", `{"agent":"coder"}`).is(400).problem(adapters.CodeValidation)
	b.do("host", "POST", "/v1/tasks", `{"agent":"coder","task":"x"}`).is(403)
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("a refused task left something: %v %v", entries, err)
	}
}

func TestTaskThatIsStoppedOrOutlived(t *testing.T) {
	dir := t.TempDir()
	b := newTaskBox(t, dir)
	stopped, outlived := b.start(), b.start()
	got := b.do("admin", "DELETE", "/v1/tasks/"+stopped.TaskID, "").is(200).fields()
	if got["status"] != "stopped" || got["exitCode"] != nil {
		t.Errorf("%v", got)
	}
	// After a restart, the box still has both tasks.
	next := newTaskBox(t, dir)
	for id, want := range map[string]string{stopped.TaskID: "stopped", outlived.TaskID: "failed"} {
		if got := next.do("reader", "GET", "/v1/tasks/"+id, "").is(200).fields(); got["status"] != want {
			t.Errorf("%v, want %s", got, want)
		}
	}
	page := next.do("reader", "GET", "/v1/tasks?status=all&limit=1", "").is(200).fields()
	if rows := page["items"].([]any); rows[0].(map[string]any)["taskId"] != outlived.TaskID || page["next_cursor"] == nil {
		t.Errorf("%v", page)
	}
	rest := next.do("reader", "GET", "/v1/tasks?status=all&cursor="+page["next_cursor"].(string), "").is(200).fields()
	if rows := rest["items"].([]any); len(rows) != 1 || rows[0].(map[string]any)["taskId"] != stopped.TaskID || rest["next_cursor"] != nil {
		t.Errorf("%v", rest)
	}
}

func TestTaskKeys(t *testing.T) {
	b := newTaskBox(t, t.TempDir())
	one, two := b.start("Idempotency-Key", "k"), b.start("Idempotency-Key", "k")
	if one != two || len(b.agents.order) != 1 {
		t.Errorf("%v %v", one, two)
	}
	b.do("admin", "POST", "/v1/tasks", `{"agent":"coder","task":"other"}`, "Idempotency-Key", "k").is(422).problem(adapters.CodeIdempotencyMismatch)
	b.agents.exit("agent-1", 1)
}

// An idempotency key is still valid after a restart of the box. A task that fails to start leaves no
// record.
func TestTaskKeysOutliveTheBox(t *testing.T) {
	dir := t.TempDir()
	first := newTaskBox(t, dir).start("Idempotency-Key", "k")
	next := newTaskBox(t, dir)
	if again := next.start("Idempotency-Key", "k"); again.TaskID != first.TaskID || len(next.agents.order) != 0 {
		t.Errorf("%v, then %v; %d agents", first, again, len(next.agents.order))
	}
	next.do("admin", "POST", "/v1/tasks", `{"agent":"coder","task":"other"}`, "Idempotency-Key", "k").is(422).problem(adapters.CodeIdempotencyMismatch)
	if other := next.start("Idempotency-Key", "j"); other.TaskID == first.TaskID {
		t.Error("another key answers the first task")
	}
	next.agents.fail = adapters.Unavailable(nil, "full")
	next.do("admin", "POST", "/v1/tasks", `{"agent":"coder","task":"x"}`, "Idempotency-Key", "f").is(503)
	next.agents.fail = nil
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 2 {
		t.Errorf("a task that did not start left something: %v %v", entries, err)
	}
}

// If the box cannot write the record of a task, it does not start the agent.
func TestTaskWithoutARecordIsNotStarted(t *testing.T) {
	dir := t.TempDir()
	b := newTaskBox(t, dir)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	b.do("admin", "POST", "/v1/tasks", `{"agent":"coder","task":"x"}`, "Idempotency-Key", "k").is(503).problem(adapters.CodeUnavailable)
	if len(b.agents.order) != 0 {
		t.Errorf("%d agents", len(b.agents.order))
	}
}

// A reader that leaves in the middle of a log leaves no open file. Without the garbage collector, which
// closes forgotten files some time.
func TestTaskLogIsClosed(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	b := newTaskBox(t, t.TempDir())
	task := b.start()
	b.agents.exit("agent-1", 0)
	b.open("reader", "/v1/tasks/"+task.TaskID+"/logs/stream").want("", "task-complete")
	log := strings.Repeat("2026-01-02T03:04:05.000Z "+strings.Repeat("x", 1000)+"\n", 16<<10) // more than sockets hold
	if err := os.WriteFile(task.LogFile, []byte(log), 0o600); err != nil {
		t.Fatal(err)
	}
	s := b.open("reader", "/v1/tasks/"+task.TaskID+"/logs/stream")
	s.next()
	s.res.Body.Close()
	b.server.Close()
	open, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range open {
		if file, _ := os.Readlink(fd); file == task.LogFile {
			t.Errorf("%s is open", file)
		}
	}
}
