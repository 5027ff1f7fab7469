package rest

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// maxBatch is the largest number of events or actions in one request.
const maxBatch = 500

// dispatchEvents takes an event in agentinit's own JSON form, or CloudEvents in any of the three
// modes of their HTTP binding (CloudEvents 1.0.2, HTTP protocol binding, 3).
func dispatchEvents(q *request) error {
	mt, err := q.mediaType()
	if err != nil {
		return err
	}
	// The content type decides first: a structured event may repeat its attributes in headers.
	switch {
	case mt == adapters.CloudEventType:
		return q.dispatchStructured()
	case mt == adapters.CloudBatchType:
		return q.dispatchBatch()
	case strings.HasPrefix(mt, cloudFormats):
		return adapters.Errorf(adapters.CodeUnsupported, "CloudEvents come as %s or %s, or in binary mode", adapters.CloudEventType, adapters.CloudBatchType)
	case isBinaryCloudEvent(q.Header):
		return q.dispatchBinary(mt)
	case mt != "" && mt != jsonType:
		return adapters.Errorf(adapters.CodeUnsupported, "events come as %s, %s, %s or in binary mode", jsonType, adapters.CloudEventType, adapters.CloudBatchType)
	}
	var e adapters.Event
	if err := q.json(&e); err != nil {
		return err
	}
	return q.dispatchOne(e)
}

// ownSource is the source of agentinit's own events: no caller may use it.
const ownSource = "agentinit"

// ownKinds begin the kinds of agentinit's own events: only an admin may use them.
var ownKinds = []string{adapters.CloudPrefix, "box."}

// boxSources are the prefixes of sources that name a box.
var boxSources = []string{"urn:agentbox:", "did:nostr:"}

// mayEmit refuses an event whose source or kind is agentinit's, or whose source is another box. If
// a box sends an event without a source, mayEmit sets the box as source.
func (q *request) mayEmit(e *adapters.Event) error {
	if q.who.Role == RoleBox {
		if err := q.ownSource(e); err != nil {
			return err
		}
	}
	if strings.EqualFold(e.Source, ownSource) {
		return adapters.Errorf(adapters.CodePermissionDenied, "only agentinit itself emits events of source %q", ownSource)
	}
	for _, own := range ownKinds {
		if q.who.Role != RoleAdmin && strings.HasPrefix(strings.ToLower(e.Kind), own) {
			return adapters.Errorf(adapters.CodePermissionDenied, "only agentinit itself emits kinds that begin with %q", own)
		}
	}
	return nil
}

// ownSource checks the source of a box's event. The source may be the box itself, or a box that is
// not registered here: events may still name a key that the box had before.
func (q *request) ownSource(e *adapters.Event) error {
	if e.Source == "" {
		e.Source = boxSources[0] + q.who.ID
		return nil
	}
	for _, prefix := range boxSources {
		if len(e.Source) < len(prefix) || !strings.EqualFold(e.Source[:len(prefix)], prefix) || q.s.cfg.Host == nil {
			continue
		}
		name, _, _ := strings.Cut(e.Source[len(prefix):], ":")
		if strings.EqualFold(name, q.who.ID) {
			continue
		}
		known, err := q.s.cfg.Host.Known(q.Context(), name)
		if lower := strings.ToLower(name); err == nil && !known && lower != name {
			known, err = q.s.cfg.Host.Known(q.Context(), lower) // a public key in upper case is the same key
		}
		if err != nil {
			return err
		}
		if known {
			return adapters.Errorf(adapters.CodePermissionDenied, "only that box itself emits events of source %q", adapters.Cut(e.Source, 128))
		}
	}
	return nil
}

func (q *request) dispatchOne(e adapters.Event) error {
	if err := q.mayEmit(&e); err != nil {
		return err
	}
	r, err := q.s.cfg.Slots.Events().Dispatch(q.Context(), e)
	return q.result(http.StatusAccepted, r, err)
}

func (q *request) dispatchCloud(c adapters.CloudEvent) error {
	e, err := q.fromCloud(c)
	if err != nil {
		return err
	}
	return q.dispatchOne(e)
}

// fromCloud turns a CloudEvent into an agentinit event. An agent may not use types with agentinit's
// prefix: only a caller that forwards the events of a box needs them.
func (q *request) fromCloud(c adapters.CloudEvent) (adapters.Event, error) {
	if q.who.Role == RoleAgent && strings.HasPrefix(strings.ToLower(c.Type), adapters.CloudPrefix) {
		return adapters.Event{}, adapters.Errorf(adapters.CodePermissionDenied, "only agentinit itself emits types that begin with %q", adapters.CloudPrefix)
	}
	return c.Event()
}

func (q *request) dispatchStructured() error {
	raw, err := q.body()
	if err != nil {
		return err
	}
	var c adapters.CloudEvent
	if err := q.unmarshal(raw, &c); err != nil {
		return err
	}
	return q.dispatchCloud(c)
}

// dispatchBinary takes an event in binary mode: its attributes are headers, its data is the body.
func (q *request) dispatchBinary(mediaType string) error {
	if mediaType != "" && mediaType != jsonType && !strings.HasSuffix(mediaType, "+json") {
		return adapters.Errorf(adapters.CodeUnsupported, "the data of an event is %s here, not %s", jsonType, adapters.Cut(mediaType, 100))
	}
	c, err := binaryCloudEvent(q.Header)
	if err != nil {
		return err
	}
	raw, err := q.body()
	if err != nil {
		return err
	}
	if len(raw) > 0 {
		if err := adapters.CheckUnicode("body", raw); err != nil {
			return err
		}
		if !json.Valid(raw) {
			return adapters.Invalid("body", "is not JSON")
		}
		c.Data = raw
	}
	return q.dispatchCloud(c)
}

// dispatchBatch dispatches the events in order and stops at the first error; the problem names the
// index of that event. The caller may send the batch again: for an id that is already stored, the
// answer is its first receipt.
func (q *request) dispatchBatch() error {
	raw, err := q.body()
	if err != nil {
		return err
	}
	if err := adapters.CheckElements("batch", raw, maxBatch); err != nil {
		return err
	}
	var batch []adapters.CloudEvent
	if err := q.unmarshal(raw, &batch); err != nil {
		return err
	}
	events := make([]adapters.Event, len(batch))
	for i, c := range batch {
		e, err := q.fromCloud(c)
		if err == nil {
			err = q.mayEmit(&e)
		}
		if err != nil {
			return adapters.AsError(err).With("index", i)
		}
		events[i] = e
	}
	receipts := make([]adapters.Receipt, 0, len(batch))
	for i, e := range events {
		// An idempotency key is for one event. In a batch, the event ids prevent duplicates.
		m := adapters.MetaFrom(q.Context())
		m.IdempotencyKey = ""
		r, err := q.s.cfg.Slots.Events().Dispatch(adapters.WithMeta(q.Context(), m), e)
		if err != nil {
			return adapters.AsError(err).With("index", i)
		}
		receipts = append(receipts, r)
	}
	return q.reply(http.StatusAccepted, adapters.Page[adapters.Receipt]{Items: receipts})
}

// headerCloud is the header prefix of an attribute in binary mode, in net/http's canonical form.
const headerCloud = "Ce-"

// isBinaryCloudEvent tells whether the headers contain any required attribute of a CloudEvent. One
// is enough: an incomplete CloudEvent must be refused, not read as an agentinit event.
func isBinaryCloudEvent(h http.Header) bool {
	return slices.ContainsFunc([]string{"Specversion", "Id", "Source", "Type"}, func(required string) bool {
		return len(h.Values(headerCloud+required)) > 0
	})
}

// binaryCloudEvent reads the attributes from the headers.
func binaryCloudEvent(h http.Header) (adapters.CloudEvent, error) {
	var c adapters.CloudEvent
	for _, a := range []struct {
		name string
		to   *string
	}{
		{"Specversion", &c.SpecVersion}, {"Id", &c.ID}, {"Source", &c.Source}, {"Type", &c.Type}, {"Subject", &c.Subject},
		{"Time", &c.Time}, {"Sessionid", &c.SessionID}, {"Executionid", &c.ExecutionID},
	} {
		values := h.Values(headerCloud + a.name)
		if len(values) > 1 {
			return c, adapters.Invalid(headerCloud+a.name, "was sent more than once")
		}
		if len(values) == 1 {
			v, err := cloudHeader(values[0])
			if err != nil {
				return c, adapters.Invalid(headerCloud+a.name, "%v", err)
			}
			*a.to = v
		}
	}
	return c, nil
}

// cloudHeader decodes the value of an attribute in a header (HTTP protocol binding, 3.1.3.2). It
// first removes the quotes of quoted strings (RFC 9110, 5.6.4), then decodes percent escapes once.
func cloudHeader(v string) (string, error) {
	v, err := unquoted(v)
	if err != nil {
		return "", err
	}
	if v, err = url.PathUnescape(v); err != nil {
		return "", errors.New("has a broken percent escape")
	}
	if !utf8.ValidString(v) {
		return "", errors.New("is not valid UTF-8")
	}
	return v, nil
}

// unquoted removes the quotes of all quoted strings in v, and the escape backslashes within them.
func unquoted(v string) (string, error) {
	if !strings.Contains(v, `"`) {
		return v, nil
	}
	var b strings.Builder
	inside := false
	for i := 0; i < len(v); i++ {
		switch c := v[i]; {
		case c == '"':
			inside = !inside
		case c == '\\' && inside && i+1 < len(v):
			i++
			b.WriteByte(v[i])
		default:
			b.WriteByte(c)
		}
	}
	if inside {
		return "", errors.New("has a quoted string without an end")
	}
	return b.String(), nil
}
