package host

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters/federation"
)

// outdated is the answer to a heartbeat with a lower number than one before. A delayed heartbeat has no
// reader any more. A box that reads this was restored from an earlier state, or shares its session with a
// copy: it registers anew and gets a session of its own.
func outdated() *federation.Eviction {
	return &federation.Eviction{Reason: "the seq of the heartbeat is lower than before: the box runs from an earlier state, or a copy of it uses the same session"}
}

// note keeps a heartbeat to be written, if the registry has just confirmed the session. gone is set if the
// session has had a later heartbeat.
func (h *Host) note(box string, beat heard, now time.Time) (noted bool, gone *federation.Eviction) {
	h.mu.Lock()
	defer h.mu.Unlock()
	b := h.boxes[box]
	if b == nil || b.session != beat.session || b.member.Ended || !now.Before(b.asked.Add(sessionLife)) {
		return false, nil
	}
	if beat.seq < b.seq {
		return false, outdated()
	}
	b.seq = beat.seq
	h.beats[box] = beat
	return true, nil
}

// write is false when the session has ended, or another host has written a later heartbeat.
func (b heard) write(t tx, box string) (known bool, err error) {
	n, err := t.exec(`UPDATE federation_sessions SET last_seen = ?1, seq = ?2, beat = ?3 WHERE id = ?4 AND box_id = ?5 AND ended_at = 0 AND seq <= ?2`,
		b.at, b.seq, b.beat, b.session, box)
	return n > 0, err
}

// keepWriting writes heartbeats until ctx ends, and then the remaining ones.
func (h *Host) keepWriting(ctx context.Context) {
	tick := time.NewTicker(writeEvery)
	defer tick.Stop()
	counted := time.Now()
	for ended := false; !ended; {
		select {
		case <-ctx.Done():
			ended = true
		case <-tick.C:
		}
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeLimit)
		err := h.writeBeats(limited)
		if err == nil && time.Since(counted) >= countEvery {
			counted = time.Now()
			err = h.count(limited)
		}
		cancel()
		// The same again is no news.
		if h.failing.Swap(err != nil) || err == nil || h.cfg.Trouble == nil {
			continue
		}
		h.cfg.Trouble(err)
	}
}

// writeBeats writes the heartbeats that wait, all or none. Those that are not written
// wait on, unless their boxes have sent others.
func (h *Host) writeBeats(ctx context.Context) error {
	h.mu.Lock()
	beats := h.beats
	h.beats = make(map[string]heard, len(beats))
	h.mu.Unlock()
	if len(beats) == 0 {
		return nil
	}
	// In one order on all hosts: PostgreSQL would see a deadlock otherwise.
	boxes := slices.Sorted(maps.Keys(beats))
	err := h.store.write(ctx, func(t tx) error {
		for _, box := range boxes {
			if _, err := beats[box].write(t, box); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for box, beat := range beats {
		if _, newer := h.beats[box]; !newer {
			h.beats[box] = beat
		}
	}
	return err
}
