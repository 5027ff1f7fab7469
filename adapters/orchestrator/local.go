package orchestrator

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
)

const (
	defaultRunning = 64
	keepFor        = time.Hour               // after an agent's end
	keepMost       = 1000                    // ended agents
	keepBytes      = 64 << 20                // of ended agents' events; above, output of the oldest goes
	keepShown      = 16 << 20                // of ended agents in a list, as JSON; above, the oldest are forgotten
	maxTimeout     = 10 * 365 * 24 * 60 * 60 // the longest that a template can have
	disconnectTerm = 2 * time.Second         // between TERM and KILL at Disconnect
)

// LocalConfig of a local process manager.
type LocalConfig struct {
	Spawner Spawner
	// Roots are the directories in or below which agents may run: $WORKSPACE, the default, then
	// /projects.
	Roots []string
	// Environ is the environment of the box. Agents get its PATH, HOME, LANG, TERM, WORKSPACE and
	// TZ, and the variables in Granted.
	Environ []string
	// Granted names the variables of providers that the manifest gives to agents.
	Granted []string
	// MaxRunning is how many agents may run at once; 0 means 64.
	MaxRunning int
}

// Local is local-process-manager: agents are children of the box. It is safe
// for concurrent use.
type Local struct {
	cfg LocalConfig
	env map[string]string

	mu        sync.Mutex
	connected bool
	agents    map[string]*agent
	tokens    map[[sha256.Size]byte]string // of running agents, by digest
	last      uint64                       // number of the youngest agent
	running   int                          // starting ones included
	ended     []*agent                     // in the order of their ends
	held      int                          // bytes of the events of ended
	shown     int                          // bytes of ended in a list, as JSON
}

var _ adapters.Orchestrator = (*Local)(nil)

// NewLocal makes the manager. It performs no I/O.
func NewLocal(cfg LocalConfig) (*Local, error) {
	if len(cfg.Roots) == 0 {
		return nil, adapters.Missing("adapters.orchestrator", "agents need a workspace to run in")
	}
	env, err := baseEnvironment(cfg.Environ, cfg.Granted)
	if err != nil {
		return nil, err
	}
	cfg.MaxRunning = cmp.Or(cfg.MaxRunning, defaultRunning)
	return &Local{cfg: cfg, env: env, agents: map[string]*agent{}, tokens: map[[sha256.Size]byte]string{}}, nil
}

// The descriptive methods of adapters.Adapter.

func (l *Local) Slot() adapters.Slot     { return adapters.SlotOrchestrator }
func (l *Local) Impl() string            { return "local-process-manager" }
func (l *Local) Class() adapters.Class   { return adapters.ClassLocal }
func (l *Local) Enabled() bool           { return true }
func (l *Local) ContractVersion() string { return contractVersion() }
func (l *Local) Capabilities() []string  { return []string{adapters.CapInput} }

func contractVersion() string {
	c, _ := adapters.ContractOf(adapters.SlotOrchestrator)
	return c.Version
}

// Connect lets agents be started.
func (l *Local) Connect(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return adapters.AsError(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.connected = true
	return nil
}

// Health is healthy while connected.
func (l *Local) Health(context.Context) adapters.Health {
	if err := l.check(); err != nil {
		return adapters.Unhealthy(err)
	}
	return adapters.Healthy()
}

// Disconnect ends all agents and returns when they have ended, or when ctx ends.
func (l *Local) Disconnect(ctx context.Context) error {
	l.mu.Lock()
	l.connected = false
	left := slices.Collect(maps.Values(l.agents))
	l.mu.Unlock()
	var wg sync.WaitGroup
	errs := make(chan error, len(left))
	for _, a := range left {
		wg.Go(func() { errs <- l.wind(ctx, a) })
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// wind ends an agent, even if its start has not returned yet.
func (l *Local) wind(ctx context.Context, a *agent) error {
	select {
	case <-a.settled:
	case <-ctx.Done():
		return adapters.AsError(ctx.Err()) // start kills it, because the adapter is not connected
	}
	select {
	case <-a.done:
		return nil
	default:
	}
	return a.terminate(ctx, disconnectTerm)
}

func (l *Local) check() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.connected {
		return adapters.Closed(adapters.SlotOrchestrator)
	}
	return nil
}

func (l *Local) enter(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return adapters.AsError(err)
	}
	return l.check()
}

// SpawnAgent implements adapters.Orchestrator.
func (l *Local) SpawnAgent(ctx context.Context, spec adapters.AgentSpec) (adapters.Agent, error) {
	if err := l.enter(ctx); err != nil {
		return adapters.Agent{}, err
	}
	if spec.TimeoutS > maxTimeout {
		return adapters.Agent{}, adapters.OverLimit("timeout_s", maxTimeout)
	}
	a, err := l.reserve(spec)
	if err != nil {
		return adapters.Agent{}, err
	}
	// Reading the directory and the exec itself can hang on a dead file system. The caller's
	// deadline must hold nevertheless.
	result := make(chan error, 1)
	go func() { result <- l.start(ctx, a, spec) }()
	select {
	case err := <-result:
		if err != nil {
			return adapters.Agent{}, err
		}
		return a.snapshot(), nil
	case <-ctx.Done():
		return adapters.Agent{}, adapters.AsError(ctx.Err())
	}
}

// reserve takes one of the places for running agents.
func (l *Local) reserve(spec adapters.AgentSpec) (*agent, error) {
	a := newAgent(spec)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.running >= l.cfg.MaxRunning {
		return nil, adapters.Errorf(adapters.CodeRateLimited, "%d agents are running already", l.running).
			With("limit", l.cfg.MaxRunning).WithRetryAfter(time.Second)
	}
	l.running++
	l.last++
	a.number = l.last
	l.agents[a.id] = a
	l.tokens[digest(a.token)] = a.id // good from the agent's first instruction
	return a, nil
}

func (l *Local) start(ctx context.Context, a *agent, spec adapters.AgentSpec) error {
	dir, err := l.directory(spec.Cwd)
	if err != nil {
		l.abandon(a)
		return err
	}
	p, err := l.cfg.Spawner.Spawn(ctx, Command{
		Agent: a.id,
		Path:  spec.Command, Args: append([]string{spec.Command}, spec.Args...),
		Env: environment(l.env, spec.Env, a.id, a.token), Dir: dir,
		StdinPipe: spec.Stdin != "" || spec.StdinOpen, Limits: spec.Limits, Template: spec.Template,
		Output: a.printed, Ended: func(e Ending) { l.over(a, e) },
	})
	if err != nil {
		l.abandon(a)
		return adapters.Errorf(adapters.CodeSpawn, "%w", err).With("reason", err.Error())
	}
	a.started(p, spec)
	// If the caller has ended, or Disconnect has run, the agent would run without anyone knowing.
	// So it is not started.
	if err := l.enter(ctx); err != nil {
		a.kill()
		return err
	}
	return nil
}

// abandon gives up an agent that could not be started.
func (l *Local) abandon(a *agent) {
	l.mu.Lock()
	l.running--
	delete(l.agents, a.id)
	delete(l.tokens, digest(a.token))
	l.mu.Unlock()
	close(a.settled)
	close(a.done)
}

// over is the end of a started agent.
func (l *Local) over(a *agent, e Ending) {
	a.ended(e)
	a.shown = len(mustJSON(a.snapshot()))
	l.mu.Lock()
	l.running--
	delete(l.tokens, digest(a.token))
	a.gone = time.Now()
	if l.ended = append(l.ended, a); len(l.ended) == 1 {
		time.AfterFunc(keepFor, l.expire)
	}
	l.held += a.events.size()
	l.shown += a.shown
	for i := 0; l.held > keepBytes && i < len(l.ended); i++ {
		l.held -= l.ended[i].events.shrink()
	}
	for len(l.ended) > keepMost || l.shown > keepShown {
		l.forget()
	}
	l.mu.Unlock()
	close(a.done)
}

// expire forgets the agents that ended keepFor ago. There is one timer for all: a timer of its own would
// keep each agent in memory that is forgotten earlier, because of keepMost.
func (l *Local) expire() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.ended) > 0 {
		if left := keepFor - time.Since(l.ended[0].gone); left > 0 {
			time.AfterFunc(left, l.expire)
			return
		}
		l.forget()
	}
}

// forget drops the oldest ended agent. The caller holds mu.
func (l *Local) forget() {
	a := l.ended[0]
	l.ended = slices.Delete(l.ended, 0, 1)
	l.held -= a.events.size()
	l.shown -= a.shown
	delete(l.agents, a.id)
}

// directory returns where an agent runs: below one of the roots after links are resolved; without a
// wish, the first root.
func (l *Local) directory(cwd string) (string, error) {
	dir := cwd
	if !filepath.IsAbs(dir) {
		dir = filepath.Join(l.cfg.Roots[0], dir)
	}
	resolved, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return "", adapters.Errorf(adapters.CodeSpawn, "cwd: %w", err).With("reason", "cwd: "+err.Error(), "field", "cwd")
	}
	for _, root := range l.cfg.Roots {
		// A missing root contains nothing.
		if real, err := filepath.EvalSymlinks(root); err == nil && below(real, resolved) {
			return resolved, nil
		}
	}
	return "", adapters.Invalid("cwd", "is not in %s", strings.Join(l.cfg.Roots, " or "))
}

func below(root, path string) bool {
	rel, err := filepath.Rel(root, path)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, "../")
}

// find returns a started agent.
func (l *Local) find(ctx context.Context, id string) (*agent, error) {
	if err := l.enter(ctx); err != nil {
		return nil, err
	}
	l.mu.Lock()
	a := l.agents[id]
	l.mu.Unlock()
	if a == nil || !a.visible() {
		return nil, adapters.Errorf(adapters.CodeNotFound, "no agent has the id %q", id).With("resource", "agent", "id", id)
	}
	return a, nil
}

// visible tells whether the agent was started.
func (a *agent) visible() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.proc != nil
}

func (a *agent) kill() { a.end(0) }

// StreamEvents implements adapters.Orchestrator.
func (l *Local) StreamEvents(ctx context.Context, agentID string, from uint64) (adapters.AgentStream, error) {
	a, err := l.find(ctx, agentID)
	if err != nil {
		return nil, err
	}
	return newLocalStream(ctx, a.events, from), nil
}

// ListAgents implements adapters.Orchestrator, oldest first.
func (l *Local) ListAgents(ctx context.Context, filter adapters.AgentFilter) ([]adapters.Agent, error) {
	if err := l.enter(ctx); err != nil {
		return nil, err
	}
	l.mu.Lock()
	all := slices.Collect(maps.Values(l.agents))
	l.mu.Unlock()
	slices.SortFunc(all, func(a, b *agent) int { return cmp.Compare(a.number, b.number) })
	list := make([]adapters.Agent, 0, len(all))
	for _, a := range all {
		if v := a.snapshot(); v.Status != "" && matches(filter, v) {
			list = append(list, v)
		}
	}
	return list, nil
}

func matches(f adapters.AgentFilter, a adapters.Agent) bool {
	if f.Status != "" && f.Status != a.Status {
		return false
	}
	for k, v := range f.Labels {
		if have, ok := a.Labels[k]; !ok || have != v {
			return false
		}
	}
	return true
}

// TerminateAgent implements adapters.Orchestrator.
func (l *Local) TerminateAgent(ctx context.Context, agentID string, grace time.Duration) (adapters.Agent, error) {
	a, err := l.find(ctx, agentID)
	if err != nil {
		return adapters.Agent{}, err
	}
	if grace < 0 {
		grace = adapters.DefaultGrace
	}
	select {
	case <-a.done:
		return a.snapshot(), nil
	default:
	}
	if err := a.terminate(ctx, grace); err != nil {
		return adapters.Agent{}, err
	}
	return a.snapshot(), nil
}

// GetAgent implements adapters.Orchestrator.
func (l *Local) GetAgent(ctx context.Context, agentID string) (adapters.Agent, error) {
	a, err := l.find(ctx, agentID)
	if err != nil {
		return adapters.Agent{}, err
	}
	return a.snapshot(), nil
}

// SendInput implements adapters.Orchestrator. For an agent that has ended, or whose standard input
// is not open, it returns CONFLICT.
func (l *Local) SendInput(ctx context.Context, agentID string, data []byte, eof bool) error {
	a, err := l.find(ctx, agentID)
	if err != nil {
		return err
	}
	a.mu.Lock()
	in, status := a.in, a.view.Status
	a.mu.Unlock()
	switch {
	case status != adapters.AgentRunning:
		return inputClosed("the agent has ended")
	case in == nil:
		return inputClosed("the agent was started without standard input")
	}
	return in.put(ctx, data, eof)
}

// AgentByToken returns the running agent that has this token.
func (l *Local) AgentByToken(token string) (agentID string, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	// The key is a digest, so the duration of a failed lookup says nothing about the tokens.
	agentID, ok = l.tokens[digest(token)]
	return agentID, ok
}

func digest(token string) [sha256.Size]byte { return sha256.Sum256([]byte(token)) }

func newToken() string {
	var b [32]byte
	// crypto/rand.Read never fails: it ends the process instead.
	_, _ = rand.Read(b[:])
	return hex.EncodeToString(b[:])
}
