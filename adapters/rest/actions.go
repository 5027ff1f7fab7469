package rest

import (
	"cmp"
	"encoding/json"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// Limits for actions.
const (
	keptActions  = 1000
	maxActionRef = 256      // bytes of an agent's or node's name
	maxActionDoc = 16 << 10 // bytes of metadata
)

// actionTypes lists the types of action. The index of a type is its number on the wire.
func actionTypes() []string {
	return []string{"query", "update", "create", "delete", "link", "transform"}
}

// Ref names an agent or a node. It is JSON text: a string or an integer, whichever the client sent,
// because clients compare it with what they sent. "" is null.
type Ref string

// MarshalJSON writes the JSON text of the reference.
func (r Ref) MarshalJSON() ([]byte, error) {
	if r == "" {
		return []byte("null"), nil
	}
	return []byte(r), nil
}

// UnmarshalJSON takes a string or an integer.
func (r *Ref) UnmarshalJSON(b []byte) error {
	switch {
	case string(b) == "null":
		*r = ""
		return nil
	case len(b) > maxActionRef:
		return adapters.Invalid("source_agent_id, target_node_id", "must be at most %d bytes", maxActionRef)
	case b[0] == '"':
		// Encode the string again: one name can have several JSON spellings.
		var text string
		if err := json.Unmarshal(b, &text); err != nil {
			return err
		}
		again, err := json.Marshal(text)
		*r = Ref(again)
		return err
	}
	if _, err := strconv.ParseInt(string(b), 10, 64); err != nil {
		return adapters.Invalid("source_agent_id, target_node_id", "must be a string or an integer")
	}
	*r = Ref(b)
	return nil
}

// Action is one thing an agent did.
type Action struct {
	ID             string          `json:"id"`
	Timestamp      int64           `json:"timestamp"` // Unix milliseconds
	SourceAgentID  Ref             `json:"source_agent_id"`
	TargetNodeID   Ref             `json:"target_node_id"`
	ActionType     int             `json:"action_type"` // 0-5
	ActionTypeName string          `json:"action_type_name"`
	DurationMS     int64           `json:"duration_ms"`
	Metadata       json.RawMessage `json:"metadata"`

	seq uint64
}

// ActionKind is the number or the name of an action type; "" if the caller gave none.
type ActionKind string

// UnmarshalJSON takes a number or a string.
func (k *ActionKind) UnmarshalJSON(b []byte) error {
	if len(b) > maxActionRef {
		return adapters.Invalid("action_type", "must be at most %d bytes", maxActionRef) // a number can begin with any number of zeros
	}
	var text string
	if json.Unmarshal(b, &text) == nil {
		*k = ActionKind(text)
		return nil
	}
	var n int
	if err := json.Unmarshal(b, &n); err != nil {
		return adapters.Invalid("action_type", "must be a number 0-5 or a name")
	}
	*k = ActionKind(strconv.Itoa(n))
	return nil
}

// number returns the number of the type. It refuses an unknown type: a default would be wrong in
// every view of the actions.
func (k ActionKind) number() (int, error) {
	names := actionTypes()
	if i := slices.Index(names, string(k)); i >= 0 {
		return i, nil
	}
	if n, err := strconv.Atoi(string(k)); err == nil && n >= 0 && n < len(names) {
		return n, nil
	}
	return 0, adapters.Invalid("action_type", "must be 0-%d or one of %v", len(names)-1, names)
}

// NewAction is an action as a caller sends it.
type NewAction struct {
	SourceAgentID Ref             `json:"source_agent_id"`
	TargetNodeID  Ref             `json:"target_node_id,omitempty"`
	ActionType    ActionKind      `json:"action_type"`
	DurationMS    int64           `json:"duration_ms,omitempty"`
	Metadata      json.RawMessage `json:"metadata,omitempty"`
}

func (n NewAction) action() (Action, error) {
	number, err := n.ActionType.number()
	if err != nil {
		return Action{}, err
	}
	if n.SourceAgentID == "" || n.SourceAgentID == `""` {
		return Action{}, adapters.Invalid("source_agent_id", "is required")
	}
	if n.DurationMS < 0 {
		return Action{}, adapters.Invalid("duration_ms", "must not be negative")
	}
	meta := absentIfNull(n.Metadata)
	if err := adapters.CheckObject("metadata", meta, maxActionDoc); err != nil {
		return Action{}, err
	}
	if meta == nil {
		meta = json.RawMessage("{}")
	}
	return Action{
		SourceAgentID: n.SourceAgentID, TargetNodeID: n.TargetNodeID, ActionType: number,
		ActionTypeName: actionTypes()[number], DurationMS: n.DurationMS, Metadata: meta,
	}, nil
}

// ActionFilter selects the actions that a follower sees. An empty field selects all.
type ActionFilter struct {
	ActionTypes   []ActionKind `json:"action_types,omitempty"`
	SourceAgents  []Ref        `json:"source_agent_ids,omitempty"`
	TargetNodeIDs []Ref        `json:"target_node_ids,omitempty"`
}

func (f ActionFilter) check() error {
	if len(f.ActionTypes)+len(f.SourceAgents)+len(f.TargetNodeIDs) > 256 {
		return adapters.OverLimit("filters", 256)
	}
	for _, k := range f.ActionTypes {
		if _, err := k.number(); err != nil {
			return err
		}
	}
	return nil
}

func (f ActionFilter) matches(a Action) bool {
	kind := func(k ActionKind) bool { n, err := k.number(); return err == nil && n == a.ActionType }
	return (len(f.ActionTypes) == 0 || slices.ContainsFunc(f.ActionTypes, kind)) &&
		(len(f.SourceAgents) == 0 || slices.Contains(f.SourceAgents, a.SourceAgentID)) &&
		(len(f.TargetNodeIDs) == 0 || slices.Contains(f.TargetNodeIDs, a.TargetNodeID))
}

// actions keeps the newest actions. Each follower has its own position in the list: a slow follower
// loses actions and gets a notice of the loss, and no other follower waits for it.
type actions struct {
	mu        sync.Mutex
	ring      []Action
	next      uint64 // seq of the next action; the first is 1
	news      chan struct{}
	followers int
}

func newActions() *actions { return &actions{next: 1, news: make(chan struct{})} }

// add numbers the actions and appends them in one step. It returns their ids.
func (a *actions) add(list []Action, now time.Time) []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	ids := make([]string, len(list))
	for i, one := range list {
		one.seq, one.ID, one.Timestamp = a.next, strconv.FormatUint(a.next, 10), now.UnixMilli()
		ids[i] = one.ID
		a.next++
		a.ring = append(a.ring, one)
	}
	// The old half is dropped only when the list is full: each drop copies the whole list.
	if len(a.ring) >= 2*keptActions {
		a.ring = append([]Action(nil), a.kept()...)
	}
	close(a.news)
	a.news = make(chan struct{})
	return ids
}

// kept returns the newest actions, at most keptActions.
func (a *actions) kept() []Action { return a.ring[max(0, len(a.ring)-keptActions):] }

// newest returns at most limit actions that are later than since (Unix milliseconds, 0 for all),
// oldest first.
func (a *actions) newest(limit int, since int64) []Action {
	a.mu.Lock()
	defer a.mu.Unlock()
	kept := a.kept()
	from := 0
	for from < len(kept) && kept[from].Timestamp <= since && since > 0 {
		from++
	}
	from = max(from, len(kept)-limit)
	return append([]Action{}, kept[from:]...)
}

// after returns the first action after *place and advances *place. If actions after *place are no
// longer kept, it returns only their number, as dropped. If there is no action yet, news is closed
// at the next one.
func (a *actions) after(place *uint64) (one Action, dropped uint64, ok bool, news <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	kept := a.kept()
	first := a.next - uint64(len(kept))
	if *place+1 < first {
		dropped = first - *place - 1
		*place = first - 1
		return Action{}, dropped, false, nil
	}
	if *place+1 >= a.next {
		return Action{}, 0, false, a.news
	}
	one = kept[*place+1-first]
	*place++
	return one, 0, true, nil
}

// last returns the position after the newest action.
func (a *actions) last() uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.next - 1
}

func (a *actions) follow(n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.followers += n
}

func (a *actions) status() ActionStatus {
	a.mu.Lock()
	defer a.mu.Unlock()
	return ActionStatus{Kept: len(a.kept()), Capacity: keptActions, Total: a.next - 1, Connections: a.followers}
}

// hookKinds maps the name of a tool to the type of action that its use is.
var hookKinds = map[string]string{
	"Read": "query", "Grep": "query", "Glob": "query", "LS": "query", "WebFetch": "query", "WebSearch": "query", "NotebookRead": "query",
	"Edit": "update", "MultiEdit": "update", "NotebookEdit": "update", "TodoWrite": "update",
	"Write": "create", "Task": "link", "Bash": "transform",
}

// ActionHook is what an agent's hook sends after the use of a tool. If ActionType is empty, ToolName
// must be one of hookKinds.
type ActionHook struct {
	SessionID     string          `json:"session_id,omitempty"`
	SourceAgentID Ref             `json:"source_agent_id,omitempty"` // default: session_id
	HookEventName string          `json:"hook_event_name,omitempty"`
	ToolName      string          `json:"tool_name,omitempty"`
	ToolInput     json.RawMessage `json:"tool_input,omitempty"`
	TargetNodeID  Ref             `json:"target_node_id,omitempty"` // default: the file the tool was used on
	ActionType    ActionKind      `json:"action_type,omitempty"`
	DurationMS    int64           `json:"duration_ms,omitempty"`
}

func (h ActionHook) action() (Action, error) {
	n := NewAction{SourceAgentID: h.SourceAgentID, TargetNodeID: h.TargetNodeID, ActionType: h.ActionType, DurationMS: h.DurationMS}
	if n.ActionType == "" {
		kind, known := hookKinds[h.ToolName]
		if !known {
			return Action{}, adapters.Invalid("tool_name", "%q is no tool whose action is known: say action_type", adapters.Cut(h.ToolName, 64))
		}
		n.ActionType = ActionKind(kind)
	}
	if n.SourceAgentID == "" && h.SessionID != "" {
		n.SourceAgentID = quoted(h.SessionID)
	}
	if n.TargetNodeID == "" {
		n.TargetNodeID = targetOf(h.ToolInput)
	}
	// Strings always marshal.
	n.Metadata, _ = json.Marshal(map[string]string{"tool": adapters.Cut(h.ToolName, 256), "hook": adapters.Cut(h.HookEventName, 256)})
	return n.action()
}

// targetOf returns the file or path in the input of a tool, "" if there is none.
func targetOf(input json.RawMessage) Ref {
	var in struct {
		FilePath string `json:"file_path"`
		Path     string `json:"path"`
	}
	if json.Unmarshal(input, &in) != nil {
		return ""
	}
	in.FilePath = cmp.Or(in.FilePath, in.Path)
	if in.FilePath == "" {
		return ""
	}
	return quoted(in.FilePath)
}

func quoted(s string) Ref {
	// A string always marshals.
	b, _ := json.Marshal(adapters.Cut(s, maxActionRef/2))
	return Ref(b)
}
