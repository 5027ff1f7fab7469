package middleware

import (
	"container/list"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"sync"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/rs/zerolog"
)

// Limits for what is remembered about idempotency keys.
const (
	maxReplays  = 20000
	maxReplayed = 32 << 20 // bytes of answers
	onceBytes   = 16       // bytes of the hash used in Meta.Once
)

// replays remembers the first answer to each idempotency key: in memory or, with a keeper, in a
// file, which then holds the answers. A key belongs to its caller: the same key of another actor is
// a different key. Of requests only a keyed hash is kept. If the limits are reached, the oldest
// answers are dropped first.
//
// A key is stored before its call, and the answer after the call. If the box dies in between, the
// key is in doubt: the call may have had its effect or not. To refuse such a key for a day would
// not help the caller. So the next call with it is carried out, with the same Meta.Once as the
// first. Slots that make durable things (beads, events) store that name in the write that makes the
// thing, and return the existing thing. External classes forward the key to a peer that remembers
// it. An agent does not outlive the box, so it can be started again.
type replays struct {
	log zerolog.Logger

	mu     sync.Mutex
	secret []byte
	keep   *keeper // nil: memory only
	byKey  map[[32]byte]*list.Element
	order  *list.List // elements are *replay, oldest first
	bytes  int
}

// replayState is the progress of the first call with a key.
type replayState int

const (
	replayRunning replayState = iota
	replayDoubt               // it was running when the box ended
	replayDone
)

type replay struct {
	key     [32]byte
	request [32]byte
	at      time.Time
	state   replayState
	size    int    // of the answer
	answer  []byte // nil if it does not exist yet, or is in the file
}

func newReplays(log zerolog.Logger) *replays {
	secret := make([]byte, 32)
	// crypto/rand.Read never fails: it ends the process instead.
	_, _ = rand.Read(secret)
	return &replays{log: log, secret: secret, byKey: make(map[[32]byte]*list.Element), order: list.New()}
}

// adopt loads the content of a file. It is called before the first call.
func (r *replays) adopt(k *keeper, secret []byte, old []*replay) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.keep, r.secret = k, secret
	for _, one := range old {
		r.byKey[one.key] = r.order.PushBack(one)
		r.bytes += one.size
	}
}

func (r *replays) kept() *keeper {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.keep
}

func (r *replays) hash(v any) ([32]byte, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return [32]byte{}, err
	}
	r.mu.Lock()
	secret := r.secret
	r.mu.Unlock()
	h := hmac.New(sha256.New, secret)
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
		once, err := r.hash([][32]byte{key, request})
		if err != nil {
			return err
		}
		answer, err := r.begin(ctx, key, request)
		if err != nil {
			return err
		}
		if answer != nil {
			adapters.ReportFrom(ctx).Replayed = true
			return json.Unmarshal(answer, c.Result())
		}
		done := false
		// The key must become free again even after a panic.
		defer func() {
			if !done {
				r.forget(ctx, key)
			}
		}()
		m.Once = hex.EncodeToString(once[:onceBytes])
		if err := next(adapters.WithMeta(ctx, m), c); err != nil {
			return err
		}
		answer, err = json.Marshal(c.Result())
		if err != nil {
			return err
		}
		r.finish(ctx, key, request, answer)
		done = true
		return nil
	}
}

// begin returns the remembered answer. If it returns nil, the key is now marked as running, also in
// the file.
func (r *replays) begin(ctx context.Context, key, request [32]byte) ([]byte, error) {
	answer, stored, dropped, err := r.look(key, request)
	keep := r.kept()
	switch {
	case err != nil || answer != nil || keep == nil:
		return answer, err
	case stored:
		return keep.answer(ctx, key)
	}
	if err := keep.begin(ctx, key, request, dropped); err != nil {
		// The call has not begun, so it can be refused safely. Without the stored key it must not
		// begin.
		r.drop(key)
		return nil, err
	}
	return nil, nil
}

// look finds the key or marks it as running. stored says that the answer is in the file. dropped
// are the keys that were removed because of their age or to make room. Only a call that begins removes
// some, because it writes to the file anyway.
func (r *replays) look(key, request [32]byte) (answer []byte, stored bool, dropped [][32]byte, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if e, ok := r.byKey[key]; ok && !e.Value.(*replay).expired(now) {
		old := e.Value.(*replay)
		switch {
		case old.request != request:
			return nil, false, nil, adapters.Errorf(adapters.CodeIdempotencyMismatch, "the idempotency key was used for another request").
				With("reason", "key reused")
		case old.state == replayRunning:
			return nil, false, nil, adapters.Errorf(adapters.CodeConflict, "the first call with this idempotency key is still running")
		case old.state == replayDoubt:
			old.state = replayRunning
			return nil, false, nil, nil
		}
		return old.answer, old.answer == nil, nil, nil
	}
	dropped = r.expire(now)
	if r.order.Len() >= maxReplays {
		gone, ok := r.dropOldest()
		if !ok {
			return nil, false, nil, adapters.Errorf(adapters.CodeRateLimited, "too many calls with idempotency keys are running")
		}
		dropped = append(dropped, gone)
	}
	r.byKey[key] = r.order.PushBack(&replay{key: key, request: request, at: now})
	return nil, false, dropped, nil
}

// finish remembers the answer. The call has had its effect already. So if the file cannot be
// written, that is logged, and the answer stays in memory.
func (r *replays) finish(ctx context.Context, key, request [32]byte, answer []byte) {
	r.mu.Lock()
	keep := r.keep
	if e, ok := r.byKey[key]; ok {
		one := e.Value.(*replay)
		one.state, one.answer, one.size = replayDone, answer, len(answer)
		r.bytes += len(answer)
	}
	var dropped [][32]byte
	for r.bytes > maxReplayed {
		gone, ok := r.dropOldest()
		if !ok {
			break
		}
		dropped = append(dropped, gone)
	}
	r.mu.Unlock()
	if keep == nil {
		return
	}
	if err := keep.finish(ctx, key, request, answer, dropped); err != nil {
		r.log.Warn().AnErr("cause", err).Msg("an answer is remembered in memory only: its idempotency key is in doubt after a restart")
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if e, ok := r.byKey[key]; ok {
		e.Value.(*replay).answer = nil
	}
}

// forget frees the key of a call that failed.
func (r *replays) forget(ctx context.Context, key [32]byte) {
	// The file first: otherwise the next call with the key could store a row that is then deleted.
	defer r.drop(key)
	if keep := r.kept(); keep != nil {
		if err := keep.forget(ctx, key); err != nil {
			r.log.Warn().AnErr("cause", err).Msg("the idempotency key of a failed call could not be freed: it is in doubt after a restart")
		}
	}
}

// forgetAll drops every key that is not running.
func (r *replays) forgetAll(ctx context.Context) error {
	r.mu.Lock()
	var dropped [][32]byte
	for key, ok := r.dropOldest(); ok; key, ok = r.dropOldest() {
		dropped = append(dropped, key)
	}
	keep := r.keep
	r.mu.Unlock()
	if keep == nil || len(dropped) == 0 {
		return nil
	}
	return keep.forget(ctx, dropped...)
}

func (r *replays) drop(key [32]byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e, ok := r.byKey[key]; ok {
		r.remove(e)
	}
}

// expired tells whether the answer need not be remembered any longer.
func (r *replay) expired(now time.Time) bool {
	return r.state != replayRunning && now.Sub(r.at) >= adapters.IdempotencyLife
}

// expire drops what has expired. The list is ordered by age.
func (r *replays) expire(now time.Time) (dropped [][32]byte) {
	for e := r.order.Front(); e != nil; {
		old := e.Value.(*replay)
		if now.Sub(old.at) < adapters.IdempotencyLife {
			return dropped
		}
		next := e.Next()
		if old.expired(now) {
			r.remove(e)
			dropped = append(dropped, old.key)
		}
		e = next
	}
	return dropped
}

// dropOldest drops the oldest key that is not running. It returns false if all are running.
func (r *replays) dropOldest() (key [32]byte, ok bool) {
	for e := r.order.Front(); e != nil; e = e.Next() {
		if old := e.Value.(*replay); old.state != replayRunning {
			r.remove(e)
			return old.key, true
		}
	}
	return key, false
}

func (r *replays) remove(e *list.Element) {
	old := r.order.Remove(e).(*replay)
	delete(r.byKey, old.key)
	r.bytes -= old.size
}
