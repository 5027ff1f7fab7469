package orchestrator

import (
	"encoding/json"
	"slices"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/dreamlab-ai/agentinit/adapters"
)

const (
	ringBytes = 1 << 20 // of one agent's events
	entryCost = 128     // what an event takes beside its text
)

// entry is one event as the ring holds it. Output is turned into JSON only for
// a reader, so that an agent without readers costs one copy.
type entry struct {
	at   time.Time
	kind string
	data []byte // for output: the bytes that were read; otherwise the payload
}

func (e *entry) size() int { return len(e.data) + entryCost }

// output tells whether data is output of the agent.
func (e *entry) output() bool {
	return e.kind == adapters.AgentEventStdout || e.kind == adapters.AgentEventStderr
}

func (e *entry) payload() json.RawMessage {
	if !e.output() {
		return e.data
	}
	var p any = struct {
		Data string `json:"data"`
	}{string(e.data)}
	if !isText(e.data) {
		p = struct {
			Data     []byte `json:"data"`
			Encoding string `json:"encoding"`
		}{e.data, "base64"}
	}
	return mustJSON(p)
}

// isText is what JSON can carry as it is and every reader can take.
func isText(b []byte) bool {
	return !slices.Contains(b, 0) && utf8.Valid(b)
}

// mustJSON encodes types of this package, which never fails.
func mustJSON(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

// ring holds an agent's newest events. Each reader has its own position, and append waits for no
// reader.
type ring struct {
	agentID string

	mu      sync.Mutex
	first   uint64 // seq of entries[0]
	entries []entry
	bytes   int
	closed  bool          // the ring has the exit event; no event follows
	news    chan struct{} // closed at the next append; nil while no reader waits
}

func newRing(agentID string) *ring { return &ring{agentID: agentID, first: 1} }

// append adds an event. After an exit event it does nothing.
func (r *ring) append(kind string, data []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	e := entry{at: time.Now(), kind: kind, data: data}
	r.entries = append(r.entries, e)
	r.bytes += e.size()
	for r.bytes > ringBytes && len(r.entries) > 1 {
		r.drop()
	}
	r.closed = kind == adapters.AgentEventExit
	if r.news != nil {
		close(r.news)
		r.news = nil
	}
}

func (r *ring) drop() {
	r.bytes -= r.entries[0].size()
	r.entries[0] = entry{}
	r.entries = r.entries[1:]
	r.first++
}

// shrink forgets all but the last event and returns how many bytes that freed.
func (r *ring) shrink() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.bytes
	for len(r.entries) > 1 {
		r.drop()
	}
	r.entries = append([]entry(nil), r.entries...)
	return before - r.bytes
}

func (r *ring) size() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.bytes
}

// next returns the event at a reader's position and advances the position. If there is none yet, ok
// is false; then news is closed at the next append, or is nil if the exit event was read. If the
// event at the position was overwritten, next returns a lagged event.
func (r *ring) next(place *uint64) (e adapters.AgentEvent, news <-chan struct{}, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch at := *place; {
	case at == 0:
		*place = r.first
	case at < r.first:
		*place = r.first
		return r.lagged(r.first - at), nil, true
	}
	i := *place - r.first
	if i < uint64(len(r.entries)) {
		e := &r.entries[i]
		*place++
		return adapters.AgentEvent{
			Seq: r.first + i, TS: adapters.At(e.at), AgentID: r.agentID, Kind: e.kind, Payload: e.payload(),
		}, nil, true
	}
	if r.closed {
		return e, nil, false
	}
	if r.news == nil {
		r.news = make(chan struct{})
	}
	return e, r.news, false
}

// lagged has the seq of the last lost event, so that a reader that resumes after it misses no
// further event.
func (r *ring) lagged(dropped uint64) adapters.AgentEvent {
	return adapters.AgentEvent{
		Seq: r.first - 1, TS: adapters.At(time.Now()), AgentID: r.agentID, Kind: adapters.AgentEventLagged,
		Payload: mustJSON(laggedPayload{Dropped: dropped, ResumeFrom: r.first}),
	}
}

type laggedPayload struct {
	Dropped    uint64 `json:"dropped"`
	ResumeFrom uint64 `json:"resume_from"`
}
