package beads

import (
	"context"
	"encoding/json"
	"errors"
	"io"
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

// server serves the beads protocol from a local store, in the simplest way.
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
			if page, ok := out.(adapters.Page[adapters.Bead]); ok && strings.HasSuffix(pattern, "/ready") { // older peers return an array
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
	_ = json.NewDecoder(r.Body).Decode(&in) // the slot refuses missing values
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
		for tag := range strings.SplitSeq(r.Header.Get("If-Match"), ", ") {
			if v, err := strconv.ParseInt(strings.Trim(tag, `"v`), 10, 64); err == nil {
				in.IfVersions = append(in.IfVersions, v)
			}
		}
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
	x, err := NewExternal(ExternalConfig{URL: url, Key: "federation.external_url", Auth: wire.Bearer(func() string { return "sesame" })})
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

func TestPeersThatMisbehave(t *testing.T) {
	contract.Peers(t, contract.PeerClass{
		Good: func(t *testing.T) string {
			return answering(t, `{"id":"ab-1","title":"t","from":"ab-1","to":"ab-2","created":0,"items":[{"id":"ab-1"}]}`, "")
		},
		Open: func(t *testing.T, url string) []contract.PeerCall { return peerCalls(t, newExternal(t, url)) },
	})
}

// answering is a peer that gives the same answer to all requests. Its content type is contentType,
// or that of the route if contentType is empty.
func answering(t *testing.T, body, contentType string) (url string) {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		kind, say := contentType, body
		switch {
		case r.URL.Path == "/v1/meta":
			kind, say = "application/json", fullMeta
		case kind == "" && r.URL.Path == "/v1/beads/export":
			kind = "application/x-ndjson"
		case kind == "":
			kind = "application/json"
		}
		w.Header().Set("Content-Type", kind)
		_, _ = io.WriteString(w, say) // the client may have closed the connection
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

// peerCalls returns a call of every method.
func peerCalls(t *testing.T, x *External) []contract.PeerCall {
	t.Helper()
	if err := x.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = x.Disconnect(context.Background()) }) // it does no I/O
	b := adapters.WrapBeads(x, nil)
	call := func(name string, kind contract.Answer, f func(context.Context) error) contract.PeerCall {
		return contract.PeerCall{Name: name, Answer: kind, Call: f}
	}
	bead := func(name string, f func(context.Context) (adapters.Bead, error)) contract.PeerCall {
		return call(name, contract.Parsed, func(ctx context.Context) error { _, err := f(ctx); return err })
	}
	title, dep := "u", adapters.Dep{From: "ab-1", To: "ab-2"}
	return []contract.PeerCall{
		bead("createEpic", func(ctx context.Context) (adapters.Bead, error) {
			return b.CreateEpic(ctx, adapters.NewBead{Title: "t"})
		}),
		bead("createChild", func(ctx context.Context) (adapters.Bead, error) {
			return b.CreateChild(ctx, adapters.NewBead{Title: "t", ParentID: "ab-2"})
		}),
		bead("claim", func(ctx context.Context) (adapters.Bead, error) { return b.Claim(ctx, "ab-1", "ann") }),
		bead("release", func(ctx context.Context) (adapters.Bead, error) { return b.Release(ctx, "ab-1", "ann") }),
		bead("close", func(ctx context.Context) (adapters.Bead, error) { return b.Close(ctx, "ab-3", "done") }),
		bead("reopen", func(ctx context.Context) (adapters.Bead, error) { return b.Reopen(ctx, "ab-3") }),
		bead("show", func(ctx context.Context) (adapters.Bead, error) { return b.Show(ctx, "ab-1") }),
		bead("update", func(ctx context.Context) (adapters.Bead, error) {
			return b.Update(ctx, "ab-1", adapters.BeadChange{Title: &title})
		}),
		call("getReady", contract.Parsed, func(ctx context.Context) error { _, err := b.GetReady(ctx, adapters.ReadyFilter{}); return err }),
		call("list", contract.Parsed, func(ctx context.Context) error { _, err := b.List(ctx, adapters.BeadFilter{}); return err }),
		call("addDep", contract.Parsed, func(ctx context.Context) error { _, err := b.AddDep(ctx, dep); return err }),
		call("removeDep", contract.Status, func(ctx context.Context) error { return b.RemoveDep(ctx, dep) }),
		call("comment", contract.Parsed, func(ctx context.Context) error { _, err := b.Comment(ctx, "ab-1", "x"); return err }),
		call("export", contract.Forwarded, func(ctx context.Context) error { return b.Export(ctx, io.Discard) }),
		call("import", contract.Parsed, func(ctx context.Context) error {
			_, err := b.Import(ctx, strings.NewReader(""), adapters.ImportOpt{DryRun: true})
			return err
		}),
	}
}

// An empty answer with a success status is not accepted as a bead, dependency, comment or export.
func TestEmptyAnswersAreNoBeads(t *testing.T) {
	for name, answer := range map[string][2]string{
		"an empty object": {"application/json", "{}"}, "null": {"application/json", "null"},
		"empty beads": {"application/json", `{"items":[{}]}`}, "a page": {"text/html", "<p>login"},
	} {
		x := newExternal(t, answering(t, answer[1], answer[0]))
		if err := x.Connect(t.Context()); err != nil {
			t.Fatal(err)
		}
		b := adapters.WrapBeads(x, nil)
		for method, f := range map[string]func() error{
			"show":    func() error { _, err := b.Show(t.Context(), "ab-1"); return err },
			"create":  func() error { _, err := b.CreateEpic(t.Context(), adapters.NewBead{Title: "t"}); return err },
			"addDep":  func() error { _, err := b.AddDep(t.Context(), adapters.Dep{From: "ab-1", To: "ab-2"}); return err },
			"comment": func() error { _, err := b.Comment(t.Context(), "ab-1", "x"); return err },
			"export":  func() error { return b.Export(t.Context(), io.Discard) },
			"list":    func() error { _, err := b.List(t.Context(), adapters.BeadFilter{}); return err },
		} {
			if method == "list" && (name == "null" || name == "an empty object") {
				continue // a list without beads is valid
			}
			if err := f(); !errors.Is(err, adapters.ErrUnavailable) || adapters.AsError(err).Retryable {
				t.Errorf("%s, %s: %v, want UNAVAILABLE for good", name, method, err)
			}
		}
		if err := x.Disconnect(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
