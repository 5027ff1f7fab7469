package rest

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// maxBatch bounds how many events one request may carry.
const maxBatch = 500

func dispatchEvents(q *request) error {
	mt, err := q.mediaType()
	if err != nil {
		return err
	}
	raw, err := q.body()
	if err != nil {
		return err
	}
	switch mt {
	case "", jsonType:
		var e adapters.Event
		if err := unmarshal(raw, &e); err != nil {
			return err
		}
		return q.dispatchOne(e)
	case cloudType:
		var c cloudEvent
		if err := unmarshal(raw, &c); err != nil {
			return err
		}
		e, err := c.event()
		if err != nil {
			return err
		}
		return q.dispatchOne(e)
	case cloudListType:
		return q.dispatchBatch(raw)
	}
	return adapters.Errorf(adapters.CodeUnsupported, "events come as %s, %s or %s", jsonType, cloudType, cloudListType)
}

func (q *request) dispatchOne(e adapters.Event) error {
	if len(q.Header.Values("Ce-Specversion")) > 0 {
		return adapters.Errorf(adapters.CodeUnsupported, "CloudEvents are taken in structured mode, as %s", cloudType)
	}
	r, err := q.s.cfg.Slots.Events().Dispatch(q.Context(), e)
	if err != nil {
		return err
	}
	return q.reply(http.StatusAccepted, r)
}

// dispatchBatch takes the events in order and stops at the first that fails;
// the problem names its index. Sending the batch again is harmless: an id that
// was taken answers its first receipt.
func (q *request) dispatchBatch(raw []byte) error {
	var batch []cloudEvent
	if err := unmarshal(raw, &batch); err != nil {
		return err
	}
	if len(batch) > maxBatch {
		return adapters.OverLimit("batch", maxBatch)
	}
	events := make([]adapters.Event, len(batch))
	for i, c := range batch {
		e, err := c.event()
		if err != nil {
			return adapters.AsError(err).With("index", i)
		}
		events[i] = e
	}
	receipts := make([]adapters.Receipt, 0, len(batch))
	for i, e := range events {
		// One key serves one event: in a batch the ids do its work.
		m := adapters.MetaFrom(q.Context())
		m.IdempotencyKey = ""
		r, err := q.s.cfg.Slots.Events().Dispatch(adapters.WithMeta(q.Context(), m), e)
		if err != nil {
			return adapters.AsError(err).With("index", i)
		}
		receipts = append(receipts, r)
	}
	return q.replyStatusList(http.StatusAccepted, receipts)
}

func (q *request) replyStatusList(status int, receipts []adapters.Receipt) error {
	return q.reply(status, adapters.Page[adapters.Receipt]{Items: receipts})
}

// cloudEvent is an event in the JSON format of CloudEvents 1.0.
type cloudEvent struct {
	SpecVersion string          `json:"specversion"`
	ID          string          `json:"id"`
	Source      string          `json:"source"`
	Type        string          `json:"type"`
	Subject     string          `json:"subject"`
	ContentType string          `json:"datacontenttype"`
	Data        json.RawMessage `json:"data"`
	DataBase64  *string         `json:"data_base64"`
	SessionID   string          `json:"sessionid"`
	ExecutionID string          `json:"executionid"`
}

// cloudPrefix is before our kinds in a CloudEvents type.
const cloudPrefix = "agentbox."

func (c cloudEvent) event() (adapters.Event, error) {
	switch {
	case !strings.HasPrefix(c.SpecVersion, "1."):
		return adapters.Event{}, adapters.Invalid("specversion", "must be 1.0")
	case c.ID == "":
		return adapters.Event{}, adapters.Invalid("id", "is required")
	case c.Source == "":
		return adapters.Event{}, adapters.Invalid("source", "is required")
	case c.Type == "":
		return adapters.Event{}, adapters.Invalid("type", "is required")
	case c.DataBase64 != nil:
		return adapters.Event{}, adapters.Errorf(adapters.CodeUnsupported, "binary data cannot be an event's payload")
	}
	return adapters.Event{
		ID: c.ID, Kind: strings.TrimPrefix(c.Type, cloudPrefix), Source: c.Source, Subject: c.Subject,
		SessionID: adapters.NullString(c.SessionID), ExecutionID: adapters.NullString(c.ExecutionID),
		Payload: absentIfNull(c.Data),
	}, nil
}

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
	return list(q, out)
}

// headerSubscription names the subscription behind a stream, for unsubscribe.
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

// seqMessage is a numbered message.
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
	id, err := q.param("id")
	if err != nil {
		return err
	}
	if err := q.s.cfg.Slots.Events().Unsubscribe(q.Context(), id); err != nil {
		return err
	}
	return q.empty()
}

// lagged is the payload of a notice of loss.
func lagged(dropped, resumeFrom uint64) json.RawMessage {
	return json.RawMessage(fmt.Sprintf(`{"dropped":%d,"resume_from":%d}`, dropped, resumeFrom))
}
