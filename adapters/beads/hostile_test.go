package beads

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/contract"
	"github.com/dreamlab-ai/agentinit/adapters/sqlite"
)

// crashChild writes beads and reports each step.
func crashChild(path string) error {
	l, err := NewLocal(LocalConfig{Path: path})
	if err == nil {
		err = l.Connect(context.Background())
	}
	w := adapters.WrapBeads(l, nil)
	ctx := context.Background()
	for i := 0; err == nil; i++ {
		var b adapters.Bead
		b, err = w.CreateEpic(ctx, adapters.NewBead{Title: fmt.Sprintf("bead %d", i)})
		if err == nil {
			fmt.Println("made", b.ID)
			_, err = w.Claim(ctx, b.ID, "agent")
		}
		if err == nil {
			fmt.Println("claimed", b.ID)
			_, err = w.Close(ctx, b.ID, "done")
		}
		if err == nil {
			fmt.Println("closed", b.ID)
		}
	}
	return err
}

// TestNoAcknowledgedWriteIsLostByKill repeatedly kills a process that writes to the same file, at a
// random moment, and checks every write that the process acknowledged.
func TestNoAcknowledgedWriteIsLostByKill(t *testing.T) {
	path := filepath.Join(t.TempDir(), "beads.db")
	acked := map[string]string{} // id -> last acknowledged step
	contract.Killed(t, path, func(line string) {
		step, id, _ := strings.Cut(line, " ")
		acked[id] = step
	}, func() {
		l := newLocal(t, path)
		if err := l.Connect(t.Context()); err != nil {
			t.Fatal(err)
		}
		for id, step := range acked {
			b, err := l.Show(t.Context(), id)
			if err != nil {
				t.Fatalf("%s is acknowledged and lost: %v", id, err)
			}
			if step == "claimed" && b.Status == adapters.BeadOpen || step == "closed" && b.Status != adapters.BeadClosed {
				t.Fatalf("%s was %s and is %s", id, step, b.Status)
			}
		}
		if err := l.Disconnect(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

func TestThousandClaimsHaveOneWinnerAcrossProcesses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "beads.db")
	// For SQLite, several Locals on one file are like several processes.
	var ws []adapters.Beads
	for range 4 {
		l := newLocal(t, path)
		if err := l.Connect(t.Context()); err != nil {
			t.Fatal(err)
		}
		defer l.Disconnect(context.Background())
		ws = append(ws, adapters.WrapBeads(l, nil))
	}
	b, err := ws[0].CreateEpic(t.Context(), adapters.NewBead{Title: "x"})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var winners atomic.Int32
	gate := make(chan struct{})
	for i := range 1000 {
		wg.Go(func() {
			<-gate
			for {
				_, err := ws[i%len(ws)].Claim(t.Context(), b.ID, fmt.Sprintf("agent-%d", i))
				switch {
				case err == nil:
					winners.Add(1)
				case errors.Is(err, adapters.ErrUnavailable):
					continue // on a loaded machine, another process may hold the file for 5 s
				case !errors.Is(err, adapters.ErrAlreadyClaimed):
					t.Errorf("claim: %v", err)
				}
				return
			}
		})
	}
	close(gate)
	wg.Wait()
	if n := winners.Load(); n != 1 {
		t.Fatalf("%d winners", n)
	}
}

func TestALeaseRunsOutAndIsAnnounced(t *testing.T) {
	told := make(chan [2]string, 1)
	l, err := NewLocal(LocalConfig{Path: filepath.Join(t.TempDir(), "b.db"), LeaseExpired: func(id, actor string) { told <- [2]string{id, actor} }})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer l.Disconnect(context.Background())
	b, err := l.CreateEpic(t.Context(), adapters.NewBead{Title: "x"})
	if err != nil {
		t.Fatal(err)
	}
	// The wrapped slot would refuse this lease: the contract's minimum is 30 s.
	if _, err := l.Claim(t.Context(), b.ID, "ann", adapters.ClaimOpt{Lease: 50 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	if got := <-told; got != [2]string{b.ID, "ann"} {
		t.Errorf("told %v", got)
	}
	after, err := l.Show(t.Context(), b.ID)
	if err != nil || after.Status != adapters.BeadOpen || after.Actor != "" || after.Version != 3 || !after.LeaseUntil.IsZero() {
		t.Errorf("%+v %v", after, err)
	}
	if _, err := l.Claim(t.Context(), b.ID, "bob"); err != nil {
		t.Error(err)
	}
}

// fileWith creates a database, closes it and calls damage to change it.
func fileWith(t *testing.T, damage func(path string)) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "beads.db")
	l := newLocal(t, path)
	if err := l.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i := range 60 {
		if _, err := l.CreateEpic(t.Context(), adapters.NewBead{Title: fmt.Sprint(i), Description: strings.Repeat("x", 500)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Disconnect(t.Context()); err != nil {
		t.Fatal(err)
	}
	damage(path)
	return path
}

func TestUnreadableFilesAreRefusedAndLeftAlone(t *testing.T) {
	overwrite := func(from int64, n int) func(string) {
		return func(path string) {
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if _, err := f.WriteAt([]byte(strings.Repeat("\xa5", n)), from); err != nil {
				t.Fatal(err)
			}
		}
	}
	raw := func(stmt string) func(string) {
		return func(path string) {
			db, err := sql.Open("sqlite", path)
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			if _, err := db.Exec(stmt); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, c := range map[string]struct {
		damage func(string)
		says   string
	}{
		"header":          {overwrite(0, 100), "corrupt"},
		"pages":           {overwrite(4096, 8192), "corrupt"},
		"truncated":       {func(p string) { _ = os.Truncate(p, 9000) }, "corrupt"},
		"newer schema":    {raw("PRAGMA user_version = 99"), "newer"},
		"another program": {raw("PRAGMA application_id = 7"), "another program"},
	} {
		t.Run(name, func(t *testing.T) {
			path := fileWith(t, c.damage)
			before, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			err = newLocal(t, path).Connect(t.Context())
			if !errors.Is(err, adapters.ErrUnavailable) || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), path) {
				t.Errorf("connect: %v", err)
			}
			after, err := os.ReadFile(path)
			if err != nil || string(after) != string(before) {
				t.Errorf("the file was changed (%v)", err)
			}
		})
	}
}

func TestMigrationCopiesFirst(t *testing.T) {
	path := fileWith(t, func(string) {})
	steps := append(migrations(), `ALTER TABLE beads ADD COLUMN more TEXT NOT NULL DEFAULT ''`)
	db, err := sqlite.Open(t.Context(), sqlite.Options{Path: path, AppID: appID, Migrations: steps})
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	copies, err := filepath.Glob(fmt.Sprintf("%s.v%d-*", path, len(migrations())))
	if err != nil || len(copies) != 1 {
		t.Fatalf("copies: %v %v", copies, err)
	}
	old := newLocal(t, copies[0])
	if err := old.Connect(t.Context()); err != nil {
		t.Fatalf("the copy does not open: %v", err)
	}
	defer old.Disconnect(context.Background())
	if page, err := old.List(t.Context(), adapters.BeadFilter{PageOpt: adapters.PageOpt{Limit: 1000}}); err != nil || len(page.Items) != 60 {
		t.Errorf("%d beads in the copy: %v", len(page.Items), err)
	}
	broken := append(steps, `CREATE TABLE half(x); nonsense`)
	if _, err := sqlite.Open(t.Context(), sqlite.Options{Path: path, AppID: appID, Migrations: broken}); err == nil {
		t.Fatal("a broken step was applied")
	}
	whole, err := sqlite.Open(t.Context(), sqlite.Options{Path: path, AppID: appID, Migrations: steps})
	if err != nil {
		t.Fatalf("half a step was left: %v", err)
	}
	_ = whole.Close()
}

func TestADirectoryThatCannotBeWrittenIsAConnectError(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := newLocal(t, filepath.Join(file, "beads.db")).Connect(t.Context()); !errors.Is(err, adapters.ErrUnavailable) {
		t.Errorf("below a file: %v", err)
	}
	if os.Getuid() == 0 {
		return // root may write anywhere, so the test stops here
	}
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o500); err != nil {
		t.Fatal(err)
	}
	if err := newLocal(t, filepath.Join(dir, "beads.db")).Connect(t.Context()); !errors.Is(err, adapters.ErrUnavailable) {
		t.Errorf("read-only: %v", err)
	}
}

// TestAFullDiskIsATypedErrorAndNothingIsLost fills a small file system.
func TestAFullDiskIsATypedErrorAndNothingIsLost(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to mount a small tmpfs")
	}
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("needs root that may mount: %v", err)
	}
	defer func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	l := newLocal(t, filepath.Join(dir, "beads.db"))
	if err := l.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 200<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	var made []string
	var full error
	for range 1000 {
		b, err := l.CreateEpic(t.Context(), adapters.NewBead{Title: "x", Description: strings.Repeat("y", 8<<10)})
		if err != nil {
			full = err
			break
		}
		made = append(made, b.ID)
	}
	if !errors.Is(full, adapters.ErrUnavailable) || !strings.Contains(full.Error(), "full") {
		t.Fatalf("after %d beads: %v", len(made), full)
	}
	for _, id := range made {
		if _, err := l.Show(t.Context(), id); err != nil {
			t.Fatalf("lost %s: %v", id, err)
		}
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	if _, err := l.CreateEpic(t.Context(), adapters.NewBead{Title: "room again"}); err != nil {
		t.Errorf("with room again: %v", err)
	}
	if err := l.Disconnect(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestAWriterOfAnotherProcessIsWaitedForWithinTheDeadline(t *testing.T) {
	path := filepath.Join(t.TempDir(), "beads.db")
	l := newLocal(t, path)
	if err := l.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer l.Disconnect(context.Background())
	other, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	conn, err := other.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.ExecContext(t.Context(), "BEGIN IMMEDIATE"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := l.CreateEpic(ctx, adapters.NewBead{Title: "x"}); !errors.Is(err, adapters.ErrTimeout) {
		t.Errorf("held: %v", err)
	}
	done := make(chan error)
	go func() { _, err := l.CreateEpic(t.Context(), adapters.NewBead{Title: "x"}); done <- err }()
	if _, err := conn.ExecContext(t.Context(), "COMMIT"); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Errorf("released: %v", err)
	}
}

func FuzzImport(f *testing.F) {
	f.Add(`{"id":"a","title":"x","status":"open","created_at":"2026-01-02T03:04:05Z","updated_at":"2026-01-02T03:04:05Z"}`)
	f.Add(`{"id":"a.1","title":"x","status":"closed","dependencies":[{"depends_on_id":"a.1","type":"parent-child"}],"created_at":"2026-01-02T03:04:05Z","updated_at":"2026-01-02T03:04:05Z"}`)
	l := newLocal(f, filepath.Join(f.TempDir(), "b.db"))
	if err := l.Connect(context.Background()); err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = l.Disconnect(context.Background()) })
	f.Fuzz(func(t *testing.T, file string) {
		_, err := l.Import(t.Context(), strings.NewReader(file), adapters.ImportOpt{DryRun: true})
		switch adapters.CodeOf(err) {
		case "", adapters.CodeValidation, adapters.CodeNotFound, adapters.CodeDependencyCycle, adapters.CodePayloadTooLarge:
		default:
			t.Fatalf("%v", err)
		}
		if err := l.Export(t.Context(), io.Discard); err != nil {
			t.Fatal(err)
		}
	})
}

func benchBeads(b *testing.B) adapters.Beads {
	l := newLocal(b, filepath.Join(b.TempDir(), "beads.db"))
	if err := l.Connect(b.Context()); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = l.Disconnect(context.Background()) })
	return adapters.WrapBeads(l, nil)
}

func BenchmarkCreateClaimClose(b *testing.B) {
	w := benchBeads(b)
	for b.Loop() {
		x, err := w.CreateEpic(b.Context(), adapters.NewBead{Title: "x"})
		if err == nil {
			_, err = w.Claim(b.Context(), x.ID, "a")
		}
		if err == nil {
			_, err = w.Close(b.Context(), x.ID, "")
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkGetReady queries a store of 5,000 beads, of which a tenth are blocked.
func BenchmarkGetReady(b *testing.B) {
	w := benchBeads(b)
	var file strings.Builder
	for i := range 5000 {
		deps := ""
		if i%10 == 9 {
			deps = fmt.Sprintf(`,"dependencies":[{"issue_id":"x-%d","depends_on_id":"x-%d","type":"blocks"}]`, i, i-1)
		}
		fmt.Fprintf(&file, `{"id":"x-%d","title":"t","status":"open","priority":%d,"created_at":"2026-01-02T03:04:05Z","updated_at":"2026-01-02T03:04:05Z"%s}`+"\n", i, i%5, deps)
	}
	if _, err := w.Import(b.Context(), strings.NewReader(file.String()), adapters.ImportOpt{}); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if page, err := w.GetReady(b.Context(), adapters.ReadyFilter{}); err != nil || len(page.Items) != 100 {
			b.Fatal(len(page.Items), err)
		}
	}
}

// Another program of our user can write larger beads than the slot takes. Pages of them are short, and
// together complete.
func TestPagesAreBoundedInBytes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "beads.db")
	l := newLocal(t, path)
	if err := l.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer l.Disconnect(context.Background())
	const beads = 10
	for range beads {
		if _, err := l.CreateEpic(t.Context(), adapters.NewBead{Title: "x"}); err != nil {
			t.Fatal(err)
		}
	}
	other, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if _, err := other.ExecContext(t.Context(), "UPDATE beads SET description = printf('%.*c', 4 << 20, 'x')"); err != nil {
		t.Fatal(err)
	}
	var f adapters.BeadFilter
	seen := map[string]bool{}
	for {
		page, err := l.List(t.Context(), f)
		if err != nil {
			t.Fatal(err)
		}
		if n := len(page.Items); n == 0 || n > max(1, maxPageBytes/(4<<20)) {
			t.Fatalf("a page of %d beads", n)
		}
		for _, b := range page.Items {
			seen[b.ID] = true
		}
		if page.NextCursor == "" {
			break
		}
		f.Cursor = string(page.NextCursor)
	}
	if len(seen) != beads {
		t.Errorf("%d beads of %d were listed", len(seen), beads)
	}
}
