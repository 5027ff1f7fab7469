package e2e

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A task of agentinit's own user replaces its files: its log by a FIFO, and its record by a file of
// 4 TiB that takes no space on the disk. The box answers, ends, and boots again.
func TestATaskReplacesItsFiles(t *testing.T) {
	t.Setenv("MANAGEMENT_API_KEY", boxKey)
	b := boot(t, sameUser, header+`
[adapters]
orchestrator = "local-process-manager"
[templates.attacker]
command = ["sh", "-c", 'cd "$AGENTBOX_TASK_DIR" && mkfifo fifo && mv fifo task.log && truncate -s 4T left && exec sleep 1000']
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

// A program of agentinit's own user puts a FIFO in the place of the runtime directory. The control
// socket and the seal come back, and the box ends.
func TestAFIFOInPlaceOfTheRuntimeDirectory(t *testing.T) {
	b := boot(t, sameUser, onlyWeb)
	b.sealed()
	dir := filepath.Dir(b.socket())
	fifo := filepath.Join(b.dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o666); err != nil {
		t.Fatal(err)
	}
	// Exchanged in one step: agentinit makes a missing directory again.
	if err := unix.Renameat2(unix.AT_FDCWD, fifo, unix.AT_FDCWD, dir, unix.RENAME_EXCHANGE); err != nil {
		t.Fatal(err)
	}
	for e := b.event("ControlSocketLost"); e["restored"] != true; e = b.event("ControlSocketLost") {
	}
	waitFor(t, "the seal is back", func() bool { _, err := os.Stat(b.sentinel()); return err == nil })
	b.unhurt(t)
}
