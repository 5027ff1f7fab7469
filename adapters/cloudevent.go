package adapters

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"
)

// The media types of CloudEvents 1.0 (JSON event format, 2 and 4).
const (
	CloudEventType = "application/cloudevents+json"
	CloudBatchType = "application/cloudevents-batch+json"
)

// CloudPrefix precedes agentbox's kinds in a CloudEvents type.
const CloudPrefix = "agentbox."

// CloudEvent is an Event in the JSON format of CloudEvents 1.0.
type CloudEvent struct {
	SpecVersion     string          `json:"specversion"`
	ID              string          `json:"id"`
	Source          string          `json:"source"`
	Type            string          `json:"type"`
	Time            string          `json:"time,omitempty"`
	Subject         string          `json:"subject,omitempty"`
	DataContentType string          `json:"datacontenttype,omitempty"`
	SessionID       string          `json:"sessionid,omitempty"`   // extension
	ExecutionID     string          `json:"executionid,omitempty"` // extension
	Sequence        string          `json:"sequence,omitempty"`    // CloudEvents' sequence extension
	Author          string          `json:"author,omitempty"`      // extension
	Data            json.RawMessage `json:"data,omitempty"`
	DataBase64      *string         `json:"data_base64,omitempty"` // only sent by others; it is refused
}

// Cloud is the event as a CloudEvent.
func (e Event) Cloud() CloudEvent {
	c := CloudEvent{
		SpecVersion: "1.0", ID: e.ID, Source: e.Source, Type: CloudPrefix + e.Kind, Subject: e.Subject,
		DataContentType: "application/json", SessionID: string(e.SessionID), ExecutionID: string(e.ExecutionID),
		Sequence: strconv.FormatUint(e.Seq, 10), Author: e.Author, Data: e.Payload,
	}
	if !e.TS.IsZero() {
		c.Time = e.TS.String()
	}
	return c
}

// Event converts a peer's CloudEvent to an event for Dispatch. A type without agentbox's prefix is
// the kind itself; Dispatch checks its limits. The peer's time is checked and dropped, because the
// box sets its own.
func (c CloudEvent) Event() (Event, error) {
	for _, required := range [][2]string{{"id", c.ID}, {"source", c.Source}, {"type", c.Type}} {
		if required[1] == "" {
			return Event{}, Invalid(required[0], "is required")
		}
	}
	switch {
	case !strings.HasPrefix(c.SpecVersion, "1."):
		return Event{}, Invalid("specversion", "must be 1.0")
	case c.DataBase64 != nil:
		return Event{}, Errorf(CodeUnsupported, "binary data cannot be an event's payload")
	}
	if c.Time != "" {
		if _, err := time.Parse(time.RFC3339Nano, c.Time); err != nil {
			return Event{}, Invalid("time", "must be a time of RFC 3339")
		}
	}
	payload := c.Data
	if string(payload) == "null" {
		payload = nil
	}
	return Event{
		ID: c.ID, Kind: strings.TrimPrefix(c.Type, CloudPrefix), Source: c.Source, Subject: c.Subject,
		SessionID: NullString(c.SessionID), ExecutionID: NullString(c.ExecutionID), Payload: payload,
	}, nil
}
