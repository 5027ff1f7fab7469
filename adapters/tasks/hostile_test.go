package tasks

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/internal/safeopen"
)

// oneAgent starts agents that change their task's directory, print one line and exit with 0.
type oneAgent struct {
	adapters.Orchestrator
	change func(dir string) error
}

func (o oneAgent) Spec(string, string) (adapters.AgentSpec, error) { return adapters.AgentSpec{}, nil }

func (o oneAgent) SpawnAgent(_ context.Context, spec adapters.AgentSpec) (adapters.Agent, error) {
	return adapters.Agent{AgentID: "agent"}, o.change(spec.Env["AGENTBOX_TASK_DIR"])
}

func (o oneAgent) StreamEvents(context.Context, string, uint64) (adapters.AgentStream, error) {
	return &printed{left: []adapters.AgentEvent{
		{Kind: adapters.AgentEventStdout, Payload: json.RawMessage(`{"data":"hello\n"}`)},
		{Seq: 1, Kind: adapters.AgentEventExit, Payload: json.RawMessage(`{"code":0}`)},
	}}, nil
}

type printed struct{ left []adapters.AgentEvent }

func (p *printed) Close() error { return nil }

func (p *printed) Next(context.Context) (e adapters.AgentEvent, err error) {
	if len(p.left) == 0 {
		return e, io.EOF
	}
	e, p.left = p.left[0], p.left[1:]
	return e, nil
}

// run starts a task of such an agent and waits until its record says how it ended.
func run(t *testing.T, dir string, change func(dir string) error) (m *Manager, id string, told []error) {
	t.Helper()
	agent := oneAgent{change: change}
	m, err := New(Config{Dir: dir, Templates: agent, Orchestrator: agent, Report: func(_ string, err error) { told = append(told, err) }})
	if err != nil {
		t.Fatal(err)
	}
	started, err := m.Start(t.Context(), Request{Agent: "a", Task: "x"})
	if err != nil {
		t.Fatal(err)
	}
	m.mu.Lock()
	ended := m.tasks[started.ID].ended
	m.mu.Unlock()
	inTime(t, "the task ends", func() { <-ended })
	inTime(t, "the manager closes", m.Close)
	if r, err := m.Get(started.ID); err != nil || r.Status != Completed {
		t.Errorf("%+v %v", r, err)
	}
	return m, started.ID, told
}

// inTime fails the test if f hangs.
func inTime(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		t.Fatal("it hangs until " + what)
	}
}

// An agent puts a FIFO in the place of its log. Neither the task nor a reader of the log waits for
// the other end.
func TestFIFOInPlaceOfTheLog(t *testing.T) {
	m, id, told := run(t, t.TempDir(), func(dir string) error { return syscall.Mkfifo(filepath.Join(dir, logFile), 0o600) })
	if len(told) != 1 {
		t.Errorf("told of %v, want of the log alone", told)
	}
	inTime(t, "the log is read", func() {
		if lines, err := m.Tail(id); !errors.Is(err, adapters.ErrUnavailable) {
			t.Errorf("%q %v", lines, err)
		}
	})
	inTime(t, "the log is followed", func() {
		f, err := m.Follow(id, 0)
		if err != nil {
			t.Error(err)
			return
		}
		if line, err := f.Next(t.Context()); !errors.Is(err, adapters.ErrUnavailable) {
			t.Errorf("%+v %v", line, err)
		}
	})
}

// A line that never ends, here the zeros of a hole in the file, is followed in parts.
func TestLineWithoutAnEnd(t *testing.T) {
	const hole = 16 << 20
	m, id, _ := run(t, t.TempDir(), func(string) error { return nil })
	if err := os.Truncate(m.logPath(id), hole); err != nil {
		t.Fatal(err)
	}
	f, err := m.Follow(id, 0)
	if err != nil {
		t.Fatal(err)
	}
	at, longest, first := int64(0), 0, ""
	for {
		line, err := f.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if line.Ended != nil {
			break
		}
		first = cmp.Or(first, line.Text)
		longest, at = max(longest, len(line.Text)), line.End
	}
	if first != "hello" || longest == 0 || longest > 2*maxRead || at < hole-2*maxRead {
		t.Errorf("the first line is %q, the longest has %d bytes, the last ends at %d", first, longest, at)
	}
}

// An agent leaves a record of 4 TiB that takes no space on the disk, and one that is a FIFO. The
// next box starts and has the other tasks.
func TestRecordsOfAnAttacker(t *testing.T) {
	dir := t.TempDir()
	_, id, _ := run(t, dir, func(string) error { return nil })
	for name, spoil := range map[string]func(path string) error{
		"huge": func(path string) error {
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				return err
			}
			return os.Truncate(path, 4<<40)
		},
		"fifo": func(path string) error { return syscall.Mkfifo(path, 0o600) },
	} {
		if err := errors.Join(os.Mkdir(filepath.Join(dir, name), 0o755), spoil(filepath.Join(dir, name, recordFile))); err != nil {
			t.Fatal(err)
		}
	}
	told := map[string]error{}
	inTime(t, "the records are read", func() {
		m, err := New(Config{Dir: dir, Report: func(task string, err error) { told[task] = err }})
		if err != nil {
			t.Error(err)
			return
		}
		if r, err := m.Get(id); err != nil || r.Status != Completed {
			t.Errorf("%+v %v", r, err)
		}
	})
	if len(told) != 2 || !errors.Is(told["huge"], safeopen.ErrTooLarge) || told["fifo"] == nil {
		t.Errorf("told of %v", told)
	}
}

// Root keeps tasks in a directory of another user, who puts a link in the place of a task's
// directory. Root writes nothing where the link leads.
func TestLinkInPlaceOfATask(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: files of two users")
	}
	const stranger = 4711
	owned, secret := t.TempDir(), t.TempDir()
	if err := os.Chown(owned, stranger, stranger); err != nil {
		t.Fatal(err)
	}
	_, _, told := run(t, filepath.Join(owned, "tasks"), func(dir string) error {
		return errors.Join(os.RemoveAll(dir), os.Symlink(secret, dir), os.Lchown(dir, stranger, stranger))
	})
	if entries, err := os.ReadDir(secret); err != nil || len(entries) > 0 {
		t.Errorf("root's directory now has %v %v", entries, err)
	}
	for _, err := range told {
		if !errors.Is(err, safeopen.ErrUnsafe) {
			t.Error(err)
		}
	}
	if len(told) != 3 { // twice the record, once the log
		t.Errorf("told of %v", told)
	}
}

// An agent of agentinit's own user makes as many records as the disk takes: not all of them are kept in
// memory, and the newest are.
func TestRecordsAreBounded(t *testing.T) {
	dir := t.TempDir()
	write := func(id, text string) {
		t.Helper()
		raw, err := json.Marshal(Record{TaskID: id, Task: text, Status: Completed})
		if err == nil {
			err = os.Mkdir(filepath.Join(dir, id), 0o755)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, id, recordFile), raw, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for n := range 10 {
		write(fmt.Sprintf("a%03d", n), strings.Repeat("x", 10_000))
	}
	write("b", "the newest")
	var told []error
	agent := oneAgent{}
	m, err := New(Config{Dir: t.TempDir(), Templates: agent, Orchestrator: agent, Report: func(_ string, err error) { told = append(told, err) }})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	m.cfg.Dir = dir
	if err := m.loadAll(35_000); err != nil {
		t.Fatal(err)
	}
	if want := []string{"a007", "a008", "a009", "b"}; !slices.Equal(m.sorted(), want) || len(told) != 1 {
		t.Errorf("%q; told %v", m.sorted(), told)
	}
}

// The keys of a day may be ten times as many as the records that are kept. They must not keep the texts of
// their tasks in memory, of up to maxText bytes each.
func TestKeysDoNotKeepTexts(t *testing.T) {
	agent := oneAgent{}
	m, err := New(Config{Dir: t.TempDir(), Templates: agent, Orchestrator: agent})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	inUse := func() int64 {
		var s runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&s)
		return int64(s.HeapAlloc)
	}
	const keys = 200
	before := inUse()
	for i := range keys {
		key, text := fmt.Sprint(i), strings.Repeat("x", maxText)
		if id, err := m.begin(key, Request{Agent: "a", Task: text}); id != "" || err != nil {
			t.Fatal(id, err)
		}
		m.finish(key, key)
	}
	if grown := inUse() - before; grown > keys*maxText/10 {
		t.Errorf("%d keys take %d bytes", keys, grown)
	}
	same := Request{Agent: "a", Task: strings.Repeat("x", maxText)}
	if id, err := m.begin("7", same); id != "7" || err != nil {
		t.Errorf("the same request again: %q, %v", id, err)
	}
	for _, other := range []Request{{Agent: "b", Task: same.Task}, {Agent: "a", Task: "x"}, {Agent: "a", Provider: "p", Task: same.Task}} {
		if _, err := m.begin("7", other); adapters.CodeOf(err) != adapters.CodeIdempotencyMismatch {
			t.Errorf("another request: %v", err)
		}
	}
}

// A page of tasks ends early when its texts are large, and the next one goes on there.
func TestPagesAreBounded(t *testing.T) {
	agent := oneAgent{}
	m, err := New(Config{Dir: t.TempDir(), Templates: agent, Orchestrator: agent})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	const all = 2*maxPage/maxText + 3
	for n := range all {
		id, text := fmt.Sprintf("%03d", n), strings.Repeat("x", maxText)
		if n == 0 {
			text = strings.Repeat("x", maxPage+1) // an agent can write such a record
		}
		m.tasks[id] = &task{record: Record{TaskID: id, Task: text, Status: Completed}}
	}
	var got []string
	for cursor := ""; ; {
		page, err := m.Page(adapters.PageOpt{Limit: all, Cursor: cursor})
		if err != nil || len(page.Items) == 0 {
			t.Fatalf("%d records, %v", len(page.Items), err)
		}
		size := 0
		for _, r := range page.Items {
			size += len(r.Task)
			got = append(got, r.TaskID)
		}
		if size > maxPage && len(page.Items) > 1 {
			t.Errorf("a page of %d records has %d bytes", len(page.Items), size)
		}
		if cursor = string(page.NextCursor); cursor == "" {
			break
		}
	}
	if !slices.IsSortedFunc(got, func(a, b string) int { return strings.Compare(b, a) }) || len(slices.Compact(got)) != all {
		t.Errorf("got %q", got)
	}
}

// The texts of all records have a limit together: the oldest ended tasks are removed, and running ones stay.
func TestTextsOfRecordsAreBounded(t *testing.T) {
	m, err := New(Config{Dir: t.TempDir(), Report: func(id string, err error) { t.Error(id, err) }})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	text := strings.Repeat("x", maxText)
	const fit = maxHeld / maxText
	for i := range fit + 3 {
		id := fmt.Sprintf("%04d", i)
		m.tasks[id] = &task{record: Record{TaskID: id, Task: text, Status: Completed}}
		if i == 1 {
			m.tasks[id].record.Status = Running
		}
		if err := m.makeDirectory(id); err != nil {
			t.Fatal(err)
		}
	}
	m.prune()
	left := m.sorted()
	if len(left) != fit || left[0] != "0001" || left[1] != "0004" {
		t.Errorf("%d tasks are left, the first are %v", len(left), left[:2])
	}
	if entries, err := os.ReadDir(m.cfg.Dir); err != nil || len(entries) != fit {
		t.Errorf("%d directories are left, %v", len(entries), err)
	}
}

// A key that must not be used twice holds over a restart and longer than others.
func TestOnce(t *testing.T) {
	dir, agent := t.TempDir(), oneAgent{change: func(string) error { return nil }}
	open := func() *Manager {
		m, err := New(Config{Dir: dir, Templates: agent, Orchestrator: agent})
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	ctx := adapters.WithMeta(t.Context(), adapters.Meta{Actor: "box", IdempotencyKey: "k"})
	m := open()
	first, err := m.Start(ctx, Request{Agent: "a", Task: "x", Once: true})
	if err != nil {
		t.Fatal(err)
	}
	<-m.tasks[first.ID].ended
	m.Close()
	old, err := m.Get(first.ID)
	if err != nil {
		t.Fatal(err)
	}
	old.StartTime -= (adapters.IdempotencyLife + time.Hour).Milliseconds()
	if err := m.save(old); err != nil {
		t.Fatal(err)
	}
	m = open()
	defer m.Close()
	if again, err := m.Start(ctx, Request{Agent: "b", Task: "x", Once: true}); err != nil || again.ID != first.ID || !again.Replayed {
		t.Errorf("started again: %+v, %v", again, err)
	}
	if other, err := m.Start(ctx, Request{Agent: "a", Task: "x"}); err != nil || other.ID == first.ID {
		t.Errorf("an expired key: %+v, %v", other, err)
	}
}
