package rest

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/google/renameio/v2"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// Bounds of tasks.
const (
	maxTaskText  = 256 << 10 // bytes
	keptTasks    = 1000      // records; the oldest that have ended go first
	maxTaskKeys  = 10000     // idempotency keys remembered
	keySweep     = time.Minute
	watchRetry   = time.Second
	settleLimit  = 5 * time.Second // for the record after the agent's end
	stopGrace    = 10 * time.Second
	recordFile   = "task.json"
	logFile      = "task.log"
	taskDirMode  = 0o750
	taskFileMode = 0o640
)

// The values of a task's status.
const (
	TaskRunning   = "running"
	TaskCompleted = "completed" // exit 0
	TaskFailed    = "failed"
	TaskStopped   = "stopped" // when asked for
)

// Templates says what to spawn for a task; NOT_FOUND for an unknown name.
type Templates interface {
	Spec(name, task string) (adapters.AgentSpec, error)
}

// TasksConfig of a Tasks; all are required but Report.
type TasksConfig struct {
	// Dir holds a directory for each task: its record and its log.
	Dir          string
	Templates    Templates
	Orchestrator adapters.Orchestrator
	// Report is told of a record or log that cannot be written.
	Report func(task string, err error)
}

// Tasks runs templates through the orchestrator slot and remembers how they
// ended. It may be used from any goroutine.
type Tasks struct {
	cfg     TasksConfig
	cursors *adapters.Cursors
	life    context.Context
	stop    context.CancelFunc
	running sync.WaitGroup

	mu    sync.Mutex
	tasks map[string]*task
	keys  map[string]taskKey
	swept time.Time // when the expired keys were forgotten last
	// starting counts the tasks that have a directory and no record in tasks yet.
	starting int
}

// taskKey is what an idempotency key was used for.
type taskKey struct {
	request TaskRequest
	id      string // "" while the first call is running
	at      time.Time
}

// expired tells whether the key may be used for something else. That of a call that
// is running may not, however long it takes.
func (k taskKey) expired(now time.Time) bool {
	return k.id != "" && now.Sub(k.at) > adapters.IdempotencyLife
}

// taskRecord is what of a task survives a restart.
type taskRecord struct {
	TaskID    string `json:"taskId"`
	Agent     string `json:"agent"`
	Task      string `json:"task"`
	Provider  string `json:"provider,omitempty"`
	AgentID   string `json:"agentId"`
	Status    string `json:"status"`
	StartTime int64  `json:"startTime"` // Unix milliseconds
	ExitTime  int64  `json:"exitTime,omitempty"`
	ExitCode  *int   `json:"exitCode,omitempty"`
	Reason    string `json:"reason,omitempty"`
	// Key is the hash of the caller and the idempotency key that asked for it.
	Key string `json:"key,omitempty"`
}

// task is one record with what its followers wait for.
type task struct {
	record  taskRecord
	stopped bool          // somebody asked for its end
	news    chan struct{} // closed when there is more in the log, or it has ended
	ended   chan struct{}
}

// NewTasks reads the records that are there. What ran when the box ended has
// failed: an agent does not outlive its box.
func NewTasks(cfg TasksConfig) (*Tasks, error) {
	t := &Tasks{cfg: cfg, cursors: adapters.NewCursors(nil), tasks: make(map[string]*task), keys: make(map[string]taskKey)}
	t.life, t.stop = context.WithCancel(context.Background())
	if err := os.MkdirAll(cfg.Dir, taskDirMode); err != nil {
		return nil, fmt.Errorf("cannot keep tasks: %w", err)
	}
	if err := t.loadAll(); err != nil {
		return nil, err
	}
	t.prune()
	return t, nil
}

func (t *Tasks) loadAll() error {
	entries, err := os.ReadDir(t.cfg.Dir)
	if err != nil {
		return fmt.Errorf("cannot read the tasks: %w", err)
	}
	for _, e := range entries {
		if err := t.load(e.Name()); err != nil {
			t.tell(e.Name(), err)
		}
	}
	return nil
}

// Replace lets swap put another directory in place of the records, and reads
// them anew. While a task runs, or is being started, it is CONFLICT.
func (t *Tasks) Replace(swap func() error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, one := range t.tasks {
		if one.record.Status == TaskRunning {
			return adapters.Errorf(adapters.CodeConflict, "tasks are running")
		}
	}
	if t.starting > 0 {
		return adapters.Errorf(adapters.CodeConflict, "tasks are being started")
	}
	if err := swap(); err != nil {
		return err
	}
	t.tasks, t.keys = make(map[string]*task), make(map[string]taskKey)
	return t.loadAll()
}

func (t *Tasks) tell(id string, err error) {
	if t.cfg.Report != nil {
		t.cfg.Report(id, err)
	}
}

func (t *Tasks) load(id string) error {
	raw, err := os.ReadFile(filepath.Join(t.cfg.Dir, id, recordFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil // not a task of ours, or one that never began
	}
	if err != nil {
		return err
	}
	var r taskRecord
	if err := json.Unmarshal(raw, &r); err != nil {
		return fmt.Errorf("the record of task %s cannot be read: %w", cut(id, 64), err)
	}
	if r.TaskID != id {
		return fmt.Errorf("the record of task %s is that of %q", cut(id, 64), cut(r.TaskID, 64))
	}
	one := &task{record: r, news: make(chan struct{}), ended: make(chan struct{})}
	close(one.ended)
	t.tasks[id] = one
	if r.Key != "" {
		t.keys[r.Key] = taskKey{request: TaskRequest{Agent: r.Agent, Task: r.Task, Provider: r.Provider}, id: id, at: time.UnixMilli(r.StartTime)}
	}
	if r.Status != TaskRunning {
		return nil
	}
	one.record.Status, one.record.Reason = TaskFailed, "the box ended while it ran"
	one.record.ExitTime = time.Now().UnixMilli()
	return t.save(one.record)
}

func (t *Tasks) save(r taskRecord) error {
	raw, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return renameio.WriteFile(filepath.Join(t.cfg.Dir, r.TaskID, recordFile), append(raw, '\n'), taskFileMode)
}

// Close ends the watching of tasks, not the tasks.
func (t *Tasks) Close() {
	t.stop()
	t.running.Wait()
}

// Running is how many tasks run.
func (t *Tasks) Running() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := 0
	for _, one := range t.tasks {
		if one.record.Status == TaskRunning {
			n++
		}
	}
	return n
}

// TaskRequest asks for a task.
type TaskRequest struct {
	Agent    string `json:"agent"` // name of a template
	Task     string `json:"task"`  // what to do
	Provider string `json:"provider,omitempty"`
}

// TaskAccepted is the answer to it.
type TaskAccepted struct {
	TaskID  string `json:"taskId"`
	Status  string `json:"status"` // accepted
	Message string `json:"message"`
	TaskDir string `json:"taskDir"`
	LogFile string `json:"logFile"`
}

func (r TaskRequest) check() error {
	if err := adapters.CheckID("agent", r.Agent); err != nil {
		return err
	}
	if err := adapters.CheckName("task", r.Task, maxTaskText); err != nil {
		return err
	}
	if r.Provider == "" {
		return nil
	}
	return adapters.CheckID("provider", r.Provider)
}

// Start spawns the template's agent. With an idempotency key in ctx the same
// request answers the first task again; replayed tells.
func (t *Tasks) Start(ctx context.Context, req TaskRequest) (accepted TaskAccepted, replayed bool, err error) {
	if err := req.check(); err != nil {
		return TaskAccepted{}, false, err
	}
	meta := adapters.MetaFrom(ctx)
	if err := adapters.CheckIdempotencyKey(meta.IdempotencyKey); err != nil {
		return TaskAccepted{}, false, err
	}
	key := ""
	if meta.IdempotencyKey != "" {
		sum := sha256.Sum256([]byte(meta.Actor + "\x00" + meta.IdempotencyKey))
		key = hex.EncodeToString(sum[:])
		id, err := t.begin(key, req)
		if err != nil || id != "" {
			return t.accepted(id), err == nil, err
		}
	}
	// The slot's own memory of keys would see another request each time.
	meta.IdempotencyKey = ""
	id, err := t.spawn(adapters.WithMeta(ctx, meta), req, key)
	if key != "" {
		t.finish(key, id)
	}
	if err != nil {
		return TaskAccepted{}, false, err
	}
	return t.accepted(id), false, nil
}

func (t *Tasks) accepted(id string) TaskAccepted {
	dir := filepath.Join(t.cfg.Dir, id)
	return TaskAccepted{TaskID: id, Status: "accepted", Message: "the task runs", TaskDir: dir, LogFile: filepath.Join(dir, logFile)}
}

// begin returns the task a key made already, or "" and the key is taken.
func (t *Tasks) begin(key string, req TaskRequest) (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	if now.Sub(t.swept) >= keySweep {
		// Not at each start: there may be maxTaskKeys of them.
		maps.DeleteFunc(t.keys, func(_ string, k taskKey) bool { return k.expired(now) })
		t.swept = now
	}
	old, known := t.keys[key]
	known = known && !old.expired(now)
	switch {
	case known && old.request != req:
		return "", adapters.Errorf(adapters.CodeIdempotencyMismatch, "the idempotency key was used for another task").With("reason", "key reused")
	case known && old.id == "":
		return "", adapters.Errorf(adapters.CodeConflict, "the first call with this idempotency key is still running")
	case known:
		return old.id, nil
	case len(t.keys) >= maxTaskKeys:
		return "", adapters.Errorf(adapters.CodeRateLimited, "too many idempotency keys are remembered")
	}
	t.keys[key] = taskKey{request: req, at: now}
	return "", nil
}

func (t *Tasks) finish(key, id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if id == "" {
		delete(t.keys, key)
		return
	}
	k := t.keys[key]
	k.id = id
	t.keys[key] = k
}

// spawn makes the task's directory and record, starts its agent and watches it.
// The record comes first: a box that ends in between has a task that failed, and
// not an agent's work that a repeated request would do again.
func (t *Tasks) spawn(ctx context.Context, req TaskRequest, key string) (id string, err error) {
	spec, err := t.cfg.Templates.Spec(req.Agent, req.Task)
	if err != nil {
		return "", err
	}
	t.mu.Lock()
	t.starting++
	t.mu.Unlock()
	defer func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.starting--
	}()
	id = adapters.NewID()
	dir := filepath.Join(t.cfg.Dir, id)
	if err := os.Mkdir(dir, taskDirMode); err != nil {
		return "", adapters.Unavailable(err, "cannot make the task's directory")
	}
	t.dress(&spec, id, dir, req)
	r := taskRecord{
		TaskID: id, Agent: req.Agent, Task: req.Task, Provider: req.Provider, Status: TaskRunning, StartTime: time.Now().UnixMilli(),
		Key: key,
	}
	if err := t.save(r); err != nil {
		return "", errors.Join(adapters.Unavailable(err, "cannot write the task's record"), os.RemoveAll(dir))
	}
	agent, err := t.cfg.Orchestrator.SpawnAgent(ctx, spec)
	if err != nil {
		return "", errors.Join(err, os.RemoveAll(dir))
	}
	r.AgentID = agent.AgentID
	if err := t.save(r); err != nil {
		// It runs all the same; the record lacks the agent's id, which nobody needs
		// after a restart.
		t.tell(id, err)
	}
	one := &task{record: r, news: make(chan struct{}), ended: make(chan struct{})}
	t.mu.Lock()
	t.tasks[id] = one
	t.mu.Unlock()
	t.prune()
	t.running.Go(func() { t.watch(one) })
	return id, nil
}

// dress tells the agent which task it is.
func (t *Tasks) dress(spec *adapters.AgentSpec, id, dir string, req TaskRequest) {
	if spec.Env == nil {
		spec.Env = make(map[string]string)
	}
	if spec.Labels == nil {
		spec.Labels = make(map[string]string)
	}
	spec.Labels["task"] = id
	spec.Env["AGENTBOX_TASK_ID"], spec.Env["AGENTBOX_TASK_DIR"] = id, dir
	if req.Provider != "" {
		spec.Env["AGENTBOX_PROVIDER"], spec.Labels["provider"] = req.Provider, req.Provider
	}
}

// prune forgets the oldest tasks that have ended, with their files.
func (t *Tasks) prune() {
	t.mu.Lock()
	var old []string
	for _, id := range t.sorted() {
		if len(t.tasks)-len(old) <= keptTasks {
			break
		}
		if t.tasks[id].record.Status != TaskRunning {
			old = append(old, id)
		}
	}
	for _, id := range old {
		delete(t.tasks, id)
	}
	t.mu.Unlock()
	for _, id := range old {
		if err := os.RemoveAll(filepath.Join(t.cfg.Dir, id)); err != nil {
			t.tell(id, err)
		}
	}
}

// sorted are the ids, oldest first: they sort by time of making.
func (t *Tasks) sorted() []string {
	ids := make([]string, 0, len(t.tasks))
	for id := range t.tasks {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// get returns a copy of the record and what to wait for.
func (t *Tasks) get(id string) (r taskRecord, news <-chan struct{}, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	one, ok := t.tasks[id]
	if !ok {
		return taskRecord{}, nil, adapters.NotFound("task", cut(id, 128))
	}
	return one.record, one.news, nil
}

// page returns records, newest first, and the next cursor.
func (t *Tasks) page(opt adapters.PageOpt) (adapters.Page[taskRecord], error) {
	position, err := t.cursors.Open("tasks", opt.Cursor, 1)
	if err != nil {
		return adapters.Page[taskRecord]{}, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	ids := t.sorted()
	slices.Reverse(ids)
	if position != nil {
		at, _ := slices.BinarySearchFunc(ids, position[0], func(id, before string) int { return -cmp.Compare(id, before) })
		if at < len(ids) && ids[at] == position[0] {
			at++
		}
		ids = ids[at:]
	}
	var out adapters.Page[taskRecord]
	for i, id := range ids {
		if i == opt.Rows() {
			out.NextCursor = t.cursors.Seal("tasks", ids[i-1])
			break
		}
		out.Items = append(out.Items, t.tasks[id].record)
	}
	return out, nil
}

// Stop ends a running task: SIGTERM, 10 s, SIGKILL. One that has ended is
// CONFLICT with its currentStatus.
func (t *Tasks) Stop(ctx context.Context, id string) error {
	t.mu.Lock()
	one, ok := t.tasks[id]
	if !ok {
		t.mu.Unlock()
		return adapters.NotFound("task", cut(id, 128))
	}
	if one.record.Status != TaskRunning {
		status := one.record.Status
		t.mu.Unlock()
		e := adapters.Errorf(adapters.CodeConflict, "the task is %s", status).With("currentStatus", status)
		e.Retryable = false
		return e
	}
	one.stopped = true
	t.mu.Unlock()
	if _, err := t.cfg.Orchestrator.TerminateAgent(ctx, one.record.AgentID, stopGrace); err != nil && !errors.Is(err, adapters.ErrNotFound) {
		return err
	}
	select {
	case <-one.ended:
	case <-time.After(settleLimit):
		return adapters.Errorf(adapters.CodeTimeout, "the agent is gone, its record is not written yet")
	case <-ctx.Done():
		return adapters.AsError(ctx.Err())
	}
	return nil
}
