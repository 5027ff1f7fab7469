package events

import (
	"encoding/json"
	"strconv"
	"strings"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// The media types of CloudEvents 1.0 in its structured and batched HTTP forms.
const (
	CloudEventType = "application/cloudevents+json"
	CloudBatchType = "application/cloudevents-batch+json"
	MaxCloudBatch  = 500 // events of one batch
)

const kindPrefix = "agentbox." // + kind = CloudEvents type

// CloudEvent is an Event in the JSON format of CloudEvents 1.0.
type CloudEvent struct {
	SpecVersion     string          `json:"specversion"`
	ID              string          `json:"id"`
	Source          string          `json:"source"`
	Type            string          `json:"type"`
	Time            adapters.Time   `json:"time,omitzero"`
	Subject         string          `json:"subject,omitempty"`
	DataContentType string          `json:"datacontenttype,omitempty"`
	SessionID       string          `json:"sessionid,omitempty"`
	ExecutionID     string          `json:"executionid,omitempty"`
	Sequence        string          `json:"sequence,omitempty"` // CloudEvents' sequence extension
	Data            json.RawMessage `json:"data,omitempty"`
}

// ToCloud converts an event of the box.
func ToCloud(e adapters.Event) CloudEvent {
	return CloudEvent{
		SpecVersion: "1.0", ID: e.ID, Source: e.Source, Type: kindPrefix + e.Kind, Time: e.TS, Subject: e.Subject,
		DataContentType: "application/json", SessionID: string(e.SessionID), ExecutionID: string(e.ExecutionID),
		Sequence: strconv.FormatUint(e.Seq, 10), Data: e.Payload,
	}
}

// FromCloud converts an event of a peer. A type without our prefix is taken as
// the kind itself; its limits are checked by Dispatch.
func FromCloud(c CloudEvent) (adapters.Event, error) {
	switch {
	case c.SpecVersion != "1.0":
		return adapters.Event{}, adapters.Invalid("specversion", "must be 1.0")
	case c.ID == "" || c.Source == "" || c.Type == "":
		return adapters.Event{}, adapters.Invalid("id", "id, source and type are required")
	}
	return adapters.Event{
		ID: c.ID, Source: c.Source, Kind: strings.TrimPrefix(c.Type, kindPrefix), Subject: c.Subject,
		SessionID: adapters.NullString(c.SessionID), ExecutionID: adapters.NullString(c.ExecutionID), Payload: c.Data,
	}, nil
}
