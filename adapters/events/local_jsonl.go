package events

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"math"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// Bounds of a journal.
const (
	minMaxBytes      = 1 << 20
	maxSubscriptions = 256
	historyScan      = 64 << 20 // bytes that are read for one page at most
)

// LocalConfig configures a Local.
type LocalConfig struct {
	Dir string // by default $WORKSPACE/events
	// Source returns the default of Event.Source: urn:agentbox:<pubkey or box id>. It is called for
	// each event without a source, as the key may be rotated; nil leaves the source empty.
	Source func() string
	// Fsync is "always" (before Dispatch returns) or "1s" (within a second; the default). Both
	// survive kill -9, but only "always" survives a loss of power.
	Fsync         string
	RetentionDays int   // 0: no limit
	MaxBytes      int64 // of all segments, at least 1 MiB; 0: no limit
}

// Local is local-jsonl: one line per event in a file per UTC day.
type Local struct {
	cfg LocalConfig

	life sync.Mutex // serialises Connect and Disconnect
	open atomic.Pointer[localOpen]
}

var _ adapters.Events = (*Local)(nil)

// localOpen is everything that exists between Connect and Disconnect.
type localOpen struct {
	journal *journal
	cursors *adapters.Cursors
	hub     *hub

	mu  sync.Mutex // the check for a repeated event and the append are one step
	ids *seen
	day string // of the last retention run
}

// NewLocal makes the adapter without any I/O.
func NewLocal(cfg LocalConfig) (*Local, error) {
	switch {
	case cfg.Dir == "":
		return nil, adapters.Missing("slots.events.dir", "local-jsonl writes its files there")
	case cfg.Fsync != "" && cfg.Fsync != "1s" && cfg.Fsync != "always":
		return nil, &adapters.ConfigError{Key: "slots.events.fsync", Message: `must be "1s" or "always"`}
	case cfg.RetentionDays < 0:
		return nil, &adapters.ConfigError{Key: "slots.events.retention_days", Message: "must not be negative"}
	case cfg.MaxBytes != 0 && cfg.MaxBytes < minMaxBytes:
		return nil, &adapters.ConfigError{Key: "slots.events.max_bytes", Message: "must be at least 1 MiB"}
	}
	cfg.MaxBytes = cmp.Or(cfg.MaxBytes, math.MaxInt64)
	return &Local{cfg: cfg}, nil
}

// Slot and the methods after it describe the adapter.
func (l *Local) Slot() adapters.Slot     { return adapters.SlotEvents }
func (l *Local) Impl() string            { return "local-jsonl" }
func (l *Local) Class() adapters.Class   { return adapters.ClassLocal }
func (l *Local) Enabled() bool           { return true }
func (l *Local) ContractVersion() string { return "1.1" }
func (l *Local) Capabilities() []string  { return []string{adapters.CapHistory} }

// Connect reads the position of the journal. It fails if the directory is not writable.
func (l *Local) Connect(ctx context.Context) error {
	l.life.Lock()
	defer l.life.Unlock()
	if l.open.Load() != nil {
		return nil
	}
	ids := newSeen()
	// A segment is a quarter of the limit, so that retention never removes most of the events at
	// once.
	j, err := openJournal(ctx, l.cfg.Dir, l.cfg.Fsync == "always", l.cfg.MaxBytes/4, func(e adapters.Event) { ids.add(e) })
	if err != nil {
		return err
	}
	key := sha256.Sum256([]byte("events\x00" + l.cfg.Dir)) // cursors outlive the process
	o := &localOpen{journal: j, cursors: adapters.NewCursors(key[:]), ids: ids, hub: newHub()}
	if err := o.retain(l.cfg); err != nil {
		return errors.Join(err, j.close())
	}
	l.open.Store(o)
	return nil
}

// Health is good if the last append and sync succeeded, or if the directory is writable again.
func (l *Local) Health(context.Context) adapters.Health {
	o, err := l.opened()
	if err != nil {
		return adapters.Unhealthy(err)
	}
	if _, _, failed := o.journal.status(); failed != nil {
		if err := o.journal.probe(); err != nil {
			return adapters.Unhealthy(adapters.Unavailable(err, "cannot write events"))
		}
	}
	return adapters.Healthy()
}

// Lost implements adapters.Lossy: lines that a crash has torn are skipped.
func (l *Local) Lost() map[string]uint64 {
	o, err := l.opened()
	if err != nil {
		return nil
	}
	_, torn, _ := o.journal.status()
	return map[string]uint64{"torn_lines": torn}
}

// Disconnect syncs and closes the journal and ends all subscriptions.
func (l *Local) Disconnect(context.Context) error {
	l.life.Lock()
	defer l.life.Unlock()
	o := l.open.Swap(nil)
	if o == nil {
		return nil
	}
	o.hub.close()
	if err := o.journal.close(); err != nil {
		return adapters.Unavailable(err, "cannot close the journal")
	}
	return nil
}

func (l *Local) opened() (*localOpen, error) {
	if o := l.open.Load(); o != nil {
		return o, nil
	}
	return nil, adapters.Closed(adapters.SlotEvents)
}

// Dispatch appends one event.
func (l *Local) Dispatch(ctx context.Context, e adapters.Event) (adapters.Receipt, error) {
	o, err := l.opened()
	if err != nil {
		return adapters.Receipt{}, err
	}
	if err := ctx.Err(); err != nil {
		return adapters.Receipt{}, adapters.AsError(err)
	}
	e.Source = cmp.Or(e.Source, sourceOf(l.cfg.Source))
	o.mu.Lock()
	if r, ok := o.ids.get(e); ok {
		o.mu.Unlock()
		return r, o.journal.settle() // the first call may not have synced yet
	}
	if err := o.retainDaily(l.cfg); err != nil {
		o.mu.Unlock()
		return adapters.Receipt{}, err
	}
	e, err = o.journal.append(e, o.hub.publish)
	if err == nil {
		o.ids.add(e)
	}
	o.mu.Unlock()
	if err != nil {
		return adapters.Receipt{}, err
	}
	if err := o.journal.settle(); err != nil {
		return adapters.Receipt{}, err
	}
	return receipt(e, false), nil
}

func receipt(e adapters.Event, queued bool) adapters.Receipt {
	return adapters.Receipt{ID: e.ID, Seq: e.Seq, TS: e.TS, Kind: e.Kind, Queued: queued}
}

// retainDaily applies the retention once a day, and whenever the segments are larger than their
// limit. The caller holds mu.
func (o *localOpen) retainDaily(cfg LocalConfig) error {
	if o.day == time.Now().UTC().Format(dayFormat) && o.journal.size() <= cfg.MaxBytes {
		return nil
	}
	return o.retain(cfg)
}

func (o *localOpen) retain(cfg LocalConfig) error {
	now := time.Now().UTC()
	o.day = now.Format(dayFormat)
	oldest := now.AddDate(0, 0, -cfg.RetentionDays).Format(dayFormat)
	return o.journal.drop(func(s segmentInfo) bool { return cfg.RetentionDays > 0 && s.day < oldest || s.total > cfg.MaxBytes })
}

// Subscribe follows the journal.
func (l *Local) Subscribe(_ context.Context, filter adapters.EventFilter, from adapters.From) (adapters.Subscription, error) {
	o, err := l.opened()
	if err != nil {
		return nil, err
	}
	return o.hub.subscribe(o.journal, filter, from)
}

// Unsubscribe ends a subscription.
func (l *Local) Unsubscribe(_ context.Context, id string) error {
	o, err := l.opened()
	if err != nil {
		return err
	}
	return o.hub.unsubscribe(id)
}

// maxPageBytes of payloads end a page early: one has up to 64 KiB, and a page up to 1000 of them.
const maxPageBytes = 4 << 20

// History reads stored events in seq order. A page may be short or even empty and still have a
// cursor: a filter that matches little must not read the whole journal in one call.
func (l *Local) History(ctx context.Context, filter adapters.EventFilter, opt adapters.PageOpt) (page adapters.Page[adapters.Event], err error) {
	o, err := l.opened()
	if err != nil {
		return page, err
	}
	scope, _ := json.Marshal(filter) // strings always marshal
	position, err := o.cursors.Open(string(scope), opt.Cursor, 1)
	if err != nil {
		return page, err
	}
	after := uint64(0)
	if position != nil {
		if after, err = strconv.ParseUint(position[0], 10, 64); err != nil {
			return page, adapters.Invalid("cursor", "is not one of ours")
		}
	}
	full, size := false, 0
	last, end, err := o.journal.read(ctx, after, historyScan, func(e adapters.Event) bool {
		if len(page.Items) == opt.Rows() || size >= maxPageBytes {
			full = true
			return false
		}
		if filter.Matches(e) {
			page.Items = append(page.Items, e)
			size += len(e.Payload)
		}
		return true
	})
	if err != nil {
		return adapters.Page[adapters.Event]{}, err
	}
	if full { // last is the first event that did not fit
		last = page.Items[len(page.Items)-1].Seq
	}
	if full || !end {
		page.NextCursor = o.cursors.Seal(string(scope), strconv.FormatUint(last, 10))
	}
	return page, nil
}
