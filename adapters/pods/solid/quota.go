package solid

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/internal/safeopen"
)

const (
	quotaFile = ".quota.json"
	// usageAge is how long the sum of a pod's sizes holds: other programs write into the tree too.
	usageAge = 10 * time.Minute
	// maxCounted bounds the entries of one sum, and maxPods the sums that are kept.
	maxCounted = 1_000_000
	maxPods    = 1000
	maxNested  = 512 // a path has at most 1024 bytes
	// failureAge is how long a pod that cannot be counted takes nothing.
	failureAge = time.Minute
	// entryCost is what each document and container counts at least.
	entryCost = 4096
)

// quotas keep how much each pod holds. A pod is a container in /pods/; all other documents together count as the pod
// "/". Without a limit, nothing is counted.
type quotas struct {
	store *store
	limit int64 // of a pod whose .quota.json names none; < 0 = none
	warn  func(pod string, err error)
	most  int // entries of one sum

	// mu is not held while a pod is counted: only the writers of that pod wait, and only for its first sum.
	mu   sync.Mutex
	used map[string]*usage // by the path of the pod
}

type usage struct {
	counting sync.Mutex // held while the pod is counted

	// under quotas.mu:
	bytes, limit int64
	added        int64     // since the count began, which may have missed it
	until        time.Time // when the sum must be found out anew
	failed       bool
}

// costOf is what a file of size bytes counts. Also an empty document and a container take a block and an inode of the file
// system.
func costOf(size int64) int64 { return max(size, entryCost) }

func costOfDocument(d *document) int64 {
	if d == nil {
		return 0
	}
	return costOf(d.size)
}

func podOf(r resource) resource {
	if len(r.names) > 2 && r.names[0] == "pods" {
		return resource{names: r.names[:2], container: true}
	}
	return root()
}

// left returns how many bytes a document of the pod may have that takes the place of old, nil if of none.
func (q *quotas) left(r resource, old *document) (int64, error) {
	if q.limit < 0 {
		return adapters.MaxPodBody, nil
	}
	pod := podOf(r)
	limit := q.limitOf(pod)
	u := q.of(pod)
	q.refresh(pod, u)
	q.mu.Lock()
	defer q.mu.Unlock()
	u.limit = limit
	if u.failed {
		return 0, faulty(adapters.CodePayloadTooLarge, "the pod takes no documents: its size cannot be found out now (it may have at most %d documents and containers)", q.most)
	}
	return max(limit-u.bytes+costOfDocument(old), 0), nil
}

func (q *quotas) of(pod resource) *usage {
	q.mu.Lock()
	defer q.mu.Unlock()
	u := q.used[pod.path()]
	if u == nil {
		if q.used == nil || len(q.used) >= maxPods {
			q.used = map[string]*usage{}
		}
		u = &usage{}
		q.used[pod.path()] = u
	}
	return u
}

// refresh counts the pod if its sum is missing or old. While another request counts it anew, the old sum holds.
func (q *quotas) refresh(pod resource, u *usage) {
	state := func() (never, old bool) {
		q.mu.Lock()
		defer q.mu.Unlock()
		return u.until.IsZero(), time.Now().After(u.until)
	}
	never, old := state()
	switch {
	case !old:
		return
	case never:
		u.counting.Lock()
	case !u.counting.TryLock():
		return
	}
	defer u.counting.Unlock()
	if _, old := state(); !old { // another request has counted it meanwhile
		return
	}
	q.mu.Lock()
	u.added = 0
	q.mu.Unlock()
	sum, err := q.count(pod)
	if err != nil {
		q.warn(pod.path(), err)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	// A sum that failed is kept too: to fail again would cost as much.
	u.bytes, u.failed, u.until = sum+max(u.added, 0), err != nil, time.Now().Add(usageAge)
	if u.failed {
		u.until = time.Now().Add(failureAge)
	}
}

// take counts what makes the pod of a resource by bytes larger; false if the pod has no room for it.
func (q *quotas) take(r resource, by int64) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	u := q.used[podOf(r).path()]
	if u != nil && by > 0 && u.bytes+by > u.limit {
		return false
	}
	u.add(by)
	return true
}

// back undoes a take.
func (q *quotas) back(r resource, by int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if u := q.used[podOf(r).path()]; u != nil {
		u.bytes -= by
		u.added -= max(by, 0)
	}
}

// costOfMaking is what new containers cost the pod of r.
func costOfMaking(r resource, containers []resource) (sum int64) {
	for _, c := range containers {
		if podOf(c).path() == podOf(r).path() {
			sum += entryCost
		}
	}
	return sum
}

// elsewhere counts new containers that are not in the pod of r: the container of the pod itself.
func (q *quotas) elsewhere(r resource, made []resource) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, c := range made {
		if pod := podOf(c).path(); pod != podOf(r).path() {
			q.used[pod].add(entryCost)
		}
	}
}

func (u *usage) add(by int64) {
	if u != nil {
		u.bytes += by
		u.added += max(by, 0)
	}
}

// limitOf reads the limit that a pod has for itself: {"limit": BYTES}.
func (q *quotas) limitOf(pod resource) int64 {
	raw, _, err := q.store.read(pod.in(quotaFile, false), 4096)
	if errors.Is(err, absent) {
		return q.limit
	}
	var own struct {
		Limit *int64 `json:"limit"`
	}
	if err == nil {
		err = json.Unmarshal(raw, &own)
	}
	if err == nil && (own.Limit == nil || *own.Limit < 0) {
		err = errors.New(`it has no "limit" of at least 0`)
	}
	if err != nil {
		q.warn(pod.path()+quotaFile, fmt.Errorf("the default limit holds: %w", err))
		return q.limit
	}
	return *own.Limit
}

func (q *quotas) count(pod resource) (int64, error) {
	d, err := q.store.below(pod)
	if errors.Is(err, absent) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer d.Close()
	left := q.most
	sum, err := sumOf(d, pod.isRoot(), &left, maxNested)
	if err != nil {
		return 0, broken("the size of the pod cannot be found out", err)
	}
	return sum, nil
}

// sumOf adds up the sizes of the files below a directory. Of the directory pods in the root, it leaves out what is in its
// directories.
func sumOf(d *safeopen.Directory, isRoot bool, left *int, depth int) (sum int64, err error) {
	names, err := d.Names(func(name string) bool { return name != privateDir && name != typesDir }, *left)
	if err != nil {
		return 0, err
	}
	*left -= len(names)
	for _, name := range names {
		entry, err := d.Stat(name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return 0, err
		case entry.Regular:
			sum += costOf(entry.Size)
			continue
		}
		sum += entryCost
		if entry.Dir && depth > 0 {
			below, err := d.Below(name)
			if missing(err) {
				continue
			}
			if err != nil {
				return 0, err
			}
			deeper := depth - 1
			if isRoot && name == "pods" {
				deeper = 0
			}
			n, err := sumOf(below, false, left, deeper)
			if err = errors.Join(err, below.Close()); err != nil {
				return 0, err
			}
			sum += n
		}
	}
	return sum, nil
}
