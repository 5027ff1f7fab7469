package e2e

import (
	"os"
	"path/filepath"
	"testing"
)

// A task of agentinit's own user replaces its files: its log by a FIFO, and its record by a file of
// 4 TiB that takes no space on the disk. The box answers, ends, and boots again.
func TestATaskReplacesItsFiles(t *testing.T) {
	t.Setenv("MANAGEMENT_API_KEY", boxKey)
	b := boot(t, sameUser, header+`
[adapters]
orchestrator = "local-process-manager"
[templates.attacker]
command = ["sh", "-c", 'cd "$AGENTBOX_TASK_DIR" && rm -f task.log && mkfifo task.log && truncate -s 4T left && exec sleep 1000']
[programs.web]
command = ["TESTPROG", "sleep"]
required = true
`)
	waitFor(t, "ready", b.ready)
	var task struct {
		TaskID  string `json:"taskId"`
		TaskDir string `json:"taskDir"`
	}
	b.mustCall("POST", "/v1/tasks", map[string]any{"agent": "attacker", "task": "x"}, &task, 202)
	left := filepath.Join(task.TaskDir, "left")
	waitFor(t, "the log is a FIFO", func() bool { _, err := os.Stat(left); return err == nil })
	b.mustCall("GET", "/v1/tasks/"+task.TaskID, nil, nil, 503)
	b.mustCall("GET", "/v1/tasks/"+task.TaskID+"/logs/stream", nil, nil, 200) // the stream ends with an error
	b.unhurt(t)

	if err := os.Rename(left, filepath.Join(task.TaskDir, "task.json")); err != nil {
		t.Fatal(err)
	}
	again := b.again()
	again.event("TaskTrouble")
	waitFor(t, "ready again", again.ready)
	again.mustCall("GET", "/v1/tasks/"+task.TaskID, nil, nil, 404)
	again.unhurt(t)
}
