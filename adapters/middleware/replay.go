package middleware

import (
	"container/list"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"sync"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// Bounds of what is remembered for idempotency keys.
const (
	replayFor   = 24 * time.Hour
	maxReplays  = 20000
	maxReplayed = 32 << 20 // bytes of answers
)

// replays remembers the first answer to each idempotency key, in memory. Keys
// are the caller's own: another actor's same key is another key. Requests are
// kept only as a keyed hash. Beyond its bounds the oldest answers go first.
type replays struct {
	secret []byte

	mu    sync.Mutex
	byKey map[[32]byte]*list.Element
	order *list.List // of *replay, oldest first
	bytes int
}

type replay struct {
	key     [32]byte
	request [32]byte
	answer  []byte // nil while the first call is running
	at      time.Time
}

func newReplays() *replays {
	secret := make([]byte, 32)
	// crypto/rand.Read never fails: it ends the process instead.
	_, _ = rand.Read(secret)
	return &replays{secret: secret, byKey: make(map[[32]byte]*list.Element), order: list.New()}
}

func (r *replays) hash(v any) ([32]byte, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return [32]byte{}, err
	}
	h := hmac.New(sha256.New, r.secret)
	h.Write(raw)
	return [32]byte(h.Sum(nil)), nil
}

func (r *replays) middleware(next adapters.Handler) adapters.Handler {
	return func(ctx context.Context, c adapters.Call) error {
		m := adapters.MetaFrom(ctx)
		if !c.Creates || m.IdempotencyKey == "" || c.Class == adapters.ClassOff {
			return next(ctx, c)
		}
		key, err := r.hash([]string{string(c.Slot), m.Actor, m.IdempotencyKey})
		if err != nil {
			return err
		}
		request, err := r.hash([]any{c.Method, c.Args})
		if err != nil {
			return err
		}
		answer, err := r.begin(key, request)
		if err != nil {
			return err
		}
		if answer != nil {
			adapters.ReportFrom(ctx).Replayed = true
			return json.Unmarshal(answer, c.Result())
		}
		done := false
		// Also on a panic the key must become free again.
		defer func() {
			if !done {
				r.forget(key)
			}
		}()
		if err := next(ctx, c); err != nil {
			return err
		}
		answer, err = json.Marshal(c.Result())
		if err != nil {
			return err
		}
		r.finish(key, answer)
		done = true
		return nil
	}
}

// begin returns the remembered answer, or nil and the key is now running.
func (r *replays) begin(key, request [32]byte) ([]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.expire(time.Now())
	if e, ok := r.byKey[key]; ok {
		old := e.Value.(*replay)
		switch {
		case old.request != request:
			return nil, adapters.Errorf(adapters.CodeIdempotencyMismatch, "the idempotency key was used for another request").
				With("reason", "key reused")
		case old.answer == nil:
			return nil, adapters.Errorf(adapters.CodeConflict, "the first call with this idempotency key is still running")
		}
		return old.answer, nil
	}
	if r.order.Len() >= maxReplays && !r.dropOldest() {
		return nil, adapters.Errorf(adapters.CodeRateLimited, "too many calls with idempotency keys are running")
	}
	r.byKey[key] = r.order.PushBack(&replay{key: key, request: request, at: time.Now()})
	return nil, nil
}

func (r *replays) finish(key [32]byte, answer []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e, ok := r.byKey[key]; ok {
		e.Value.(*replay).answer = answer
		r.bytes += len(answer)
	}
	for r.bytes > maxReplayed && r.dropOldest() {
	}
}

func (r *replays) forget(key [32]byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e, ok := r.byKey[key]; ok {
		r.remove(e)
	}
}

// expire drops what is older than replayFor. Order of insertion is order of
// age.
func (r *replays) expire(now time.Time) {
	for e := r.order.Front(); e != nil; {
		old := e.Value.(*replay)
		if now.Sub(old.at) < replayFor {
			return
		}
		next := e.Next()
		if old.answer != nil {
			r.remove(e)
		}
		e = next
	}
}

// dropOldest drops the oldest answer that is complete; false when none is.
func (r *replays) dropOldest() bool {
	for e := r.order.Front(); e != nil; e = e.Next() {
		if e.Value.(*replay).answer != nil {
			r.remove(e)
			return true
		}
	}
	return false
}

func (r *replays) remove(e *list.Element) {
	old := r.order.Remove(e).(*replay)
	delete(r.byKey, old.key)
	r.bytes -= len(old.answer)
}
