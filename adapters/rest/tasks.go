package rest

import (
	"context"
	"encoding/json"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/tasks"
)

// TaskRequest is the body of POST /v1/tasks.
type TaskRequest struct {
	Agent    string `json:"agent"` // name of a template
	Task     string `json:"task"`  // what to do
	Provider string `json:"provider,omitempty"`
}

// TaskAccepted is the answer to a TaskRequest.
type TaskAccepted struct {
	TaskID  string `json:"taskId"`
	Status  string `json:"status"` // accepted
	Message string `json:"message"`
	TaskDir string `json:"taskDir"`
	LogFile string `json:"logFile"`
}

// ActiveTasks lists the running tasks.
type ActiveTasks struct {
	ActiveTasks []ActiveTask `json:"activeTasks"`
	Count       int          `json:"count"`
}

// ActiveTask is one running task.
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

func statusOf(r tasks.Record, now time.Time) TaskStatus {
	s := TaskStatus{
		TaskID: r.TaskID, Agent: r.Agent, Task: r.Task, Provider: adapters.NullString(r.Provider), Status: r.Status,
		StartTime: r.StartTime, ExitCode: r.ExitCode, Duration: now.UnixMilli() - r.StartTime, Reason: r.Reason,
	}
	if r.Status != tasks.Running {
		s.ExitTime, s.Duration = &r.ExitTime, r.ExitTime-r.StartTime
	}
	return s
}

func needsTasks(q *request) error {
	if q.s.cfg.Tasks == nil {
		return adapters.Errorf(adapters.CodeDisabled, "this box runs no tasks: the manifest has no templates")
	}
	return nil
}

func startTask(q *request, in TaskRequest) error {
	t, err := q.s.cfg.Tasks.Start(q.Context(), tasks.Request{Agent: in.Agent, Task: in.Task, Provider: in.Provider})
	if err != nil {
		return err
	}
	q.report.Replayed = t.Replayed
	q.w.Header().Set("Location", "/v1/tasks/"+t.ID)
	return q.reply(http.StatusAccepted, TaskAccepted{TaskID: t.ID, Status: "accepted", Message: "the task runs", TaskDir: t.Dir, LogFile: t.Log})
}

func listTasks(q *request) error {
	page, err := q.page()
	if err != nil {
		return err
	}
	now := time.Now()
	switch q.URL.Query().Get("status") {
	case "":
		out := ActiveTasks{ActiveTasks: []ActiveTask{}}
		for _, r := range q.s.cfg.Tasks.Active() {
			out.ActiveTasks = append(out.ActiveTasks, ActiveTask{r.TaskID, r.Agent, r.StartTime, now.UnixMilli() - r.StartTime})
		}
		out.Count = len(out.ActiveTasks)
		return q.reply(http.StatusOK, out)
	case "all":
		records, err := q.s.cfg.Tasks.Page(page)
		if err != nil {
			return err
		}
		out := adapters.Page[TaskStatus]{NextCursor: records.NextCursor}
		for _, r := range records.Items {
			out.Items = append(out.Items, statusOf(r, now))
		}
		return list(q, out, nil)
	}
	return adapters.Invalid("status", "must be all, or absent")
}

func getTask(q *request) error {
	return q.task(q.param("id"))
}

func (q *request) task(id string) error {
	r, err := q.s.cfg.Tasks.Get(id)
	if err != nil {
		return err
	}
	s := statusOf(r, time.Now())
	if s.LogTail, err = q.s.cfg.Tasks.Tail(id); err != nil {
		return err
	}
	return q.reply(http.StatusOK, s)
}

func stopTask(q *request) error {
	id := q.param("id")
	q.readDeadline(0)
	q.writeDeadline(0) // the answer comes when the agent is gone
	if err := q.s.cfg.Tasks.Stop(q.Context(), id); err != nil {
		return err
	}
	return q.task(id)
}

func streamTaskLog(q *request) error {
	id := q.param("id")
	at, _, err := q.position()
	if err != nil {
		return err
	}
	if at > math.MaxInt64 {
		return adapters.Invalid("after", "must be a number that the stream gave")
	}
	log, err := q.s.cfg.Tasks.Follow(id, int64(at))
	if err != nil {
		return err
	}
	return q.follow(func(context.Context) (feed, error) {
		return feed{close: log.Close, next: func(ctx context.Context) (message, error) {
			line, err := log.Next(ctx)
			if err != nil {
				return message{}, err
			}
			return taskMessage(line)
		}}, nil
	})
}

// taskMessage makes the message of a line. Its id is the position after the line, where a reader
// resumes.
func taskMessage(line tasks.Line) (message, error) {
	if r := line.Ended; r != nil {
		data, err := json.Marshal(map[string]any{"status": r.Status, "exitCode": r.ExitCode, "timestamp": r.ExitTime})
		return message{Event: "task-complete", Data: data}, err
	}
	data, err := json.Marshal(TaskLine{Line: line.Text, Timestamp: line.At.UnixMilli()})
	return message{ID: strconv.FormatInt(line.End, 10), Data: data}, err
}
