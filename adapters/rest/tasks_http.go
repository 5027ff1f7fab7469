package rest

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// ActiveTasks are the tasks that run.
type ActiveTasks struct {
	ActiveTasks []ActiveTask `json:"activeTasks"`
	Count       int          `json:"count"`
}

// ActiveTask is one of them.
type ActiveTask struct {
	TaskID    string `json:"taskId"`
	Agent     string `json:"agent"`
	StartTime int64  `json:"startTime"` // Unix milliseconds
	Duration  int64  `json:"duration"`  // milliseconds
}

// TaskStatus is everything about one task.
type TaskStatus struct {
	TaskID    string              `json:"taskId"`
	Agent     string              `json:"agent"`
	Task      string              `json:"task"`
	Provider  adapters.NullString `json:"provider"`
	Status    string              `json:"status"`
	StartTime int64               `json:"startTime"`
	ExitTime  *int64              `json:"exitTime"`
	ExitCode  *int                `json:"exitCode"`
	Duration  int64               `json:"duration"`
	LogTail   []string            `json:"logTail,omitempty"`
	Reason    string              `json:"reason,omitempty"`
}

// TaskLine is one line of a task's log.
type TaskLine struct {
	Line      string `json:"line"`
	Timestamp int64  `json:"timestamp"` // Unix milliseconds
}

func statusOf(r taskRecord, now time.Time) TaskStatus {
	s := TaskStatus{
		TaskID: r.TaskID, Agent: r.Agent, Task: r.Task, Provider: adapters.NullString(r.Provider), Status: r.Status,
		StartTime: r.StartTime, ExitCode: r.ExitCode, Duration: now.UnixMilli() - r.StartTime, Reason: r.Reason,
	}
	if r.Status != TaskRunning {
		s.ExitTime, s.Duration = &r.ExitTime, r.ExitTime-r.StartTime
	}
	return s
}

// tasks is the part behind these routes; without templates it is off.
func (q *request) tasks() (*Tasks, error) {
	if t := q.s.cfg.Tasks; t != nil {
		return t, nil
	}
	return nil, adapters.Errorf(adapters.CodeDisabled, "this box runs no tasks: the manifest has no templates")
}

func startTask(q *request) error {
	t, err := q.tasks()
	if err != nil {
		return err
	}
	var in TaskRequest
	if err := q.json(&in); err != nil {
		return err
	}
	out, replayed, err := t.Start(q.Context(), in)
	if err != nil {
		return err
	}
	q.report.Replayed = replayed
	q.w.Header().Set("Location", "/v1/tasks/"+out.TaskID)
	return q.reply(http.StatusAccepted, out)
}

func listTasks(q *request) error {
	t, err := q.tasks()
	if err != nil {
		return err
	}
	page, err := q.page()
	if err != nil {
		return err
	}
	now := time.Now()
	switch q.URL.Query().Get("status") {
	case "":
		out := ActiveTasks{ActiveTasks: []ActiveTask{}}
		for _, r := range t.active() {
			out.ActiveTasks = append(out.ActiveTasks, ActiveTask{r.TaskID, r.Agent, r.StartTime, now.UnixMilli() - r.StartTime})
		}
		out.Count = len(out.ActiveTasks)
		return q.reply(http.StatusOK, out)
	case "all":
		records, err := t.page(page)
		if err != nil {
			return err
		}
		out := adapters.Page[TaskStatus]{NextCursor: records.NextCursor}
		for _, r := range records.Items {
			out.Items = append(out.Items, statusOf(r, now))
		}
		return list(q, out)
	}
	return adapters.Invalid("status", "must be all, or absent")
}

// active are the records of the tasks that run, oldest first.
func (t *Tasks) active() []taskRecord {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []taskRecord
	for _, id := range t.sorted() {
		if r := t.tasks[id].record; r.Status == TaskRunning {
			out = append(out, r)
		}
	}
	return out
}

// taskID is the task that the path names.
func (q *request) taskID() (t *Tasks, id string, err error) {
	if t, err = q.tasks(); err == nil {
		id, err = q.param("id")
	}
	return t, id, err
}

func getTask(q *request) error {
	t, id, err := q.taskID()
	if err != nil {
		return err
	}
	return q.task(t, id)
}

func (q *request) task(t *Tasks, id string) error {
	r, _, err := t.get(id)
	if err != nil {
		return err
	}
	s := statusOf(r, time.Now())
	if s.LogTail, err = tail(t.logPath(id)); err != nil {
		return adapters.Unavailable(err, "the log cannot be read")
	}
	return q.reply(http.StatusOK, s)
}

func (t *Tasks) logPath(id string) string { return filepath.Join(t.cfg.Dir, id, logFile) }

func stopTask(q *request) error {
	t, id, err := q.taskID()
	if err != nil {
		return err
	}
	q.readDeadline(0)
	q.writeDeadline(0) // it answers when the agent is gone
	if err := t.Stop(q.Context(), id); err != nil {
		return err
	}
	return q.task(t, id)
}

// streamTaskLog reads the log file and, at its end, waits for more of it: what
// was written before and what comes later is one sequence, without a seam.
func streamTaskLog(q *request) error {
	t, id, err := q.taskID()
	if err != nil {
		return err
	}
	if _, _, err := t.get(id); err != nil {
		return err
	}
	at, _, err := q.position()
	if err != nil {
		return err
	}
	return q.follow(func(context.Context) (feed, error) {
		f := &logFollower{tasks: t, id: id, at: int64(at)}
		return feed{next: f.next, close: func() error { return nil }}, nil
	})
}

// logFollower is one stream of a task's log. next alone uses it.
type logFollower struct {
	tasks *Tasks
	id    string
	at    int64
	log   *logReader
	over  bool
}

func (f *logFollower) next(ctx context.Context) (m message, err error) {
	defer func() {
		if err != nil && f.log != nil {
			err = errors.Join(err, f.log.file.Close())
			f.log = nil
		}
	}()
	if f.over {
		return message{}, io.EOF
	}
	for {
		// Asked before the file is read: what is written after wakes us.
		r, news, err := f.tasks.get(f.id)
		if err != nil {
			return message{}, err
		}
		line, err := f.line()
		if err == nil {
			return f.message(line)
		}
		if !errors.Is(err, io.EOF) {
			return message{}, adapters.Unavailable(err, "the log cannot be read")
		}
		if r.Status != TaskRunning {
			f.over = true
			return complete(r)
		}
		select {
		case <-news:
		case <-ctx.Done():
			return message{}, ctx.Err()
		}
	}
}

// line is the next line, io.EOF when there is none yet.
func (f *logFollower) line() (string, error) {
	if f.log == nil {
		log, err := newLogReader(f.tasks.logPath(f.id), f.at)
		if errors.Is(err, os.ErrNotExist) {
			return "", io.EOF
		}
		if err != nil {
			return "", err
		}
		f.log = log
	}
	return f.log.next()
}

// message has the position behind the line as its id: there a reader goes on.
func (f *logFollower) message(line string) (message, error) {
	text, at := splitLine(line)
	data, err := json.Marshal(TaskLine{Line: text, Timestamp: at.UnixMilli()})
	return message{ID: strconv.FormatInt(f.log.at, 10), Data: data}, err
}

func complete(r taskRecord) (message, error) {
	data, err := json.Marshal(map[string]any{"status": r.Status, "exitCode": r.ExitCode, "timestamp": r.ExitTime})
	return message{Event: "task-complete", Data: data}, err
}
