package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/coder/websocket"
	"github.com/nbd-wtf/go-nostr"
)

// mostMemory is the highest permitted peak memory of agentinit in MiB; docs/security.md states it.
// Without the limit on all request bodies together (maxHeld in adapters/rest), this attack makes
// agentinit use more than 1,500 MiB; without those of the relay (mesh/relay/budget.go), more than 700.
const mostMemory = 640

// peak is the peak resident memory of agentinit, in MiB.
func (b *box) peak() int {
	b.t.Helper()
	_, kib := b.memory("VmHWM")
	return int(kib >> 10)
}

// memory returns the pid of agentinit and, in KiB, a field of its /proc/PID/status.
func (b *box) memory(field string) (pid int, kib uint64) {
	b.t.Helper()
	pid, err := b.initPID()
	if err != nil {
		b.t.Fatal(err)
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		b.t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), field+":")
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		b.t.Fatal(err)
	}
	return pid, kib
}

// The events of this test are about as large as the relay admits.
const largeEvent = 120 << 10

// signedEvent is an event of a new key whose content is large. json.Marshal makes six bytes of each
// of its characters.
func signedEvent(t *testing.T, kind int) []byte {
	t.Helper()
	e := nostr.Event{Kind: kind, CreatedAt: nostr.Now(), Tags: nostr.Tags{}, Content: strings.Repeat("<", largeEvent)}
	if err := e.Sign(nostr.GeneratePrivateKey()); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.ReplaceAll(text, []byte(`\u003c`), []byte("<"))
}

// fillRelay stores large events in the relay.
func fillRelay(t *testing.T, port, events int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	const burst = 8 // the relay takes ten messages at once on one connection
	for done := 0; done < events; done += burst {
		c, _, err := websocket.Dial(ctx, fmt.Sprintf("ws://127.0.0.1:%d", port), nil)
		if err != nil {
			t.Fatal(err)
		}
		for range burst {
			if err := c.Write(ctx, websocket.MessageText, fmt.Appendf(nil, `["EVENT",%s]`, signedEvent(t, 1))); err != nil {
				t.Fatal(err)
			}
		}
		for stored := 0; stored < burst; {
			_, answer, err := c.Read(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if bytes.HasPrefix(answer, []byte(`["OK"`)) {
				if !bytes.Contains(answer, []byte("true")) {
					t.Fatalf("the relay answers %s", answer)
				}
				stored++
			}
		}
		_ = c.CloseNow() // nothing is under way
	}
}

// largeRequests is a box whose API takes large requests.
const largeRequests = `
[adapters]
events = "local-jsonl"
[supervisor.defaults]
restart = "always"
backoff = { initial = "0s" }
start_seconds = 0
[programs.web]
command = ["TESTPROG", "sleep"]
required = true
`

// A program that may use the whole API sends large requests on every connection that it gets, and
// does not read the answers. Another does the same to the relay of the box.
func TestMemoryUnderLargeRequests(t *testing.T) {
	t.Setenv("MANAGEMENT_API_KEY", boxKey)
	relay, ephemeral := freePort(t), filepath.Join(t.TempDir(), "event")
	if err := os.WriteFile(ephemeral, signedEvent(t, 27235), 0o644); err != nil {
		t.Fatal(err)
	}
	b := place(t, asPID1, header+largeRequests+`[sovereign_mesh]
enabled = true
[sovereign_mesh.relay]
enabled = true
implementation = "embedded"
port = `+strconv.Itoa(relay)+`
ingress_policy = "open"
[security.exceptions.nostr-relay]
reason = "the relay keeps its events on a volume"
[programs.gorge]
command = ["TESTPROG", "gorge", "500", "10", "127.0.0.1:PORT", "127.0.0.1:METRICS", "CONTROL"]
environment = { GORGE_AUTHORIZATION = "Bearer `+boxKey+`" }
control = true
autostart = false
restart = "never"
[programs.gorge-relay]
command = ["TESTPROG", "gorge-relay", "500", "10", "`+ephemeral+`", "127.0.0.1:`+strconv.Itoa(relay)+`"]
autostart = false
restart = "never"
`)
	b.start()
	b.sealed()
	before := b.peak()
	was := b.programs()["web"]
	fillRelay(t, relay, 400)
	filled := b.peak()
	b.mustCtl("start", "gorge", "gorge-relay")
	asked := 0
	waitFor(t, "the program has gorged", func() bool {
		if status, _, err := get(b.port, "/livez"); err == nil && status == 200 {
			asked++
		}
		for _, name := range []string{"gorge", "gorge-relay"} {
			if p := b.programs()[name]; p.State == "RUNNING" || p.State == "STARTING" {
				return false
			}
		}
		return true
	})
	t.Logf("%s agentinit had %d MiB at most, %d before the attack, %d before the relay was filled; /livez answered %d times",
		b.mustCtl("logs", "gorge", "gorge-relay"), b.peak(), filled, before, asked)
	if asked == 0 {
		t.Error("/livez did not answer")
	}
	if most := b.peak(); most > mostMemory {
		t.Errorf("agentinit had %d MiB, at most %d are stated", most, mostMemory)
	}
	if now := b.programs()["web"]; now != was {
		t.Errorf("web was %+v, is %+v", was, now)
	}
	b.stopsWell()
}
