package memory

import (
	"context"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// backend is the storage of a class. Instants are Unix milliseconds, 0 means never; now decides
// what has expired. Every method honours ctx. An error that is not an *adapters.Error becomes
// INTERNAL.
type backend interface {
	// put stores an entry, its terms and its vector in one transaction, under the pin that settle
	// chooses.
	put(ctx context.Context, e entry, now int64) (created bool, under pin, err error)
	get(ctx context.Context, namespace, key string, now int64) (row, bool, error)
	del(ctx context.Context, namespace, key string, now int64) (bool, error)
	// list returns up to n live entries with id > after, by id.
	list(ctx context.Context, namespace string, after int64, n int, now int64) ([]row, error)
	namespaces(ctx context.Context, now int64) ([]adapters.Namespace, error)

	space(ctx context.Context, namespace string) (space, bool, error)
	// changes passes to the sink, from one snapshot, what has changed after the revision since. If
	// that is no longer recorded, it passes the whole namespace.
	changes(ctx context.Context, namespace string, since revision, to sink) error
	// postings calls yield for at most max live entries that have t, by id.
	postings(ctx context.Context, sp space, t term, max int, now int64, yield func(posting)) error
	// stats counts the live entries and their indexed words.
	stats(ctx context.Context, sp space, now int64) (stats, error)
	// fetch returns the live ones of the entries, in any order.
	fetch(ctx context.Context, sp space, ids []int64, now int64) ([]row, error)
	// keys returns the keys of the existing ones of the entries.
	keys(ctx context.Context, sp space, ids []int64) (map[int64]string, error)

	// now is the time by the clock of the store, which all its users share.
	now() time.Time
	// secret returns the key that authenticates cursors. It stays the same for the life of the
	// store.
	secret() []byte
	// maintain removes expired entries and does other regular work.
	maintain(ctx context.Context, now int64) error
	ping(ctx context.Context) error
	close(ctx context.Context) error
}

// proposer is a backend that can propose near entries without a scan of all entries.
type proposer interface {
	// approximate tells whether propose is available.
	approximate() bool
	// propose returns about n entries near q, best first; it may miss some. If ok is false, it
	// cannot do this, and the caller scans all entries.
	propose(ctx context.Context, sp space, q []float32, n int, now int64) (ids []int64, ok bool, err error)
}

// revision names a state of a namespace. Two revisions with different dims or embedders cannot be
// compared.
type revision struct {
	pin pin
	rev int64
}

// pin says how the vectors of a namespace were made.
type pin struct {
	embedder string // "" = no entry was stored yet
	dim      int
}

// embedderGiven marks a namespace whose vectors came from the callers and do not fit the configured
// embedder.
const embedderGiven = "given"

// space is one namespace as the backend knows it.
type space struct {
	id   int64
	name string
	pin  pin
	rev  int64 // grows with every change
	// floor: changes up to this revision are no longer recorded one by one. A reader at an older
	// revision must load everything.
	floor int64
	rows  int64 // about how many entries there are
}

func (s space) revision() revision { return revision{s.pin, s.rev} }

// continues tells whether a reader at r can continue with the later changes.
func (s space) continues(r revision) bool {
	return r.pin == s.pin && r.rev >= s.floor && r.rev <= s.rev
}

// sink receives a namespace or its changes. begin comes first; all says that the whole namespace
// follows.
type sink interface {
	begin(sp space, all bool)
	upsert(v vectorRow)
	drop(id int64)
}

// vectorRow is what the exact scan needs of an entry. The receiver must not keep vec.
type vectorRow struct {
	id, rev, expires int64
	key              string
	vec              []float32
}

// entry is what put stores.
type entry struct {
	namespace, key, value string
	metadata              string // compact JSON object
	stored, expires       int64
	vec                   []float32 // unit length
	pin                   pin
	given                 bool // the caller brought vec along
	terms                 []weight
	words                 int
}

// row is a stored entry. vec is nil unless it was asked for.
type row struct {
	id, rev         int64
	key, value      string
	metadata        string
	stored, expires int64
	size            int64 // bytes of value
	vec             []float32
	pin             pin
}

// stats are the values that BM25 needs about a whole namespace. They are valid until the next
// change, or until an entry expires (0 = none will).
type stats struct{ entries, words, until int64 }

// posting is one entry that holds a term.
type posting struct {
	id    int64
	tf    int
	words int
}

// settle decides the pin under which an entry is stored. empty says that the namespace has no live
// entry, so the pin can change. A vector from the caller counts as made by the namespace's embedder
// if it fits.
func settle(sp space, empty bool, e entry) (pin, error) {
	if empty || sp.pin.embedder == "" || sp.pin == e.pin || e.given && sp.pin.dim == e.pin.dim {
		if !empty && sp.pin.embedder != "" {
			return sp.pin, nil
		}
		return e.pin, nil
	}
	return pin{}, pinned(sp, e.pin)
}

// pinned is the error for a namespace that has vectors of another kind. Another attempt helps only
// after the namespace was emptied or reindexed.
func pinned(sp space, want pin) error {
	return adapters.Errorf(adapters.CodeConflict, "namespace %q holds vectors of %s with %d dimensions, not of %s with %d",
		sp.name, sp.pin.embedder, sp.pin.dim, want.embedder, want.dim).
		With("resource", "namespace", "id", sp.name, "embedder", sp.pin.embedder, "dim", sp.pin.dim).Final()
}
