package event

// partSize is how many events one part of a ring holds.
const partSize = 64

// ring holds the newest events. It grows in parts, up to most events, since most boxes never fill it.
// A slice that grows would be copied again and again.
type ring struct {
	parts [][]Event
	held  int
	most  int
}

// next returns the place of a new event. seq must be one more than in the call before, and 1 in the
// first one.
func (r *ring) next(seq uint64) *Event {
	if r.held < r.most {
		if r.held%partSize == 0 {
			r.parts = append(r.parts, make([]Event, min(partSize, r.most-r.held)))
		}
		r.held++
	}
	return r.at(seq)
}

// at returns the place of an event that the ring holds.
func (r *ring) at(seq uint64) *Event {
	i := (seq - 1) % uint64(r.most)
	return &r.parts[i/partSize][i%partSize]
}
