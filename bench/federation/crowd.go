package main

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"regexp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters/federation"
	"github.com/dreamlab-ai/agentinit/adapters/wire"
	"github.com/dreamlab-ai/agentinit/internal/sleep"
)

// crowd is all the boxes.
type crowd struct {
	boxes []*box
	end   context.CancelFunc
	work  sync.WaitGroup

	sent, received atomic.Int64 // bytes of all connections

	mu     sync.Mutex
	sample sample
}

// sample is what was measured since the last call of take.
type sample struct {
	took           map[string][]time.Duration // times of answered requests, by kind
	failed         map[string]int             // by reason
	sent, received int64
}

func newSample() sample { return sample{took: map[string][]time.Duration{}, failed: map[string]int{}} }

func (s sample) quantile(kind string, p float64) time.Duration {
	took := slices.Sorted(slices.Values(s.took[kind]))
	if len(took) == 0 {
		return 0
	}
	return took[int(p*float64(len(took)-1))]
}

// failures returns the reasons, the most frequent first.
func (s sample) failures() []string {
	return slices.SortedFunc(maps.Keys(s.failed), func(a, b string) int { return s.failed[b] - s.failed[a] })
}

func newCrowd(n int, url string) (*crowd, error) {
	c := &crowd{end: func() {}, sample: newSample()}
	for i := range n {
		// Each box has its own address, because the host also limits requests by address.
		dialer := &net.Dialer{Timeout: 3 * time.Second, LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 1, byte(i>>8), byte(i))}}
		client, err := federation.NewClient(federation.ClientConfig{
			BaseURL: url, Auth: wire.Bearer(func() string { return token + "-boxes" }), UserAgent: "bench",
			Transport: &http.Transport{
				DialContext:         c.counted(dialer),
				MaxIdleConnsPerHost: 2, IdleConnTimeout: 60 * time.Second,
			},
		})
		if err != nil {
			return nil, err
		}
		b := &box{id: fmt.Sprintf("box-%d", i), client: client, crowd: c}
		b.runner = federation.NewRunner(b, b, uint64(i))
		c.boxes = append(c.boxes, b)
	}
	return c, nil
}

func (c *crowd) counted(d *net.Dialer) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := d.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &countedConn{conn, c}, nil
	}
}

type countedConn struct {
	net.Conn
	crowd *crowd
}

func (c *countedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.crowd.received.Add(int64(n))
	return n, err
}

func (c *countedConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.crowd.sent.Add(int64(n))
	return n, err
}

// start starts the boxes at equal intervals within one second.
func (c *crowd) start(ctx context.Context) {
	ctx, c.end = context.WithCancel(ctx)
	for i, b := range c.boxes {
		c.work.Go(func() {
			if sleep.For(ctx, time.Duration(i)*time.Second/time.Duration(len(c.boxes))) {
				b.runner.Run(ctx)
			}
		})
	}
}

func (c *crowd) stop() {
	c.end()
	c.work.Wait()
	for _, b := range c.boxes {
		b.client.Close()
	}
}

// awaitLimit is much longer than any host needs.
const awaitLimit = 20 * time.Minute

// await waits until each box is active and the host has answered each box after since.
func (c *crowd) await(ctx context.Context, since time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, awaitLimit)
	defer cancel()
	for slices.ContainsFunc(c.boxes, func(b *box) bool {
		s := b.runner.Session()
		return s.State != federation.Active || s.LastHeartbeat.Before(since)
	}) {
		if !sleep.For(ctx, 50*time.Millisecond) {
			return fmt.Errorf("the boxes are %v: %w", c.states(), ctx.Err())
		}
	}
	return nil
}

func (c *crowd) states() map[federation.State]int {
	out := map[federation.State]int{}
	for _, b := range c.boxes {
		out[b.runner.Session().State]++
	}
	return out
}

func (c *crowd) sessions() []string {
	out := make([]string, len(c.boxes))
	for i, b := range c.boxes {
		out[i] = b.runner.Session().ID
	}
	return out
}

// lost counts the boxes whose session differs from before.
func (c *crowd) lost(before []string) int {
	n := 0
	for i, id := range c.sessions() {
		if id != before[i] {
			n++
		}
	}
	return n
}

// take returns the sample and begins a new one.
func (c *crowd) take() sample {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.sample
	s.sent, s.received = c.sent.Swap(0), c.received.Swap(0)
	c.sample = newSample()
	return s
}

// between matches the addresses in a reason: they differ from box to box.
var between = regexp.MustCompile(` 127[0-9.:]+->127[0-9.:]+`)

func (c *crowd) note(kind string, began time.Time, e federation.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch e := e.(type) {
	case federation.Failed:
		c.sample.failed[kind+": "+between.ReplaceAllString(e.Reason, "")]++
	case federation.Gone:
		c.sample.failed[kind+": gone: "+e.Reason]++
	default:
		c.sample.took[kind] = append(c.sample.took[kind], time.Since(began))
	}
}

// box is a box that has only its federation session.
type box struct {
	id     string
	client *federation.Client
	runner *federation.Runner
	crowd  *crowd
}

// Register and the two methods after it implement federation.Host.
func (b *box) Register(ctx context.Context, call uint64, r federation.Registration) federation.Event {
	began := time.Now()
	e := b.client.Register(ctx, call, r)
	b.crowd.note("register", began, e)
	return e
}

func (b *box) Heartbeat(ctx context.Context, call uint64, beat federation.Beat, token string) federation.Event {
	began := time.Now()
	e := b.client.Heartbeat(ctx, call, beat, token)
	b.crowd.note("heartbeat", began, e)
	return e
}

func (b *box) Deregister(ctx context.Context, call uint64, f federation.Farewell, token string) federation.Event {
	return b.client.Deregister(ctx, call, f, token)
}

// Registration and the methods after it implement federation.Box.
func (b *box) Registration() federation.Registration {
	external := federation.AdapterReport{Impl: "external", ContractVersion: "1.1", Capabilities: []string{}}
	return federation.Registration{
		BoxID: b.id, BootID: "boot-" + b.id, Version: "bench", ManifestChecksum: "sha256:0", MetaURL: "http://127.0.0.1/v1/meta",
		Adapters: map[string]federation.AdapterReport{"beads": external, "events": external},
	}
}

func (b *box) Beat() federation.Beat {
	return federation.Beat{Status: "ok", Ready: true, Agents: 1, UptimeS: 60, Slots: map[string]string{
		"beads": "healthy", "events": "healthy", "memory": "off", "orchestrator": "off", "pods": "off",
	}}
}

func (*box) Connect(context.Context, federation.Endpoints)  {}
func (*box) Degrade(context.Context, string)                {}
func (*box) Show(federation.Session)                        {}
func (*box) Tell(name, reason string, s federation.Session) {}
func (*box) Fatal(string)                                   {}
func (*box) Counted(string)                                 {}
