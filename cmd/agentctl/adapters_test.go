package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/backup"
	"github.com/dreamlab-ai/agentinit/adapters/beads"
	"github.com/dreamlab-ai/agentinit/adapters/events"
	"github.com/dreamlab-ai/agentinit/adapters/rest"
	"github.com/dreamlab-ai/agentinit/supervisor/control"
	"github.com/dreamlab-ai/agentinit/supervisor/control/controltest"
)

// slotsBox is a box with beads and events on its control socket. Its other slots are off.
type slotsBox struct {
	t      *testing.T
	socket string
	// restored holds the content of each restored part.
	restored map[string]string
	// broken is the reason why the identity cannot be copied; nil if it can.
	broken error
	mesh   *fakeMesh
	// turn orders the requests after what the test did before, and the test after the answers. The
	// race detector does not see the order that the socket gives.
	turn sync.Mutex
}

func (b *slotsBox) takeTurn() {
	b.turn.Lock()
	defer b.turn.Unlock()
}

func newSlotsBox(t *testing.T) *slotsBox {
	t.Helper()
	dir := t.TempDir()
	b, err := beads.NewLocal(beads.LocalConfig{Path: filepath.Join(dir, "beads.db")})
	if err != nil {
		t.Fatal(err)
	}
	e, err := events.NewLocal(events.LocalConfig{Dir: filepath.Join(dir, "events"), Source: func() string { return "urn:agentbox:test" }})
	if err != nil {
		t.Fatal(err)
	}
	resolved, err := adapters.Resolve(adapters.Config{Slots: map[adapters.Slot]string{"beads": "local-sqlite", "events": "local-jsonl"}}, adapters.Table{
		"beads":  {"local-sqlite": func() (adapters.Adapter, error) { return b, nil }},
		"events": {"local-jsonl": func() (adapters.Adapter, error) { return e, nil }},
	})
	if err != nil {
		t.Fatal(err)
	}
	set := adapters.NewSet(resolved, adapters.Options{})
	if err := set.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	box := &slotsBox{t: t, restored: map[string]string{}, mesh: &fakeMesh{}}
	restore := func(part, file string) func(context.Context, string, string) (string, error) {
		return func(_ context.Context, dir, stamp string) (string, error) {
			raw, err := os.ReadFile(filepath.Join(dir, file))
			box.restored[part] = string(raw)
			return "kept.before-" + stamp, err
		}
	}
	server, err := rest.New(rest.Config{
		Slots: set, Mesh: box.mesh,
		Principal: func(ctx context.Context) (rest.Principal, bool) {
			switch control.Granted(ctx) {
			case control.Write:
				return rest.Principal{Role: rest.RoleAdmin, ID: "operator"}, true
			case control.Read:
				return rest.Principal{Role: rest.RoleReader, ID: "peer"}, true
			}
			return rest.Principal{}, false
		},
		Backup: &backup.State{Parts: []backup.Part{
			{Name: "beads", Snapshot: func(ctx context.Context, to string) error {
				f, err := os.Create(filepath.Join(to, "beads.jsonl"))
				if err != nil {
					return err
				}
				defer f.Close()
				return set.Beads().Export(ctx, f)
			}, Serving: func() bool { return true }, Restore: restore("beads", "beads.jsonl")},
			{Name: "identity", Secret: true, Snapshot: func(_ context.Context, to string) error {
				if box.broken != nil {
					return box.broken
				}
				return os.WriteFile(filepath.Join(to, "key"), []byte("secret"), 0o600)
			}, Restore: restore("identity", "key")},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	cfg := controltest.New().Own()
	cfg.Adapters = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		box.takeTurn()
		server.Handler().ServeHTTP(&turning{w, box}, r)
	})
	t.Cleanup(func() {
		if err := set.Disconnect(context.Background()); err != nil {
			t.Error(err)
		}
	})
	box.socket = controltest.Serve(t, cfg)
	t.Cleanup(server.Close) // first
	return box
}

// turning gives the turn back with each part of an answer: the end of an answer may reach agentctl
// before its handler returns.
type turning struct {
	http.ResponseWriter
	box *slotsBox
}

func (w *turning) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *turning) WriteHeader(status int) {
	w.box.takeTurn()
	w.ResponseWriter.WriteHeader(status)
}

func (w *turning) Write(text []byte) (int, error) {
	w.box.takeTurn()
	return w.ResponseWriter.Write(text)
}

// run runs agentctl and fails unless the exit status is as expected.
func (b *slotsBox) run(status int, stdin string, args ...string) (stdout, stderr string) {
	b.t.Helper()
	var out, errs bytes.Buffer
	env := func(string) (string, bool) { return "", false }
	b.takeTurn()
	got := run(b.t.Context(), append([]string{"--socket", b.socket}, args...), env, strings.NewReader(stdin), &out, &errs)
	b.takeTurn()
	if got != status {
		b.t.Fatalf("agentctl %q: exit %d, want %d\n%s%s", args, got, status, out.String(), errs.String())
	}
	return out.String(), errs.String()
}

func TestBeadVerbs(t *testing.T) {
	b := newSlotsBox(t)
	out, _ := b.run(0, "", "bead", "create", "ship it", "--priority", "1", "--tag", "x,y")
	epic := strings.TrimSpace(out)
	out, _ = b.run(0, "", "bead", "create", "a part\x1b[2J", "--parent", epic)
	child := strings.TrimSpace(out)
	if child != epic+".1" {
		t.Fatalf("child %q of %q", child, epic)
	}
	if out, _ = b.run(0, "", "bead", "ready"); !strings.Contains(out, child) || strings.Contains(out, epic+" ") || strings.Contains(out, "\x1b") {
		t.Errorf("ready:\n%q", out)
	}
	if out, _ = b.run(0, "", "bead", "claim", child, "--actor", "ann"); out != child+" is held by ann\n" {
		t.Errorf("claim: %q", out)
	}
	if _, errs := b.run(1, "", "bead", "claim", child, "--actor", "bob"); !strings.Contains(errs, "ann") {
		t.Errorf("the holder is not named: %q", errs)
	}
	if out, _ = b.run(0, "", "bead", "tree", epic); out != epic+" [open] ship it\n  "+child+` [claimed ann] a part\x1b[2J`+"\n" {
		t.Errorf("tree:\n%q", out)
	}
	b.run(1, "", "bead", "close", epic)
	if out, _ = b.run(0, "", "bead", "close", child, "went well"); out != child+" is closed: went well\n" {
		t.Errorf("close: %q", out)
	}
	if out, _ = b.run(0, "", "bead", "show", child); !strings.Contains(out, "outcome:     went well\n") {
		t.Errorf("show:\n%s", out)
	}
	export, _ := b.run(0, "", "bead", "export")
	other := newSlotsBox(t)
	if out, _ = other.run(0, export, "bead", "import", "-", "--dry-run"); !strings.HasPrefix(out, "2 created, 0 updated, 0 unchanged\n") {
		t.Errorf("dry run: %q", out)
	}
	other.run(0, export, "bead", "import", "-")
	if again, _ := other.run(0, "", "bead", "export"); again != export {
		t.Errorf("exported anew:\n%s\n%s", export, again)
	}
	other.run(1, "{", "bead", "import", "-")
	b.run(1, "", "bead", "show", "nobody")
	b.run(2, "", "bead", "odd")
	b.run(2, "", "bead")
}

// One page of the box has at most 1000 beads. ready shows all of them.
func TestReadyShowsEveryPage(t *testing.T) {
	if testing.Short() {
		t.Skip("long: imports a thousand beads")
	}
	b := newSlotsBox(t)
	const beads = 1003
	var file strings.Builder
	for n := range beads {
		fmt.Fprintf(&file, `{"id":"ab-%d","title":"t%d","status":"open","issue_type":"task","created_at":"2026-01-01T00:00:00Z","updated_at":"2026-01-01T00:00:00Z"}`+"\n", n, n)
	}
	b.run(0, file.String(), "bead", "import", "-")
	if out, _ := b.run(0, "", "bead", "ready"); strings.Count(out, "\n") != beads+1 {
		t.Errorf("%d lines", strings.Count(out, "\n"))
	}
	out, _ := b.run(0, "", "bead", "ready", "--json")
	var list []struct{ ID string }
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, l := range list {
		seen[l.ID] = true
	}
	if len(list) != beads || len(seen) != beads {
		t.Errorf("%d beads, %d of them different", len(list), len(seen))
	}
}

// tree --json shows the same beads as tree, each as show --json does.
func TestTreeAsJSON(t *testing.T) {
	b := newSlotsBox(t)
	out, _ := b.run(0, "", "bead", "create", "an epic")
	epic := strings.TrimSpace(out)
	b.run(0, "", "bead", "create", "a part", "--parent", epic)
	b.run(0, "", "bead", "create", "another epic")
	for _, c := range []struct {
		root []string
		want int
	}{{nil, 3}, {[]string{epic}, 2}, {[]string{epic + ".1"}, 1}} {
		out, _ := b.run(0, "", append([]string{"--json", "bead", "tree"}, c.root...)...)
		var list []map[string]any
		if err := json.Unmarshal([]byte(out), &list); err != nil || len(list) != c.want {
			t.Fatalf("%q: %v, %d beads, want %d:\n%s", c.root, err, len(list), c.want, out)
		}
		for _, l := range list {
			out, _ := b.run(0, "", "--json", "bead", "show", l["id"].(string))
			var one map[string]any
			if err := json.Unmarshal([]byte(out), &one); err != nil || !reflect.DeepEqual(one, l) {
				t.Errorf("%v: tree has\n%v\nshow has\n%v", err, l, one)
			}
		}
	}
	b.run(1, "", "--json", "bead", "tree", "nope")
}

// encoding/json replaces bytes that are not UTF-8. Such a text is refused instead of changed.
func TestTextThatIsNotUTF8(t *testing.T) {
	b := newSlotsBox(t)
	for _, args := range [][]string{
		{"mem", "store", "k", "-"}, {"mem", "search", "a\xff"}, {"event", "emit", "k", "--subject", "a\xff"},
		{"bead", "create", "a\xff"}, {"bead", "create", "t", "--tag", "a\xff"}, {"bead", "claim", "ab-1", "--actor", "a\xff"},
		{"agent", "spawn", "echo", "a\xff"}, {"agent", "spawn", "--env", "A=a\xff", "true"}, {"mesh", "publish", "-"},
	} {
		if _, stderr := b.run(2, "a\xff", args...); !strings.Contains(stderr, `a\xff`) || !strings.Contains(stderr, "is not valid UTF-8") {
			t.Errorf("%q: %s", args, stderr)
		}
	}
	if out, _ := b.run(0, "", "bead", "ready"); strings.Count(out, "\n") != 1 {
		t.Errorf("created:\n%s", out)
	}
	b.run(0, "", "bead", "create", "grüße \ufffd")
	if out, _ := b.run(0, "", "bead", "ready"); !strings.Contains(out, "grüße \ufffd") {
		t.Errorf("not created:\n%s", out)
	}
}

func TestEventAndAdapterVerbs(t *testing.T) {
	b := newSlotsBox(t)
	b.run(0, "", "event", "emit", "agent.started", `{"n":1}`, "--subject", "a1")
	b.run(0, "", "event", "emit", "other")
	b.run(1, "", "event", "emit", "Not A Kind")
	b.run(2, "", "event", "emit", "x", "{")
	out, _ := b.run(0, "", "event", "tail", "--after", "0", "--count", "2")
	if lines := strings.Split(out, "\n"); !strings.HasPrefix(lines[0], "1 ") || !strings.HasSuffix(lines[0], ` agent.started a1 {"n":1}`) || !strings.Contains(lines[1], " other ") {
		t.Errorf("tail:\n%s", out)
	}
	out, _ = b.run(0, "", "--json", "event", "tail", "--after", "0", "--kind", "agent.", "--count", "1")
	var e struct{ Seq int }
	if err := json.Unmarshal([]byte(out), &e); err != nil || e.Seq != 1 {
		t.Errorf("%v: %s", err, out)
	}
	out, _ = b.run(0, "", "adapters")
	if !strings.Contains(out, "beads") || !strings.Contains(out, "local-sqlite") || strings.Count(out, "\n") != 6 {
		t.Errorf("adapters:\n%s", out)
	}
	for _, args := range [][]string{{"mem", "get", "k"}, {"pod", "ls"}, {"agent", "ps"}} {
		if _, errs := b.run(1, "", args...); !strings.Contains(errs, "off") {
			t.Errorf("%q: %q", args, errs)
		}
	}
	b.run(2, "", "pod", "get", "no-slash")
}

func TestBackupAndRestore(t *testing.T) {
	b := newSlotsBox(t)
	b.run(0, "", "bead", "create", "keep me")
	export, _ := b.run(0, "", "bead", "export")
	dir := t.TempDir()
	file := filepath.Join(dir, "backup.tar")
	b.run(0, "", "backup", file)
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info.Mode(), err)
	}
	out, _ := b.run(0, "", "restore", "--dry-run", file)
	if !strings.Contains(out, "beads") || !strings.Contains(out, "checked") || b.restored["beads"] != "" {
		t.Errorf("dry run: %s%v", out, b.restored)
	}
	if _, stderr := b.run(1, "", "restore", file); !strings.Contains(stderr, "cannot restore beads: in use by the running box") {
		t.Errorf("what is in use: %s", stderr)
	}
	out, _ = b.run(0, "", "restore", "--replace", file)
	if b.restored["beads"] != export || b.restored["identity"] != "" || !strings.Contains(out, "kept.before-") {
		t.Errorf("%s%v", out, b.restored)
	}
	full := filepath.Join(dir, "full.tar")
	b.run(0, "", "backup", "--include-secrets", full)
	raw, err := os.ReadFile(full)
	if err != nil {
		t.Fatal(err)
	}
	if _, stderr := b.run(1, string(raw), "restore", "--part", "identity", "-"); !strings.Contains(stderr, "--include-secrets") {
		t.Errorf("a part that is secret: %s", stderr)
	}
	b.run(0, string(raw), "restore", "--json", "--include-secrets", "--part", "identity", "-")
	if b.restored["identity"] != "secret" {
		t.Errorf("%v", b.restored)
	}
	nowhere := filepath.Join(dir, "nowhere")
	if _, stderr := b.run(1, "", "restore", nowhere); !strings.Contains(stderr, "cannot read "+nowhere+": no such file") {
		t.Errorf("a file that does not exist: %s", stderr)
	}
	if _, stderr := b.run(1, "no backup", "restore", "-"); !strings.Contains(stderr, "it is not a tar archive of agentctl backup") {
		t.Errorf("a text that is no backup: %s", stderr)
	}
	// The box refuses this one before agentctl has sent all of it.
	if _, stderr := b.run(1, strings.Repeat("no backup", 1<<20), "restore", "-"); !strings.Contains(stderr, "the backup cannot be used") {
		t.Errorf("a large file that is no backup: %s", stderr)
	}
	// This one comes last: agentctl has gone before the box has given up the restore.
	if _, stderr := b.run(1, "", "restore", dir); !strings.Contains(stderr, "is a directory") || strings.Contains(stderr, "cannot reach") {
		t.Errorf("a directory: %s", stderr)
	}
}

// A backup that fails leaves no file, also on a full disk. An older file stays.
func TestBackupThatFails(t *testing.T) {
	b := newSlotsBox(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "backup.tar")
	b.broken = errors.New("the identity cannot be read")
	if _, stderr := b.run(1, "", "backup", "--include-secrets", file); !strings.Contains(stderr, "cannot copy identity: the identity cannot be read") {
		t.Errorf("%s", stderr)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("left: %v %v", entries, err)
	}
	b.run(0, "", "backup", "--include-secrets", "--skip", "identity", file)
	out, _ := b.run(0, "", "restore", "--dry-run", file)
	if !strings.Contains(out, "identity  not in the backup") {
		t.Errorf("%s", out)
	}
	b.run(1, "", "backup", "--skip", "no-such-part", file)

	// Neither a directory nor a device is replaced, and no copy stays beside it.
	t.Setenv("TMPDIR", dir)
	special := filepath.Join(dir, "special")
	if err := os.Mkdir(special, 0o700); err != nil {
		t.Fatal(err)
	}
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{special, fifo, ""} {
		if _, stderr := b.run(2, "", "backup", name); !strings.Contains(stderr, "it is not a regular file") {
			t.Errorf("%q: %s", name, stderr)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 3 {
		t.Errorf("left: %v %v", entries, err)
	}
	if info, err := os.Lstat(fifo); err != nil || info.Mode().Type() != os.ModeNamedPipe {
		t.Errorf("the fifo: %v %v", info, err)
	}

	if os.Geteuid() != 0 {
		t.Skip("needs root to mount a small disk")
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=32k"); err != nil {
		t.Skipf("needs root that may mount: %v", err)
	}
	defer func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	if err := os.WriteFile(file, []byte("older"), 0o600); err != nil {
		t.Fatal(err)
	}
	for n := range 40 {
		b.run(0, "", "bead", "create", "--description", strings.Repeat("x", 2000), fmt.Sprint("bead ", n))
	}
	if _, stderr := b.run(1, "", "backup", file); !strings.Contains(stderr, "no space left on device") {
		t.Errorf("%s", stderr)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("left: %v %v", entries, err)
	}
	if raw, err := os.ReadFile(file); err != nil || string(raw) != "older" {
		t.Errorf("what was there: %q %v", raw, err)
	}
}

// A healthy slot keeps the error of its latest call: only the time tells whether it is news.
func TestErrorsOfSlotsHaveTheirTime(t *testing.T) {
	cfg := controltest.New().Own()
	cfg.Adapters = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Write([]byte(`{"items":[{"slot":"memory","state":"healthy","last_error":"no server","last_error_at":"2026-11-30T15:42:47.000Z"},
			{"slot":"pods","state":"off","last_error_at":null}]}`))
	})
	out, _ := (&slotsBox{t: t, socket: controltest.Serve(t, cfg)}).run(0, "", "adapters")
	if !strings.Contains(out, " 2026-11-30T15:42:47.000Z no server\n") {
		t.Errorf("adapters:\n%s", out)
	}
}

// A process that may only read over the socket cannot write to the slots either.
func TestReadersOfTheSocketDoNotWrite(t *testing.T) {
	var granted []control.Access
	cfg := controltest.New().Config(os.Geteuid()+1, os.Getegid())
	cfg.Adapters = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		granted = append(granted, control.Granted(r.Context()))
		if r.URL.Path != "/v1/adapters" {
			t.Errorf("path %q", r.URL.Path)
		}
		w.Write([]byte(`{"items":[]}`))
	})
	if os.Geteuid() == 0 {
		t.Skip("needs a user other than root: root may always write")
	}
	(&slotsBox{t: t, socket: controltest.Serve(t, cfg)}).run(0, "", "adapters")
	if len(granted) != 1 || granted[0] != control.Read {
		t.Errorf("granted %v", granted)
	}
}
