package beads

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/sqlite"
)

// LocalConfig of a Local.
type LocalConfig struct {
	// Path of the database file, by default $WORKSPACE/beads.db.
	Path string
	// LeaseExpired, if set, is called for each claim whose lease has ended. It is called outside
	// all locks and must not block.
	LeaseExpired func(beadID, actor string)
}

// Local is local-sqlite: beads in one SQLite file, shared safely with other
// processes that open it the same way.
type Local struct {
	cfg LocalConfig

	life sync.Mutex // serialises Connect and Disconnect
	open atomic.Pointer[opened]
}

var _ adapters.Beads = (*Local)(nil)

// opened is everything that exists between Connect and Disconnect.
type opened struct {
	db      *sqlite.DB
	cursors *adapters.Cursors
	due     atomic.Int64 // ms of the next lease or deferral to end, 0 = none
	wake    chan struct{}
	stop    context.CancelFunc
	done    chan struct{}

	turns atomic.Uint64 // write transactions that have read the next end
	mu    sync.Mutex
	turn  uint64 // the one from which due is
}

// ending is the next end of a lease or deferral, as a write transaction has read it.
type ending struct {
	at   int64 // ms, 0 = none
	turn uint64
}

// NewLocal makes the adapter without any I/O.
func NewLocal(cfg LocalConfig) (*Local, error) {
	if cfg.Path == "" {
		return nil, adapters.Missing("slots.beads.path", "local-sqlite keeps its beads there")
	}
	return &Local{cfg: cfg}, nil
}

// Slot and the methods after it describe the adapter.
func (l *Local) Slot() adapters.Slot     { return adapters.SlotBeads }
func (l *Local) Impl() string            { return "local-sqlite" }
func (l *Local) Class() adapters.Class   { return adapters.ClassLocal }
func (l *Local) Enabled() bool           { return true }
func (l *Local) ContractVersion() string { return "1.1" }
func (l *Local) Capabilities() []string  { return []string{adapters.CapGraph} }

// Connect opens or creates the file. A file that is corrupt, newer or of another program is an
// error and stays unchanged.
func (l *Local) Connect(ctx context.Context) error {
	l.life.Lock()
	defer l.life.Unlock()
	if l.open.Load() != nil {
		return nil
	}
	db, err := sqlite.Open(ctx, sqlite.Options{Path: l.cfg.Path, AppID: appID, Migrations: migrations()})
	if err != nil {
		return err
	}
	key, err := cursorKey(ctx, db)
	if err != nil {
		return errors.Join(err, db.Close())
	}
	life, stop := context.WithCancel(context.Background())
	o := &opened{db: db, cursors: adapters.NewCursors(key), wake: make(chan struct{}, 1), stop: stop, done: make(chan struct{})}
	if err := l.settle(ctx, o); err != nil {
		stop()
		return errors.Join(err, db.Close())
	}
	l.open.Store(o)
	go l.watch(life, o)
	return nil
}

// cursorKey keeps the key in the file, so that cursors outlive the process.
func cursorKey(ctx context.Context, db *sqlite.DB) ([]byte, error) {
	fresh := make([]byte, 32)
	// crypto/rand.Read never fails: it ends the process instead.
	_, _ = rand.Read(fresh)
	var key []byte
	err := db.Write(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `INSERT INTO meta(key, value) VALUES('cursor_key', ?) ON CONFLICT DO NOTHING`, fresh); err != nil {
			return err
		}
		return tx.QueryRowContext(ctx, `SELECT value FROM meta WHERE key = 'cursor_key'`).Scan(&key)
	})
	return key, err
}

// Health reads from the file.
func (l *Local) Health(ctx context.Context) adapters.Health {
	o, err := l.opened()
	if err == nil {
		err = o.db.Ping(ctx)
	}
	if err != nil {
		return adapters.Unhealthy(err)
	}
	return adapters.Healthy()
}

// Disconnect closes the file. Calls under way fail with UNAVAILABLE.
func (l *Local) Disconnect(context.Context) error {
	l.life.Lock()
	defer l.life.Unlock()
	o := l.open.Swap(nil)
	if o == nil {
		return nil
	}
	o.stop()
	<-o.done
	return o.db.Close()
}

// Backup writes a consistent copy of the file to path, which must not exist.
func (l *Local) Backup(ctx context.Context, path string) error {
	o, err := l.opened()
	if err != nil {
		return err
	}
	return o.db.Backup(ctx, path)
}

func (l *Local) opened() (*opened, error) {
	if o := l.open.Load(); o != nil {
		return o, nil
	}
	return nil, adapters.Closed(adapters.SlotBeads)
}

// now is the clock of the file: milliseconds since 1970.
func now() int64 { return time.Now().UnixMilli() }

// ready returns the open database with leases and deferrals that have ended
// already taken back.
func (l *Local) ready(ctx context.Context) (*opened, error) {
	o, err := l.opened()
	if err != nil {
		return nil, err
	}
	if due := o.due.Load(); due != 0 && due <= now() {
		if err := l.settle(ctx, o); err != nil {
			return nil, err
		}
	}
	return o, nil
}

// write runs f in the write transaction and then finds the next lease or deferral to end.
func (l *Local) write(ctx context.Context, f func(*sql.Tx) error) error {
	o, err := l.ready(ctx)
	if err != nil {
		return err
	}
	var next ending
	err = o.db.Write(ctx, func(tx *sql.Tx) error {
		if err := f(tx); err != nil {
			return err
		}
		next, err = o.nextDue(ctx, tx)
		return err
	})
	if err == nil {
		o.setDue(next)
	}
	return err
}

func (l *Local) read(ctx context.Context, f func(*opened, *sql.Tx) error) error {
	o, err := l.ready(ctx)
	if err != nil {
		return err
	}
	return o.db.Read(ctx, func(tx *sql.Tx) error { return f(o, tx) })
}

// setDue is called after the transaction, so a later one may have been here before.
func (o *opened) setDue(next ending) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if next.turn < o.turn {
		return
	}
	o.turn = next.turn
	if o.due.Swap(next.at) != next.at {
		select {
		case o.wake <- struct{}{}:
		default:
		}
	}
}

// nextDue reads the next end in a write transaction, of which there is one at a time.
func (o *opened) nextDue(ctx context.Context, tx *sql.Tx) (ending, error) {
	var at sql.NullInt64
	err := tx.QueryRowContext(ctx, `SELECT min(t) FROM (
		SELECT min(lease_until) AS t FROM beads WHERE status = 'claimed' AND lease_until > 0
		UNION ALL SELECT min(defer_until) FROM beads WHERE status = 'deferred' AND defer_until > 0)`).Scan(&at)
	return ending{at.Int64, o.turns.Add(1)}, err
}

// settle reopens beads whose lease has run out and ends deferrals whose time
// has come.
func (l *Local) settle(ctx context.Context, o *opened) error {
	type expired struct{ id, actor string }
	var told []expired
	var next ending
	t := now()
	err := o.db.Write(ctx, func(tx *sql.Tx) error {
		var err error
		told, err = sqlite.All(ctx, tx, func(r *sql.Rows) (e expired, err error) { return e, r.Scan(&e.id, &e.actor) },
			`SELECT id, actor FROM beads WHERE status = 'claimed' AND lease_until BETWEEN 1 AND ? ORDER BY id`, t)
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `UPDATE beads SET status = 'open', actor = '', claimed_at = 0, lease_until = 0,
			updated_at = max(?1, updated_at + 1), version = version + 1 WHERE status = 'claimed' AND lease_until BETWEEN 1 AND ?1`, t); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `UPDATE beads SET status = 'open', defer_until = 0,
			updated_at = max(?1, updated_at + 1), version = version + 1 WHERE status = 'deferred' AND defer_until BETWEEN 1 AND ?1`, t); err != nil {
			return err
		}
		next, err = o.nextDue(ctx, tx)
		return err
	})
	if err != nil {
		return err
	}
	if next.at != 0 && next.at <= t {
		next.at = t + settleRetry.Milliseconds() // of a row that another program wrote, which settle cannot change
	}
	o.setDue(next)
	if l.cfg.LeaseExpired != nil {
		for _, e := range told {
			l.cfg.LeaseExpired(e.id, e.actor)
		}
	}
	return nil
}

// watch ends leases also while there are no calls. It sleeps until the next one is due and
// does not wake otherwise.
func (l *Local) watch(ctx context.Context, o *opened) {
	defer close(o.done)
	for {
		due := o.due.Load()
		timer := time.NewTimer(untilDue(due))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-o.wake:
		case <-timer.C:
			if err := l.settle(ctx, o); err != nil && ctx.Err() == nil {
				// A call after that time settles too, and reports the error.
				o.due.CompareAndSwap(due, now()+settleRetry.Milliseconds())
			}
		}
		timer.Stop()
	}
}

const (
	settleRetry = 10 * time.Second
	// idleWatch is how long the watch sleeps if nothing is due. It then looks for leases that
	// another process wrote.
	idleWatch = 10 * time.Minute
)

func untilDue(due int64) time.Duration {
	if due == 0 {
		return idleWatch
	}
	return min(max(time.Until(time.UnixMilli(due)), 0), idleWatch)
}
