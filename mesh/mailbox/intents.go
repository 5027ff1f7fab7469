package mailbox

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"slices"
	"time"

	"github.com/dreamlab-ai/agentinit/mesh/nip01"
)

// Work starts tasks for the intents of trusted senders. Its methods may be called from any goroutine.
type Work interface {
	// Start starts a task for an intent, once for each event id. task is "" if there is no task for
	// intents of this kind. After ErrLater, Start is called again.
	Start(ctx context.Context, n Notice, message []byte) (task string, err error)
	// State returns the state of a task.
	State(task string) TaskState
}

// ErrLater means that the task cannot be started now, but may be later.
var ErrLater = errors.New("not now")

// TaskState is the state of a task.
type TaskState int

// The states of a task.
const (
	TaskRuns TaskState = iota
	TaskDone
	TaskFailed
)

// The values of an intent's status.
const (
	intentPending  = "pending"
	intentAccepted = "accepted"
	intentDone     = "done"
	intentFailed   = "failed"
)

// workAgain is how often the mailbox checks running tasks and tries again to start the others.
const workAgain = 5 * time.Second

// Intent is a marker in the intent queue. The program that works on the intent changes its status
// from pending to accepted, and then to done or failed.
type Intent struct {
	Notice
	Status string `json:"status"`
	Task   string `json:"task,omitempty"`   // task that agentinit has started for it
	Reason string `json:"reason,omitempty"` // why it has failed
}

// queue creates the marker of an intent; an existing marker keeps its status.
func (m *Mailbox) queue(n Notice) error {
	raw, err := json.Marshal(Intent{Notice: n, Status: intentPending})
	if err != nil {
		return err
	}
	err = m.cfg.Files.CreateFile(m.path(queueDir, n.EventID+".json"), raw, fileMode)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	m.toWork(n.EventID)
	return nil
}

// toWork adds an intent to the work list and wakes work.
func (m *Mailbox) toWork(id string) {
	if m.cfg.Work == nil {
		return
	}
	m.mu.Lock()
	m.intents[id] = true
	m.mu.Unlock()
	select {
	case m.asked <- struct{}{}:
	default: // work has already been woken
	}
}

// loadIntents puts all intents of the queue on the work list. workOn drops the finished ones.
func (m *Mailbox) loadIntents() error {
	if m.cfg.Work == nil {
		return nil
	}
	ids, err := m.names(queueDir, func(name string) bool { return nip01.LowerHex(name, 64) }, maxInbox)
	for _, id := range ids {
		m.toWork(id)
	}
	return err
}

// work starts tasks for intents and follows them, until ctx ends.
func (m *Mailbox) work(ctx context.Context) {
	again := time.NewTicker(workAgain)
	defer again.Stop()
	for {
		m.workOnAll(ctx)
		select {
		case <-again.C:
		case <-m.asked:
		case <-ctx.Done():
			return
		}
	}
}

func (m *Mailbox) workOnAll(ctx context.Context) {
	m.mu.Lock()
	ids := slices.Sorted(maps.Keys(m.intents))
	m.mu.Unlock()
	for _, id := range ids {
		open, err := m.workOn(ctx, id)
		if err != nil && ctx.Err() == nil {
			m.cfg.Report("IntentNotStarted", map[string]any{"event_id": id, "message": err.Error()})
		}
		if !open {
			m.mu.Lock()
			delete(m.intents, id)
			m.mu.Unlock()
		}
	}
}

// workOn makes the next step for one intent. open means that more steps are needed.
func (m *Mailbox) workOn(ctx context.Context, id string) (open bool, err error) {
	raw, _, err := m.cfg.Files.ReadFile(m.path(queueDir, id+".json"), maxFile)
	if err != nil {
		return false, ignoreGone(err)
	}
	var intent Intent
	if err := json.Unmarshal(raw, &intent); err != nil || intent.EventID != id {
		return false, errors.New("its file in the intent queue cannot be read")
	}
	switch {
	case intent.Status == intentPending && intent.Task == "":
		return m.startWork(ctx, intent)
	case intent.Status == intentAccepted && intent.Task != "": // without a task, another program works on it
		return m.followWork(intent)
	}
	return false, nil
}

func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// startWork starts the task for an intent if its sender is trusted. Other senders may write to the
// inbox, but must not make the box act.
func (m *Mailbox) startWork(ctx context.Context, intent Intent) (open bool, err error) {
	raw, _, err := m.cfg.Files.ReadFile(m.path(inboxDir, intent.EventID+".json"), maxFile)
	if err != nil {
		return false, ignoreGone(err)
	}
	_, event, message, err := parseRecord(raw) // verify the event again: other programs can change the files
	if err != nil {
		return false, err
	}
	if event.ID != intent.EventID || !nip01.IsIntent(message.Kind) || !m.cfg.Policy().trusts(message.PubKey) {
		return false, nil
	}
	if err := m.genuine(event, message); err != nil {
		return false, err
	}
	intent.Notice.Kind, intent.Sender = message.Kind, message.PubKey
	task, err := m.cfg.Work.Start(ctx, intent.Notice, nip01.EventText(message))
	switch {
	case errors.Is(err, ErrLater) || err != nil && ctx.Err() != nil:
		return true, nil
	case err != nil:
		intent.Status, intent.Reason = intentFailed, err.Error()
		return false, m.mark(intent)
	case task == "":
		return false, nil
	}
	intent.Status, intent.Task = intentAccepted, task
	return true, m.mark(intent)
}

func (m *Mailbox) followWork(intent Intent) (open bool, err error) {
	switch m.cfg.Work.State(intent.Task) {
	case TaskRuns:
		return true, nil
	case TaskDone:
		intent.Status = intentDone
	case TaskFailed:
		intent.Status, intent.Reason = intentFailed, "the task has failed"
	}
	err = m.mark(intent)
	return err != nil, err // after an error, the status is written again later
}

func (m *Mailbox) mark(intent Intent) error {
	raw, err := json.Marshal(intent)
	if err != nil {
		return err
	}
	m.files.Lock() // pruneInbox removes such files
	defer m.files.Unlock()
	return m.cfg.Files.WriteFile(m.path(queueDir, intent.EventID+".json"), raw, fileMode)
}
