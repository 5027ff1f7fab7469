package rest

import (
	"bytes"
	"context"
	"encoding/json"
	"iter"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// ClaimBody is the body of a claim. Without Actor, the caller becomes the holder.
type ClaimBody struct {
	Actor  string `json:"actor,omitempty"`
	LeaseS int    `json:"lease_s,omitempty"` // 30-86400, 0 = no lease
}

// CloseBody is the body of a close.
type CloseBody struct {
	Outcome string `json:"outcome,omitempty"`
	Force   bool   `json:"force,omitempty"`
}

// ActorBody is the body of a release. Without Actor, the caller is the actor.
type ActorBody struct {
	Actor string `json:"actor,omitempty"`
}

// CommentBody is the body of a comment.
type CommentBody struct {
	Text string `json:"text"`
}

func etag(version int64) string { return `"v` + strconv.FormatInt(version, 10) + `"` }

func (q *request) bead(status int, b adapters.Bead, err error) error {
	if err != nil {
		return err
	}
	q.w.Header().Set("ETag", etag(b.Version))
	if status == http.StatusCreated {
		q.w.Header().Set("Location", "/v1/beads/"+b.ID)
	}
	return q.reply(status, b)
}

func createEpic(q *request, in adapters.NewBead) error {
	return createBead(q, in, q.s.cfg.Slots.Beads().CreateEpic)
}

func createChild(q *request, in adapters.NewBead) error {
	return createBead(q, in, q.s.cfg.Slots.Beads().CreateChild)
}

func createBead(q *request, in adapters.NewBead, create func(context.Context, adapters.NewBead) (adapters.Bead, error)) error {
	author, err := actorOr(q.Context(), q.who, in.CreatedBy)
	if err != nil {
		return err
	}
	in.CreatedBy = author
	b, err := create(q.Context(), in)
	return q.bead(http.StatusCreated, b, err)
}

func claimBead(q *request) error {
	var in ClaimBody
	id, actor, err := beadAndActor(q, &in, func() string { return in.Actor })
	if err != nil {
		return err
	}
	var opt []adapters.ClaimOpt
	if in.LeaseS != 0 {
		if in.LeaseS < 0 || in.LeaseS > int(adapters.MaxLease/time.Second) {
			return adapters.Invalid("lease_s", "must be 30-86400")
		}
		opt = append(opt, adapters.ClaimOpt{Lease: time.Duration(in.LeaseS) * time.Second})
	}
	b, err := q.s.cfg.Slots.Beads().Claim(q.Context(), id, actor, opt...)
	return q.bead(http.StatusOK, b, err)
}

// beadAndActor reads the body into body and returns the bead's id and the actor.
func beadAndActor(q *request, body any, named func() string) (id, actor string, err error) {
	if err = q.json(body); err != nil {
		return "", "", err
	}
	actor, err = actorOr(q.Context(), q.who, named())
	return q.param("id"), actor, err
}

func closeBead(q *request, in CloseBody) error {
	b, err := q.s.cfg.Slots.Beads().Close(q.Context(), q.param("id"), in.Outcome, adapters.CloseOpt{Force: in.Force})
	return q.bead(http.StatusOK, b, err)
}

func releaseBead(q *request) error {
	var in ActorBody
	id, actor, err := beadAndActor(q, &in, func() string { return in.Actor })
	if err != nil {
		return err
	}
	b, err := q.s.cfg.Slots.Beads().Release(q.Context(), id, actor)
	return q.bead(http.StatusOK, b, err)
}

func reopenBead(q *request) error {
	b, err := q.s.cfg.Slots.Beads().Reopen(q.Context(), q.param("id"))
	return q.bead(http.StatusOK, b, err)
}

func showBead(q *request) error {
	b, err := q.s.cfg.Slots.Beads().Show(q.Context(), q.param("id"))
	// The version of a bead that is not closed does not tell everything: blocked_by changes when another
	// bead is closed.
	if err == nil && b.Status == adapters.BeadClosed && matches(q.list("If-None-Match"), etag(b.Version)) {
		q.begin("").Set("ETag", etag(b.Version))
		q.w.WriteHeader(http.StatusNotModified)
		return nil
	}
	return q.bead(http.StatusOK, b, err)
}

// matches tells whether an If-None-Match list contains a tag, by weak comparison (RFC 9110, 13.1.2).
func matches(header, tag string) bool {
	if header == "*" {
		return true
	}
	for t := range etags(header) {
		if strings.TrimPrefix(t, "W/") == tag {
			return true
		}
	}
	return false
}

func getReady(q *request) error {
	page, err := q.page()
	if err != nil {
		return err
	}
	v := q.URL.Query()
	f := adapters.ReadyFilter{ParentID: v.Get("parent_id"), Tag: v.Get("tag"), Kind: v.Get("kind"), PageOpt: page}
	if v.Has("priority_max") {
		n, err := intParam(v, "priority_max")
		if err != nil {
			return err
		}
		f.PriorityMax = &n
	}
	out, err := q.s.cfg.Slots.Beads().GetReady(q.Context(), f)
	if err != nil {
		return err
	}
	q.next(out.NextCursor)
	if out.Items == nil {
		out.Items = []adapters.Bead{}
	}
	return q.reply(http.StatusOK, out.Items)
}

func listBeads(q *request) error {
	page, err := q.page()
	if err != nil {
		return err
	}
	v := q.URL.Query()
	out, err := q.s.cfg.Slots.Beads().List(q.Context(), adapters.BeadFilter{
		ParentID: v.Get("parent_id"), Status: v.Get("status"), Tag: v.Get("tag"), Kind: v.Get("kind"), Actor: v.Get("actor"), PageOpt: page,
	})
	return list(q, out, err)
}

// changeBody is the body of a change. It keeps defer_until as raw JSON: null ends a deferral, but an
// absent member leaves it, and BeadChange cannot tell them apart.
type changeBody struct {
	adapters.BeadChange
	DeferUntil json.RawMessage `json:"defer_until"`
}

func updateBead(q *request, in changeBody) error {
	change := in.BeadChange
	if in.DeferUntil != nil {
		change.DeferUntil = new(adapters.Time)
		if err := unmarshal(in.DeferUntil, change.DeferUntil); err != nil {
			return adapters.Invalid("defer_until", "must be an RFC 3339 time or null")
		}
	}
	var err error
	if change.IfVersions, err = versionsOf(q.list("If-Match")); err != nil {
		return err
	}
	b, err := q.s.cfg.Slots.Beads().Update(q.Context(), q.param("id"), change)
	return q.bead(http.StatusOK, b, err)
}

// versionsOf returns the versions in an If-Match list that are ETags of this package; none if the
// list is empty or "*". Weak tags never match (RFC 9110, 13.1.1).
func versionsOf(header string) ([]int64, error) {
	if header == "" || header == "*" {
		return nil, nil
	}
	var versions []int64
	for tag := range etags(header) {
		digits, ok := strings.CutPrefix(strings.TrimSuffix(tag, `"`), `"v`)
		// Only the very tag that we have given: "v+3" is none of ours.
		if n, err := strconv.ParseInt(digits, 10, 64); ok && err == nil && n > 0 && etag(n) == tag {
			versions = append(versions, n)
		}
	}
	if versions == nil {
		return nil, adapters.Errorf(adapters.CodePreconditionFailed, "If-Match has no ETag of a bead")
	}
	return versions, nil
}

// etags are the entity tags of a list, with their quotes and W/ (RFC 9110, 8.8.3). A tag may contain
// commas. What is no tag is left out.
func etags(header string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for rest := header; rest != ""; {
			rest = strings.TrimLeft(rest, ", \t")
			weak := ""
			if strings.HasPrefix(rest, `W/"`) {
				weak, rest = rest[:2], rest[2:]
			}
			opaque, found := strings.CutPrefix(rest, `"`)
			end := strings.IndexByte(opaque, '"')
			if !found || end < 0 {
				_, rest, _ = strings.Cut(rest, ",")
				continue
			}
			if !yield(weak + rest[:end+2]) {
				return
			}
			rest = rest[end+2:]
		}
	}
}

func addDep(q *request) error {
	dep, err := depOf(q)
	if err != nil {
		return err
	}
	out, err := q.s.cfg.Slots.Beads().AddDep(q.Context(), dep)
	return q.result(http.StatusCreated, out, err)
}

// depOf reads a dependency. It starts at the bead of the path.
func depOf(q *request) (adapters.Dep, error) {
	var dep adapters.Dep
	id := q.param("id")
	if err := q.json(&dep); err != nil {
		return dep, err
	}
	if dep.From != "" && dep.From != id {
		return dep, adapters.Invalid("from", "must be the bead of the path")
	}
	dep.From = id
	return dep, nil
}

func removeDep(q *request) error {
	v := q.URL.Query()
	return q.done(q.s.cfg.Slots.Beads().RemoveDep(q.Context(), adapters.Dep{From: q.param("id"), To: v.Get("to"), Type: v.Get("type")}))
}

func commentBead(q *request, in CommentBody) error {
	c, err := q.s.cfg.Slots.Beads().Comment(q.Context(), q.param("id"), in.Text)
	return q.result(http.StatusCreated, c, err)
}

// lateWriter sends the status and headers with the first byte of the body, so that an error before
// that byte still has its own status.
type lateWriter struct {
	q     *request
	mt    string
	begun bool
}

func (l *lateWriter) Write(p []byte) (int, error) {
	if !l.begun {
		l.begun = true
		l.q.begin(l.mt)
	}
	l.q.writeDeadline(answerLimit) // for each write: the whole answer may take longer
	return l.q.w.Write(p)
}

// finish ends the answer. After an error behind the first byte it closes the connection, so that
// the caller sees that the answer is incomplete.
func (l *lateWriter) finish(err error) error {
	switch {
	case err == nil && !l.begun:
		_, err = l.Write(nil)
		return err
	case err == nil:
		return nil
	case l.begun:
		l.q.s.tell(l.q.row, err)
		panic(http.ErrAbortHandler)
	}
	return err
}

func exportBeads(q *request) error {
	out := &lateWriter{q: q, mt: linesType}
	return out.finish(q.s.cfg.Slots.Beads().Export(q.Context(), out))
}

func importBeads(q *request) error {
	mt, err := q.mediaType()
	if err != nil {
		return err
	}
	switch mt {
	case linesType, jsonType, "text/plain", "application/jsonl", "":
	default:
		return adapters.Errorf(adapters.CodeUnsupported, "the body must be %s, not %s", linesType, adapters.Cut(mt, 100))
	}
	dry, err := boolParam(q.URL.Query(), "dry_run")
	if err != nil {
		return err
	}
	// The import is all or nothing: it starts only when the whole file has arrived.
	raw, err := q.transfer()
	if err != nil {
		return err
	}
	res, err := q.s.cfg.Slots.Beads().Import(q.Context(), bytes.NewReader(raw), adapters.ImportOpt{DryRun: dry})
	return q.result(http.StatusOK, res, err)
}
