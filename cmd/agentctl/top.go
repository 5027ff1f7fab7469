package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gdamore/tcell/v2"
	"github.com/gdamore/tcell/v2/terminfo"
	_ "github.com/gdamore/tcell/v2/terminfo/extended" // terminal descriptions
	"github.com/spf13/cobra"

	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
)

func newTop(c *cli) *cobra.Command {
	return &cobra.Command{
		Use:   "top",
		Short: "Watch and control programs in a full-screen view",
		Long: `Watch and control programs in a full-screen view: states, CPU, memory, output,
the boot and the dependencies. The last line shows the keys.

What changes comes from the stream of events; CPU and memory are read at most
once a second. Start, stop, restart and signal ask before they act.

It needs a terminal: with TERM=dumb or through a pipe use agentctl status -w.`,
		Args:              noArgs,
		ValidArgsFunction: noFiles,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.top(cmd.Context())
		},
	}
}

// top runs until the user presses q or agentinit ends.
func (c *cli) top(ctx context.Context) error {
	if _, tty := terminal(c.stdout); !tty {
		return usageError("top needs a terminal; use agentctl status -w here")
	}
	client := c.client()
	first, err := client.Status(ctx)
	if err != nil {
		return failed(err) // before the screen is switched
	}
	screen, err := c.screen()
	if err != nil {
		return err
	}
	defer screen.Fini()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	t := newTopState(screen.Size())
	t.colours = c.colours()
	t.blocks = strings.EqualFold(screen.CharacterSet(), "UTF-8")
	t.setStatus(first)
	r := &topRunner{ctx: ctx, client: client, screen: screen, state: t, did: make(chan func(*topState), 64)}
	return quietEnd(ctx, r.run(first.Seq))
}

// screen takes over the terminal. It uses built-in descriptions, because agentctl starts no
// infocmp. An unknown terminal is treated as an xterm.
func (c *cli) screen() (tcell.Screen, error) {
	name, _ := c.lookupEnv("TERM")
	if name == "" || name == "dumb" {
		return nil, usageError("top needs a terminal that can place text, but TERM is %q; use agentctl status -w", name)
	}
	info, err := terminfo.LookupTerminfo(name)
	if err != nil {
		if info, err = terminfo.LookupTerminfo("xterm"); err != nil {
			return nil, err
		}
	}
	device := cmp.Or(c.tty, "/dev/tty")
	tty, err := tcell.NewDevTtyFromDev(device)
	if err != nil {
		return nil, &exitError{exitFailure, fmt.Errorf("cannot open the terminal: %w", err)}
	}
	screen, err := tcell.NewTerminfoScreenFromTtyTerminfo(&validInput{Tty: tty}, info)
	if err == nil {
		err = screen.Init()
	}
	if err != nil {
		return nil, &exitError{exitFailure, fmt.Errorf("cannot use the terminal: %w", err)}
	}
	return screen, nil
}

// validInput leaves out of what is typed every byte that is no UTF-8. tcell tries for ever to decode
// such a byte: it then uses a whole processor and takes no key any more, not even Ctrl-C.
type validInput struct {
	tcell.Tty
	begun []byte // of a character whose other bytes have not been read yet
}

func (v *validInput) Read(p []byte) (int, error) {
	n := copy(p, v.begun)
	more, err := v.Tty.Read(p[n:])
	text := p[:n+more]
	whole := len(text)
	for i := max(0, whole-utf8.UTFMax+1); i < whole; i++ {
		if !utf8.FullRune(text[i:]) {
			whole = i
		}
	}
	v.begun = bytes.Clone(text[whole:])
	return copy(p, bytes.ToValidUTF8(text[:whole], nil)), err
}

// topRunner connects the state of top with the terminal and agentinit. One goroutine owns the
// state; the others send it functions through did.
type topRunner struct {
	ctx        context.Context
	client     *api.Client
	screen     tcell.Screen
	state      *topState
	did        chan func(*topState)
	stopLogs   context.CancelFunc
	nextUsage  time.Time
	nextStatus time.Time
}

// topPause is the least time between two requests of one kind to agentinit.
const topPause = time.Second

func (r *topRunner) run(seq uint64) error {
	keys := make(chan tcell.Event, 16)
	quit := make(chan struct{})
	defer close(quit)
	go r.screen.ChannelEvents(keys, quit)
	ended := make(chan error, 1)
	go func() { ended <- r.follow(seq) }()
	tick := time.NewTicker(topPause)
	defer tick.Stop()
	for {
		r.refresh()
		drawTop(r.state, r.screen)
		r.screen.Show()
		select {
		case <-r.ctx.Done():
			return nil
		case err := <-ended:
			return errors.Join(errors.New("agentinit has ended the stream of events"), err)
		case ev := <-keys:
			if r.key(ev) {
				return nil
			}
		case f := <-r.did:
			f(r.state)
			r.drain()
		case <-tick.C:
			r.state.now = r.state.now.Add(topPause)
		}
	}
}

// drain processes the other messages that have come, so that one redraw shows them all.
func (r *topRunner) drain() {
	for range cap(r.did) {
		select {
		case f := <-r.did:
			f(r.state)
		default:
			return
		}
	}
}

func (r *topRunner) post(f func(*topState)) {
	select {
	case r.did <- f:
	case <-r.ctx.Done():
	}
}

func (r *topRunner) follow(seq uint64) error {
	return r.client.Events(r.ctx, seq, true, func(e api.Event) error {
		r.post(func(t *topState) { t.event(e) })
		return r.ctx.Err()
	})
}

// refresh requests the data that is due. The answer comes through did.
func (r *topRunner) refresh() {
	now := time.Now()
	if r.state.stale && now.After(r.nextStatus) {
		r.state.stale, r.nextStatus = false, now.Add(topPause)
		go func() {
			s, err := r.client.Status(r.ctx)
			r.post(func(t *topState) { t.took(err, func() { t.setStatus(s) }) })
		}()
	}
	if now.After(r.nextUsage) {
		r.nextUsage = now.Add(time.Hour) // until the answer comes
		go func() {
			u, err := r.client.Usage(r.ctx)
			r.post(func(t *topState) {
				r.nextUsage = time.Now().Add(max(topPause, time.Duration(u.NextMS)*time.Millisecond))
				if unaccounted(err) {
					r.nextUsage = time.Now().Add(time.Hour)
					return
				}
				t.took(err, func() { t.setUsage(u) })
			})
		}()
	}
	if r.state.wantBoot {
		r.state.wantBoot = false
		go func() {
			b, err := r.client.Boot(r.ctx)
			r.post(func(t *topState) { t.took(err, func() { t.boot = &b }) })
		}()
	}
	if want := r.state.wantLogs; want != nil {
		r.state.wantLogs = nil
		r.followLogs(*want)
	}
	if act := r.state.act; act != nil {
		r.state.act = nil
		go r.perform(*act)
	}
}

// followLogs follows the output of the named programs only.
func (r *topRunner) followLogs(names []string) {
	if r.stopLogs != nil {
		r.stopLogs()
	}
	ctx, cancel := context.WithCancel(r.ctx)
	r.stopLogs = cancel
	go func() {
		err := r.client.Logs(ctx, api.LogQuery{Names: names, Lines: 200, Follow: true}, func(l api.LogLine) error {
			r.post(func(t *topState) { t.addLine(l, names) })
			return ctx.Err()
		})
		if ctx.Err() == nil {
			r.post(func(t *topState) { t.took(err, func() {}) })
		}
	}()
}

// perform carries out a confirmed action.
func (r *topRunner) perform(a topAction) {
	ask := map[string]func(*api.Client, context.Context, api.ActionRequest) (api.ActionResult, error){
		"start": (*api.Client).Start, "stop": (*api.Client).Stop, "restart": (*api.Client).Restart, "signal": (*api.Client).Signal,
	}[a.verb]
	result, err := ask(r.client, r.ctx, api.ActionRequest{Names: []string{a.program}, Signal: a.signal})
	text := joinedBy(a.verb+" "+a.program+": done", "; ", result.Note)
	for _, p := range result.Results {
		if p.Error != nil {
			text = describe(p.Error)
		}
	}
	r.post(func(t *topState) { t.took(err, func() { t.message = text }); t.stale = true })
}

// key handles an event of the terminal; true means to quit.
func (r *topRunner) key(ev tcell.Event) (quit bool) {
	switch ev := ev.(type) {
	case *tcell.EventResize:
		r.state.width, r.state.height = ev.Size()
		r.screen.Sync()
	case *tcell.EventKey:
		return r.state.key(ev.Key(), ev.Rune())
	case nil: // the terminal is closed
		return true
	}
	return false
}
