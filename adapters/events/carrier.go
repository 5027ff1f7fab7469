package events

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/wire"
	"github.com/dreamlab-ai/agentinit/internal/safeopen"
)

const (
	carryFirst     = time.Second // backoff while the sink is down
	carryMax       = time.Minute
	carryBatch     = 100
	carryBytes     = 512 << 10 // peers accept bodies of 1 MiB
	deadLetterFile = "dead-letter.jsonl"
	deadLetterMax  = 64 << 20 // bytes; then the file is renamed once and a new one begins
)

// carrier delivers the spool to the sink: in order, at least once, and after a crash from the
// stored position. One goroutine runs it.
type carrier struct {
	client      *wire.Client
	path        string // below the client's base, where events are POSTed
	plain       bool   // one event of agentbox per request, without a handshake
	journal     *journal
	dir         string
	wake        chan struct{}
	again       chan struct{} // a token ends the backoff
	stop        context.CancelFunc
	done        chan struct{}
	deadLetters atomic.Uint64
	report      func(what string, fields map[string]any) // nil: not wanted

	delivered uint64 // only run uses it
	single    bool   // the sink accepts no batches; only run uses it

	mu   sync.Mutex
	peer *wire.Peer // nil until the sink has described itself
	err  error      // why the last attempt failed, nil if it succeeded
}

func newCarrier(cfg ExternalConfig, client *wire.Client, path string, j *journal) (*carrier, error) {
	position, err := readPosition(cfg.Dir)
	if err != nil {
		return nil, adapters.Unavailable(err, "cannot read the spool's position")
	}
	if newest, _, _ := j.status(); position > newest {
		position = 0 // the spool was removed and started again, so the old number has no meaning
	}
	return &carrier{
		client: client, path: path, plain: cfg.Format == FormatJSON, single: cfg.Format == FormatJSON, journal: j, dir: cfg.Dir,
		report: cfg.Report, delivered: position, wake: make(chan struct{}, 1), again: make(chan struct{}, 1), done: make(chan struct{}),
	}, nil
}

// successor continues for another sink where c has ended.
func (c *carrier) successor(client *wire.Client, path string) *carrier {
	next := &carrier{
		client: client, path: path, plain: c.plain, single: c.plain, journal: c.journal, dir: c.dir,
		report: c.report, delivered: c.delivered, wake: make(chan struct{}, 1), again: make(chan struct{}, 1), done: make(chan struct{}),
	}
	next.deadLetters.Store(c.deadLetters.Load())
	return next
}

// start begins to deliver.
func (c *carrier) start() {
	var ctx context.Context
	ctx, c.stop = context.WithCancel(context.Background())
	go c.run(ctx)
}

// end returns when the delivery has ended.
func (c *carrier) end() {
	c.stop()
	<-c.done
}

// handshake asks once what the sink is. A sink of the contract describes itself. A sink that
// answers with something else, such as a page or a refusal, only accepts events. If the sink is
// down, it is asked again later.
func (c *carrier) handshake(ctx context.Context) error {
	c.mu.Lock()
	known := c.peer != nil
	c.mu.Unlock()
	if known || c.plain {
		return nil
	}
	p, err := c.client.Handshake(ctx)
	if errors.Is(err, wire.ErrNoDescription) || err != nil && final(err) && !errors.Is(err, adapters.ErrContractMismatch) {
		p, err = wire.Peer{}, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = err
	if err == nil {
		c.peer = &p
	}
	return err
}

func (c *carrier) trouble() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

func (c *carrier) hasHistory() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.peer != nil && c.peer.AtLeast(1) && slices.Contains(c.peer.Capabilities, adapters.CapHistory)
}

func (c *carrier) signal() { signal(c.wake) }

// retry ends the present backoff, so that the delivery is tried at once. The backoff then starts
// again from its shortest pause.
func (c *carrier) retry() { signal(c.again) }

func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// run delivers until ctx ends. It does not wake up while there is no event to deliver.
func (c *carrier) run(ctx context.Context) {
	defer close(c.done)
	backoff := carryFirst
	for ctx.Err() == nil {
		more, err := c.carry(ctx)
		if ctx.Err() != nil {
			return
		}
		c.mu.Lock()
		c.err = err
		c.mu.Unlock()
		switch {
		case err != nil:
			if wait(ctx, backoff/2+rand.N(backoff/2+1), c.again) {
				backoff = carryFirst
			} else {
				backoff = min(2*backoff, carryMax)
			}
		case more:
			backoff = carryFirst
		default:
			backoff = carryFirst
			wait(ctx, 0, c.wake)
		}
	}
}

// wait sleeps d, or with d = 0 until wake; woken says that wake ended the sleep.
func wait(ctx context.Context, d time.Duration, wake <-chan struct{}) (woken bool) {
	var after <-chan time.Time
	if d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		after = timer.C
	}
	select {
	case <-ctx.Done():
	case <-after:
	case <-wake:
		return true
	}
	return false
}

// carry delivers one batch; more says that there was one.
func (c *carrier) carry(ctx context.Context) (more bool, err error) {
	if err := c.handshake(ctx); err != nil {
		return false, err
	}
	var batch []adapters.Event
	_, _, err = c.journal.read(ctx, c.delivered, carryBytes, func(e adapters.Event) bool {
		batch = append(batch, e)
		return len(batch) < carryBatch
	})
	if err != nil || len(batch) == 0 {
		return false, err
	}
	if !c.single && len(batch) > 1 {
		err := c.send(ctx, adapters.CloudBatchType, cloudBatch(batch))
		if err == nil {
			return true, c.passed(batch[len(batch)-1].Seq)
		}
		if !final(err) {
			return false, err
		}
		// An event of the batch was refused, or batches as such. Single deliveries show which.
		c.single = errors.Is(err, adapters.ErrUnsupported)
	}
	for _, e := range batch {
		if err := c.sendOne(ctx, e); err != nil {
			// An unknown credential is not a fault of the event: a host that has just started, or
			// with which the box must register again, will know it soon. Nor is another contract.
			if !final(err) || errors.Is(err, adapters.ErrUnauthenticated) || errors.Is(err, adapters.ErrContractMismatch) {
				return false, err
			}
			if err := c.bury(e, err); err != nil {
				return false, err
			}
		}
		if err := c.passed(e.Seq); err != nil {
			return false, err
		}
	}
	return true, nil
}

func cloudBatch(batch []adapters.Event) []adapters.CloudEvent {
	out := make([]adapters.CloudEvent, len(batch))
	for i, e := range batch {
		out[i] = e.Cloud()
	}
	return out
}

func (c *carrier) send(ctx context.Context, contentType string, v any) error {
	var body bytes.Buffer
	enc := json.NewEncoder(&body)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return adapters.Errorf(adapters.CodeValidation, "the event cannot be written as JSON").Wrap(err)
	}
	_, err := c.client.Do(ctx, wire.Request{Method: http.MethodPost, Path: c.path, Body: body.Bytes(), ContentType: contentType, Keyed: true})
	return err
}

func (c *carrier) sendOne(ctx context.Context, e adapters.Event) error {
	if c.plain {
		return c.send(ctx, "application/json", e)
	}
	return c.send(ctx, adapters.CloudEventType, e.Cloud())
}

// final says that the sink will never accept the event: 4xx other than 408 and 429.
func final(err error) bool {
	e := adapters.AsError(err)
	switch e.Code {
	case adapters.CodeTimeout, adapters.CodeRateLimited, adapters.CodeUnavailable, adapters.CodeInternal,
		adapters.CodeDisabled, adapters.CodePrivacyRejected, adapters.CodeEmbedding:
		return false
	case adapters.CodeConflict: // an earlier request with the same key is still running at the sink
		return e.Fields["peer_status"] != nil
	}
	return true
}

// passed records that the sink has accepted all events up to seq, and drops the segments that were
// delivered completely.
func (c *carrier) passed(seq uint64) error {
	c.delivered = seq
	if err := writePosition(c.dir, seq); err != nil {
		return adapters.Unavailable(err, "cannot note what was delivered")
	}
	return c.journal.drop(func(s segmentInfo) bool { return s.last <= seq })
}

// bury writes an event that the sink refused to the dead-letter file. The delivery continues only
// after that write.
func (c *carrier) bury(e adapters.Event, why error) error {
	path := filepath.Join(c.dir, deadLetterFile)
	if info, err := os.Stat(path); err == nil && info.Size() > deadLetterMax {
		if err := os.Rename(path, path+".1"); err != nil {
			return adapters.Unavailable(err, "cannot turn the dead-letter file over")
		}
	}
	line, err := json.Marshal(struct {
		At    adapters.Time  `json:"at"`
		Code  adapters.Code  `json:"code"`
		Error string         `json:"error"`
		Event adapters.Event `json:"event"`
	}{adapters.At(time.Now()), adapters.CodeOf(why), why.Error(), e})
	if err != nil {
		return adapters.Errorf(adapters.CodeInternal, "a dead letter cannot be written as JSON").Wrap(err)
	}
	f, err := safeopen.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o640)
	if err != nil {
		return adapters.Unavailable(err, "cannot open the dead-letter file")
	}
	_, err = f.Write(append(line, '\n'))
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return adapters.Unavailable(err, "cannot write the dead-letter file")
	}
	c.deadLetters.Add(1)
	if c.report != nil {
		c.report("EventRefusedBySink", map[string]any{"event": e.ID, "kind": e.Kind, "error": why.Error(), "path": path})
	}
	return nil
}
