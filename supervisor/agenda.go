package supervisor

import (
	"container/heap"
	"time"
)

// agenda holds the deadlines of the loop. The loop sets one timer for the earliest deadline, so it
// does not wake before. All instants come from time.Now and have its monotonic reading. Instants
// without it would change their order when the clock is set, and those behind them would wait too
// long.
type agenda []*item

// item is one deadline. It is made once and set again as often as needed.
type item struct {
	at   time.Time
	pos  int // its index in the heap plus one; 0 means not in the heap
	fire func()
}

func (a agenda) Len() int           { return len(a) }
func (a agenda) Less(i, j int) bool { return a[i].at.Before(a[j].at) }
func (a agenda) Swap(i, j int) {
	a[i], a[j] = a[j], a[i]
	a[i].pos, a[j].pos = i+1, j+1
}

// Push is for container/heap.
func (a *agenda) Push(x any) {
	it := x.(*item)
	*a = append(*a, it)
	it.pos = len(*a)
}

// Pop is for container/heap.
func (a *agenda) Pop() any {
	it := (*a)[len(*a)-1]
	(*a)[len(*a)-1] = nil
	*a = (*a)[:len(*a)-1]
	it.pos = 0
	return it
}

// set moves the deadline to at; the zero time cancels it.
func (a *agenda) set(it *item, at time.Time) {
	switch {
	case at.IsZero() && it.pos > 0:
		heap.Remove(a, it.pos-1)
	case at.IsZero():
	case it.pos == 0:
		it.at = at
		heap.Push(a, it)
	case !it.at.Equal(at):
		it.at = at
		heap.Fix(a, it.pos-1)
	}
}

// due removes and returns the earliest item if its time has come; otherwise it returns nil.
func (a *agenda) due(now time.Time) *item {
	if len(*a) == 0 || now.Before((*a)[0].at) {
		return nil
	}
	return heap.Pop(a).(*item)
}

// next returns when the earliest item is due.
func (a agenda) next() (time.Time, bool) {
	if len(a) == 0 {
		return time.Time{}, false
	}
	return a[0].at, true
}
