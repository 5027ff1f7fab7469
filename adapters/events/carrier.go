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
)

const (
	carryFirst     = time.Second // backoff while the sink is down
	carryMax       = time.Minute
	carryBatch     = 100
	carryBytes     = 512 << 10 // peers take bodies of 1 MiB
	deadLetterFile = "dead-letter.jsonl"
	deadLetterMax  = 64 << 20 // bytes; then the file is renamed once and begun anew
)

// carrier delivers the spool to the sink: in order, at least once, from where
// it stood before any crash. One goroutine runs it.
type carrier struct {
	client      *wire.Client
	path        string // below the client's base, where events are POSTed
	plain       bool   // one event of ours per request, and no questions asked
	journal     *journal
	dir         string
	wake        chan struct{}
	again       chan struct{} // ends a backoff
	stop        context.CancelFunc
	done        chan struct{}
	deadLetters atomic.Uint64

	delivered uint64 // owned by run
	single    bool   // the sink takes no batches; owned by run

	mu   sync.Mutex
	peer *wire.Peer // nil until the sink has said who it is
	err  error      // why the last attempt failed, nil when it worked
}

func newCarrier(cfg ExternalConfig, client *wire.Client, path string, j *journal) (*carrier, error) {
	position, err := readPosition(cfg.Dir)
	if err != nil {
		return nil, adapters.Unavailable(err, "cannot read the spool's position")
	}
	if newest, _, _ := j.status(); position > newest {
		position = 0 // the spool was removed and began anew; its number says nothing
	}
	return &carrier{
		client: client, path: path, plain: cfg.Format == FormatJSON, single: cfg.Format == FormatJSON, journal: j, dir: cfg.Dir,
		delivered: position, wake: make(chan struct{}, 1), again: make(chan struct{}, 1), done: make(chan struct{}),
	}, nil
}

// successor goes on where c has ended, to another sink.
func (c *carrier) successor(client *wire.Client, path string) *carrier {
	next := &carrier{
		client: client, path: path, plain: c.plain, single: c.plain, journal: c.journal, dir: c.dir,
		delivered: c.delivered, wake: make(chan struct{}, 1), again: make(chan struct{}, 1), done: make(chan struct{}),
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

// handshake asks once what the sink is. A sink of the contract describes itself. A
// sink that answers anything else, a page or a refusal, is one that only takes
// events. A sink that is down is asked again.
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

// retry has a delivery tried at once that waits out a backoff, which begins anew.
func (c *carrier) retry() { signal(c.again) }

func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// run delivers until ctx ends. It sleeps without waking while there is nothing
// to do.
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

// wait sleeps d, or with d = 0 until wake; woken says that wake ended it.
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
		// One of them, or batches as such, were refused: one by one tells.
		c.single = errors.Is(err, adapters.ErrUnsupported)
	}
	for _, e := range batch {
		if err := c.sendOne(ctx, e); err != nil {
			// A credential that the sink does not know is no fault of the event: a host that has
			// just started, or a box that is about to register again, knows it in a moment.
			if !final(err) || errors.Is(err, adapters.ErrUnauthenticated) {
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

// final says that the sink will never take it: 4xx other than 408 and 429.
func final(err error) bool {
	e := adapters.AsError(err)
	switch e.Code {
	case adapters.CodeTimeout, adapters.CodeRateLimited, adapters.CodeUnavailable, adapters.CodeInternal,
		adapters.CodeDisabled, adapters.CodePrivacyRejected, adapters.CodeEmbedding:
		return false
	case adapters.CodeConflict: // the same key is still running there
		return e.Fields["peer_status"] != nil
	}
	return true
}

// passed remembers that the sink has taken everything up to seq, and drops
// segments that are wholly delivered.
func (c *carrier) passed(seq uint64) error {
	c.delivered = seq
	if err := writePosition(c.dir, seq); err != nil {
		return adapters.Unavailable(err, "cannot note what was delivered")
	}
	return c.journal.drop(func(s segmentInfo) bool { return s.last <= seq })
}

// bury writes an event that the sink refused to the dead-letter file. Only
// when it is there does delivery go on.
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
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o640)
	if err != nil {
		return adapters.Unavailable(err, "cannot open the dead-letter file")
	}
	_, err = f.Write(append(line, '\n'))
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return adapters.Unavailable(err, "cannot write the dead-letter file")
	}
	c.deadLetters.Add(1)
	return nil
}
