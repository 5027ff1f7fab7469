package orchestrator

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// wire is the host's end of a channel, which carries lines.
type wire struct {
	t    *testing.T
	conn net.Conn
	in   *bufio.Reader
	end  <-chan error // the result of Attach
}

func fakeBridge(t *testing.T, f *fakeSpawner) *Bridge {
	t.Helper()
	l, err := NewLocal(LocalConfig{Spawner: f, Roots: []string{t.TempDir()}})
	if err != nil {
		t.Fatal(err)
	}
	b, err := NewBridge(BridgeConfig{Local: adapters.WrapOrchestrator(l, nil)})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	return b
}

func attach(t *testing.T, b *Bridge) *wire {
	t.Helper()
	box, host := net.Pipe()
	end := make(chan error, 1)
	go func() { end <- b.Attach(context.Background(), box) }()
	return &wire{t, host, bufio.NewReaderSize(host, 2*maxLine), end}
}

func (w *wire) say(line string) {
	w.t.Helper()
	if _, err := io.WriteString(w.conn, line+"\n"); err != nil {
		w.t.Fatal(err)
	}
}

// hear returns the next message that is not a ping.
func (w *wire) hear() message {
	w.t.Helper()
	for {
		line, err := w.in.ReadSlice('\n')
		if err != nil {
			w.t.Fatal(err)
		}
		m, bad := decode(line)
		if bad != nil {
			w.t.Fatalf("the box says %q", line)
		}
		if m.isAnswer() || *m.Method != "ping" {
			return m
		}
	}
}

// expect reads an answer and checks its id and error code (0: no error).
func (w *wire) expect(id string, code int) message {
	w.t.Helper()
	m := w.hear()
	got := 0
	if m.Error != nil {
		got = m.Error.Code
	}
	if string(m.ID) != id || got != code {
		w.t.Fatalf("heard %s, want id %s and code %d", mustJSON(m), id, code)
	}
	return m
}

const hello = `{"jsonrpc":"2.0","id":"hi","method":"initialize","params":{"protocol":"agentbox.orchestrator","version":"1.1","capabilities":["input"],"later":1}}`

func (w *wire) greet() {
	w.t.Helper()
	w.say(hello)
	var g greeting
	if m := w.expect(`"hi"`, 0); json.Unmarshal(m.Result, &g) != nil || g.Protocol != protocolName || g.Version != "1.1" {
		w.t.Fatalf("greeted with %s", m.Result)
	}
}

// bye closes the host's end and waits for Attach.
func (w *wire) bye() {
	w.t.Helper()
	w.conn.Close()
	if err := <-w.end; err != nil {
		w.t.Errorf("attach: %v", err)
	}
}

func TestGreeting(t *testing.T) {
	for _, c := range []struct {
		name, line string
		code       int
		want       adapters.Code
	}{
		{"another protocol", strings.Replace(hello, "agentbox.", "other.", 1), rpcInvalidParams, adapters.CodeValidation},
		{"another MAJOR", strings.Replace(hello, `"1.1"`, `"2.0"`, 1), rpcOurs, adapters.CodeContractMismatch},
		{"no version", strings.Replace(hello, `"1.1"`, `""`, 1), rpcOurs, adapters.CodeContractMismatch},
		{"no params", `{"jsonrpc":"2.0","id":"hi","method":"initialize"}`, rpcInvalidParams, adapters.CodeValidation},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := attach(t, fakeBridge(t, &fakeSpawner{}))
			w.say(c.line)
			m := w.expect(`"hi"`, c.code)
			var data struct{ Code adapters.Code }
			if c.want != "" && (json.Unmarshal(m.Error.Data, &data) != nil || data.Code != c.want) {
				t.Errorf("data %s", m.Error.Data)
			}
			if _, err := w.in.ReadByte(); !errors.Is(err, io.EOF) {
				t.Errorf("the channel stays open: %v", err)
			}
			if err := <-w.end; err == nil {
				t.Error("attach says that all was well")
			}
		})
	}
	t.Run("a call before it", func(t *testing.T) {
		w := attach(t, fakeBridge(t, &fakeSpawner{}))
		for _, early := range []string{
			`{"jsonrpc":"2.0","id":"no","method":"agent.list","params":{}}`, `{"jsonrpc":"2.0","id":"no","method":"ping"}`,
		} {
			w.say(early)
			w.expect(`"no"`, rpcInvalidRequest)
		}
		w.say(`{"jsonrpc":"2.0","method":"initialize"}`)
		w.expect("null", rpcInvalidRequest)
		w.greet()
		w.bye()
	})
	t.Run("a lower MINOR", func(t *testing.T) {
		b := fakeBridge(t, &fakeSpawner{})
		w := attach(t, b)
		w.say(strings.Replace(hello, `"1.1"`, `"1.0"`, 1))
		w.expect(`"hi"`, 0)
		if _, err := b.GetAgent(t.Context(), "a"); !errors.Is(err, adapters.ErrUnsupported) || len(b.Capabilities()) != 0 {
			t.Errorf("get: %v, capabilities %v", err, b.Capabilities())
		}
		w.bye()
	})
}

// A call of the box that comes while initialize is served waits until its answer is queued.
func TestNoCallOvertakesTheGreeting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := fakeBridge(t, &fakeSpawner{})
		s := newSession(t.Context(), nil, nil)
		s.host = &hosted{bridge: b, session: s}
		hello, _ := decode([]byte(hello))
		greeting, err := s.host.greet(hello.Params)
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() {
			_, err := b.GetAgent(t.Context(), "a")
			done <- err
		}()
		synctest.Wait()
		if len(s.out) > 0 {
			t.Errorf("before the answer to initialize, the host gets %s", <-s.out)
		}
		if err := s.answer(hello.ID, greeting, nil); err != nil {
			t.Fatal(err)
		}
		close(s.greeted)
		synctest.Wait()
		if first, call := string(<-s.out), string(<-s.out); !strings.Contains(first, protocolName) || !strings.Contains(call, rpcGet) {
			t.Errorf("the host gets %s%s", first, call)
		}
		s.end(errDetached)
		if err := <-done; err == nil {
			t.Error("the call has ended without an answer, and without an error")
		}
	})
}

func TestSilentHostIsTurnedOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := attach(t, fakeBridge(t, &fakeSpawner{}))
		begin := time.Now()
		if err := <-w.end; err == nil || time.Since(begin) < greetLimit || time.Since(begin) > greetLimit+lastWrite {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
		time.Sleep(lastWrite)
	})
}

// TestPing: a host that answers pings stays. A host that misses three pings is detached, even if it
// still sends other messages.
func TestPing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := fakeBridge(t, &fakeSpawner{})
		w := attach(t, b)
		w.greet()
		begin := time.Now()
		lines := make(chan string)
		go func() {
			defer close(lines)
			for {
				line, err := w.in.ReadString('\n')
				if err != nil {
					return
				}
				lines <- line
			}
		}()
		for range 10 {
			m, _ := decode([]byte(<-lines))
			if *m.Method != "ping" {
				t.Fatalf("heard %s", mustJSON(m))
			}
			w.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{}}`, m.ID))
		}
		if d := time.Since(begin); d != 10*pingEvery {
			t.Errorf("ten pings took %v", d)
		}
		if h := b.Health(t.Context()); h.State != adapters.StateHealthy {
			t.Errorf("%+v", h)
		}
		begin = time.Now()
		pings := 0
		for range lines {
			pings++
		}
		if d := time.Since(begin); pings != pingsMissed || d < (pingsMissed+1)*pingEvery || d > (pingsMissed+1)*pingEvery+lastWrite {
			t.Errorf("detached after %d pings and %v", pings, d)
		}
		if err := <-w.end; err == nil || b.Health(t.Context()).State != adapters.StateDegraded {
			t.Errorf("attach: %v, health %+v", err, b.Health(t.Context()))
		}
		time.Sleep(lastWrite)
	})
}

// A host that answers every second ping stays, and the session forgets the unanswered pings.
func TestUnansweredPingsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := fakeBridge(t, &fakeSpawner{})
		w := attach(t, b)
		w.greet()
		for n := range 20 {
			line, err := w.in.ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			if m, _ := decode([]byte(line)); n%2 == 1 {
				w.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{}}`, m.ID))
			}
		}
		synctest.Wait()
		p, err := b.attached()
		if err != nil {
			t.Fatal(err)
		}
		p.mu.Lock()
		n := len(p.pending)
		p.mu.Unlock()
		if n > pingsMissed {
			t.Errorf("%d answers are still waited for", n)
		}
		w.bye()
		time.Sleep(lastWrite)
	})
}

// TestGarbage: garbage gets an error as answer, and reading goes on. A line that is too long closes
// the channel.
func TestGarbage(t *testing.T) {
	w := attach(t, fakeBridge(t, &fakeSpawner{}))
	w.say("garbage before the greeting")
	w.expect("null", rpcParse)
	w.greet()
	for _, c := range []struct {
		line string
		id   string
		code int
	}{
		{"{", "null", rpcParse}, {"\xff\xfe", "null", rpcParse}, {"[]", "null", rpcInvalidRequest},
		{`{"jsonrpc":"2.0","id":3,"method":"agent.fly","params":{}}`, "3", rpcNoMethod},
		{`{"jsonrpc":"2.0","id":4,"method":"agent.get","params":[1]}`, "4", rpcInvalidParams},
		{`{"jsonrpc":"2.0","id":5,"method":"agent.get","params":{"agentId":7}}`, "5", rpcInvalidParams},
		{`{"jsonrpc":"2.0","id":6,"method":"agent.get","params":{"agentId":"nobody"}}`, "6", rpcOurs},
		{`{"jsonrpc":"2.0","id":7,"method":"agent.spawn","params":{}}`, "7", rpcOurs},
		{`{"jsonrpc":"2.0","id":8,"method":"agent.input","params":{"agentId":"a","data":"!","encoding":"base64"}}`, "8", rpcInvalidParams},
		{`{"jsonrpc":"2.0","id":9,"method":"agent.terminate","params":{"agentId":"a","grace_ms":-1}}`, "9", rpcInvalidParams},
		{`{"jsonrpc":"2.0","id":10,"method":"agent.list","params":{"cursor":"x"}}`, "10", rpcInvalidParams},
		{`{"jsonrpc":"2.0","id":11,"method":"ping"}`, "11", 0},
		{`{"jsonrpc":"2.0","id":99,"result":{}}` + "\n" + `{"jsonrpc":"2.0","id":12,"method":"ping"}`, "12", 0},
		{`{"jsonrpc":"2.0","method":"agent.event","params":{"agentId":"x","seq":1,"kind":"exit"}}` + "\n\n" + `{"jsonrpc":"2.0","id":13,"method":"ping"}`, "13", 0},
	} {
		w.say(c.line)
		w.expect(c.id, c.code)
	}
	w.say(`{"jsonrpc":"2.0","id":5,"method":"agent.get","params":{"agentId":7}}`)
	if m := w.expect("5", rpcInvalidParams); m.Error.Message != "agentId: must not be a JSON number" {
		t.Errorf("the error says %q", m.Error.Message)
	}
	long := `{"jsonrpc":"2.0","id":14,"method":"ping","params":{"x":"` + strings.Repeat("x", maxLine) + `"}}`
	w.say(long[:maxLine-3] + `"}}`) // the longest permitted line
	w.expect("14", 0)
	go io.WriteString(w.conn, long)
	if _, err := w.in.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("after an oversized line: %v", err)
	}
	if err := <-w.end; !errors.Is(err, adapters.ErrPayloadTooLarge) {
		t.Errorf("attach: %v", err)
	}
}

// TestHostDrives: the host runs an agent in the box. The agent outlives the host's connection.
func TestHostDrives(t *testing.T) {
	f := &fakeSpawner{}
	b := fakeBridge(t, f)
	w := attach(t, b)
	w.greet()
	w.say(`{"jsonrpc":"2.0","id":1,"method":"agent.spawn","params":{"command":"agent","labels":{"a":"b"}}}`)
	var a adapters.Agent
	if err := json.Unmarshal(w.expect("1", 0).Result, &a); err != nil || a.Status != adapters.AgentRunning {
		t.Fatalf("%+v: %v", a, err)
	}
	w.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":2,"method":"agent.subscribe","params":{"agentId":%q,"from":0}}`, a.AgentID))
	w.expect("2", 0)
	w.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":3,"method":"agent.subscribe","params":{"agentId":%q,"from":0,"subscription":"s"}}`, a.AgentID))
	heard := map[string][]string{}
	for range 2 {
		m := w.hear()
		if m.isAnswer() {
			m = w.hear()
		}
		note(t, heard, m)
	}
	f.last().command.Output(Stdout, []byte("out"))
	f.last().end(Ending{Code: 3})
	for len(heard[""])+len(heard["s"]) < 8 {
		if m := w.hear(); !m.isAnswer() {
			note(t, heard, m)
		}
	}
	for name, got := range heard {
		if want := "started stdout exit end"; strings.Join(got, " ") != want {
			t.Errorf("subscription %q heard %v", name, got)
		}
	}
	w.say(`{"jsonrpc":"2.0","id":4,"method":"agent.spawn","params":{"command":"agent","_meta":{"actor":"ann"}}}`)
	w.expect("4", 0)
	w.bye()
	list, err := b.cfg.Local.ListAgents(t.Context(), adapters.AgentFilter{Status: adapters.AgentRunning})
	if err != nil || len(list) != 1 {
		t.Errorf("after the host: %+v: %v", list, err)
	}
	if err := b.Disconnect(t.Context()); err != nil {
		t.Error(err)
	}
}

func note(t *testing.T, heard map[string][]string, m message) {
	t.Helper()
	var p eventParams
	if err := json.Unmarshal(m.Params, &p); err != nil {
		t.Fatalf("%s: %v", mustJSON(m), err)
	}
	if *m.Method == rpcEnd {
		p.Kind = "end"
	}
	heard[p.Subscription] = append(heard[p.Subscription], p.Kind)
}

func TestOneHostAtATime(t *testing.T) {
	b := fakeBridge(t, &fakeSpawner{})
	first := attach(t, b)
	first.greet()
	second := attach(t, b)
	m := second.expect("null", rpcOurs)
	if !strings.Contains(string(m.Error.Data), string(adapters.CodeConflict)) {
		t.Errorf("refused with %s", mustJSON(m))
	}
	if err := <-second.end; !errors.Is(err, adapters.ErrConflict) {
		t.Error(err)
	}
	first.bye()
	third := attach(t, b)
	third.greet()
	third.bye()
}

// TestSlotFollowsTheHost: the slot is degraded until a host has sent its greeting, and again as
// soon as the host is gone. The time stands still, so that no periodic check can cause the change.
func TestSlotFollowsTheHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := fakeBridge(t, &fakeSpawner{})
		resolved, err := adapters.Resolve(
			adapters.Config{Slots: map[adapters.Slot]string{adapters.SlotOrchestrator: b.Impl()}},
			adapters.Table{adapters.SlotOrchestrator: {b.Impl(): func() (adapters.Adapter, error) { return b, nil }}},
		)
		if err != nil {
			t.Fatal(err)
		}
		s := adapters.NewSet(resolved, adapters.Options{})
		if err := s.Connect(t.Context()); err != nil {
			t.Fatal(err)
		}
		want := func(when string, state adapters.State) {
			t.Helper()
			synctest.Wait()
			for _, st := range s.Status() {
				if st.Slot == adapters.SlotOrchestrator && st.State != state {
					t.Errorf("%s: %s, want %s", when, st.State, state)
				}
			}
		}
		want("no host yet", adapters.StateDegraded)
		for range 2 {
			w := attach(t, b)
			want("a host that has not said who it is", adapters.StateDegraded)
			w.greet()
			want("a host", adapters.StateHealthy)
			w.bye()
			want("the host has left", adapters.StateDegraded)
		}
		if err := s.Disconnect(context.Background()); err != nil {
			t.Error(err)
		}
		time.Sleep(lastWrite)
	})
}

// TestASandboxDoesNotGoToTheHost: an agent that must be confined is refused before the host gets
// the request. Any other agent is requested from the host.
func TestASandboxDoesNotGoToTheHost(t *testing.T) {
	b, err := NewBridge(BridgeConfig{Confined: map[string]bool{"tight": true, "loose": false}})
	if err != nil {
		t.Fatal(err)
	}
	for template, want := range map[string]error{"tight": adapters.ErrSpawn, "loose": adapters.ErrUnavailable, "": adapters.ErrUnavailable} {
		if _, err := b.SpawnAgent(t.Context(), adapters.AgentSpec{Command: "x", Template: template}); !errors.Is(err, want) {
			t.Errorf("%q: %v, want %v", template, err, want)
		}
	}
}

// TestBoxAsks: there is no host, or a host that does not answer, or a host that disconnects.
func TestBoxAsks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := fakeBridge(t, &fakeSpawner{})
		spec := adapters.AgentSpec{Command: "x"}
		if _, err := b.SpawnAgent(t.Context(), spec); !errors.Is(err, adapters.ErrUnavailable) {
			t.Errorf("without a host: %v", err)
		}
		if h := b.Health(t.Context()); h.State != adapters.StateDegraded {
			t.Errorf("without a host: %+v", h)
		}
		w := attach(t, b)
		w.greet()
		ask := func() <-chan error {
			got := make(chan error, 1)
			go func() { _, err := b.SpawnAgent(t.Context(), spec); got <- err }()
			return got
		}
		begin := time.Now()
		late := ask()
		m := w.hear()
		var p spawnParams
		if err := json.Unmarshal(m.Params, &p); err != nil || *m.Method != rpcSpawn || p.Command != "x" || p.Meta.IdempotencyKey == "" {
			t.Errorf("asked %s", mustJSON(m))
		}
		if err := <-late; !errors.Is(err, adapters.ErrTimeout) || time.Since(begin) != callLimit {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
		w.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"agentId":"late"}}`, m.ID))
		for _, answer := range []string{`"result":7`, `"result":{}`, `"result":{"agentId":"a/b"}`, `"error":{"code":-32603,"message":"m"}`} {
			got := ask()
			m := w.hear()
			w.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,%s}`, m.ID, answer))
			if err := <-got; !errors.Is(err, adapters.ErrUnavailable) {
				t.Errorf("answered %s: %v", answer, err)
			}
		}
		open := ask()
		w.hear()
		w.bye()
		if err := <-open; !errors.Is(err, adapters.ErrUnavailable) {
			t.Errorf("the host went: %v", err)
		}
		time.Sleep(lastWrite)
	})
}

func TestBridgeProtocols(t *testing.T) {
	for _, protocol := range []string{"http", "mcp", "carrier-pigeon"} {
		_, err := NewBridge(BridgeConfig{Protocol: protocol})
		if ce, ok := errors.AsType[*adapters.ConfigError](err); !ok || !errors.Is(err, adapters.ErrUnsupported) || ce.Key != "integrations.external_orchestrator.protocol" {
			t.Errorf("%s: %v", protocol, err)
		}
	}
	if _, err := NewBridge(BridgeConfig{Protocol: "stdio"}); err != nil {
		t.Error(err)
	}
}

// TestSlowReader: the events that wait for a slow reader are limited. The reader requests the rest
// again later, and no event is lost or duplicated.
func TestSlowReader(t *testing.T) {
	b := fakeBridge(t, &fakeSpawner{})
	w := attach(t, b)
	w.greet()
	opened := make(chan adapters.AgentStream, 1)
	go func() {
		s, err := b.StreamEvents(t.Context(), "far", 0)
		if err != nil {
			t.Error(err)
		}
		opened <- s
	}()
	const total = 100
	delivered := make(chan struct{}, total)
	chunk := strings.Repeat("x", 32<<10)
	asked := make(chan uint64, total)
	// The host answers each subscription with all events from its start.
	go func() {
		defer close(asked)
		for {
			line, err := w.in.ReadSlice('\n')
			if err != nil {
				return
			}
			m, bad := decode(line)
			if bad != nil || m.isAnswer() || *m.Method != rpcSubscribe {
				continue
			}
			p, err := params[subscribeParams](m.Params)
			if err != nil {
				t.Error(err)
			}
			asked <- p.From
			w.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{}}`, m.ID))
			for seq := max(p.From, 1); seq <= total; seq++ {
				kind := adapters.AgentEventStdout
				if seq == total {
					kind = adapters.AgentEventExit
				}
				w.say(string(mustJSON(map[string]any{"jsonrpc": "2.0", "method": rpcEvent, "params": map[string]any{
					"agentId": "far", "subscription": p.Subscription, "seq": seq, "kind": kind, "payload": map[string]string{"data": chunk},
				}})))
			}
			delivered <- struct{}{}
		}
	}()
	s := <-opened
	<-delivered // all events of the host: more than the buffer of a reader
	for seq := uint64(1); seq <= total; seq++ {
		e, err := s.Next(t.Context())
		if err != nil || e.Seq != seq {
			t.Fatalf("want seq %d: %+v: %v", seq, e.Seq, err)
		}
	}
	if _, err := s.Next(t.Context()); !errors.Is(err, io.EOF) {
		t.Errorf("after the exit: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	w.bye()
	var from []uint64
	for f := range asked {
		from = append(from, f)
	}
	if len(from) < 2 || !slices.IsSorted(from) || from[0] != 0 || from[1] < 30 || from[1] > 33 {
		t.Errorf("subscribed from %v", from)
	}
}

// A reader that is closed while it subscribes again leaves no subscription behind.
func TestCloseDuringSubscribe(t *testing.T) {
	b := fakeBridge(t, &fakeSpawner{})
	w := attach(t, b)
	w.greet()
	r := newRemoteStream(t.Context(), b, "far", 1)
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		err := r.subscribe(t.Context())
		if err == nil {
			_, err = r.Next(t.Context())
		}
		ended <- err
	}()
	w.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{}}`, w.hear().ID))
	if m := w.hear(); *m.Method != rpcUnsubscribe {
		t.Errorf("heard %s", mustJSON(m))
	}
	if err := <-ended; err == nil || len(b.remotes) != 0 {
		t.Errorf("next: %v; %d subscriptions are left", err, len(b.remotes))
	}
	w.bye()
}
