package rest

import (
	"encoding/json"
	"errors"
	"io"
	"path/filepath"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// watch copies the agent's output into the log until its end, and then writes
// how it ended.
func (t *Tasks) watch(one *task) {
	id := one.record.TaskID
	log, err := openTaskLog(filepath.Join(t.cfg.Dir, id, logFile))
	if err != nil {
		t.tell(id, err) // the task counts, its output is lost
	}
	exit, err := t.copy(one, log)
	if err := log.close(); err != nil {
		t.tell(id, err)
	}
	if t.life.Err() != nil {
		return // the record stays "running": the next start settles it
	}
	t.settle(one, exit, err)
}

// exitPayload is the payload of an agent's last event.
type exitPayload struct {
	Code   *int   `json:"code"`
	Signal string `json:"signal"`
}

// copy follows the agent's events to the last one. A stream that breaks is
// opened again where it broke.
func (t *Tasks) copy(one *task, log *taskLog) (exitPayload, error) {
	next := uint64(0)
	for {
		st, err := t.cfg.Orchestrator.StreamEvents(t.life, one.record.AgentID, next)
		if err == nil {
			var exit *exitPayload
			exit, err = t.drain(one, st, log, &next)
			if exit != nil {
				return *exit, nil
			}
		}
		if errors.Is(err, adapters.ErrNotFound) || errors.Is(err, adapters.ErrDisabled) {
			return exitPayload{}, err
		}
		select {
		case <-time.After(watchRetry):
		case <-t.life.Done():
			return exitPayload{}, t.life.Err()
		}
	}
}

func (t *Tasks) drain(one *task, st adapters.AgentStream, log *taskLog, next *uint64) (*exitPayload, error) {
	defer st.Close()
	for {
		e, err := st.Next(t.life)
		if errors.Is(err, io.EOF) {
			// Without an exit event: it was read before the stream broke.
			return &exitPayload{}, nil
		}
		if err != nil {
			return nil, err
		}
		*next = e.Seq + 1
		if e.Kind == adapters.AgentEventExit {
			var exit exitPayload
			if err := json.Unmarshal(e.Payload, &exit); err != nil {
				return &exitPayload{}, nil
			}
			return &exit, nil
		}
		if err := log.write(e); err != nil {
			t.tell(one.record.TaskID, err)
		}
		t.wake(one)
	}
}

func (t *Tasks) wake(one *task) {
	t.mu.Lock()
	defer t.mu.Unlock()
	close(one.news)
	one.news = make(chan struct{})
}

// settle writes the end of a task.
func (t *Tasks) settle(one *task, exit exitPayload, err error) {
	t.mu.Lock()
	r := one.record
	r.ExitTime = time.Now().UnixMilli()
	r.ExitCode = exit.Code
	switch {
	case one.stopped:
		r.Status = TaskStopped
	case err != nil:
		r.Status, r.Reason = TaskFailed, "its agent was lost: "+adapters.AsError(err).Message
	case exit.Code != nil && *exit.Code == 0:
		r.Status = TaskCompleted
	case exit.Signal != "":
		r.Status, r.Reason = TaskFailed, exit.Signal
	default:
		r.Status = TaskFailed
	}
	t.mu.Unlock()
	if err := t.save(r); err != nil {
		t.tell(r.TaskID, err)
	}
	t.mu.Lock()
	one.record = r
	close(one.news)
	one.news = make(chan struct{})
	t.mu.Unlock()
	close(one.ended)
}
