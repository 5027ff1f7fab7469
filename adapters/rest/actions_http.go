package rest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// ActionList is the answer to GET /v1/agent-events.
type ActionList struct {
	Events []Action `json:"events"` // oldest first
	Count  int      `json:"count"`
}

// ActionTypes lists the types of action.
type ActionTypes struct {
	Types []ActionTypeRow `json:"types"`
}

// ActionTypeRow is one type of action.
type ActionTypeRow struct {
	ID   int    `json:"id"`
	Name string `json:"name"`
}

// ActionStatus says how many actions there are.
type ActionStatus struct {
	Kept        int    `json:"kept"`
	Capacity    int    `json:"capacity"`
	Total       uint64 `json:"total"`       // since the start
	Connections int    `json:"connections"` // streams open now
}

// ActionTaken is the receipt for actions that a caller sent.
type ActionTaken struct {
	Success bool     `json:"success"`
	IDs     []string `json:"ids"`
}

// ActionBatch is several actions at once.
type ActionBatch struct {
	Events NewActions `json:"events"`
}

// NewActions are at most maxBatch actions.
type NewActions []NewAction

// UnmarshalJSON implements json.Unmarshaler. It takes no memory for a list that is too long.
func (n *NewActions) UnmarshalJSON(raw []byte) error {
	if err := adapters.CheckElements("events", raw, maxBatch); err != nil {
		return err
	}
	return json.Unmarshal(raw, (*[]NewAction)(n))
}

func listActions(q *request) error {
	v := q.URL.Query()
	limit, err := intParam(v, "limit")
	if err != nil {
		return err
	}
	if !v.Has("limit") {
		limit = adapters.DefaultPageLimit
	}
	if limit < 1 || limit > keptActions {
		return adapters.Invalid("limit", "must be 1-%d", keptActions).With("limit", keptActions)
	}
	since, err := intParam(v, "since")
	if err != nil {
		return err
	}
	events := q.s.actions.newest(limit, int64(since))
	return q.reply(http.StatusOK, ActionList{events, len(events)})
}

func actionTypesHandler(q *request) error {
	var out ActionTypes
	for i, name := range actionTypes() {
		out.Types = append(out.Types, ActionTypeRow{i, name})
	}
	return q.reply(http.StatusOK, out)
}

func actionStatus(q *request) error { return q.reply(http.StatusOK, q.s.actions.status()) }

func emitAction(q *request, in NewAction) error {
	a, err := in.action()
	if err != nil {
		return err
	}
	return q.take([]Action{a})
}

func emitActions(q *request, in ActionBatch) error {
	if len(in.Events) == 0 {
		return adapters.Invalid("events", "is required")
	}
	all := make([]Action, len(in.Events))
	for i, n := range in.Events {
		a, err := n.action()
		if err != nil {
			return adapters.AsError(err).With("index", i)
		}
		all[i] = a
	}
	return q.take(all)
}

func hookAction(q *request, in ActionHook) error {
	if q.who.Role == RoleAgent && in.SourceAgentID == "" {
		in.SourceAgentID = quoted(q.who.ID)
	}
	a, err := in.action()
	if err != nil {
		return err
	}
	return q.take([]Action{a})
}

// take stores the actions. An agent may report only its own.
func (q *request) take(all []Action) error {
	for _, a := range all {
		if q.who.Role == RoleAgent && a.SourceAgentID != quoted(q.who.ID) {
			return adapters.Errorf(adapters.CodePermissionDenied, "an agent may tell of itself alone")
		}
	}
	return q.reply(http.StatusAccepted, ActionTaken{true, q.s.actions.add(all, time.Now())})
}

// streamActions sends actions over a WebSocket, or as server-sent events if the caller accepts those.
func streamActions(q *request) error {
	after, given, err := q.position()
	if err != nil {
		return err
	}
	switch last := q.s.actions.last(); {
	case !given:
		after = last
	case after > last: // the number is one of an earlier boot: numbers begin at 1 again
		after = 0
	}
	q.s.actions.follow(1)
	defer q.s.actions.follow(-1)
	if q.isWebSocket() {
		return q.actionSocket(after)
	}
	if !strings.Contains(q.Header.Get("Accept"), sseType) {
		return adapters.Errorf(adapters.CodeUnsupported, "ask for a WebSocket, or for %s", sseType)
	}
	if history := q.s.actions.newest(actionHistory, 0); !given && len(history) > 0 {
		after = history[0].seq - 1
	}
	return q.follow(func(context.Context) (feed, error) {
		return feed{close: func() error { return nil }, next: func(ctx context.Context) (message, error) {
			one, dropped, err := q.s.actions.wait(ctx, &after)
			if err != nil {
				return message{}, err
			}
			if dropped > 0 {
				return message{Event: adapters.KindLagged, Data: lagged(dropped, after+1)}, nil
			}
			return seqMessage(one.seq, "agent_action", one)
		}}, nil
	})
}

// wait is like after, but blocks until there is an action or a loss to report.
func (a *actions) wait(ctx context.Context, place *uint64) (Action, uint64, error) {
	for {
		one, dropped, ok, news := a.after(place)
		if ok || dropped > 0 {
			return one, dropped, nil
		}
		select {
		case <-news:
		case <-ctx.Done():
			return Action{}, 0, ctx.Err()
		}
	}
}

// notification is a JSON-RPC 2.0 notification.
type notification struct {
	JSONRPC string `json:"jsonrpc"`
	Method  string `json:"method"`
	Params  any    `json:"params"`
}

// actionHistory is how many past actions a new follower gets.
const actionHistory = 50

// actionSocket sends a greeting, the latest actions, and then each new one. The peer may set filters
// and send pings.
func (q *request) actionSocket(after uint64) error {
	ctx, leave, err := q.s.enter(q.Context(), q.who)
	if err != nil {
		return err
	}
	defer leave()
	c, err := q.accept()
	if c == nil {
		return err
	}
	defer c.CloseNow()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	f := &actionFollower{q: q, c: c, orders: make(chan []byte, 16)}
	read := make(chan error, 1)
	go func() { read <- f.read(ctx) }()
	err = f.write(ctx, after, read)
	q.hangUp(c, err)
	cancel()
	c.CloseNow()
	if !f.readEnded {
		<-read
	}
	return nil
}

// actionFollower is one socket. Its reader hands the answers to orders to its writer, so that only
// one goroutine writes frames.
type actionFollower struct {
	q         *request
	c         *websocket.Conn
	filter    atomic.Pointer[ActionFilter]
	orders    chan []byte // answers to send
	readEnded bool
}

func (f *actionFollower) write(ctx context.Context, after uint64, read <-chan error) error {
	history := f.q.s.actions.newest(actionHistory, 0)
	if n := len(history); n > 0 {
		after = max(after, history[n-1].seq)
	}
	for _, greeting := range []any{
		map[string]any{"type": "connected", "timestamp": time.Now().UnixMilli(), "version": f.q.s.cfg.Version},
		map[string]any{"type": "history", "events": history, "count": len(history)},
	} {
		if err := f.send(ctx, greeting); err != nil {
			return err
		}
	}
	ping := time.NewTicker(pingEvery)
	defer ping.Stop()
	for {
		news, err := f.sendNew(ctx, &after)
		if err != nil {
			return err
		}
		select {
		case <-news:
		case answer := <-f.orders:
			if err := sendFrame(ctx, f.c, answer); err != nil {
				return err
			}
		case <-ping.C:
			if err := sendPing(ctx, f.c); err != nil {
				return err
			}
		case err := <-read:
			f.readEnded = true
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// sendNew sends the actions after *place that the filter lets pass, and advances *place. news is closed
// at the next action.
func (f *actionFollower) sendNew(ctx context.Context, place *uint64) (news <-chan struct{}, err error) {
	for {
		one, dropped, ok, news := f.q.s.actions.after(place)
		switch filter := f.filter.Load(); {
		case dropped > 0:
			err = f.send(ctx, notification{"2.0", "notifications/lagged", lagged(dropped, *place+1)})
		case !ok:
			return news, nil
		case filter == nil || filter.matches(one):
			err = f.send(ctx, notification{"2.0", "notifications/agent_action", one})
		}
		if err != nil {
			return nil, err
		}
	}
}

func (f *actionFollower) send(ctx context.Context, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return adapters.Errorf(adapters.CodeInternal, "the message cannot be written as JSON").Wrap(err)
	}
	return sendFrame(ctx, f.c, data)
}

// order is a request of the peer, as plain JSON or as JSON-RPC.
type order struct {
	Type    string        `json:"type"`
	Method  string        `json:"method"`
	Filters *ActionFilter `json:"filters"`
	Params  *struct {
		Filters *ActionFilter `json:"filters"`
	} `json:"params"`
}

// read carries out the orders of the peer until the socket closes.
func (f *actionFollower) read(ctx context.Context) error {
	for {
		// The read must not end with ctx: a cancelled read closes the connection before hangUp has
		// sent the reason. The close of the socket ends the read.
		data, err := f.message(context.WithoutCancel(ctx))
		if err != nil {
			return err
		}
		answer, err := json.Marshal(f.obey(data))
		f.q.s.held.release(f.q.held)
		f.q.held = 0
		if err != nil {
			return err
		}
		select {
		case f.orders <- answer:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// message waits for a message. Its bytes count as those of a body, and it must come as fast.
func (f *actionFollower) message(ctx context.Context) ([]byte, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	kind, r, err := f.c.Reader(ctx)
	if err != nil {
		return nil, err
	}
	if kind != websocket.MessageText {
		return nil, errors.Join(errPolicy, errors.New("binary frames are not understood"))
	}
	late := time.AfterFunc(bodyLimit, cancel)
	defer late.Stop()
	return io.ReadAll(&heldReader{r, f.q})
}

func (f *actionFollower) obey(data []byte) map[string]any {
	var o order
	if err := f.q.unmarshal(data, &o); err != nil {
		return refusal(err)
	}
	o.Type = cmp.Or(o.Type, o.Method)
	switch o.Type {
	case "ping":
		return map[string]any{"type": "pong", "timestamp": time.Now().UnixMilli()}
	case "configure":
		filter := o.Filters
		if filter == nil && o.Params != nil {
			filter = o.Params.Filters
		}
		if filter == nil {
			filter = &ActionFilter{}
		}
		if err := filter.check(); err != nil {
			return refusal(err)
		}
		f.filter.Store(filter)
		return map[string]any{"type": "configured", "filters": filter}
	}
	return refusal(adapters.Invalid("type", "must be configure or ping"))
}

func refusal(err error) map[string]any {
	e := adapters.AsError(err)
	return map[string]any{"type": "error", "code": e.Code, "message": e.Message}
}
