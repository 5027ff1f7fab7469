package adapters

import (
	"cmp"
	"context"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Beads holds receipts of agent work: a graph of small tasks that agents claim,
// do and close.
type Beads interface {
	Adapter

	// CreateEpic makes a bead without a parent.
	CreateEpic(ctx context.Context, in NewBead) (Bead, error)
	// CreateChild makes a bead below in.ParentID. It returns NOT_FOUND if there is no such parent,
	// and CONFLICT if the parent is closed.
	CreateChild(ctx context.Context, in NewBead) (Bead, error)
	// Claim makes actor the holder, atomically. If the same actor claims again, only a lease is
	// renewed. ALREADY_CLAIMED names another holder; NOT_CLAIMABLE means that the bead is closed or
	// deferred.
	Claim(ctx context.Context, id, actor string, opt ...ClaimOpt) (Bead, error)
	// Close ends the bead; a second close returns the first outcome. To close a bead that another
	// actor holds needs admin or Force. To close an epic with open children needs them too, and
	// otherwise fails with CONFLICT. An empty outcome means "done".
	Close(ctx context.Context, id, outcome string, opt ...CloseOpt) (Bead, error)
	// GetReady lists what can be claimed now, ordered by priority, created_at
	// and id.
	GetReady(ctx context.Context, filter ReadyFilter) (Page[Bead], error)
	Show(ctx context.Context, id string) (Bead, error)

	// The methods below are contract 1.1, capability "graph".

	List(ctx context.Context, filter BeadFilter) (Page[Bead], error)
	Update(ctx context.Context, id string, change BeadChange) (Bead, error)
	// Release gives up a claim; only the holder or an admin may do that. If no actor holds the
	// bead, nothing changes.
	Release(ctx context.Context, id, actor string) (Bead, error)
	// Reopen clears outcome and holder of a closed bead. An open bead stays unchanged.
	Reopen(ctx context.Context, id string) (Bead, error)
	// AddDep and RemoveDep are idempotent. If blocking edges would form a cycle, AddDep returns
	// DEPENDENCY_CYCLE with the path.
	AddDep(ctx context.Context, dep Dep) (Dep, error)
	RemoveDep(ctx context.Context, dep Dep) error
	Comment(ctx context.Context, id string, text string) (BeadComment, error)
	// Export writes all beads as JSON lines ordered by id, with the field names of bd. If nothing
	// changed, the output is byte-identical.
	Export(ctx context.Context, w io.Writer) error
	// Import upserts the output of Export or bd: the newer updated_at wins. Either all beads are
	// imported or none.
	Import(ctx context.Context, r io.Reader, opt ImportOpt) (ImportResult, error)
}

// CapGraph is the capability of contract 1.1 of beads.
const CapGraph = "graph"

// The values of Bead.Status.
const (
	BeadOpen     = "open"
	BeadClaimed  = "claimed"
	BeadClosed   = "closed"
	BeadDeferred = "deferred"
)

// The values of Bead.Type.
const (
	BeadEpic  = "epic"
	BeadChild = "child"
)

// Limits of a bead's fields, in bytes unless said.
const (
	MaxBeadTitle       = 500 // code points
	MaxBeadDescription = 64 << 10
	MaxBeadOutcome     = 2 << 10
	MaxBeadComment     = 64 << 10
	MaxBeadActor       = 200
	MaxBeadTags        = 64 // count
	MaxBeadTag         = 64
	MaxBeadDepth       = 8
	MaxDepType         = 50
	MinLease           = 30 * time.Second
	MaxLease           = 86400 * time.Second
	DefaultPriority    = 2
	DefaultOutcome     = "done"
)

// Bead is one receipt.
type Bead struct {
	ID          string     `json:"id"` // "ab-" + 6 base32, a child appends ".N"
	Title       string     `json:"title"`
	Description string     `json:"description"`
	Type        string     `json:"type"`
	Kind        string     `json:"kind"`
	ParentID    NullString `json:"parent_id"`
	Status      string     `json:"status"`
	Priority    int        `json:"priority"` // 0 (first) - 4
	Actor       NullString `json:"actor"`    // holder of the claim
	CreatedBy   NullString `json:"created_by"`
	Tags        []string   `json:"tags"` // sorted, a set
	Outcome     NullString `json:"outcome"`
	Deps        []Dep      `json:"deps"`
	BlockedBy   []string   `json:"blocked_by"` // open blockers, sorted
	Version     int64      `json:"version"`    // +1 per change
	CreatedAt   Time       `json:"created_at"`
	UpdatedAt   Time       `json:"updated_at"`
	ClaimedAt   Time       `json:"claimed_at"`
	ClosedAt    Time       `json:"closed_at"`
	DeferUntil  Time       `json:"defer_until"`
	LeaseUntil  Time       `json:"lease_until"`
}

// NewBead is the input for a new bead.
type NewBead struct {
	Title       string   `json:"title"`
	Description string   `json:"description,omitempty"`
	Kind        string   `json:"kind,omitempty"` // "" means task, or epic for an epic
	ParentID    string   `json:"parent_id,omitempty"`
	Priority    *int     `json:"priority,omitempty"` // nil = DefaultPriority
	Tags        []string `json:"tags,omitempty"`
	DeferUntil  Time     `json:"defer_until,omitzero"`
	CreatedBy   string   `json:"created_by,omitempty"` // "" = the caller
}

// beadKinds are the values of Bead.Kind.
func beadKinds() []string {
	return []string{"task", "bug", "feature", "chore", "decision", "epic"}
}

// ClaimOpt adjusts a claim.
type ClaimOpt struct {
	// Lease reopens the bead when it ends without renewal; 0 means no lease, otherwise 30 s - 24 h.
	Lease time.Duration
}

// CloseOpt adjusts a close.
type CloseOpt struct{ Force bool }

// ReadyFilter narrows GetReady. Zero fields do not filter.
type ReadyFilter struct {
	ParentID    string // direct children only
	Tag         string
	Kind        string
	PriorityMax *int // 0-4: this priority and more urgent ones
	PageOpt
}

// BeadFilter narrows List. Zero fields do not filter.
type BeadFilter struct {
	ParentID string
	Status   string
	Tag      string
	Kind     string
	Actor    string
	PageOpt
}

// BeadChange is an update; nil fields stay as they are.
type BeadChange struct {
	Title       *string   `json:"title,omitempty"`
	Description *string   `json:"description,omitempty"`
	Kind        *string   `json:"kind,omitempty"`
	Priority    *int      `json:"priority,omitempty"`
	Tags        *[]string `json:"tags,omitempty"`
	// DeferUntil defers an open bead; the zero Time ends a deferral.
	DeferUntil *Time `json:"defer_until,omitempty"`
	// IfVersions, if not empty, must contain the bead's version; otherwise the result is
	// PRECONDITION_FAILED.
	IfVersions []int64 `json:"-"`
}

// Dep is an edge from From to To. With type "blocks", From is blocked until To is closed.
type Dep struct {
	From string `json:"from"`
	To   string `json:"to"`
	Type string `json:"type"` // "" = blocks
}

// The blocking dependency types; all others only inform.
const (
	DepBlocks            = "blocks"
	DepConditionalBlocks = "conditional-blocks"
	DepWaitsFor          = "waits-for"
	DepParentChild       = "parent-child"
)

// Blocking tells whether the edge can keep From from being ready.
func (d Dep) Blocking() bool {
	return d.Type == DepBlocks || d.Type == DepConditionalBlocks || d.Type == DepWaitsFor
}

// BeadComment is one remark on a bead.
type BeadComment struct {
	ID        string     `json:"id"`
	BeadID    string     `json:"bead_id"`
	Author    NullString `json:"author"`
	Text      string     `json:"text"`
	CreatedAt Time       `json:"created_at"`
}

// ImportOpt adjusts an import.
type ImportOpt struct{ DryRun bool }

// ImportResult counts what an import did, or would do.
type ImportResult struct {
	Created   int  `json:"created"`
	Updated   int  `json:"updated"`
	Unchanged int  `json:"unchanged"` // the stored bead is as new or newer
	DryRun    bool `json:"dry_run"`
}

func (n NewBead) check(child bool) error {
	if child {
		if err := CheckID("parent_id", n.ParentID); err != nil {
			return err
		}
	} else if n.ParentID != "" {
		return Invalid("parent_id", "an epic has no parent")
	}
	return cmp.Or(
		checkTitle(n.Title), CheckText("description", n.Description, MaxBeadDescription), CheckText("created_by", n.CreatedBy, MaxBeadActor),
		checkKind(n.Kind), checkPriority("priority", n.Priority), checkTags(n.Tags),
	)
}

func (c BeadChange) check() error {
	if c.Title != nil {
		if err := checkTitle(*c.Title); err != nil {
			return err
		}
	}
	if c.Description != nil {
		if err := CheckText("description", *c.Description, MaxBeadDescription); err != nil {
			return err
		}
	}
	if c.Kind != nil {
		if err := checkKind(*c.Kind); err != nil {
			return err
		}
	}
	if c.Tags != nil {
		if err := checkTags(*c.Tags); err != nil {
			return err
		}
	}
	return checkPriority("priority", c.Priority)
}

func checkTitle(s string) error {
	if err := CheckName("title", s, 4*MaxBeadTitle); err != nil {
		return err
	}
	if utf8.RuneCountInString(s) > MaxBeadTitle {
		return OverLimit("title (characters)", MaxBeadTitle).With("field", "title")
	}
	if strings.ContainsAny(s, "\n\r\u2028\u2029\u0085\v\f") {
		return Invalid("title", "contains a line break")
	}
	return nil
}

func checkKind(kind string) error {
	if kind == "" || slices.Contains(beadKinds(), kind) {
		return nil
	}
	return Invalid("kind", "must be one of %s", strings.Join(beadKinds(), ", "))
}

func checkPriority(field string, p *int) error {
	if p != nil && (*p < 0 || *p > 4) {
		return Invalid(field, "must be 0-4")
	}
	return nil
}

func checkTags(tags []string) error {
	if len(tags) > MaxBeadTags {
		return OverLimit("tags", MaxBeadTags)
	}
	for _, t := range tags {
		if err := CheckName("tags", t, MaxBeadTag); err != nil {
			return err
		}
	}
	return nil
}

func checkActor(actor string) error { return CheckName("actor", actor, MaxBeadActor) }

func checkStatus(status string) error {
	switch status {
	case "", BeadOpen, BeadClaimed, BeadClosed, BeadDeferred:
		return nil
	}
	return Invalid("status", "must be open, claimed, closed or deferred")
}

func (d Dep) check() error {
	if err := cmp.Or(CheckID("from", d.From), CheckID("to", d.To), CheckName("type", d.Type, MaxDepType)); err != nil {
		return err
	}
	if d.Type == DepParentChild {
		return Invalid("type", "parent-child is implied by parent_id and cannot be written")
	}
	return nil
}

func (f ReadyFilter) check() error {
	if f.ParentID != "" {
		if err := CheckID("parent_id", f.ParentID); err != nil {
			return err
		}
	}
	return cmp.Or(
		CheckText("tag", f.Tag, MaxBeadTag), checkKind(f.Kind), checkPriority("priority_max", f.PriorityMax), f.PageOpt.Check(),
	)
}

func (f BeadFilter) check() error {
	return cmp.Or(
		ReadyFilter{ParentID: f.ParentID, Tag: f.Tag, Kind: f.Kind, PageOpt: f.PageOpt}.check(),
		CheckText("actor", f.Actor, MaxBeadActor), checkStatus(f.Status),
	)
}

// TagSet returns tags sorted and without duplicates, never nil.
func TagSet(tags []string) []string {
	set := append(make([]string, 0, len(tags)), tags...)
	slices.Sort(set)
	return slices.Compact(set)
}
