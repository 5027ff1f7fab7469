// Package tasks keeps the tasks of a box. A task is one run of a template of the manifest through
// the orchestrator slot, with a record and a log in its own directory.
//
// It must never start a task twice for one idempotency key, keep records or logs without a limit,
// or report an agent as running after its box has ended. It must never trust what is in a task's
// directory: the agent may have replaced the record and the log.
package tasks

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

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/internal/safeopen"
)

// Bounds of tasks.
const (
	maxText     = 256 << 10 // bytes
	maxRecord   = 2 << 20   // bytes; JSON can make six bytes of each byte of the text
	maxKept     = 1000      // records; the oldest ended ones are removed first
	maxHeld     = 32 << 20  // bytes of the texts of all records, in the same way
	maxEntries  = 100_000   // of the directory; prune removes what is above maxKept, programs can add more
	maxLoaded   = 64 << 20  // bytes of all records that are read at the start
	maxPage     = 4 << 20   // bytes of the texts in a page, but a page has one record at least
	maxKeys     = 10000     // idempotency keys remembered
	keySweep    = time.Minute
	watchRetry  = time.Second
	settleLimit = 5 * time.Second // for writing the record after the agent's end
	stopGrace   = 10 * time.Second
	recordFile  = "task.json"
	logFile     = "task.log"
	dirMode     = 0o750
	fileMode    = 0o640
)

// The values of a task's status.
const (
	Running   = "running"
	Completed = "completed" // exit 0
	Failed    = "failed"
	Stopped   = "stopped" // after a request
)

// Templates returns what to start for a task; NOT_FOUND for an unknown name.
type Templates interface {
	Spec(name, task string) (adapters.AgentSpec, error)
}

// Config of a Manager; all fields but Report are required.
type Config struct {
	// Dir holds a directory for each task: its record and its log.
	Dir          string
	Templates    Templates
	Orchestrator adapters.Orchestrator
	// Report is called if a record or log cannot be written.
	Report func(task string, err error)
}

// Manager runs templates through the orchestrator slot and remembers how they ended. Any goroutine
// may use it.
type Manager struct {
	cfg     Config
	cursors *adapters.Cursors
	life    context.Context
	stop    context.CancelFunc
	running sync.WaitGroup

	mu    sync.Mutex
	tasks map[string]*task
	keys  map[string]usedKey
	swept time.Time // when the expired keys were last forgotten
	// starting counts the tasks that have a directory but no record in tasks yet.
	starting int
}

// usedKey is the task for which an idempotency key was used.
type usedKey struct {
	request digest
	id      string // "" while the first call is running
	at      time.Time
}

// expired tells whether the key may be used for another task. The key of a running call never
// expires.
func (k usedKey) expired(now time.Time) bool {
	return k.id != "" && now.Sub(k.at) > adapters.IdempotencyLife
}

// Record is what is kept about a task over a restart.
type Record struct {
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
	// Key is the hash of the caller and of the idempotency key in the request.
	Key string `json:"key,omitempty"`
}

// task is one record with the data for its followers.
type task struct {
	record Record
	stops  int           // requests to end it, without those that the orchestrator has refused
	news   chan struct{} // closed when the log has more lines or the task has ended
	ended  chan struct{}
}

// New reads the existing records. A task that was running when the box ended has failed, because an
// agent does not outlive its box.
func New(cfg Config) (*Manager, error) {
	m := &Manager{cfg: cfg, cursors: adapters.NewCursors(nil), tasks: make(map[string]*task), keys: make(map[string]usedKey)}
	m.life, m.stop = context.WithCancel(context.Background())
	dir, err := safeopen.MakeDirectory(cfg.Dir, dirMode)
	if err != nil {
		return nil, fmt.Errorf("cannot keep tasks: %w", err)
	}
	if err := dir.Close(); err != nil {
		return nil, fmt.Errorf("cannot keep tasks: %w", err)
	}
	if err := m.loadAll(maxLoaded); err != nil {
		return nil, err
	}
	m.prune()
	return m, nil
}

// loadAll reads at most left bytes of records.
func (m *Manager) loadAll(left int) error {
	dir, err := safeopen.OpenDirectory(m.cfg.Dir)
	if err != nil {
		return fmt.Errorf("cannot read the tasks: %w", err)
	}
	defer dir.Close()
	names, err := dir.Names(func(string) bool { return true }, maxEntries)
	if err != nil {
		return fmt.Errorf("cannot read the tasks: %w", err)
	}
	// The newest come first. An agent of agentinit's own user can make records, too.
	for _, name := range slices.Backward(names) {
		raw, err := safeopen.ReadFile(filepath.Join(m.cfg.Dir, name, recordFile), maxRecord)
		switch {
		case errors.Is(err, os.ErrNotExist):
			continue // not a task of this box, or one that was never started
		case err != nil:
			err = fmt.Errorf("the record of task %s cannot be read: %w", adapters.Cut(name, 64), err)
		case len(raw) > left:
			m.tell(name, errors.New("the records of the newer tasks are too large: this one and those of older tasks are not read; remove some of them"))
			return nil
		default:
			if err = m.load(name, raw); m.tasks[name] != nil {
				left -= len(raw)
			}
		}
		if err != nil {
			m.tell(name, err)
		}
	}
	return nil
}

// Replace calls swap, which puts another directory in place of the records, and reads them again.
// While a task is running or being started, Replace returns CONFLICT.
func (m *Manager) Replace(swap func() error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, one := range m.tasks {
		if one.record.Status == Running {
			return adapters.Errorf(adapters.CodeConflict, "tasks are running")
		}
	}
	if m.starting > 0 {
		return adapters.Errorf(adapters.CodeConflict, "tasks are being started")
	}
	if err := swap(); err != nil {
		return err
	}
	m.tasks, m.keys = make(map[string]*task), make(map[string]usedKey)
	return m.loadAll(maxLoaded)
}

func (m *Manager) tell(id string, err error) {
	if m.cfg.Report != nil {
		m.cfg.Report(id, err)
	}
}

func (m *Manager) load(id string, raw []byte) error {
	var r Record
	if err := json.Unmarshal(raw, &r); err != nil {
		return fmt.Errorf("the record of task %s cannot be read: %w", adapters.Cut(id, 64), err)
	}
	if r.TaskID != id {
		return fmt.Errorf("the record of task %s is that of %q", adapters.Cut(id, 64), adapters.Cut(r.TaskID, 64))
	}
	one := &task{record: r, news: make(chan struct{}), ended: make(chan struct{})}
	close(one.ended)
	m.tasks[id] = one
	if r.Key != "" {
		m.keys[r.Key] = usedKey{request: Request{Agent: r.Agent, Task: r.Task, Provider: r.Provider}.digest(), id: id, at: time.UnixMilli(r.StartTime)}
	}
	if r.Status != Running {
		return nil
	}
	one.record.Status, one.record.Reason = Failed, "the box ended while it ran"
	one.record.ExitTime = time.Now().UnixMilli()
	return m.save(one.record)
}

func (m *Manager) save(r Record) error {
	raw, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return safeopen.WriteFile(filepath.Join(m.cfg.Dir, r.TaskID, recordFile), append(raw, '\n'), fileMode)
}

// makeDirectory makes the directory of a task.
func (m *Manager) makeDirectory(id string) error {
	all, err := safeopen.OpenDirectory(m.cfg.Dir)
	if err != nil {
		return err
	}
	defer all.Close()
	return all.Mkdir(id, dirMode)
}

// remove removes the directory of a task, in which its agent may have made a tree of any depth.
func (m *Manager) remove(id string) error { return safeopen.RemoveAll(filepath.Join(m.cfg.Dir, id)) }

// Close stops watching tasks; the tasks go on.
func (m *Manager) Close() {
	m.stop()
	m.running.Wait()
}

// Active are the records of the running tasks, oldest first.
func (m *Manager) Active() []Record {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []Record
	for _, id := range m.sorted() {
		if r := m.tasks[id].record; r.Status == Running {
			out = append(out, r)
		}
	}
	return out
}

// Request is a request to start a task.
type Request struct {
	Agent    string // name of a template
	Task     string // what to do
	Provider string // "" = none named
	// Once makes the idempotency key hold as long as the record of its task is kept.
	Once bool
}

// Started is a running task.
type Started struct {
	ID, Dir, Log string
	// Replayed says that an earlier call with the same idempotency key started it.
	Replayed bool
}

// digest stands for a request in memory: there may be maxKeys of them, each of maxText bytes.
type digest [sha256.Size]byte

// digest is different for different requests: check allows no NUL in Agent and Provider.
func (r Request) digest() digest {
	return sha256.Sum256([]byte(r.Agent + "\x00" + r.Provider + "\x00" + r.Task))
}

func (r Request) check() error {
	if err := adapters.CheckID("agent", r.Agent); err != nil {
		return err
	}
	if err := adapters.CheckName("task", r.Task, maxText); err != nil {
		return err
	}
	if r.Provider == "" {
		return nil
	}
	return adapters.CheckID("provider", r.Provider)
}

// Start starts the template's agent. With an idempotency key in ctx, a repeated request returns the
// first task again.
func (m *Manager) Start(ctx context.Context, req Request) (Started, error) {
	if err := req.check(); err != nil {
		return Started{}, err
	}
	meta := adapters.MetaFrom(ctx)
	if err := adapters.CheckIdempotencyKey(meta.IdempotencyKey); err != nil {
		return Started{}, err
	}
	key := ""
	if meta.IdempotencyKey != "" {
		sum := sha256.Sum256([]byte(meta.Actor + "\x00" + meta.IdempotencyKey))
		key = hex.EncodeToString(sum[:])
		id, err := m.begin(key, req)
		if err != nil {
			return Started{}, err
		}
		if id != "" {
			return m.started(id, true), nil
		}
	}
	// For the slot's own memory of keys, each call would be a different request.
	meta.IdempotencyKey = ""
	id, err := m.spawn(adapters.WithMeta(ctx, meta), req, key)
	if key != "" {
		m.finish(key, id)
	}
	if err != nil {
		return Started{}, err
	}
	return m.started(id, false), nil
}

func (m *Manager) started(id string, replayed bool) Started {
	return Started{ID: id, Dir: filepath.Join(m.cfg.Dir, id), Log: m.logPath(id), Replayed: replayed}
}

func (m *Manager) logPath(id string) string { return filepath.Join(m.cfg.Dir, id, logFile) }

// begin returns the task that the key has already started. If it returns "", the key is now taken.
func (m *Manager) begin(key string, req Request) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	if now.Sub(m.swept) >= keySweep {
		// Not at each start, because there may be maxKeys of them.
		maps.DeleteFunc(m.keys, func(_ string, k usedKey) bool { return k.expired(now) })
		m.swept = now
	}
	if req.Once {
		for id, one := range m.tasks {
			if one.record.Key == key {
				return id, nil
			}
		}
	}
	old, known := m.keys[key]
	known = known && !old.expired(now)
	switch {
	case known && old.request != req.digest():
		return "", adapters.Errorf(adapters.CodeIdempotencyMismatch, "the idempotency key was used for another task").With("reason", "key reused")
	case known && old.id == "":
		return "", adapters.Errorf(adapters.CodeConflict, "the first call with this idempotency key is still running")
	case known:
		return old.id, nil
	case len(m.keys) >= maxKeys:
		return "", adapters.Errorf(adapters.CodeRateLimited, "too many idempotency keys are remembered")
	}
	m.keys[key] = usedKey{request: req.digest(), at: now}
	return "", nil
}

func (m *Manager) finish(key, id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if id == "" {
		delete(m.keys, key)
		return
	}
	k := m.keys[key]
	k.id = id
	m.keys[key] = k
}

// spawn makes the task's directory and record, starts its agent and watches it. The record is
// written first. So if the box ends in between, the task has failed, and a repeated request does
// not start an agent's work a second time.
func (m *Manager) spawn(ctx context.Context, req Request, key string) (id string, err error) {
	spec, err := m.cfg.Templates.Spec(req.Agent, req.Task)
	if err != nil {
		return "", err
	}
	m.mu.Lock()
	m.starting++
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.starting--
	}()
	id = adapters.NewID()
	dir := filepath.Join(m.cfg.Dir, id)
	if err := m.makeDirectory(id); err != nil {
		return "", adapters.Unavailable(err, "cannot make the task's directory")
	}
	m.dress(&spec, id, dir, req)
	r := Record{
		TaskID: id, Agent: req.Agent, Task: req.Task, Provider: req.Provider, Status: Running, StartTime: time.Now().UnixMilli(),
		Key: key,
	}
	if err := m.save(r); err != nil {
		return "", errors.Join(adapters.Unavailable(err, "cannot write the task's record"), m.remove(id))
	}
	agent, err := m.cfg.Orchestrator.SpawnAgent(ctx, spec)
	if err != nil {
		return "", errors.Join(err, m.remove(id))
	}
	r.AgentID = agent.AgentID
	if err := m.save(r); err != nil {
		// The task runs nevertheless. Its record lacks the agent's id, but after a restart that id
		// is useless.
		m.tell(id, err)
	}
	one := &task{record: r, news: make(chan struct{}), ended: make(chan struct{})}
	m.mu.Lock()
	m.tasks[id] = one
	m.mu.Unlock()
	m.prune()
	m.running.Go(func() { m.watch(one) })
	return id, nil
}

// dress adds the id and the directory of the task to the agent's environment and labels.
func (m *Manager) dress(spec *adapters.AgentSpec, id, dir string, req Request) {
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

// prune removes the oldest ended tasks with their files.
func (m *Manager) prune() {
	m.mu.Lock()
	held := 0
	for _, one := range m.tasks {
		held += len(one.record.Task)
	}
	var old []string
	for _, id := range m.sorted() {
		if len(m.tasks)-len(old) <= maxKept && held <= maxHeld {
			break
		}
		if r := m.tasks[id].record; r.Status != Running {
			old = append(old, id)
			held -= len(r.Task)
		}
	}
	for _, id := range old {
		delete(m.tasks, id)
	}
	m.mu.Unlock()
	for _, id := range old {
		if err := m.remove(id); err != nil {
			m.tell(id, err)
		}
	}
}

// sorted are the ids, oldest first: ids sort by their time.
func (m *Manager) sorted() []string {
	return slices.Sorted(maps.Keys(m.tasks))
}

// Get returns the record of a task.
func (m *Manager) Get(id string) (Record, error) {
	r, _, err := m.get(id)
	return r, err
}

// get returns a copy of the record and the channel to wait for.
func (m *Manager) get(id string) (r Record, news <-chan struct{}, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	one, ok := m.tasks[id]
	if !ok {
		return Record{}, nil, adapters.NotFound("task", adapters.Cut(id, 128))
	}
	return one.record, one.news, nil
}

// Page returns records, newest first, and the next cursor.
func (m *Manager) Page(opt adapters.PageOpt) (adapters.Page[Record], error) {
	position, err := m.cursors.Open("tasks", opt.Cursor, 1)
	if err != nil {
		return adapters.Page[Record]{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	ids := m.sorted()
	slices.Reverse(ids)
	if position != nil {
		at, _ := slices.BinarySearchFunc(ids, position[0], func(id, before string) int { return -cmp.Compare(id, before) })
		if at < len(ids) && ids[at] == position[0] {
			at++
		}
		ids = ids[at:]
	}
	var out adapters.Page[Record]
	size := 0
	for i, id := range ids {
		r := m.tasks[id].record
		size += len(r.Agent) + len(r.Task) + len(r.Provider) + len(r.Status) + len(r.Reason)
		if i == opt.Rows() || i > 0 && size > maxPage {
			out.NextCursor = m.cursors.Seal("tasks", ids[i-1])
			break
		}
		out.Items = append(out.Items, r)
	}
	return out, nil
}

// Stop ends a running task: SIGTERM, 10 s, SIGKILL. For an ended task it returns CONFLICT with its
// currentStatus.
func (m *Manager) Stop(ctx context.Context, id string) error {
	m.mu.Lock()
	one, ok := m.tasks[id]
	if !ok {
		m.mu.Unlock()
		return adapters.NotFound("task", adapters.Cut(id, 128))
	}
	if one.record.Status != Running {
		status := one.record.Status
		m.mu.Unlock()
		return adapters.Errorf(adapters.CodeConflict, "the task is %s", status).With("currentStatus", status).Final()
	}
	one.stops++
	agent := one.record.AgentID
	m.mu.Unlock()
	if _, err := m.cfg.Orchestrator.TerminateAgent(ctx, agent, stopGrace); err != nil && !errors.Is(err, adapters.ErrNotFound) {
		if adapters.CodeOf(err) != adapters.CodeTimeout { // at a timeout, the agent has got its signal
			m.mu.Lock()
			one.stops--
			m.mu.Unlock()
		}
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
