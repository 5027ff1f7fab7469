package beads

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/contract"
	"github.com/dreamlab-ai/agentinit/adapters/wire"
)

// server speaks the beads wire over a local store, as plainly as it can.
func server(t testing.TB, meta string) string {
	l := newLocal(t, filepath.Join(t.TempDir(), "beads.db"))
	if err := l.Connect(context.Background()); err != nil {
		t.Fatal(err)
	}
	b := adapters.WrapBeads(l, nil)
	mux := http.NewServeMux()
	handle := func(pattern string, status int, f func(context.Context, *http.Request) (any, error)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			ctx := adapters.WithMeta(r.Context(), adapters.Meta{Actor: r.Header.Get("Agentbox-Actor"), IdempotencyKey: r.Header.Get("Idempotency-Key")})
			out, err := f(ctx, r)
			if err != nil {
				adapters.WriteProblem(w, err)
				return
			}
			if page, ok := out.(adapters.Page[adapters.Bead]); ok && strings.HasSuffix(pattern, "/ready") { // as older peers: an array
				if page.NextCursor != "" {
					w.Header().Set("Link", `</v1/beads/ready?cursor=`+url.QueryEscape(string(page.NextCursor))+`>; rel="next"`)
				}
				out = append([]adapters.Bead{}, page.Items...)
			}
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(status)
			if status != http.StatusNoContent {
				_ = json.NewEncoder(w).Encode(out)
			}
		})
	}
	if meta != "" {
		mux.HandleFunc("GET /v1/meta", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(meta))
		})
	}
	routes(b, handle)
	mux.HandleFunc("GET /v1/beads/export", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/x-ndjson")
		_ = b.Export(r.Context(), w)
	})
	srv := httptest.NewServer(mux)
	t.Cleanup(func() {
		srv.Close()
		_ = l.Disconnect(context.Background())
	})
	return srv.URL
}

func body[T any](r *http.Request) (in T) {
	_ = json.NewDecoder(r.Body).Decode(&in) // the slot refuses what is missing
	return in
}

func paging(r *http.Request) adapters.PageOpt {
	limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
	return adapters.PageOpt{Limit: limit, Cursor: r.URL.Query().Get("cursor")}
}

func routes(b adapters.Beads, handle func(string, int, func(context.Context, *http.Request) (any, error))) {
	handle("POST /v1/beads/epics", 201, func(ctx context.Context, r *http.Request) (any, error) {
		return b.CreateEpic(ctx, body[adapters.NewBead](r))
	})
	handle("POST /v1/beads/children", 201, func(ctx context.Context, r *http.Request) (any, error) {
		return b.CreateChild(ctx, body[adapters.NewBead](r))
	})
	handle("POST /v1/beads/{id}/claim", 200, func(ctx context.Context, r *http.Request) (any, error) {
		in := body[ClaimRequest](r)
		return b.Claim(ctx, r.PathValue("id"), in.Actor, adapters.ClaimOpt{Lease: time.Duration(in.LeaseS) * time.Second})
	})
	handle("POST /v1/beads/{id}/close", 200, func(ctx context.Context, r *http.Request) (any, error) {
		in := body[CloseRequest](r)
		return b.Close(ctx, r.PathValue("id"), in.Outcome, adapters.CloseOpt{Force: in.Force})
	})
	handle("GET /v1/beads/ready", 200, func(ctx context.Context, r *http.Request) (any, error) {
		q := r.URL.Query()
		f := adapters.ReadyFilter{ParentID: q.Get("parent_id"), Tag: q.Get("tag"), Kind: q.Get("kind"), PageOpt: paging(r)}
		if p, err := strconv.Atoi(q.Get("priority_max")); err == nil {
			f.PriorityMax = &p
		}
		return b.GetReady(ctx, f)
	})
	handle("GET /v1/beads/{id}", 200, func(ctx context.Context, r *http.Request) (any, error) { return b.Show(ctx, r.PathValue("id")) })
	handle("GET /v1/beads", 200, func(ctx context.Context, r *http.Request) (any, error) {
		q := r.URL.Query()
		return b.List(ctx, adapters.BeadFilter{ParentID: q.Get("parent_id"), Status: q.Get("status"), Tag: q.Get("tag"), Kind: q.Get("kind"), Actor: q.Get("actor"), PageOpt: paging(r)})
	})
	handle("PATCH /v1/beads/{id}", 200, func(ctx context.Context, r *http.Request) (any, error) {
		in := body[adapters.BeadChange](r)
		in.IfVersion, _ = strconv.ParseInt(strings.Trim(r.Header.Get("If-Match"), `"v`), 10, 64)
		return b.Update(ctx, r.PathValue("id"), in)
	})
	handle("POST /v1/beads/{id}/release", 200, func(ctx context.Context, r *http.Request) (any, error) {
		return b.Release(ctx, r.PathValue("id"), body[ClaimRequest](r).Actor)
	})
	handle("POST /v1/beads/{id}/reopen", 200, func(ctx context.Context, r *http.Request) (any, error) { return b.Reopen(ctx, r.PathValue("id")) })
	handle("POST /v1/beads/{id}/deps", 201, func(ctx context.Context, r *http.Request) (any, error) { return b.AddDep(ctx, body[adapters.Dep](r)) })
	handle("DELETE /v1/beads/{id}/deps", 204, func(ctx context.Context, r *http.Request) (any, error) {
		return nil, b.RemoveDep(ctx, adapters.Dep{From: r.PathValue("id"), To: r.URL.Query().Get("to"), Type: r.URL.Query().Get("type")})
	})
	handle("POST /v1/beads/{id}/comments", 201, func(ctx context.Context, r *http.Request) (any, error) {
		return b.Comment(ctx, r.PathValue("id"), body[map[string]string](r)["text"])
	})
	handle("POST /v1/beads/import", 200, func(ctx context.Context, r *http.Request) (any, error) {
		return b.Import(ctx, r.Body, adapters.ImportOpt{DryRun: r.URL.Query().Get("dry_run") == "true"})
	})
}

const fullMeta = `{"adapter_contract_versions":{"beads":"1.1"},"capabilities":{"beads":["graph"]}}`

func newExternal(t testing.TB, url string) *External {
	t.Helper()
	x, err := NewExternal(ExternalConfig{URL: url, Key: "federation.external_url", Auth: wire.Bearer(func() string { return "t" })})
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func TestContractExternal(t *testing.T) {
	for name, meta := range map[string]string{"1.1": fullMeta, "a peer of 1.0 without meta": ""} {
		t.Run(name, func(t *testing.T) {
			contract.Beads(t, func(t testing.TB) adapters.Beads { return newExternal(t, server(t, meta)) })
		})
	}
}

func TestAnotherMajorIsAMismatch(t *testing.T) {
	x := newExternal(t, server(t, `{"adapter_contract_versions":{"beads":"2.0"}}`))
	if err := x.Connect(t.Context()); !errors.Is(err, adapters.ErrContractMismatch) {
		t.Errorf("got %v", err)
	}
	if _, err := x.Show(t.Context(), "ab-1"); !errors.Is(err, adapters.ErrUnavailable) {
		t.Errorf("after a refused connect: %v", err)
	}
}
