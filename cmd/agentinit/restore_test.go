package main

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/backup"
	"github.com/dreamlab-ai/agentinit/adapters/middleware"
	"github.com/dreamlab-ai/agentinit/adapters/rest"
	"github.com/dreamlab-ai/agentinit/adapters/tasks"
	"github.com/dreamlab-ai/agentinit/bootstrap"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
)

const stateManifest = `
[adapters]
beads = "local-sqlite"
memory = "embedded-ruvector"
events = "local-jsonl"
`

// stateBox is the part of a box that has state: the local slots below its own root, and the API.
type stateBox struct {
	*box
	t       *testing.T
	handler http.Handler
}

func newStateBox(t *testing.T, root string) *stateBox {
	t.Helper()
	m, doc := manifestOf(t, stateManifest)
	roots, err := bootstrap.NewRoots(root, func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	b := &box{bus: event.NewBus(64), roots: roots, env: map[string]string{}, servers: &servers{}}
	b.self = &self{b: b}
	if b.resolved, err = adapters.Resolve(slotsConfig(m, doc), b.slotsTable(m, doc)); err != nil {
		t.Fatal(err)
	}
	b.stack = newStack(t)
	if err := b.stack.Keep(t.Context(), filepath.Join(roots.Workspace, answersFile)); err != nil {
		t.Fatal(err)
	}
	b.slots = adapters.NewSet(b.resolved, adapters.Options{Middleware: b.stack.Middleware()})
	if err := b.slots.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	if b.tasks, err = tasks.New(tasks.Config{
		Dir: filepath.Join(roots.Workspace, "tasks"), Templates: templates(m), Orchestrator: b.slots.Orchestrator(),
	}); err != nil {
		t.Fatal(err)
	}
	b.api, err = rest.New(rest.Config{
		Slots: b.slots, Backup: b.localState(b.tasks), Tasks: b.tasks, Version: "1.2.3",
		Principal: func(context.Context) (rest.Principal, bool) {
			return rest.Principal{Role: rest.RoleAdmin, ID: "operator"}, true
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		b.api.Close()
		b.tasks.Close()
		if err := errors.Join(b.slots.Disconnect(context.Background()), b.stack.Close()); err != nil {
			t.Error(err)
		}
	})
	return &stateBox{b, t, b.api.Handler()}
}

// The default source of events identifies the box, not the boot.
func TestEventSourceStays(t *testing.T) {
	source := func(root string) string {
		roots, err := bootstrap.NewRoots(root, func(string) string { return "" })
		if err != nil {
			t.Fatal(err)
		}
		return (&box{bus: event.NewBus(8), roots: roots, bootID: newBootID(), self: new(self)}).eventSource()
	}
	root := t.TempDir()
	first := source(root)
	if again := source(root); again != first || len(first) != len("urn:agentbox:")+32 {
		t.Errorf("%q, then %q", first, again)
	}
	if other := source(t.TempDir()); other == first {
		t.Errorf("another box has the same source %q", other)
	}
}

// A box without a place for its id has one name all the same, and reports it once: each registration
// and each event of a host asks for the name.
func TestNameOfABoxWithoutAWorkspace(t *testing.T) {
	roots, err := bootstrap.NewRoots(t.TempDir(), func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(roots.Workspace, nil, 0o600); err != nil { // no directory can be made here
		t.Fatal(err)
	}
	b := &box{bus: event.NewBus(8), roots: roots, bootID: newBootID(), self: new(self)}
	for range 3 {
		if got := b.boxName(); got != b.bootID {
			t.Errorf("the name is %q, want %q", got, b.bootID)
		}
	}
	reports := 0
	for w := b.bus.Watch(0); ; reports++ {
		if e, ok := w.TryNext(); !ok {
			break
		} else if e.Name != "BoxIDNotKept" {
			t.Errorf("%+v", e)
		}
	}
	if reports != 1 {
		t.Errorf("%d reports, want 1", reports)
	}
}

func newStack(t *testing.T) *middleware.Stack {
	t.Helper()
	s, err := middleware.New(middleware.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// do makes a request and fails unless the answer has the given status.
func (b *stateBox) do(status int, method, path string, body []byte, headers ...string) []byte {
	b.t.Helper()
	r := httptest.NewRequestWithContext(b.t.Context(), method, path, bytes.NewReader(body))
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	b.handler.ServeHTTP(w, r)
	if w.Code != status {
		b.t.Fatalf("%s %s: %d, want %d: %.500s", method, path, w.Code, status, w.Body)
	}
	return w.Body.Bytes()
}

func (b *stateBox) backup(query string) []byte {
	b.t.Helper()
	return b.do(200, "GET", "/v1/backup"+query, nil)
}

func (b *stateBox) restore(status int, query string, archive []byte) []byte {
	b.t.Helper()
	return b.do(status, "POST", "/v1/restore"+query, archive, "Content-Type", "application/x-tar")
}

// fill creates an entry in every slot; n makes its content unique.
func (b *stateBox) fill(n int) {
	b.t.Helper()
	ctx := b.t.Context()
	epic, err := b.slots.Beads().CreateEpic(ctx, adapters.NewBead{Title: fmt.Sprint("epic ", n)})
	if err == nil {
		_, err = b.slots.Beads().CreateChild(ctx, adapters.NewBead{Title: "child", ParentID: epic.ID})
	}
	if err == nil {
		_, err = b.slots.Memory().Store(ctx, fmt.Sprint("key ", n), "a value of words", "notes", adapters.StoreOpt{})
	}
	if err == nil {
		_, err = b.slots.Events().Dispatch(ctx, adapters.Event{Kind: "test.filled", Payload: json.RawMessage(fmt.Sprintf(`{"n":%d}`, n))})
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

// answers returns the box's answers for all its data.
func (b *stateBox) answers() string {
	b.t.Helper()
	var all strings.Builder
	for _, path := range []string{
		"/v1/beads", "/v1/beads/ready", "/v1/memory", "/v1/memory/notes", "/v1/events", "/v1/tasks?status=all",
	} {
		fmt.Fprintf(&all, "%s %s\n", path, b.do(200, "GET", path, nil))
	}
	hits, err := b.slots.Memory().Search(b.t.Context(), "words", adapters.SearchOpt{Namespace: "notes"})
	if err != nil {
		b.t.Fatal(err)
	}
	fmt.Fprintf(&all, "%+v\n", hits)
	return all.String()
}

// oldTask writes the record of an ended task below a root.
func oldTask(t *testing.T, root string) {
	t.Helper()
	dir := filepath.Join(root, "workspace", "tasks", "t1")
	if err := os.MkdirAll(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	record := `{"taskId":"t1","agent":"coder","task":"x","agentId":"a","status":"completed","startTime":1,"exitTime":2,"exitCode":0}`
	if err := os.WriteFile(filepath.Join(dir, "task.json"), []byte(record), 0o640); err != nil {
		t.Fatal(err)
	}
}

// TestBackupWipeRestore: after the loss of all data, a restore gives the same answers as before.
func TestBackupWipeRestore(t *testing.T) {
	root := t.TempDir()
	oldTask(t, root)
	first := newStateBox(t, root)
	for n := range 5 {
		first.fill(n)
	}
	archive, want := first.backup(""), first.answers()

	empty := newStateBox(t, t.TempDir())
	empty.fill(99)
	before := empty.answers()
	if got := empty.restore(409, "", archive); !bytes.Contains(got, []byte("beads, memory, events: in use by the running box")) {
		t.Errorf("%s", got)
	}
	if got := empty.restore(200, "?dry_run=true", archive); !bytes.Contains(got, []byte(`"state":"checked"`)) {
		t.Errorf("%s", got)
	}
	if got := empty.answers(); got != before {
		t.Errorf("a refusal and a dry run changed something:\n%s\n%s", before, got)
	}
	// An idempotency key of the old state is unknown in the restored state.
	empty.do(201, "POST", "/v1/beads/epics", []byte(`{"title":"keyed"}`), "Content-Type", "application/json", "Idempotency-Key", "k")
	var out backup.Restored
	if err := json.Unmarshal(empty.restore(200, "?replace=true", archive), &out); err != nil {
		t.Fatal(err)
	}
	if got := empty.answers(); got != want {
		t.Errorf("restored:\n%s\nwant:\n%s", got, want)
	}
	for _, p := range out.Parts {
		if p.State != "restored" || p.Kept == "" {
			t.Errorf("%+v", p)
		}
		if _, err := os.Stat(string(p.Kept)); err != nil {
			t.Errorf("the old state is not aside: %v", err)
		}
	}
	if len(out.Parts) != 4 {
		t.Errorf("%+v", out)
	}
	empty.do(201, "POST", "/v1/beads/epics", []byte(`{"title":"keyed"}`), "Content-Type", "application/json", "Idempotency-Key", "k")
	if page, err := empty.slots.Beads().List(t.Context(), adapters.BeadFilter{}); err != nil || len(page.Items) != 11 {
		t.Errorf("%d beads: %v", len(page.Items), err)
	}
	empty.fill(100) // the restored box still works
	if left, err := filepath.Glob(filepath.Join(empty.roots.Workspace, "*.restoring-*")); err != nil || len(left) > 0 {
		t.Errorf("left over: %v %v", left, err)
	}
}

// If a slot is broken, the other slots can be backed up only when the operator says so. The backup
// records which part is missing.
func TestBackupWithoutABrokenSlot(t *testing.T) {
	root := t.TempDir()
	roots, err := bootstrap.NewRoots(root, func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	m, _ := manifestOf(t, stateManifest)
	broken := filepath.Join(roots.Memory(m), "memory.db")
	if err := os.MkdirAll(filepath.Dir(broken), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(broken, bytes.Repeat([]byte("no database "), 1000), 0o600); err != nil {
		t.Fatal(err)
	}
	b := newStateBox(t, root)
	if _, err := b.slots.Beads().CreateEpic(t.Context(), adapters.NewBead{Title: "kept"}); err != nil {
		t.Fatal(err)
	}
	var refused struct {
		Code   adapters.Code
		Detail string
		Parts  []string
	}
	if err := json.Unmarshal(b.do(503, "GET", "/v1/backup", nil), &refused); err != nil {
		t.Fatal(err)
	}
	if refused.Code != adapters.CodeUnavailable || !slices.Equal(refused.Parts, []string{"memory"}) || !strings.Contains(refused.Detail, "cannot copy memory: ") {
		t.Errorf("%+v", refused)
	}
	for _, query := range []string{"?skip=nothing", "?skip=", "?skip=beads&skip=memory&skip=events&skip=tasks"} {
		b.do(400, "GET", "/v1/backup"+query, nil)
	}
	archive := b.backup("?skip=memory")
	other := newStateBox(t, t.TempDir())
	other.fill(1)
	memories := other.do(200, "GET", "/v1/memory/notes", nil)
	if got := other.restore(400, "?replace=true&part=memory", archive); !bytes.Contains(got, []byte("memory")) {
		t.Errorf("%s", got)
	}
	var out backup.Restored
	if err := json.Unmarshal(other.restore(200, "?replace=true", archive), &out); err != nil {
		t.Fatal(err)
	}
	states := map[string]string{}
	for _, p := range out.Parts {
		states[p.Name] = p.State
	}
	if states["memory"] != "not in the backup" || states["beads"] != "restored" {
		t.Errorf("%v", states)
	}
	if got := other.do(200, "GET", "/v1/memory/notes", nil); !bytes.Equal(got, memories) {
		t.Errorf("what the backup lacks was touched: %s", got)
	}
	if page, err := other.slots.Beads().List(t.Context(), adapters.BeadFilter{}); err != nil || len(page.Items) != 1 || page.Items[0].Title != "kept" {
		t.Errorf("%+v %v", page, err)
	}
	for _, box := range []*stateBox{b, other} {
		box.noStaging()
	}
}

// noStaging fails if a copy was left behind.
func (b *stateBox) noStaging() {
	b.t.Helper()
	if left, err := filepath.Glob(filepath.Join(b.roots.Workspace, ".agentbox-staging-*")); err != nil || len(left) > 0 {
		b.t.Errorf("left over: %v %v", left, err)
	}
}

// The next backup removes the copies that a killed box left behind. It keeps a copy that is being
// made, and files of others.
func TestBackupSweepsWhatWasLeft(t *testing.T) {
	b := newStateBox(t, t.TempDir())
	at := func(name string) string { return filepath.Join(b.roots.Workspace, name) }
	for name, age := range map[string]time.Duration{
		".agentbox-staging-backup-1": time.Hour, ".agentbox-staging-restore-2": time.Minute, ".agentbox-other": time.Hour,
	} {
		if err := os.MkdirAll(filepath.Join(at(name), "beads"), 0o700); err != nil {
			t.Fatal(err)
		}
		then := time.Now().Add(-age)
		if err := os.Chtimes(at(name), then, then); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(at(".agentbox-other"), at(".agentbox-staging-link")); err != nil {
		t.Fatal(err)
	}
	b.backup("")
	for name, want := range map[string]bool{
		".agentbox-staging-backup-1": false, ".agentbox-staging-restore-2": true, ".agentbox-other/beads": true, ".agentbox-staging-link": true,
	} {
		if _, err := os.Lstat(at(name)); (err == nil) != want {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// rewrite changes an archive entry by entry. A nil header drops the entry.
func rewrite(t *testing.T, archive []byte, f func(h *tar.Header, body []byte) (*tar.Header, []byte)) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	r := tar.NewReader(bytes.NewReader(archive))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if h, body = f(h, body); h == nil {
			continue
		}
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(body))
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(body); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// TestRestoreRefuses: an invalid archive changes nothing.
func TestRestoreRefuses(t *testing.T) {
	source := newStateBox(t, t.TempDir())
	source.fill(1)
	good := source.backup("")
	named := func(name string, f func(h *tar.Header, body []byte) (*tar.Header, []byte)) []byte {
		found := false
		out := rewrite(t, good, func(h *tar.Header, body []byte) (*tar.Header, []byte) {
			if h.Name != name {
				return h, body
			}
			found = true
			return f(h, body)
		})
		if !found {
			t.Fatalf("there is no %s", name)
		}
		return out
	}
	listed := func(old, new string) []byte {
		return named("backup.json", func(h *tar.Header, body []byte) (*tar.Header, []byte) {
			if !bytes.Contains(body, []byte(old)) {
				t.Fatalf("no %q in %s", old, body)
			}
			return h, bytes.Replace(body, []byte(old), []byte(new), 1)
		})
	}
	box := newStateBox(t, t.TempDir())
	box.fill(2)
	before := box.answers()
	for name, c := range map[string]struct {
		archive []byte
		query   string
		status  int
		says    string
	}{
		"nothing":        {nil, "", 400, "cannot be used"},
		"no tar":         {[]byte(strings.Repeat("x", 2000)), "", 400, "cannot be used"},
		"cut short":      {good[:len(good)/2], "", 400, "cannot be used"},
		"no list":        {named("backup.json", func(*tar.Header, []byte) (*tar.Header, []byte) { return nil, nil }), "", 400, "does not begin"},
		"another format": {listed(`"format":1`, `"format":2`), "", 400, "format is 2"},
		"a changed byte": {named("beads/beads.db", func(h *tar.Header, body []byte) (*tar.Header, []byte) {
			body[len(body)-1] ^= 1
			return h, body
		}), "", 400, "checksum"},
		"a missing file": {named("memory/memory.db", func(*tar.Header, []byte) (*tar.Header, []byte) { return nil, nil }), "", 400, "missing"},
		"a file too many": {named("tasks/", func(*tar.Header, []byte) (*tar.Header, []byte) {
			return &tar.Header{Name: "tasks", Typeflag: tar.TypeReg, Mode: 0o600}, []byte("x")
		}), "", 400, "not on its list"},
		"a way out": {named("beads/", func(*tar.Header, []byte) (*tar.Header, []byte) {
			return &tar.Header{Name: "../../out", Typeflag: tar.TypeReg, Mode: 0o600}, []byte("x")
		}), "", 400, "leads out"},
		"a way out by its root": {named("beads/", func(*tar.Header, []byte) (*tar.Header, []byte) {
			return &tar.Header{Name: "/tmp/out", Typeflag: tar.TypeReg, Mode: 0o600}, []byte("x")
		}), "", 400, "leads out"},
		"names that clash": {named("tasks/", func(*tar.Header, []byte) (*tar.Header, []byte) {
			return &tar.Header{Name: "beads/beads.db/x", Typeflag: tar.TypeReg, Mode: 0o600}, []byte("x")
		}), "", 400, "cannot be used"},
		"a link": {named("beads/", func(*tar.Header, []byte) (*tar.Header, []byte) {
			return &tar.Header{Name: "beads", Linkname: "/tmp", Typeflag: tar.TypeSymlink}, nil
		}), "", 400, "neither a file nor a directory"},
		"a part nobody has": {good, "&part=nobody", 400, "no"},
	} {
		t.Run(name, func(t *testing.T) {
			box.t = t
			if got := box.restore(c.status, "?replace=true"+c.query, c.archive); !bytes.Contains(got, []byte(c.says)) {
				t.Errorf("%s", got)
			}
			if got := box.answers(); got != before {
				t.Errorf("it changed something:\n%s", got)
			}
		})
	}
	box.t = t
	if got := box.do(415, "POST", "/v1/restore", good, "Content-Type", "text/plain"); len(got) == 0 {
		t.Error("no answer")
	}
	box.restore(200, "?replace=true&part=beads", good) // the same archive unchanged
	if got := box.answers(); got == before {
		t.Error("nothing was restored")
	}
}

// TestRestoreRefusesANewerSchema: a part is checked by opening a copy of it.
func TestRestoreRefusesANewerSchema(t *testing.T) {
	newer := newStateBox(t, t.TempDir())
	newer.fill(1)
	path := filepath.Join(newer.roots.Workspace, "beads.db")
	if err := newer.slots.Degrade(t.Context(), adapters.SlotBeads, errors.New("by hand")); err != nil {
		t.Fatal(err)
	}
	if err := newer.resolved.Adapter(adapters.SlotBeads).Disconnect(t.Context()); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	raw[63] = 99 // the low byte of user_version (SQLite file format, offset 60)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "beads.db"), raw, 0o600); err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(newer.backups, func(p backup.Part) bool { return p.Name == "beads" })
	if err := newer.backups[i].Check(t.Context(), dir); err == nil || !strings.Contains(err.Error(), "newer") {
		t.Errorf("a newer schema: %v", err)
	}
	// A restore needs no confirmation to replace a slot that is not in use.
	if newer.backups[i].Serving() {
		t.Error("a degraded slot serves")
	}
}

// TestRestoreOfSecrets: secrets are backed up and restored only on request, with their modes.
func TestRestoreOfSecrets(t *testing.T) {
	source := newStateBox(t, t.TempDir())
	source.fill(1)
	key := filepath.Join("profiles", "default", "nostr.key.enc")
	from := filepath.Join(source.roots.Workspace, key)
	if err := os.MkdirAll(filepath.Dir(from), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(from, []byte("sealed"), 0o600); err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(source.backup(""), []byte("sealed")) {
		t.Error("a secret came unasked")
	}
	archive := source.backup("?include_secrets=true")
	box := newStateBox(t, t.TempDir())
	to := filepath.Join(box.roots.Workspace, key)
	if got := box.restore(200, "?replace=true", archive); !bytes.Contains(got, []byte(`"name":"profiles","files":1,"bytes":6,"state":"left out"`)) {
		t.Errorf("%s", got)
	}
	if _, err := os.Stat(to); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a secret went back unasked: %v", err)
	}
	box.restore(200, "?replace=true&include_secrets=true&part=profiles", archive)
	raw, err := os.ReadFile(to)
	if err != nil || string(raw) != "sealed" {
		t.Fatalf("%q %v", raw, err)
	}
	if info, err := os.Stat(to); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info.Mode(), err)
	}
}

// TestBackupUnderWriters: a backup during writes is a state that existed. It has a prefix of each
// writer's writes, with all writes acknowledged before the backup.
func TestBackupUnderWriters(t *testing.T) {
	const writers, rounds = 3, 4
	b := newStateBox(t, t.TempDir())
	ctx, stop := context.WithCancel(t.Context())
	var acked [writers]struct {
		sync.Mutex
		n int
	}
	enough := make(chan struct{}, 1)
	var running sync.WaitGroup
	for w := range writers {
		running.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				name := fmt.Sprintf("%d-%d", w, n)
				_, err := b.slots.Beads().CreateEpic(ctx, adapters.NewBead{Title: name})
				if err == nil {
					_, err = b.slots.Memory().Store(ctx, name, "words", "notes", adapters.StoreOpt{})
				}
				if err == nil {
					_, err = b.slots.Events().Dispatch(ctx, adapters.Event{Kind: "test.n", Subject: name})
				}
				if err != nil {
					if ctx.Err() == nil {
						t.Error(err)
					}
					return
				}
				acked[w].Lock()
				acked[w].n = n + 1
				acked[w].Unlock()
				select {
				case enough <- struct{}{}:
				default:
				}
			}
		})
	}
	defer running.Wait()
	defer stop()
	for range rounds {
		for range 5 {
			<-enough // the writers write between the backups
		}
		var least [writers]int
		for w := range writers {
			acked[w].Lock()
			least[w] = acked[w].n
			acked[w].Unlock()
		}
		archive := b.backup("")
		other := newStateBox(t, t.TempDir())
		other.restore(200, "?replace=true", archive)
		for slot, names := range other.names() {
			for w := range writers {
				n := 0
				for names[fmt.Sprintf("%d-%d", w, n)] {
					n++
				}
				of := 0
				for name := range names {
					if strings.HasPrefix(name, fmt.Sprint(w, "-")) {
						of++
					}
				}
				if of != n || n < least[w] {
					t.Errorf("%s: writer %d has %d, %d of them without a gap, and %d were acknowledged before", slot, w, of, n, least[w])
				}
			}
		}
	}
}

// names returns the names of the entries that the writers made, by slot.
func (b *stateBox) names() map[string]map[string]bool {
	b.t.Helper()
	out := map[string]map[string]bool{"beads": {}, "memory": {}, "events": {}}
	ctx := b.t.Context()
	for page := (adapters.PageOpt{Limit: 1000}); ; {
		p, err := b.slots.Beads().List(ctx, adapters.BeadFilter{PageOpt: page})
		if err != nil {
			b.t.Fatal(err)
		}
		for _, v := range p.Items {
			out["beads"][v.Title] = true
		}
		if page.Cursor = string(p.NextCursor); page.Cursor == "" {
			break
		}
	}
	for page := (adapters.PageOpt{Limit: 1000}); ; {
		p, err := b.slots.Memory().List(ctx, "notes", page)
		if err != nil && !errors.Is(err, adapters.ErrNotFound) {
			b.t.Fatal(err)
		}
		for _, v := range p.Items {
			out["memory"][v.Key] = true
		}
		if page.Cursor = string(p.NextCursor); page.Cursor == "" {
			break
		}
	}
	for page := (adapters.PageOpt{Limit: 1000}); ; {
		p, err := b.slots.Events().History(ctx, adapters.EventFilter{}, page)
		if err != nil {
			b.t.Fatal(err)
		}
		for _, v := range p.Items {
			out["events"][v.Subject] = true
		}
		if page.Cursor = string(p.NextCursor); page.Cursor == "" {
			return out
		}
	}
}
