package beads

import (
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/wire"
)

// ExternalConfig of an External.
type ExternalConfig struct {
	URL       string // of the peer; its paths begin with /v1/beads
	Key       string // the manifest key URL comes from
	Auth      wire.Authorizer
	UserAgent string
}

// External is class external: the beads of a host or of another box, over the
// HTTP format that adapters/rest serves.
type External struct {
	client *wire.Client
	peer   atomic.Pointer[wire.Peer] // nil until connected
}

var _ adapters.Beads = (*External)(nil)

// NewExternal makes the adapter without any I/O.
func NewExternal(cfg ExternalConfig) (*External, error) {
	c, err := wire.New(wire.Config{Slot: adapters.SlotBeads, BaseURL: cfg.URL, Key: cfg.Key, Auth: cfg.Auth, UserAgent: cfg.UserAgent})
	if err != nil {
		return nil, err
	}
	return &External{client: c}, nil
}

// Slot and the methods after it describe the adapter. Version and capabilities are those of the
// peer, once known.
func (x *External) Slot() adapters.Slot   { return adapters.SlotBeads }
func (x *External) Impl() string          { return "external" }
func (x *External) Class() adapters.Class { return adapters.ClassExternal }
func (x *External) Enabled() bool         { return true }

// ContractVersion is the newest version that both sides know.
func (x *External) ContractVersion() string {
	if p := x.peer.Load(); p != nil && !p.AtLeast(1) {
		return "1.0"
	}
	return "1.1"
}

// Capabilities are those of the peer that this code supports.
func (x *External) Capabilities() []string {
	if p := x.peer.Load(); p != nil && p.AtLeast(1) && slices.Contains(p.Capabilities, adapters.CapGraph) {
		return []string{adapters.CapGraph}
	}
	return []string{}
}

// Connect asks the peer for the version of its contract.
func (x *External) Connect(ctx context.Context) error {
	if x.peer.Load() != nil {
		return nil
	}
	p, err := x.client.Handshake(ctx)
	if err != nil {
		return err
	}
	x.peer.Store(&p)
	return nil
}

// Health asks the same again.
func (x *External) Health(ctx context.Context) adapters.Health {
	if x.peer.Load() == nil {
		return adapters.Unhealthy(adapters.Closed(adapters.SlotBeads))
	}
	if _, err := x.client.Handshake(ctx); err != nil {
		return adapters.Unhealthy(err)
	}
	return adapters.Healthy()
}

// Disconnect forgets the peer. Calls under way end by themselves.
func (x *External) Disconnect(context.Context) error {
	x.peer.Store(nil)
	x.client.Close()
	return nil
}

// connected, or why a method cannot be called: minor is the contract's MINOR
// it came with.
func (x *External) connected(ctx context.Context, method string, minor int) error {
	if err := ctx.Err(); err != nil {
		return adapters.AsError(err)
	}
	p := x.peer.Load()
	switch {
	case p == nil:
		return adapters.Closed(adapters.SlotBeads)
	case minor > 0 && (!p.AtLeast(minor) || !slices.Contains(p.Capabilities, adapters.CapGraph)):
		return adapters.Unsupported(adapters.CapGraph, "the peer has no %s", method)
	}
	return nil
}

const base = "/v1/beads"

func beadPath(id, action string) string {
	p := base + "/" + url.PathEscape(id)
	if action != "" {
		p += "/" + action
	}
	return p
}

// one sends a request that is answered with one T.
func one[T any](ctx context.Context, x *External, minor int, method string, r wire.Request, in any) (out T, err error) {
	if err := x.connected(ctx, method, minor); err != nil {
		return out, err
	}
	_, err = x.client.JSON(ctx, r, in, &out)
	return out, err
}

// bead is one for a bead, with the lists that may be missing in an older
// peer's answer filled in.
func (x *External) bead(ctx context.Context, minor int, method string, r wire.Request, in any) (adapters.Bead, error) {
	b, err := one[adapters.Bead](ctx, x, minor, method, r, in)
	if err != nil {
		return adapters.Bead{}, err
	}
	if b.ID == "" {
		return adapters.Bead{}, notA("bead")
	}
	complete(&b)
	return b, nil
}

func complete(b *adapters.Bead) {
	b.Tags = adapters.TagSet(b.Tags)
	if b.Deps == nil {
		b.Deps = []adapters.Dep{}
	}
	if b.BlockedBy == nil {
		b.BlockedBy = []string{}
	}
}

func (x *External) beads(ctx context.Context, minor int, method, path string, q url.Values, opt adapters.PageOpt) (adapters.Page[adapters.Bead], error) {
	var page adapters.Page[adapters.Bead]
	if err := x.connected(ctx, method, minor); err != nil {
		return page, err
	}
	q.Set("limit", strconv.Itoa(opt.Rows()))
	if opt.Cursor != "" {
		q.Set("cursor", opt.Cursor)
	}
	res, err := x.client.Do(ctx, wire.Request{Method: http.MethodGet, Path: path, Query: q})
	if err != nil {
		return page, err
	}
	page, err = wire.List[adapters.Bead](res)
	for i := range page.Items {
		if page.Items[i].ID == "" {
			return adapters.Page[adapters.Bead]{}, notA("list of beads")
		}
		complete(&page.Items[i])
	}
	return page, err
}

// notA is the error for a successful JSON answer that is not the expected object.
func notA(what string) *adapters.Error {
	return adapters.Unavailable(nil, "the peer answered something that is no %s", what).Final()
}

func query(pairs ...string) url.Values {
	q := make(url.Values)
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			q.Set(pairs[i], pairs[i+1])
		}
	}
	return q
}

func post(path string) wire.Request {
	return wire.Request{Method: http.MethodPost, Path: path, Keyed: true}
}

// CreateEpic makes a bead without a parent.
func (x *External) CreateEpic(ctx context.Context, in adapters.NewBead) (adapters.Bead, error) {
	return x.bead(ctx, 0, "createEpic", post(base+"/epics"), in)
}

// CreateChild makes a bead below in.ParentID.
func (x *External) CreateChild(ctx context.Context, in adapters.NewBead) (adapters.Bead, error) {
	return x.bead(ctx, 0, "createChild", post(base+"/children"), in)
}

// ClaimRequest is the body of …/claim and …/release.
type ClaimRequest struct {
	Actor  string `json:"actor"`
	LeaseS int64  `json:"lease_s,omitempty"`
}

// Claim makes actor the holder.
func (x *External) Claim(ctx context.Context, id, actor string, opt ...adapters.ClaimOpt) (adapters.Bead, error) {
	in := ClaimRequest{Actor: actor}
	for _, o := range opt {
		in.LeaseS = int64(o.Lease.Seconds())
	}
	return x.bead(ctx, 0, "claim", post(beadPath(id, "claim")), in)
}

// CloseRequest is the body of …/close.
type CloseRequest struct {
	Outcome string `json:"outcome"`
	Force   bool   `json:"force,omitempty"`
}

// Close ends the bead.
func (x *External) Close(ctx context.Context, id, outcome string, opt ...adapters.CloseOpt) (adapters.Bead, error) {
	in := CloseRequest{Outcome: outcome}
	for _, o := range opt {
		in.Force = in.Force || o.Force
	}
	return x.bead(ctx, 0, "close", post(beadPath(id, "close")), in)
}

// GetReady lists what can be claimed.
func (x *External) GetReady(ctx context.Context, f adapters.ReadyFilter) (adapters.Page[adapters.Bead], error) {
	q := query("parent_id", f.ParentID, "tag", f.Tag, "kind", f.Kind)
	if f.PriorityMax != nil {
		q.Set("priority_max", strconv.Itoa(*f.PriorityMax))
	}
	return x.beads(ctx, 0, "getReady", base+"/ready", q, f.PageOpt)
}

// Show reads one bead.
func (x *External) Show(ctx context.Context, id string) (adapters.Bead, error) {
	return x.bead(ctx, 0, "show", wire.Request{Method: http.MethodGet, Path: beadPath(id, "")}, nil)
}

// List lists all beads.
func (x *External) List(ctx context.Context, f adapters.BeadFilter) (adapters.Page[adapters.Bead], error) {
	return x.beads(ctx, 1, "list", base, query("parent_id", f.ParentID, "status", f.Status, "tag", f.Tag, "kind", f.Kind, "actor", f.Actor), f.PageOpt)
}

// Update changes a bead. It carries no key: repeated after an unseen success,
// its If-Match would fail.
func (x *External) Update(ctx context.Context, id string, change adapters.BeadChange) (adapters.Bead, error) {
	r := wire.Request{Method: http.MethodPatch, Path: beadPath(id, "")}
	if len(change.IfVersions) > 0 {
		tags := make([]string, len(change.IfVersions))
		for i, v := range change.IfVersions {
			tags[i] = `"v` + strconv.FormatInt(v, 10) + `"`
		}
		r.Header = http.Header{"If-Match": {strings.Join(tags, ", ")}}
	}
	// A zero time is null on the wire, and null there would be "no change".
	type body struct {
		adapters.BeadChange
		DeferUntil *string `json:"defer_until,omitempty"`
	}
	in := body{BeadChange: change}
	if change.DeferUntil != nil {
		until := change.DeferUntil.String()
		in.DeferUntil = &until
	}
	return x.bead(ctx, 1, "update", r, in)
}

// Release gives up a claim.
func (x *External) Release(ctx context.Context, id, actor string) (adapters.Bead, error) {
	return x.bead(ctx, 1, "release", post(beadPath(id, "release")), ClaimRequest{Actor: actor})
}

// Reopen clears outcome and holder.
func (x *External) Reopen(ctx context.Context, id string) (adapters.Bead, error) {
	return x.bead(ctx, 1, "reopen", post(beadPath(id, "reopen")), struct{}{})
}

// AddDep adds an edge.
func (x *External) AddDep(ctx context.Context, dep adapters.Dep) (adapters.Dep, error) {
	out, err := one[adapters.Dep](ctx, x, 1, "addDep", post(beadPath(dep.From, "deps")), dep)
	if err == nil && (out.From == "" || out.To == "") {
		return adapters.Dep{}, notA("dependency")
	}
	return out, err
}

// RemoveDep removes an edge.
func (x *External) RemoveDep(ctx context.Context, dep adapters.Dep) error {
	if err := x.connected(ctx, "removeDep", 1); err != nil {
		return err
	}
	_, err := x.client.Do(ctx, wire.Request{
		Method: http.MethodDelete, Path: beadPath(dep.From, "deps"), Query: query("to", dep.To, "type", dep.Type), Keyed: true,
	})
	return err
}

// Comment adds a remark.
func (x *External) Comment(ctx context.Context, id, text string) (adapters.BeadComment, error) {
	out, err := one[adapters.BeadComment](ctx, x, 1, "comment", post(beadPath(id, "comments")), map[string]string{"text": text})
	if err == nil && out.ID == "" {
		return adapters.BeadComment{}, notA("comment")
	}
	return out, err
}

// Export copies the peer's export.
func (x *External) Export(ctx context.Context, w io.Writer) error {
	if err := x.connected(ctx, "export", 1); err != nil {
		return err
	}
	res, err := x.client.Stream(ctx, wire.Request{Method: http.MethodGet, Path: base + "/export", Accept: "application/x-ndjson"})
	if err != nil {
		return err
	}
	defer res.Body.Close()
	// A login page would make a backup that cannot be restored.
	if mt, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type")); mt != "application/x-ndjson" {
		return notA("export")
	}
	if _, err := io.Copy(w, res.Body); err != nil {
		if ctx.Err() != nil {
			return adapters.AsError(ctx.Err())
		}
		return adapters.Unavailable(err, "the export broke off")
	}
	return nil
}

// Import sends a file to the peer.
func (x *External) Import(ctx context.Context, r io.Reader, opt adapters.ImportOpt) (adapters.ImportResult, error) {
	var out adapters.ImportResult
	if err := x.connected(ctx, "import", 1); err != nil {
		return out, err
	}
	body, err := io.ReadAll(io.LimitReader(r, maxImportBytes+1))
	if err != nil {
		if coded, ok := errors.AsType[*adapters.Error](err); ok {
			return out, coded
		}
		return out, adapters.Unavailable(err, "cannot read the import")
	}
	if len(body) > maxImportBytes {
		return out, adapters.TooLarge("import", maxImportBytes, -1)
	}
	req := post(base + "/import")
	req.Body, req.ContentType = body, "application/x-ndjson"
	if opt.DryRun {
		req.Query = url.Values{"dry_run": {"true"}}
	}
	_, err = x.client.JSON(ctx, req, nil, &out)
	return out, err
}
