package rest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/beads"
	"github.com/dreamlab-ai/agentinit/adapters/memory"
	"github.com/dreamlab-ai/agentinit/adapters/middleware"
	"github.com/dreamlab-ai/agentinit/adapters/orchestrator"
	"github.com/dreamlab-ai/agentinit/adapters/rest/resttest"
	"github.com/dreamlab-ai/agentinit/adapters/wire"
)

// reach is a set of slots: those in the box, or those of a client of the box. The client has no
// middleware, so that each refusal comes from the box.
type reach struct {
	beads  adapters.Beads
	memory adapters.Memory
	agents adapters.Orchestrator
}

// codeCase causes one error. Each run of call must fail in the same way.
type codeCase struct {
	code  adapters.Code
	name  string
	slots func(*testing.T) map[adapters.Slot]adapters.Adapter // nil: only beads
	chain middleware.Options
	// auth is the authorizer of the client, for errors that only the HTTP layer returns. local then
	// returns the same error without HTTP.
	auth  wire.Authorizer
	local func() error
	setup func(context.Context, *testing.T, reach) (id string)
	call  func(ctx context.Context, r reach, id string) error
}

// as sets the actor of a call.
func as(ctx context.Context, actor string) context.Context {
	return adapters.WithMeta(ctx, adapters.Meta{Actor: actor})
}

func failed[T any](_ T, err error) error { return err }

// altered sets the credentials and then one more header.
type altered struct{ name, value string }

func (a altered) Authorize(r *http.Request, _ []byte) error {
	r.Header.Set("Authorization", "Bearer admin")
	r.Header.Set(a.name, a.value)
	return nil
}

func codeCases() []codeCase {
	return append(append(beadCodes(), slotCodes()...), edgeCodes()...)
}

func beadCodes() []codeCase {
	epic := func(ctx context.Context, t *testing.T, r reach) string {
		return must(r.beads.CreateEpic(ctx, adapters.NewBead{Title: "x"}))(t).ID
	}
	claimed := func(ctx context.Context, t *testing.T, r reach) string {
		return must(r.beads.Claim(ctx, epic(ctx, t, r), "ann"))(t).ID
	}
	closed := func(ctx context.Context, t *testing.T, r reach) string {
		return must(r.beads.Close(ctx, epic(ctx, t, r), ""))(t).ID
	}
	return []codeCase{
		{code: adapters.CodeValidation, call: func(ctx context.Context, r reach, _ string) error {
			return failed(r.beads.CreateEpic(ctx, adapters.NewBead{Title: strings.Repeat("x", 501)}))
		}},
		{code: adapters.CodePermissionDenied, setup: claimed, call: func(ctx context.Context, r reach, id string) error {
			return failed(r.beads.Close(as(ctx, "bob"), id, ""))
		}},
		{code: adapters.CodeNotFound, call: func(ctx context.Context, r reach, _ string) error {
			return failed(r.beads.Show(ctx, "ab-nobody"))
		}},
		{code: adapters.CodeAlreadyClaimed, setup: claimed, call: func(ctx context.Context, r reach, id string) error {
			return failed(r.beads.Claim(as(ctx, "bob"), id, "bob"))
		}},
		{code: adapters.CodeNotClaimable, setup: closed, call: func(ctx context.Context, r reach, id string) error {
			return failed(r.beads.Claim(ctx, id, "ann"))
		}},
		{code: adapters.CodeDependencyCycle, setup: epic, call: func(ctx context.Context, r reach, id string) error {
			return failed(r.beads.AddDep(ctx, adapters.Dep{From: id, To: id}))
		}},
		{code: adapters.CodeConflict, setup: closed, call: func(ctx context.Context, r reach, id string) error {
			return failed(r.beads.CreateChild(ctx, adapters.NewBead{Title: "late", ParentID: id}))
		}},
		{code: adapters.CodePreconditionFailed, setup: epic, call: func(ctx context.Context, r reach, id string) error {
			return failed(r.beads.Update(ctx, id, adapters.BeadChange{Title: new("y"), IfVersions: []int64{7}}))
		}},
		{
			code: adapters.CodeIdempotencyMismatch,
			setup: func(ctx context.Context, t *testing.T, r reach) string {
				return must(r.beads.CreateEpic(keyed(ctx), adapters.NewBead{Title: "first"}))(t).ID
			},
			call: func(ctx context.Context, r reach, _ string) error {
				return failed(r.beads.CreateEpic(keyed(ctx), adapters.NewBead{Title: "other"}))
			},
		},
		{
			code:  adapters.CodePrivacyRejected,
			chain: middleware.Options{Privacy: middleware.PrivacyConfig{Redactor: redactorDown{}, Policies: map[adapters.Slot]middleware.Policy{adapters.SlotBeads: middleware.PolicyStrict}}},
			call: func(ctx context.Context, r reach, _ string) error {
				return failed(r.beads.CreateEpic(ctx, adapters.NewBead{Title: "private"}))
			},
		},
		{
			code: adapters.CodeUnavailable, name: "disconnected",
			slots: func(t *testing.T) map[adapters.Slot]adapters.Adapter {
				return map[adapters.Slot]adapters.Adapter{adapters.SlotBeads: gone{localBeads(t)}}
			},
			call: func(ctx context.Context, r reach, _ string) error { return failed(r.beads.Show(ctx, "ab-1")) },
		},
	}
}

func keyed(ctx context.Context) context.Context {
	return adapters.WithMeta(ctx, adapters.Meta{Actor: "ann", IdempotencyKey: "k"})
}

// slotCodes are the errors that need other slots than beads.
func slotCodes() []codeCase {
	retrieve := func(ctx context.Context, r reach, _ string) error {
		_, _, err := r.memory.Retrieve(ctx, "k", "n")
		return err
	}
	broken := func(why func(context.Context) error) func(*testing.T) map[adapters.Slot]adapters.Adapter {
		return func(*testing.T) map[adapters.Slot]adapters.Adapter {
			return map[adapters.Slot]adapters.Adapter{adapters.SlotMemory: brokenMemory{newMemoryFake(), why}}
		}
	}
	agents := func(t *testing.T) map[adapters.Slot]adapters.Adapter {
		return map[adapters.Slot]adapters.Adapter{adapters.SlotOrchestrator: must(orchestrator.NewLocal(orchestrator.LocalConfig{
			Spawner: spawnerFake{}, Roots: []string{t.TempDir()}, MaxRunning: 1,
		}))(t)}
	}
	work := adapters.AgentSpec{Command: "work"}
	return []codeCase{
		{code: adapters.CodePayloadTooLarge, slots: broken(nil), call: func(ctx context.Context, r reach, _ string) error {
			return failed(r.memory.Store(ctx, "k", strings.Repeat("x", adapters.MaxMemoryValue+1), "n", adapters.StoreOpt{}))
		}},
		{
			code: adapters.CodeEmbedding,
			slots: func(t *testing.T) map[adapters.Slot]adapters.Adapter {
				return map[adapters.Slot]adapters.Adapter{
					adapters.SlotMemory: must(memory.NewEmbedded(memory.EmbeddedConfig{Dir: t.TempDir(), Embedder: deaf{}}))(t),
				}
			},
			call: func(ctx context.Context, r reach, _ string) error {
				return failed(r.memory.Store(ctx, "k", "v", "n", adapters.StoreOpt{}))
			},
		},
		{code: adapters.CodeInternal, slots: broken(func(context.Context) error { return errors.New("disk on fire at /secret") }), call: retrieve},
		{
			code: adapters.CodeTimeout, chain: middleware.Options{ReadLimit: 20 * time.Millisecond},
			slots: broken(func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }), call: retrieve,
		},
		{code: adapters.CodeUnsupported, name: "capability", slots: broken(func(context.Context) error { return adapters.Unsupported("ann", "no index") }), call: retrieve},
		{code: adapters.CodeDisabled, name: "off", call: retrieve},
		{
			// A write without an idempotency key: the client does not retry it.
			code: adapters.CodeDisabled, name: "degraded", call: func(ctx context.Context, r reach, _ string) error {
				return failed(r.memory.Store(ctx, "k", "v", "n", adapters.StoreOpt{}))
			},
			slots: func(*testing.T) map[adapters.Slot]adapters.Adapter {
				return map[adapters.Slot]adapters.Adapter{adapters.SlotMemory: refusing{newMemoryFake()}}
			},
		},
		{code: adapters.CodeSpawn, slots: agents, call: func(ctx context.Context, r reach, _ string) error {
			return failed(r.agents.SpawnAgent(ctx, adapters.AgentSpec{}))
		}},
		{
			code: adapters.CodeRateLimited, slots: agents,
			setup: func(ctx context.Context, t *testing.T, r reach) string {
				return must(r.agents.SpawnAgent(ctx, work))(t).AgentID
			},
			call: func(ctx context.Context, r reach, _ string) error { return failed(r.agents.SpawnAgent(ctx, work)) },
		},
	}
}

// edgeCodes are the errors that only the HTTP layer returns: a slot does not see credentials, media
// types or the contract version of a caller.
func edgeCodes() []codeCase {
	show := func(ctx context.Context, r reach, _ string) error { return failed(r.beads.Show(ctx, "ab-1")) }
	return []codeCase{
		{
			code: adapters.CodeUnauthenticated, auth: token(""), call: show,
			local: func() error {
				return adapters.Errorf(adapters.CodeUnauthenticated, "").With("reason", "missing")
			},
		},
		{
			code: adapters.CodeContractMismatch, auth: altered{"Agentbox-Contract", "beads/2"}, call: show,
			local: func() error { return adapters.CheckVersion(adapters.SlotBeads, "2", "1.1", false) },
		},
		{
			code: adapters.CodeUnsupported, name: "media type", auth: altered{"Content-Type", "text/csv"},
			call: func(ctx context.Context, r reach, _ string) error {
				return failed(r.beads.CreateEpic(ctx, adapters.NewBead{Title: "x"}))
			},
			local: func() error { return adapters.Errorf(adapters.CodeUnsupported, "") },
		},
	}
}

// elsewhere are the codes that no slot returns: only the host of a federation does.
// adapters/federation tests its client.
var elsewhere = []adapters.Code{adapters.CodeSessionEvicted}

// TestEveryCode covers the whole table of codes. Each error must be the same in the box and in a
// client of the box: code, status, retryable and fields.
func TestEveryCode(t *testing.T) {
	cases := map[adapters.Code][]codeCase{}
	for _, c := range codeCases() {
		cases[c.code] = append(cases[c.code], c)
	}
	for _, code := range elsewhere {
		cases[code] = append(cases[code], codeCase{})
	}
	for _, row := range adapters.Codes() {
		if len(cases[row.Code]) == 0 {
			t.Errorf("nothing here brings about %s", row.Code)
		}
		for _, c := range cases[row.Code] {
			if c.call == nil {
				continue
			}
			t.Run(strings.TrimSpace(string(c.code)+" "+c.name), func(t *testing.T) { c.run(t) })
		}
	}
}

func (c codeCase) run(t *testing.T) {
	if c.slots == nil {
		c.slots = func(t *testing.T) map[adapters.Slot]adapters.Adapter {
			return map[adapters.Slot]adapters.Adapter{adapters.SlotBeads: localBeads(t)}
		}
	}
	set := newSet(t, c.slots(t), c.chain)
	b := &box{t: t}
	b.serve(set)
	ctx := as(t.Context(), "ann")
	inside := reach{set.Beads(), set.Memory(), set.Orchestrator()}
	id := ""
	if c.setup != nil {
		id = c.setup(ctx, t, inside)
	}
	local := func() error { return c.call(ctx, inside, id) }
	if c.local != nil {
		local = c.local
	}
	auth := c.auth
	if auth == nil {
		auth = token("admin")
	}
	here, there := local(), c.call(ctx, client(t, b.url, auth), id)
	want, got := document(t, here), document(t, there)
	if adapters.CodeOf(here) != c.code || !reflect.DeepEqual(got, want) {
		t.Errorf("in the box:\n%v %v\nby a client:\n%v %v", here, want, there, got)
	}
	if s := fmt.Sprint(there, got); c.code == adapters.CodeInternal && strings.Contains(s, "secret") {
		t.Errorf("what went wrong inside has left the box: %s", s)
	}
}

// client connects to the slots of the box at url.
func client(t *testing.T, url string, auth wire.Authorizer) reach {
	r := reach{
		must(beads.NewExternal(beads.ExternalConfig{URL: url, Auth: auth}))(t),
		must(resttest.NewMemory(url, auth))(t),
		must(resttest.NewAgents(url, auth))(t),
	}
	for _, a := range []adapters.Adapter{r.beads, r.memory, r.agents} {
		if err := a.Connect(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = a.Disconnect(context.Background()) }) // it only forgets the peer
	}
	return r
}

// document returns the parts of an error's problem document that a client can act on: all except the
// texts, the slot and method, and the id in the log.
func document(t *testing.T, err error) map[string]any {
	t.Helper()
	if _, ok := errors.AsType[*adapters.Error](err); !ok {
		t.Fatalf("an error without a code: %v", err)
	}
	status, body := adapters.Problem(err)
	var doc map[string]any
	if err := json.Unmarshal(body, &doc); err != nil {
		t.Fatal(err)
	}
	doc["http"] = float64(status)
	for _, name := range []string{"detail", "message", "slot", "method", "error_id"} {
		delete(doc, name)
	}
	return doc
}

// The client maps an error answer without an agentinit code by its status, whatever its body is.
func TestForeignAnswers(t *testing.T) {
	table := map[int]adapters.Code{
		400: adapters.CodeValidation, 422: adapters.CodeValidation, 418: adapters.CodeValidation, 451: adapters.CodeValidation,
		401: adapters.CodeUnauthenticated, 403: adapters.CodePermissionDenied,
		404: adapters.CodeNotFound, 410: adapters.CodeNotFound,
		405: adapters.CodeUnsupported, 501: adapters.CodeUnsupported, 406: adapters.CodeUnsupported, 415: adapters.CodeUnsupported,
		408: adapters.CodeTimeout, 504: adapters.CodeTimeout, 409: adapters.CodeConflict, 412: adapters.CodePreconditionFailed,
		413: adapters.CodePayloadTooLarge, 507: adapters.CodePayloadTooLarge, 429: adapters.CodeRateLimited,
		500: adapters.CodeUnavailable, 502: adapters.CodeUnavailable, 503: adapters.CodeUnavailable, 599: adapters.CodeUnavailable,
		302: adapters.CodeUnavailable, 304: adapters.CodeUnavailable,
	}
	bodies := [][2]string{
		{"text/html", "<html>no</html>"}, {"application/json", `{"error":"no","code":"SOMETHING_ELSE"}`}, {adapters.ProblemType, `{"status":200}`}, {"", ""},
	}
	// The id of the bead selects the status and the body of the answer.
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var status, body int
		if _, err := fmt.Sscanf(r.URL.Path, "/v1/beads/ab-%d-%d", &status, &body); err != nil {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"adapter_contract_versions":{"beads":"1.1"},"capabilities":{"beads":["graph"]}}`)
			return
		}
		w.Header()["Content-Type"] = []string{bodies[body][0]}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, bodies[body][1]) // the client may close the connection early
	}))
	defer srv.Close()
	for status, want := range table {
		// One client for each status: after several failures, a client would stop calling its peer.
		x := must(beads.NewExternal(beads.ExternalConfig{URL: srv.URL}))(t)
		if err := x.Connect(t.Context()); err != nil {
			t.Fatal(err)
		}
		for i, body := range bodies {
			// An update has no idempotency key, so the client does not retry it.
			_, err := x.Update(t.Context(), fmt.Sprintf("ab-%d-%d", status, i), adapters.BeadChange{})
			if e := adapters.AsError(err); e == nil || e.Code != want || e.Retryable != want.Row().Retryable {
				t.Errorf("%d %s: %v, want %s", status, body[0], err, want)
			}
		}
		if err := x.Disconnect(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

func localBeads(t testing.TB) *beads.Local {
	return must(beads.NewLocal(beads.LocalConfig{Path: filepath.Join(t.TempDir(), "beads.db")}))(t)
}

// gone disconnects in Connect.
type gone struct{ *beads.Local }

func (g gone) Connect(ctx context.Context) error {
	return errors.Join(g.Local.Connect(ctx), g.Local.Disconnect(ctx))
}

// refusing fails to connect.
type refusing struct{ *memoryFake }

func (refusing) Connect(context.Context) error { return adapters.Unavailable(nil, "no such host") }

// brokenMemory answers each read with the error of why.
type brokenMemory struct {
	*memoryFake
	why func(context.Context) error
}

func (m brokenMemory) Retrieve(ctx context.Context, _, _ string) (adapters.MemoryEntry, bool, error) {
	return adapters.MemoryEntry{}, false, m.why(ctx)
}

type redactorDown struct{}

func (redactorDown) Redact(context.Context, middleware.RedactRequest) (middleware.RedactAnswer, error) {
	return middleware.RedactAnswer{}, errors.New("no model")
}

// spawnerFake starts no process. Its agents run until they get SIGTERM or SIGKILL.
type spawnerFake struct{}

type processFake struct{ ended func(orchestrator.Ending) }

func (spawnerFake) Spawn(_ context.Context, c orchestrator.Command) (orchestrator.Process, error) {
	return processFake{c.Ended}, nil
}

func (processFake) PID() int              { return 42 }
func (processFake) Refused() uint64       { return 0 }
func (processFake) Started() time.Time    { return time.Now() }
func (processFake) Stdin() io.WriteCloser { return nil }
func (p processFake) Kill() error         { return p.Signal(syscall.SIGKILL) }
func (p processFake) Signal(sig syscall.Signal) error {
	if sig == syscall.SIGTERM || sig == syscall.SIGKILL {
		go p.ended(orchestrator.Ending{Signal: sig, Time: time.Now()})
	}
	return nil
}
