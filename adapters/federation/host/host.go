package host

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	mathrand "math/rand/v2"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/federation"
)

// Config of a Host.
type Config struct {
	// File is the SQLite file of the registry. Server, if not nil, has the registry instead.
	File   string
	Server *Server
	// Interval is the time between two heartbeats that the host asks of boxes; 0 means
	// federation.DefaultInterval.
	Interval time.Duration
	// Endpoints returns the endpoints that boxes get. It must return from memory.
	Endpoints func() federation.Endpoints
	// Trouble is called if heartbeats can no longer be written; it may be nil.
	Trouble func(error)
	Now     func() time.Time // time.Now when nil
}

// Limits of a host.
const (
	// maxRegistering is how many registrations are served at once; other boxes must try again
	// later. After an outage all boxes of the mesh register at the same time.
	maxRegistering = 64
	// maxWaiting is how many further registrations wait; all others are refused at once. patience
	// is how long one waits.
	maxWaiting = 128
	patience   = 2 * time.Second
	// keepEnded is how long a session that has ended is remembered.
	keepEnded = 24 * time.Hour
	// keepSilent is how long a session without heartbeats is kept. It is long, so that a host that
	// was down for an hour still knows its boxes.
	keepSilent = 24 * time.Hour
	// tokenLife is how long a token is accepted without another query of the registry. So an
	// eviction by another host takes effect here after at most that time.
	tokenLife = 5 * time.Second
	// sessionLife is the same for a heartbeat. It is short, because a box learns of its eviction
	// from a heartbeat.
	sessionLife = time.Second
	maxTokens   = 20_000
	tokenSize   = 64 // hexadecimal digits
	// maxKept is the largest size of a registration and of a heartbeat. The registry stores them,
	// and a page of the list of boxes has a thousand of them.
	maxKept = 8 << 10
	// maxBoxes is how many boxes the registry holds, because every holder of the shared token can
	// register any number of names. The boxes are counted every countEvery.
	maxBoxes   = 100_000
	countEvery = 10 * time.Second
	// writeEvery is how often heartbeats are written. If a host is killed, the registry lacks at
	// most the heartbeats of that time.
	writeEvery = time.Second
	writeLimit = 10 * time.Second
	// silentAfter is how many intervals without a heartbeat make a box silent.
	silentAfter = 3
)

// Host is the host's side of the federation. Its methods may be called from any goroutine.
type Host struct {
	cfg   Config
	store store
	gate  chan struct{} // a token: one registers
	queue chan struct{} // a token: one waits to

	stop    context.CancelFunc
	writing sync.WaitGroup
	failing atomic.Bool  // heartbeats could not be written the last time
	members atomic.Int64 // boxes in the registry, about

	mu     sync.Mutex
	pace   pace
	tokens map[string]*believed // by hash
	boxes  map[string]*believed // the same by box
	beats  map[string]heard     // to be written, by box
}

// believed is a recent answer of the registry about a token.
type believed struct {
	hash, session string
	seq           int64 // of the last heartbeat
	member        Member
	asked         time.Time
}

// heard is a received heartbeat.
type heard struct {
	session, beat string
	seq, at       int64
}

// Open opens the registry.
func Open(ctx context.Context, cfg Config) (*Host, error) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	cfg.Interval = cmp.Or(cfg.Interval, federation.DefaultInterval)
	h := newHost(cfg)
	var err error
	if cfg.Server != nil {
		h.store, err = openServer(ctx, cfg.Server)
	} else {
		h.store, err = openFile(ctx, cfg.File)
	}
	if err != nil {
		return nil, err
	}
	if err := h.count(ctx); err != nil {
		return nil, errors.Join(typed(err), h.store.close())
	}
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	h.stop = stop
	h.writing.Go(func() { h.keepWriting(running) })
	return h, nil
}

// count counts the boxes of the registry.
func (h *Host) count(ctx context.Context) error {
	var n int64
	err := h.store.read(ctx, func(t tx) error { return t.row(`SELECT COUNT(*) FROM federation_sessions`).Scan(&n) })
	if err == nil {
		h.members.Store(n)
	}
	return err
}

// newHost makes a host without its registry.
func newHost(cfg Config) *Host {
	return &Host{
		cfg: cfg, gate: make(chan struct{}, maxRegistering), queue: make(chan struct{}, maxWaiting),
		tokens: map[string]*believed{}, boxes: map[string]*believed{}, beats: map[string]heard{},
	}
}

// Close writes the remaining heartbeats and closes the registry.
func (h *Host) Close() error {
	h.stop()
	h.writing.Wait()
	return h.store.close()
}

// Register makes a session. principal is the authenticated caller. If another principal has
// registered the box id, Register returns PERMISSION_DENIED.
func (h *Host) Register(ctx context.Context, principal string, r federation.Registration) (federation.Grant, error) {
	if err := check(r); err != nil {
		return federation.Grant{}, err
	}
	if err := h.enter(ctx); err != nil {
		return federation.Grant{}, err
	}
	defer func() { <-h.gate }()
	begun := time.Now()
	raw, err := json.Marshal(r)
	if err != nil {
		return federation.Grant{}, err
	}
	if len(raw) > maxKept {
		return federation.Grant{}, adapters.OverLimit("registration (bytes)", maxKept)
	}
	token, id := random(tokenSize/2), "fs-"+random(12)
	now := h.cfg.Now().UnixMilli()
	err = h.store.write(ctx, func(t tx) error {
		if err := mayRegister(t, principal, r); err != nil {
			return err
		}
		// The same box again: its old session is over, and needs no explanation.
		known, err := t.exec(`DELETE FROM federation_sessions WHERE box_id = ?1 AND principal = ?2`, r.BoxID, principal)
		if err != nil {
			return err
		}
		if known == 0 && h.members.Add(1) > maxBoxes {
			return adapters.Errorf(adapters.CodeUnavailable, "the registry is full: %d boxes are registered", maxBoxes).WithRetryAfter(maxPause)
		}
		_, err = t.exec(`INSERT INTO federation_sessions
			(id, box_id, boot_id, principal, token_hash, registered_at, last_seen, seq, registration, beat, ended_at, reason, permanent, retry_after_s)
			VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 0, ?8, '{}', 0, '', 0, 0)`,
			id, r.BoxID, r.BootID, principal, hash(token), now, now, string(raw))
		return err
	})
	if err != nil {
		return federation.Grant{}, typed(err)
	}
	h.forget(r.BoxID)
	h.served(begun)
	return federation.Grant{
		SessionID: id, Token: token, Nonce: r.Nonce, HeartbeatIntervalS: int(h.cfg.Interval.Seconds()),
		ContractRanges: ranges(), Endpoints: h.cfg.Endpoints(),
	}, nil
}

// check refuses an invalid registration before anything is written.
func check(r federation.Registration) error {
	for _, id := range [][2]string{{"box_id", r.BoxID}, {"boot_id", r.BootID}, {"nonce", r.Nonce}} {
		if err := adapters.CheckID(id[0], id[1]); err != nil {
			return err
		}
	}
	if err := checkMetaURL(r.MetaURL); err != nil {
		return err
	}
	for slot, have := range r.Adapters {
		c, known := adapters.ContractOf(adapters.Slot(slot))
		if !known || have.Impl != "external" {
			continue // this slot does not use the host
		}
		if err := adapters.CheckVersion(c.Slot, c.Version, have.ContractVersion, false); err != nil {
			return err
		}
	}
	return nil
}

// checkMetaURL refuses an address that a reader of the registry could not open, or that has a password. The
// host never opens it: only the box knows at which address others reach it.
func checkMetaURL(text string) error {
	if text == "" {
		return nil
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.User != nil || u.Fragment != "" {
		return adapters.Invalid("meta_url", "must be an http or https URL without credentials and fragment, or empty")
	}
	return nil
}

// ranges are the contract versions that this host supports.
func ranges() map[string]string {
	out := map[string]string{}
	for _, c := range adapters.Contracts() {
		if v, err := adapters.ParseVersion(c.Version); err == nil {
			out[string(c.Slot)] = fmt.Sprintf("^%d", v.Major)
		}
	}
	return out
}

// enter waits until the registration may begin, unless too many wait already. If a box would wait
// too long, it gets a time for its next attempt.
func (h *Host) enter(ctx context.Context) error {
	select {
	case h.gate <- struct{}{}:
		return nil
	default:
	}
	select {
	case h.queue <- struct{}{}:
		defer func() { <-h.queue }()
	default:
		return h.comeBack()
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case h.gate <- struct{}{}:
		return nil
	case <-ctx.Done():
		return adapters.AsError(context.Cause(ctx))
	case <-timer.C:
		return h.comeBack()
	}
}

// comeBack is the refusal that names the time for the next attempt.
func (h *Host) comeBack() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var wait time.Duration
	wait, h.pace = h.pace.later(time.Now(), mathrand.Float64())
	return adapters.Errorf(adapters.CodeUnavailable, "too many boxes register at once").WithRetryAfter(wait)
}

// served counts a registration that is about to leave the gate.
func (h *Host) served(begun time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pace = h.pace.served(begun, time.Now())
}

func mayRegister(t tx, principal string, r federation.Registration) error {
	var reason string
	err := t.row(`SELECT reason FROM federation_banned WHERE box_id = ?1`, r.BoxID).Scan(&reason)
	if err == nil {
		return adapters.Errorf(adapters.CodePermissionDenied, "this box was evicted permanently: %s", reason)
	}
	if !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	var owner string
	err = t.row(`SELECT principal FROM federation_sessions WHERE box_id = ?1 LIMIT 1`, r.BoxID).Scan(&owner)
	if err == nil && owner != principal {
		return adapters.Errorf(adapters.CodePermissionDenied, "another principal has registered this box id")
	}
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	return err
}

// Heartbeat records a heartbeat. box is the holder of the token in the request; gone is set if the
// session has ended. If the registry has just confirmed the session's token, the heartbeat is
// written later, together with others.
func (h *Host) Heartbeat(ctx context.Context, box string, b federation.Beat) (answer federation.BeatAnswer, gone *federation.Eviction, err error) {
	raw, err := json.Marshal(b)
	if err != nil {
		return answer, nil, err
	}
	if len(raw) > maxKept {
		return answer, nil, adapters.OverLimit("heartbeat (bytes)", maxKept)
	}
	if b.Seq > math.MaxInt64 {
		return answer, nil, adapters.Invalid("seq", "must be at most %d", math.MaxInt64)
	}
	endpoints := h.cfg.Endpoints()
	answer.Endpoints = &endpoints
	now := h.cfg.Now()
	beat := heard{b.SessionID, string(raw), int64(b.Seq), now.UnixMilli()}
	noted, gone := h.note(box, beat, now)
	switch {
	case gone != nil:
		return federation.BeatAnswer{}, gone, nil
	case noted:
		return answer, nil, nil
	}
	err = h.store.write(ctx, func(t tx) error {
		known, err := beat.write(t, box)
		if err != nil || known {
			return err
		}
		var ended bool
		gone = &federation.Eviction{Reason: "the host does not know this session"}
		err = t.row(`SELECT ended_at <> 0, reason, permanent <> 0, retry_after_s FROM federation_sessions WHERE id = ?1 AND box_id = ?2`, b.SessionID, box).
			Scan(&ended, &gone.Reason, &gone.Permanent, &gone.RetryAfterS)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			return nil
		case err == nil && !ended:
			gone = outdated()
		}
		return err
	})
	if err != nil || gone != nil {
		return federation.BeatAnswer{}, gone, typed(err)
	}
	return answer, nil, nil
}

// Deregister ends a session. It is no error if there is none.
func (h *Host) Deregister(ctx context.Context, box string, f federation.Farewell) error {
	if err := adapters.CheckID("session_id", f.SessionID); err != nil {
		return err
	}
	err := h.store.write(ctx, func(t tx) error {
		_, err := t.exec(`DELETE FROM federation_sessions WHERE id = ?1 AND box_id = ?2`, f.SessionID, box)
		return err
	})
	h.forget(box) // not before: a request of the box would have its token remembered again
	return typed(err)
}

// Evict ends the session of a box. The box learns of it from the answer to its next heartbeat. If
// permanent is true, the box may not register again until Admit.
func (h *Host) Evict(ctx context.Context, box, reason string, permanent bool, retryAfter time.Duration) error {
	if err := adapters.CheckID("box_id", box); err != nil {
		return err
	}
	reason = cmp.Or(reason, "evicted by an operator")
	now := h.cfg.Now().UnixMilli()
	err := h.store.write(ctx, func(t tx) error {
		n, err := t.exec(`UPDATE federation_sessions SET ended_at = ?1, reason = ?2, permanent = ?3, retry_after_s = ?4 WHERE box_id = ?5 AND ended_at = 0`,
			now, reason, boolean(permanent), int64(retryAfter.Seconds()), box)
		if err != nil {
			return err
		}
		if n == 0 && !permanent {
			return adapters.NotFound("box", box)
		}
		if permanent {
			_, err = t.exec(`INSERT INTO federation_banned (box_id, reason, at) VALUES (?1, ?2, ?3) ON CONFLICT (box_id) DO UPDATE SET reason = excluded.reason, at = excluded.at`, box, reason, now)
		}
		return err
	})
	h.forget(box)
	return typed(err)
}

func boolean(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// Admit lets a permanently evicted box register again.
func (h *Host) Admit(ctx context.Context, box string) error {
	return typed(h.store.write(ctx, func(t tx) error {
		n, err := t.exec(`DELETE FROM federation_banned WHERE box_id = ?1`, box)
		if err == nil && n == 0 {
			return adapters.NotFound("banned box", box)
		}
		return err
	}))
}

// Member is the holder of a session's token.
type Member struct {
	Box string
	// Ended says that the session is over. Its holder may only learn why.
	Ended bool
}

// ByToken finds the holder of a token. The error is NOT_FOUND only if the registry has no such
// token.
func (h *Host) ByToken(ctx context.Context, token string) (Member, error) {
	if len(token) != tokenSize {
		return Member{}, adapters.NotFound("session", "of this token") // no host has given it
	}
	key, now := hash(token), h.cfg.Now()
	h.mu.Lock()
	known, ok := h.tokens[key]
	h.mu.Unlock()
	if ok && now.Before(known.asked.Add(tokenLife)) {
		return known.member, nil
	}
	b := &believed{hash: key, asked: now}
	missing := false
	err := h.store.read(ctx, func(t tx) error {
		err := t.row(`SELECT id, box_id, seq, ended_at <> 0 FROM federation_sessions WHERE token_hash = ?1`, key).
			Scan(&b.session, &b.member.Box, &b.seq, &b.member.Ended)
		missing = errors.Is(err, sql.ErrNoRows)
		return err
	})
	if missing {
		return Member{}, adapters.NotFound("session", "of this token")
	}
	if err != nil {
		return Member{}, typed(err)
	}
	h.believe(b)
	return b.member, nil
}

func (h *Host) believe(b *believed) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.tokens) >= maxTokens {
		clear(h.tokens)
		clear(h.boxes)
	}
	if old := h.boxes[b.member.Box]; old != nil {
		delete(h.tokens, old.hash)
		if old.session == b.session {
			b.seq = max(b.seq, old.seq) // a heartbeat may not be in the registry yet
		}
	}
	h.tokens[b.hash], h.boxes[b.member.Box] = b, b
}

// forget drops the remembered token of a box: the next one is looked up in the registry.
func (h *Host) forget(box string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if b := h.boxes[box]; b != nil {
		delete(h.tokens, b.hash)
		delete(h.boxes, box)
	}
}

// BoxStatus is one registered box.
type BoxStatus struct {
	Box          string                  `json:"box_id"`
	Session      string                  `json:"session_id"`
	State        string                  `json:"state"` // active, silent, evicted
	RegisteredAt adapters.Time           `json:"registered_at"`
	LastSeen     adapters.Time           `json:"last_seen"`
	Reason       string                  `json:"reason,omitempty"`
	Registration federation.Registration `json:"registration"`
	Beat         federation.Beat         `json:"beat"`
}

// Boxes lists at most limit boxes by id, those whose ids come after the given one.
func (h *Host) Boxes(ctx context.Context, after string, limit int) ([]BoxStatus, error) {
	if err := h.writeBeats(ctx); err != nil {
		return nil, typed(err)
	}
	out := []BoxStatus{}
	silent := h.silentSince()
	err := h.store.read(ctx, func(t tx) error {
		rows, err := t.rows(`SELECT id, box_id, registered_at, last_seen, ended_at <> 0, reason, registration, beat FROM federation_sessions
			WHERE box_id > ?1 ORDER BY box_id LIMIT ?2`, after, limit)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var b BoxStatus
			var registered, seen int64
			var ended bool
			var registration, beat string
			if err := rows.Scan(&b.Session, &b.Box, &registered, &seen, &ended, &b.Reason, &registration, &beat); err != nil {
				return err
			}
			b.RegisteredAt, b.LastSeen = adapters.At(time.UnixMilli(registered)), adapters.At(time.UnixMilli(seen))
			switch {
			case ended:
				b.State = "evicted"
			case time.UnixMilli(seen).Before(silent):
				b.State = "silent"
			default:
				b.State = "active"
			}
			if err := errors.Join(json.Unmarshal([]byte(registration), &b.Registration), json.Unmarshal([]byte(beat), &b.Beat)); err != nil {
				return err
			}
			b.Registration.Nonce = ""
			out = append(out, b)
		}
		return rows.Err()
	})
	return out, typed(err)
}

// Known tells whether a box has a session here, be it over or not.
func (h *Host) Known(ctx context.Context, box string) (known bool, err error) {
	err = h.store.read(ctx, func(t tx) error {
		return t.row(`SELECT COUNT(*) > 0 FROM federation_sessions WHERE box_id = ?1`, box).Scan(&known)
	})
	return known, typed(err)
}

// Count counts the boxes by state: active, silent, evicted.
func (h *Host) Count(ctx context.Context) (map[string]int, error) {
	if err := h.writeBeats(ctx); err != nil {
		return nil, typed(err)
	}
	var all, evicted, silent int
	err := h.store.read(ctx, func(t tx) error {
		return t.row(`SELECT COUNT(*), COUNT(CASE WHEN ended_at <> 0 THEN 1 END), COUNT(CASE WHEN ended_at = 0 AND last_seen < ?1 THEN 1 END) FROM federation_sessions`,
			h.silentSince().UnixMilli()).Scan(&all, &evicted, &silent)
	})
	return map[string]int{"active": all - evicted - silent, "silent": silent, "evicted": evicted}, typed(err)
}

// silentSince is the time before which the last heartbeat of a silent box was.
func (h *Host) silentSince() time.Time { return h.cfg.Now().Add(-silentAfter * h.cfg.Interval) }

// Sweep forgets sessions that ended, or fell silent, a day ago.
func (h *Host) Sweep(ctx context.Context) error {
	now := h.cfg.Now()
	return typed(h.store.write(ctx, func(t tx) error {
		_, err := t.exec(`DELETE FROM federation_sessions WHERE (ended_at <> 0 AND ended_at < ?1) OR last_seen < ?2`,
			now.Add(-keepEnded).UnixMilli(), now.Add(-keepSilent).UnixMilli())
		return err
	}))
}

func typed(err error) error {
	if err == nil {
		return nil
	}
	if known, ok := errors.AsType[*adapters.Error](err); ok {
		return known
	}
	return adapters.Unavailable(err, "the registry cannot be used")
}

func random(n int) string {
	b := make([]byte, n)
	rand.Read(b) // never fails: it ends the program rather than return an error
	return hex.EncodeToString(b)
}

func hash(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}
