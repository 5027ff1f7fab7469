package mailbox

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/nbd-wtf/go-nostr"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/dreamlab-ai/agentinit/bootstrap/identity"
	"github.com/dreamlab-ai/agentinit/mesh/nip01"
	"github.com/dreamlab-ai/agentinit/mesh/pool"
)

// Limits of a mailbox.
const (
	maxInbox     = 10_000 // messages; strangers get half
	maxPending   = 1000   // messages that wait to be published
	maxDone      = 5000   // finished messages of the outbox
	maxOutbox    = 10_000 // files of the outbox
	maxFile      = 4 << 20
	fileMode     = 0o640
	subscription = 64 // events that wait for the inbox; if there are more, the relays wait
	parallel     = 16 // messages that are published at the same time
)

// Times of a mailbox.
const (
	sweepEvery   = 10 * time.Minute // until the relays are asked again for all their events
	sweepSoon    = time.Minute      // the same, after a failed write
	pruneEvery   = time.Hour
	tellAgain    = 30 * time.Second
	tellLimit    = 10 * time.Second
	publishLimit = 20 * time.Second
	noRelayWait  = time.Second
)

// Files is the storage of a mailbox. bootstrap.Policy implements it. WriteFile and CreateFile must be
// atomic, even in a crash, and durable when they return.
type Files interface {
	ReadDir(path string) ([]string, error)
	ReadFile(path string, limit int64) ([]byte, fs.FileInfo, error)
	WriteFile(path string, data []byte, mode fs.FileMode) error
	CreateFile(path string, data []byte, mode fs.FileMode) error
	Rename(from, to string) error
	Remove(path string) error
}

// Relays are the box's connections to relays. *pool.Pool implements it.
type Relays interface {
	Publish(context.Context, *nostr.Event) ([]pool.Result, error)
	Subscribe(filters []nip01.Filter, buffer int) (*pool.Subscription, error)
}

// Notice reports a message in the inbox. It names the message but contains none of its text.
type Notice struct {
	EventID   string    `json:"event_id"`
	MessageID string    `json:"message_id"` // for a gift wrap, the id of the message in it
	Kind      int       `json:"kind"`       // kind of the message
	Sender    string    `json:"sender"`     // public key of the author
	Private   bool      `json:"private"`    // it came in a gift wrap
	File      string    `json:"file"`       // file name in the inbox
	Received  time.Time `json:"received_at"`
}

// Config of a Mailbox. All but Tell, Work, Report and Registerer are required.
type Config struct {
	Dir    string // contains the directories inbox, outbox and intent-queue
	Files  Files
	Relays Relays
	// Key returns the current key of the box; a rotation changes it.
	Key func() *identity.Key
	// Policy returns the current policy. It is called for each event.
	Policy func() Policy
	// Receive is false if the inbox accepts no messages.
	Receive bool
	// Tell reports a notice. It is called at least once for each message, and again after an error, so
	// it must be idempotent by the event's id. nil = received messages are not reported.
	Tell func(context.Context, Notice) error
	// Work starts the work for intents; nil = other programs work on them.
	Work Work
	// Report is called for each problem; it may be nil.
	Report     func(what string, fields map[string]any)
	Registerer prometheus.Registerer
}

// Mailbox is the inbox and the outbox of a box. Its methods may be called from any
// goroutine.
type Mailbox struct {
	cfg     Config
	metrics *metrics
	wake    chan struct{} // has a token if the outbox has changed
	asked   chan struct{} // has a token if there may be an intent to handle

	files sync.Mutex // held while files of the inbox or intent queue are rewritten or removed

	mu       sync.Mutex
	inbox    map[string]*letter // by event id
	messages map[string]string  // event id by message id: finds a message that came in two gift wraps
	outbox   map[string]*slot   // by pending id
	intents  map[string]bool    // unfinished intents, by event id
	changed  chan struct{}      // closed at the next change of the outbox
	quiet    time.Time          // no attempt to publish before this time: no relay was connected
	renewed  context.CancelFunc // makes receive ask the relays again
}

// letter is the part of a message of the inbox that is kept in memory.
type letter struct {
	message                    string // id of the message
	created, received, expires time.Time
	stranger, told             bool
	taken                      bool // came from a relay since Open, not from a file
}

// Open reads the existing files, at most maxInbox and maxOutbox, and repairs what a crash has left
// incomplete.
func Open(cfg Config) (*Mailbox, error) {
	if cfg.Report == nil {
		cfg.Report = func(string, map[string]any) {}
	}
	m := &Mailbox{
		cfg: cfg, metrics: newMetrics(), wake: make(chan struct{}, 1), asked: make(chan struct{}, 1), inbox: map[string]*letter{}, messages: map[string]string{},
		outbox: map[string]*slot{}, intents: map[string]bool{}, changed: make(chan struct{}),
	}
	if err := m.loadInbox(); err != nil {
		return nil, err
	}
	if err := m.loadOutbox(); err != nil {
		return nil, err
	}
	if err := m.loadIntents(); err != nil {
		return nil, err
	}
	return m, m.metrics.register(cfg.Registerer, m)
}

// Run receives and publishes until ctx ends.
func (m *Mailbox) Run(ctx context.Context) {
	var tasks sync.WaitGroup
	tasks.Go(func() { m.send(ctx) })
	tasks.Go(func() { m.housekeep(ctx) })
	if m.cfg.Work != nil {
		tasks.Go(func() { m.work(ctx) })
	}
	if m.cfg.Receive {
		tasks.Go(func() { m.receive(ctx) })
	}
	tasks.Wait()
	m.metrics.unregister(m.cfg.Registerer, m)
}

// housekeep repeats reports that failed, and prunes.
func (m *Mailbox) housekeep(ctx context.Context) {
	again := time.NewTicker(tellAgain)
	defer again.Stop()
	prune := time.NewTicker(pruneEvery)
	defer prune.Stop()
	m.prune(time.Now())
	for {
		m.tellAll(ctx)
		select {
		case <-again.C:
		case <-prune.C:
			m.prune(time.Now())
		case <-ctx.Done():
			return
		}
	}
}

// prune removes the messages that need not be kept any longer.
func (m *Mailbox) prune(now time.Time) {
	if err := errors.Join(m.pruneInbox(now), m.pruneOutbox(now)); err != nil {
		m.cfg.Report("MailboxNotPruned", map[string]any{"message": err.Error()})
	}
}

// Rotated says that the key has changed. The relays are then asked for events to the new key, and
// waiting messages in the outbox are signed with it when they are sent.
func (m *Mailbox) Rotated() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.renewed != nil {
		m.renewed()
	}
}

// Counts are the numbers of messages in a mailbox.
type Counts struct {
	Inbox     int `json:"inbox"`
	Untold    int `json:"untold"` // messages of the inbox that are not yet in the events slot
	Pending   int `json:"pending"`
	Published int `json:"published"`
	Failed    int `json:"failed"`
}

// Counts counts the messages.
func (m *Mailbox) Counts() Counts {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := Counts{Inbox: len(m.inbox)}
	for _, l := range m.inbox {
		if !l.told {
			c.Untold++
		}
	}
	for _, s := range m.outbox {
		switch s.status {
		case Pending:
			c.Pending++
		case Published:
			c.Published++
		case Failed:
			c.Failed++
		}
	}
	return c
}

func (m *Mailbox) path(parts ...string) string {
	return filepath.Join(append([]string{m.cfg.Dir}, parts...)...)
}

// names lists the files of a directory, without ".json". It removes the temporary files of
// interrupted writes.
func (m *Mailbox) names(dir string, wanted func(string) bool, most int) ([]string, error) {
	all, err := m.cfg.Files.ReadDir(m.path(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the mailbox: %w", err)
	}
	var out []string
	for _, file := range all {
		name, ok := strings.CutSuffix(file, ".json")
		switch {
		case ok && wanted(name):
			if out = append(out, name); len(out) > most {
				return nil, fmt.Errorf("%s holds more than %d messages; move some of them away", m.path(dir), most)
			}
		case strings.Contains(file, ".json.tmp-"):
			if err := m.cfg.Files.Remove(m.path(dir, file)); err != nil {
				m.cfg.Report("MailboxFileIgnored", map[string]any{"file": m.path(dir, file), "message": err.Error()})
			}
		}
	}
	return out, nil
}

// unreadable reports a file that cannot be read and stays unchanged.
func (m *Mailbox) unreadable(dir, name string, err error) {
	m.cfg.Report("MailboxFileIgnored", map[string]any{"file": m.path(dir, name+".json"), "message": err.Error()})
}
