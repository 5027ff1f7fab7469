package control

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// namedPrograms is a supervisor of which only the names of the programs are known.
type namedPrograms struct {
	Supervisor
	names *[]string
}

func (n namedPrograms) Snapshot() (s supervisor.Snapshot) {
	for _, name := range *n.names {
		s.Programs = append(s.Programs, supervisor.Status{Name: name, Spec: &program.Spec{Name: name}})
	}
	return s
}

// listenerBox is a server whose listeners are connected by pipes in memory.
type listenerBox struct {
	t        *testing.T
	s        *Server
	bus      *event.Bus
	programs []string
	ctx      context.Context
}

// inListenerBox runs f with a fake clock.
func inListenerBox(t *testing.T, f func(*listenerBox)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		base, end := context.WithCancel(t.Context())
		b := &listenerBox{t: t, bus: event.NewBus(1024), programs: []string{"watch", "web"}, ctx: context.WithValue(base, baseKey{}, base)}
		b.s = New(Config{Events: b.bus, Supervisor: namedPrograms{names: &b.programs}})
		f(b)
		end()
		b.s.upgraded.Wait()
	})
}

func (b *listenerBox) changes(name string, changes ...event.Change) {
	for _, c := range changes {
		b.bus.Publish(event.Event{Name: event.ProgramStateChanged, Program: name, Change: &c})
	}
	synctest.Wait()
}

// pass lets the time pass and waits until all goroutines are idle.
func (b *listenerBox) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// starts and fails are changes that make one event each.
var (
	starts = event.Change{From: "STOPPED", To: "STARTING"}
	fails  = event.Change{From: "STARTING", To: "BACKOFF"}
)

// testListener is the listener's end of a connection.
type testListener struct {
	net.Conn
	t     *testing.T
	lines chan string // "EVENTNAME payload" of each event
	ended chan error  // what serve returned
}

// listen connects a listener of a program. What it gets is in lines.
func (b *listenerBox) listen(program string, q api.ListenQuery) *testListener {
	b.t.Helper()
	ours, theirs := net.Pipe()
	l := &testListener{Conn: ours, t: b.t, lines: make(chan string, 2000), ended: make(chan error, 1)}
	group, _, _ := strings.Cut(program, ":")
	id := poolID{group: group, name: "pool"}
	if group == "" {
		id.alone = new(byte)
	}
	b.s.upgraded.Go(func() { l.ended <- b.s.listeners.serve(b.ctx, theirs, id, origin{program, b.bus.Seq()}, q) })
	synctest.Wait()
	return l
}

// reads makes the listener read what it gets.
func (l *testListener) reads() *testListener {
	go func() {
		defer close(l.lines)
		in := bufio.NewReader(l)
		for {
			header, err := in.ReadString('\n')
			if err != nil {
				return
			}
			var name string
			var n int
			for word := range strings.FieldsSeq(header) {
				key, value, _ := strings.Cut(word, ":")
				switch key {
				case "eventname":
					name = value
				case "len":
					if _, err := fmt.Sscan(value, &n); err != nil {
						l.t.Error(err)
					}
				}
			}
			payload := make([]byte, n)
			if _, err := io.ReadFull(in, payload); err != nil {
				l.t.Error(err)
			}
			l.lines <- strings.TrimPrefix(name, "PROCESS_STATE_") + " " + string(payload)
		}
	}()
	return l
}

func (l *testListener) write(text string) {
	_, _ = io.WriteString(l, text) // it fails if the server has closed the connection, as lines tell
	synctest.Wait()
}

// got returns the names of the events that have come.
func (l *testListener) got() (names []string) {
	synctest.Wait()
	for {
		select {
		case line, ok := <-l.lines:
			if !ok {
				return append(names, "end")
			}
			name, _, _ := strings.Cut(line, " ")
			names = append(names, name)
		default:
			return names
		}
	}
}

func (l *testListener) wants(want ...string) {
	l.t.Helper()
	if got := l.got(); !slices.Equal(got, want) {
		l.t.Errorf("got %q, want %q", got, want)
	}
}

const accepts, rejects = "RESULT 2\nOKREADY\n", "RESULT 4\nFAILREADY\n"

func stateEvents(buffer int) api.ListenQuery {
	return api.ListenQuery{Events: []string{"PROCESS_STATE"}, Buffer: buffer}
}

// A listener gets one event at a time, and those since its own start.
func TestListenerGetsEvents(t *testing.T) {
	inListenerBox(t, func(b *listenerBox) {
		b.changes("web", starts)
		b.changes("watch", starts)
		b.changes("web", fails)
		l := b.listen("watch", stateEvents(10)).reads()
		l.wants()
		l.write("READY\n")
		l.wants("STARTING")
		l.write("RESULT 2\n")
		l.write("OK")
		l.wants()
		l.write("READY\n")
		l.wants("BACKOFF")
		b.changes("web", event.Change{From: "BACKOFF", To: "FATAL"})
		l.wants()
		l.write(accepts)
		l.wants("FATAL")
		l.Close()
		if err := <-l.ended; err != nil {
			t.Error(err)
		}
	})
}

// A listener outside all programs begins with the next event.
func TestListenerOutsideAllPrograms(t *testing.T) {
	inListenerBox(t, func(b *listenerBox) {
		b.changes("web", starts)
		one, other := b.listen("", stateEvents(10)).reads(), b.listen("", stateEvents(10)).reads()
		one.write("READY\n")
		other.write("READY\n")
		b.changes("web", fails)
		one.wants("BACKOFF")
		other.wants("BACKOFF")
		one.Close()
		other.Close()
		synctest.Wait()
		if n := len(b.s.listeners.pools); n != 0 {
			t.Errorf("%d pools are left", n)
		}
	})
}

// What happens between the answer to a listener and its place in a pool is not lost.
func TestListenerMissesNothingAfterTheAnswer(t *testing.T) {
	inListenerBox(t, func(b *listenerBox) {
		b.changes("web", starts)
		from := origin{after: b.bus.Seq()}
		b.changes("web", fails)
		ours, theirs := net.Pipe()
		l := (&testListener{Conn: ours, t: t, lines: make(chan string, 10)}).reads()
		b.s.upgraded.Go(func() {
			_ = b.s.listeners.serve(b.ctx, theirs, poolID{name: "pool", alone: new(byte)}, from, stateEvents(10))
		})
		l.write("READY\n")
		l.wants("BACKOFF")
		l.Close()
	})
}

// The pool stays while its listener restarts, until the program is removed.
func TestPoolOutlivesItsListener(t *testing.T) {
	inListenerBox(t, func(b *listenerBox) {
		l := b.listen("watch", stateEvents(10)).reads()
		l.write("READY\n")
		b.changes("web", starts)
		l.wants("STARTING")
		l.Close() // without an answer
		b.changes("web", fails)
		l = b.listen("watch", stateEvents(10)).reads()
		l.write("READY\n")
		l.wants("STARTING")
		l.write(accepts)
		l.wants("BACKOFF")
		l.Close()
		synctest.Wait()
		b.programs = []string{"web"}
		b.bus.Publish(event.Event{Name: event.ProgramRemoved, Program: "watch"})
		synctest.Wait()
		if n := len(b.s.listeners.pools); n != 0 {
			t.Errorf("%d pools are left", n)
		}
	})
}

// Instances share their pool; programs do not, whatever they call it.
func TestInstancesShareEvents(t *testing.T) {
	inListenerBox(t, func(b *listenerBox) {
		b.programs = []string{"watch:0", "watch:1", "web"}
		one, two, other := b.listen("watch:0", stateEvents(10)).reads(), b.listen("watch:1", stateEvents(10)).reads(), b.listen("web", stateEvents(10)).reads()
		for _, l := range []*testListener{one, two, other} {
			l.write("READY\n")
		}
		b.changes("web", starts, fails)
		one.wants("STARTING")
		two.wants("BACKOFF")
		other.wants("STARTING")
		one.Close() // without an answer: the event goes to another instance
		two.write(accepts)
		two.wants("STARTING")
		two.Close()
		other.Close()
	})
}

// A rejected event comes again before all others. The pauses grow up to a second.
func TestRejectedEventComesAgain(t *testing.T) {
	inListenerBox(t, func(b *listenerBox) {
		l := b.listen("watch", stateEvents(10)).reads()
		l.write("READY\n")
		b.changes("web", starts, fails)
		var waited []time.Duration
		for range 9 {
			l.wants("STARTING")
			l.write(rejects)
			begun := time.Now()
			l.wants()
			l.lines <- <-l.lines
			waited = append(waited, time.Since(begun))
		}
		if got := fmt.Sprint(waited); got != "[10ms 20ms 40ms 80ms 160ms 320ms 640ms 1s 1s]" {
			t.Errorf("waited %s", got)
		}
		l.wants("STARTING")
		l.write(accepts)
		l.wants("BACKOFF")
		l.Close()
	})
}

// A pool that is full drops its oldest events, and tells it once until it was empty.
func TestFullPool(t *testing.T) {
	inListenerBox(t, func(b *listenerBox) {
		told := func() (counts []uint64) {
			w := b.bus.Watch(0)
			for e, ok := w.TryNext(); ok; e, ok = w.TryNext() {
				if e.Name == EventListenerBehind {
					counts = append(counts, e.Fields["dropped"].(uint64))
				}
			}
			return counts
		}
		l := b.listen("watch", stateEvents(2)).reads()
		for range 5 {
			b.changes("web", starts, fails)
		}
		b.changes("web", event.Change{From: "BACKOFF", To: "FATAL"})
		if got := told(); !slices.Equal(got, []uint64{1}) {
			t.Errorf("told %v", got)
		}
		l.write("READY\n")
		l.wants("BACKOFF")
		l.write(accepts)
		l.wants("FATAL")
		b.changes("web", starts, fails, event.Change{From: "BACKOFF", To: "FATAL"})
		if got := told(); !slices.Equal(got, []uint64{1, 10}) {
			t.Errorf("told %v", got)
		}
		l.Close()
	})
}

// A listener that violates the protocol is disconnected; the event that it had is not lost.
func TestViolation(t *testing.T) {
	inListenerBox(t, func(b *listenerBox) {
		l := b.listen("watch", stateEvents(10)).reads()
		l.write("READY\n")
		b.changes("web", starts)
		l.write("hello\n")
		l.wants("STARTING", "end")
		const want = `the event listener violated the protocol: it wrote "hello" in place of RESULT, the length of its result and a line feed; its standard output is only for READY and RESULT`
		if err := <-l.ended; err == nil || err.Error() != want {
			t.Errorf("got %v", err)
		}
		l = b.listen("watch", stateEvents(10)).reads()
		l.write("READY\n")
		l.wants("STARTING")
		l.Close()
	})
}

// A listener that answers and does not read gets one event, and holds nothing up.
func TestListenerThatDoesNotRead(t *testing.T) {
	inListenerBox(t, func(b *listenerBox) {
		deaf, good := b.listen("watch", stateEvents(10)), b.listen("web", stateEvents(10)).reads()
		deaf.write("READY\n")
		good.write("READY\n")
		for range 20 {
			b.changes("web", starts)
			good.wants("STARTING")
			good.write(accepts)
			deaf.write(accepts)
			b.changes("web", event.Change{From: "STARTING", To: "STOPPING"}, event.Change{From: "STOPPING", To: "STOPPED"})
			good.wants("STOPPING")
			good.write(accepts)
			good.wants("STOPPED")
			good.write(accepts)
		}
		deaf.Close()
		good.Close()
	})
}

func TestListenerGetsTicks(t *testing.T) {
	inListenerBox(t, func(b *listenerBox) {
		b.pass(59 * time.Second)
		l := b.listen("watch", api.ListenQuery{Events: []string{"TICK"}, Buffer: 10}).reads()
		l.write("READY\n")
		l.wants()
		b.pass(time.Second)
		l.wants("TICK_5")
		l.write(accepts)
		l.wants("TICK_60")
		l.write(accepts)
		b.pass(5 * time.Second)
		l.wants("TICK_5")
		l.Close()
		synctest.Wait()
		b.programs = nil
		b.bus.Publish(event.Event{Name: event.ProgramRemoved, Program: "watch"})
		b.pass(10 * time.Second)
		b.s.listeners.mu.Lock()
		ticks := b.s.listeners.ticks
		b.s.listeners.mu.Unlock()
		if ticks != nil {
			t.Error("the clock goes on although no pool wants ticks")
		}
		// What began while there was no listener is no event.
		b.pass(2*time.Hour + 3*time.Second)
		l = b.listen("web", api.ListenQuery{Events: []string{"TICK_60", "TICK_3600", "TICK_5"}, Buffer: 10}).reads()
		l.write("READY\n")
		b.pass(5 * time.Second)
		l.wants("TICK_5")
		l.Close()
	})
}

// Changes of the manifest add groups and remove them.
func TestListenerGetsGroups(t *testing.T) {
	inListenerBox(t, func(b *listenerBox) {
		l := b.listen("watch", api.ListenQuery{Events: []string{"PROCESS_GROUP"}, Buffer: 10}).reads()
		l.write("READY\n")
		b.programs = []string{"watch", "db"}
		b.bus.Publish(event.Event{Name: event.ProgramsApplied})
		l.wants("PROCESS_GROUP_REMOVED")
		l.write(accepts)
		l.wants("PROCESS_GROUP_ADDED")
		l.Close()
	})
}

// One program has few pools. One without a listener makes room.
func TestPoolsOfOneProgram(t *testing.T) {
	inListenerBox(t, func(b *listenerBox) {
		var all []*testListener
		listen := func(name string) *testListener {
			ours, theirs := net.Pipe()
			l := &testListener{Conn: ours, t: t, ended: make(chan error, 1)}
			b.s.upgraded.Go(func() {
				l.ended <- b.s.listeners.serve(b.ctx, theirs, poolID{group: "watch", name: name}, origin{program: "watch"}, stateEvents(10))
			})
			synctest.Wait()
			all = append(all, l)
			return l
		}
		for i := range maxPools {
			listen(fmt.Sprint(i))
		}
		if err := <-listen("more").ended; api.CodeOf(err) != api.CodeBusy {
			t.Errorf("got %v", err)
		}
		all[3].Close()
		synctest.Wait()
		if last := listen("more"); len(last.ended) != 0 {
			t.Errorf("refused: %v", <-last.ended)
		}
		if n := len(b.s.listeners.pools); n != maxPools {
			t.Errorf("%d pools", n)
		}
		for _, l := range all {
			l.Close()
		}
	})
}
