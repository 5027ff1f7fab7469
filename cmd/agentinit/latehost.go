package main

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/federation"
	mesh "github.com/dreamlab-ai/agentinit/adapters/federation/host"
)

// lateHost answers UNAVAILABLE until its registry is open; boxes then try again.
type lateHost struct{ host atomic.Pointer[mesh.Host] }

func (l *lateHost) set(h *mesh.Host) { l.host.Store(h) }
func (l *lateHost) get() *mesh.Host  { return l.host.Load() }

// notYet is how long a box waits before it asks again.
const notYet = 2 * time.Second

func (l *lateHost) ready() (*mesh.Host, error) {
	if h := l.get(); h != nil {
		return h, nil
	}
	return nil, adapters.Errorf(adapters.CodeUnavailable, "the registry of boxes is not open yet").WithRetryAfter(notYet)
}

func (l *lateHost) Register(ctx context.Context, principal string, r federation.Registration) (federation.Grant, error) {
	h, err := l.ready()
	if err != nil {
		return federation.Grant{}, err
	}
	return h.Register(ctx, principal, r)
}

func (l *lateHost) Heartbeat(ctx context.Context, box string, b federation.Beat) (federation.BeatAnswer, *federation.Eviction, error) {
	h, err := l.ready()
	if err != nil {
		return federation.BeatAnswer{}, nil, err
	}
	return h.Heartbeat(ctx, box, b)
}

func (l *lateHost) Deregister(ctx context.Context, box string, f federation.Farewell) error {
	h, err := l.ready()
	if err != nil {
		return err
	}
	return h.Deregister(ctx, box, f)
}

func (l *lateHost) Evict(ctx context.Context, box, reason string, permanent bool, retryAfter time.Duration) error {
	h, err := l.ready()
	if err != nil {
		return err
	}
	return h.Evict(ctx, box, reason, permanent, retryAfter)
}

func (l *lateHost) Admit(ctx context.Context, box string) error {
	h, err := l.ready()
	if err != nil {
		return err
	}
	return h.Admit(ctx, box)
}

func (l *lateHost) Boxes(ctx context.Context, after string, limit int) ([]mesh.BoxStatus, error) {
	h, err := l.ready()
	if err != nil {
		return nil, err
	}
	return h.Boxes(ctx, after, limit)
}

func (l *lateHost) Known(ctx context.Context, box string) (bool, error) {
	h, err := l.ready()
	if err != nil {
		return false, err
	}
	return h.Known(ctx, box)
}
