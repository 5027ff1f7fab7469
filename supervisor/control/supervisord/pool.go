package supervisord

import (
	"fmt"
	"slices"
	"strings"
)

// Bounds of what a listener may ask for.
const (
	DefaultBuffer = 10   // events, as in supervisord
	MaxBuffer     = 1000 // an event has less than 300 bytes
	maxPoolName   = 127
)

// CheckPool says why a pool cannot have a name. The name is one word in the first line of each event,
// whose parts are separated by spaces and colons.
func CheckPool(name string) error {
	bad := strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r == ':' || r > '~' })
	if bad || name == "" || len(name) > maxPoolName {
		return fmt.Errorf("a pool cannot have the name %.80q: write 1 to %d letters, digits and marks, without a colon", name, maxPoolName)
	}
	return nil
}

// Pool holds the events that the listeners of one name have not processed yet.
type Pool struct {
	name    string
	events  map[string]bool
	size    int
	waiting []Notice
	serial  uint64
}

// Notice is an event in a pool.
type Notice struct {
	Event
	poolSerial uint64
	// Rejections is how often a listener has rejected it.
	Rejections int
}

// NewPool returns an empty pool.
func NewPool(name string) *Pool { return &Pool{name: name} }

// Subscribe says which events the pool takes from now on, and how many it holds. CheckEvent must accept
// each name.
func (p *Pool) Subscribe(names []string, size int) {
	p.size, p.events = size, map[string]bool{}
	all := supported()
	for _, name := range names {
		for _, e := range all[name] {
			p.events[e] = true
		}
	}
	p.waiting = slices.DeleteFunc(p.waiting, func(n Notice) bool { return !p.events[n.Name] })
}

// WantsTicks tells whether the pool takes an event of time.
func (p *Pool) WantsTicks() bool {
	return slices.ContainsFunc(tickPeriods[:], func(seconds int64) bool { return p.events[tickName(seconds)] })
}

// Offer adds an event if the pool takes such events. A full pool drops its oldest event.
func (p *Pool) Offer(e Event) (dropped bool) {
	if !p.events[e.Name] {
		return false
	}
	n := Notice{Event: e, poolSerial: p.serial}
	p.serial++
	dropped = p.makeRoom()
	p.waiting = append(p.waiting, n)
	return dropped
}

// Take returns the oldest event.
func (p *Pool) Take() (Notice, bool) {
	if len(p.waiting) == 0 {
		return Notice{}, false
	}
	n := p.waiting[0]
	p.waiting = p.waiting[1:]
	return n, true
}

// Return puts an event that was not processed before all others. As in supervisord, a full pool drops the
// oldest of the others for it.
func (p *Pool) Return(n Notice) (dropped bool) {
	dropped = p.makeRoom()
	p.waiting = append([]Notice{n}, p.waiting...)
	return dropped
}

// Empty tells whether no event waits.
func (p *Pool) Empty() bool { return len(p.waiting) == 0 }

func (p *Pool) makeRoom() (dropped bool) {
	if over := len(p.waiting) - (p.size - 1); over > 0 {
		p.waiting = p.waiting[over:]
		return true
	}
	return false
}

// Message is what a listener reads about an event.
func (p *Pool) Message(n Notice) []byte {
	return fmt.Appendf(nil, "ver:%s server:%s serial:%d pool:%s poolserial:%d eventname:%s len:%d\n%s",
		versionOfInterface, serverName, n.Serial, p.name, n.poolSerial, n.Name, len(n.Payload), n.Payload)
}
