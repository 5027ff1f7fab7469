package main

import (
	"context"
	"fmt"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/tasks"
	"github.com/dreamlab-ai/agentinit/mesh/mailbox"
	"github.com/dreamlab-ai/agentinit/schema"
)

// intentTasks starts the templates that the manifest names for intents. It implements mailbox.Work.
type intentTasks struct {
	b         *box
	templates map[int]string // by kind
}

// intentWork returns nil if no template has intents.
func (b *box) intentWork(m *schema.Manifest) mailbox.Work {
	w := intentTasks{b: b, templates: map[int]string{}}
	for name, t := range m.Templates {
		for _, kind := range t.Intents {
			w.templates[int(kind)] = name
		}
	}
	if len(w.templates) == 0 || b.tasks == nil {
		return nil
	}
	return w
}

// Start implements mailbox.Work. The tasks remember the event's id. A program may set the marker of an intent
// back to pending at any time, and a box may be off for days after it has started the task.
func (w intentTasks) Start(ctx context.Context, n mailbox.Notice, message []byte) (string, error) {
	name := w.templates[n.Kind]
	if name == "" {
		return "", nil
	}
	ctx = adapters.WithMeta(ctx, adapters.Meta{Actor: w.b.boxName(), IdempotencyKey: "nostr:" + n.EventID})
	task, err := w.b.tasks.Start(ctx, tasks.Request{Agent: name, Task: string(message), Once: true})
	if err != nil && adapters.AsError(err).Retryable {
		err = fmt.Errorf("%w: %w", mailbox.ErrLater, err)
	}
	return task.ID, err
}

func (w intentTasks) State(task string) mailbox.TaskState {
	record, err := w.b.tasks.Get(task)
	switch {
	case err == nil && record.Status == tasks.Running:
		return mailbox.TaskRuns
	case err == nil && record.Status == tasks.Completed:
		return mailbox.TaskDone
	}
	return mailbox.TaskFailed
}
