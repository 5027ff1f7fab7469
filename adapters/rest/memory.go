package rest

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// StoreBody is the body of a store.
type StoreBody struct {
	Value     *string         `json:"value"` // required; may be ""
	Metadata  json.RawMessage `json:"metadata,omitempty"`
	TTLS      *int64          `json:"ttl_s,omitempty"` // seconds; absent = no expiry
	Embedding []float32       `json:"embedding,omitempty"`
}

// SearchBody is the body of a search. The namespace is in the path.
type SearchBody struct {
	Query     string          `json:"query"`
	Limit     *int            `json:"limit,omitempty"` // 1-100, default 10
	MinScore  *float64        `json:"min_score,omitempty"`
	Filter    json.RawMessage `json:"filter,omitempty"`
	Embedding []float32       `json:"embedding,omitempty"`
	Mode      string          `json:"mode,omitempty"` // vector (default), text, hybrid
}

// Deleted says whether the deleted resource existed.
type Deleted struct {
	Deleted bool `json:"deleted"`
}

func storeMemory(q *request, in StoreBody) error {
	ns, key := q.param("ns"), q.param("key")
	if in.Value == nil {
		return adapters.Invalid("value", "is required")
	}
	opt := adapters.StoreOpt{Metadata: absentIfNull(in.Metadata), Embedding: in.Embedding}
	if in.TTLS != nil {
		if *in.TTLS < 1 || *in.TTLS > int64(adapters.MaxMemoryTTL/time.Second) {
			return adapters.Invalid("ttl_s", "must be 1 s - 10 y")
		}
		opt.TTL = time.Duration(*in.TTLS) * time.Second
	}
	out, err := q.s.cfg.Slots.Memory().Store(q.Context(), key, *in.Value, ns, opt)
	if err != nil {
		return err
	}
	if !out.Created {
		return q.reply(http.StatusOK, out)
	}
	return q.reply(http.StatusCreated, out)
}

func absentIfNull(raw json.RawMessage) json.RawMessage {
	if string(raw) == "null" {
		return nil
	}
	return raw
}

func retrieveMemory(q *request) error {
	ns, key := q.param("ns"), q.param("key")
	e, found, err := q.s.cfg.Slots.Memory().Retrieve(q.Context(), key, ns)
	if err != nil {
		return err
	}
	if !found {
		return adapters.NotFound("entry", adapters.Cut(key, adapters.MaxMemoryKey)).At(adapters.SlotMemory, "retrieve")
	}
	return q.reply(http.StatusOK, e)
}

func deleteMemory(q *request) error {
	ns, key := q.param("ns"), q.param("key")
	deleted, err := q.s.cfg.Slots.Memory().Del(q.Context(), key, ns)
	return q.result(http.StatusOK, Deleted{deleted}, err)
}

func listMemory(q *request) error {
	page, err := q.page()
	if err != nil {
		return err
	}
	out, err := q.s.cfg.Slots.Memory().List(q.Context(), q.param("ns"), page)
	return list(q, out, err)
}

func listNamespaces(q *request) error {
	out, err := q.s.cfg.Slots.Memory().Namespaces(q.Context())
	if err != nil {
		return err
	}
	return part(q, out, func(n adapters.Namespace) string { return n.Name })
}

func searchMemory(q *request, in SearchBody) error {
	opt := adapters.SearchOpt{
		Namespace: q.param("ns"), MinScore: in.MinScore, Filter: absentIfNull(in.Filter), Embedding: in.Embedding, Mode: in.Mode,
	}
	if in.Limit != nil {
		if opt.Limit = *in.Limit; opt.Limit < 1 {
			return adapters.Invalid("limit", "must be 1-%d", adapters.MaxSearchLimit).With("limit", adapters.MaxSearchLimit)
		}
	}
	hits, err := q.s.cfg.Slots.Memory().Search(q.Context(), in.Query, opt)
	return whole(q, hits, err)
}
