package rest

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"github.com/dreamlab-ai/agentinit/adapters"
)

func filterOf(v url.Values) adapters.EventFilter {
	return adapters.EventFilter{
		Kinds: v["kind"], SessionID: v.Get("session_id"), ExecutionID: v.Get("execution_id"), Source: v.Get("source"), Subject: v.Get("subject"),
	}
}

func eventHistory(q *request) error {
	page, err := q.page()
	if err != nil {
		return err
	}
	out, err := q.s.cfg.Slots.Events().History(q.Context(), filterOf(q.URL.Query()), page)
	if err != nil {
		return err
	}
	q.w.Header().Set("Vary", "Accept")
	// If the request accepts none of them, an answer in another media type is more useful than 406.
	if adapters.Accepted(q.Header, jsonType, adapters.CloudBatchType, adapters.CloudEventType) <= 0 {
		return list(q, out, nil)
	}
	// The answer is a batch for either CloudEvents type: it may contain several events.
	batch := make([]adapters.CloudEvent, len(out.Items))
	for i, e := range out.Items {
		batch[i] = e.Cloud()
	}
	q.next(out.NextCursor)
	return q.replyAs(adapters.CloudBatchType, http.StatusOK, batch)
}

// headerSubscription carries the id of a stream's subscription, for DELETE /v1/events/stream/{id}.
const headerSubscription = "Agentbox-Subscription"

func streamEvents(q *request) error {
	after, given, err := q.position()
	if err != nil {
		return err
	}
	return q.follow(func(ctx context.Context) (feed, error) {
		sub, err := q.s.cfg.Slots.Events().Subscribe(ctx, filterOf(q.URL.Query()), adapters.From{Live: !given, After: after})
		if err != nil {
			return feed{}, err
		}
		q.w.Header().Set(headerSubscription, sub.ID())
		return feed{close: sub.Close, next: func(ctx context.Context) (message, error) {
			e, err := sub.Next(ctx)
			if err != nil {
				return message{}, err
			}
			if e.Kind == adapters.KindLagged {
				return seqMessage(e.Seq, e.Kind, e.Payload)
			}
			return seqMessage(e.Seq, e.Kind, e)
		}}, nil
	})
}

// seqMessage makes a stream message with v as data and seq as id. If seq is 0, it has no id.
func seqMessage(seq uint64, kind string, v any) (message, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return message{}, adapters.Errorf(adapters.CodeInternal, "the event cannot be written as JSON").Wrap(err)
	}
	m := message{Event: kind, Data: data}
	if seq > 0 {
		m.ID = strconv.FormatUint(seq, 10)
	}
	return m, nil
}

func unsubscribe(q *request) error {
	return q.done(q.s.cfg.Slots.Events().Unsubscribe(q.Context(), q.param("id")))
}

// lagged is the payload of a notice that a slow reader has lost messages.
func lagged(dropped, resumeFrom uint64) json.RawMessage {
	return fmt.Appendf(nil, `{"dropped":%d,"resume_from":%d}`, dropped, resumeFrom)
}
