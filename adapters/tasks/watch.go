package tasks

import (
	"encoding/json"
	"errors"
	"io"
	"path/filepath"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/internal/sleep"
)

// watch copies the agent's output into the log until the agent ends, and then records how it ended.
func (m *Manager) watch(one *task) {
	id := one.record.TaskID
	log, err := openLog(filepath.Join(m.cfg.Dir, id, logFile))
	if err != nil {
		m.tell(id, err) // the task goes on, but its output is lost
	}
	exit, err := m.copy(one, log)
	if err := log.close(); err != nil {
		m.tell(id, err)
	}
	if m.life.Err() != nil {
		return // the record stays "running"; the next start of the box corrects it
	}
	m.settle(one, exit, err)
}

// exitPayload is the payload of an agent's last event.
type exitPayload struct {
	Code   *int   `json:"code"`
	Signal string `json:"signal"`
}

// copy follows the agent's events to the last one. If the stream breaks, it is opened again at the
// same position.
func (m *Manager) copy(one *task, log *logWriter) (exitPayload, error) {
	next := uint64(0)
	for {
		st, err := m.cfg.Orchestrator.StreamEvents(m.life, one.record.AgentID, next)
		if err == nil {
			var exit *exitPayload
			exit, err = m.drain(one, st, log, &next)
			if exit != nil {
				return *exit, nil
			}
		}
		if errors.Is(err, adapters.ErrNotFound) || errors.Is(err, adapters.ErrDisabled) {
			return exitPayload{}, err
		}
		if !sleep.For(m.life, watchRetry) {
			return exitPayload{}, m.life.Err()
		}
	}
}

func (m *Manager) drain(one *task, st adapters.AgentStream, log *logWriter, next *uint64) (*exitPayload, error) {
	defer st.Close()
	for {
		e, err := st.Next(m.life)
		if errors.Is(err, io.EOF) {
			// The exit event was already read before the stream broke.
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
			m.tell(one.record.TaskID, err)
		}
		m.wake(one)
	}
}

func (m *Manager) wake(one *task) {
	m.mu.Lock()
	defer m.mu.Unlock()
	close(one.news)
	one.news = make(chan struct{})
}

// settle records the end of a task.
func (m *Manager) settle(one *task, exit exitPayload, err error) {
	m.mu.Lock()
	r := one.record
	r.ExitTime = time.Now().UnixMilli()
	r.ExitCode = exit.Code
	switch {
	case one.stops > 0:
		r.Status = Stopped
	case err != nil:
		r.Status, r.Reason = Failed, "its agent was lost: "+adapters.AsError(err).Message
	case exit.Code != nil && *exit.Code == 0:
		r.Status = Completed
	case exit.Signal != "":
		r.Status, r.Reason = Failed, exit.Signal
	default:
		r.Status = Failed
	}
	m.mu.Unlock()
	if err := m.save(r); err != nil {
		m.tell(r.TaskID, err)
	}
	m.mu.Lock()
	one.record = r
	m.mu.Unlock()
	m.wake(one)
	close(one.ended)
}
