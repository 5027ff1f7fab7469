package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/bootstrap"
)

// mounted mounts a file system until the test ends.
func mounted(t *testing.T, source, target, kind string, flags uintptr, options string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root to mount")
	}
	if err := syscall.Mount(source, target, kind, flags, options); err != nil {
		t.Skipf("needs root that may mount: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(target, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

var eightKiB = strings.Repeat("y", 8<<10)

// write creates one entry of about 8 KiB in a slot.
func (b *stateBox) write(slot adapters.Slot, n int) (id string, err error) {
	b.t.Helper()
	switch slot {
	case adapters.SlotBeads:
		bead, err := b.slots.Beads().CreateEpic(b.t.Context(), adapters.NewBead{Title: "x", Description: eightKiB})
		return bead.ID, err
	case adapters.SlotMemory:
		key := fmt.Sprint("key-", n)
		_, err := b.slots.Memory().Store(b.t.Context(), key, eightKiB, "notes", adapters.StoreOpt{})
		return key, err
	default:
		r, err := b.slots.Events().Dispatch(b.t.Context(), adapters.Event{Kind: "test.big", Payload: []byte(`{"text":"` + eightKiB + `"}`)})
		return r.ID, err
	}
}

// mustHave fails the test for each entry that the slot does not have.
func (b *stateBox) mustHave(slot adapters.Slot, ids ...string) {
	b.t.Helper()
	var page adapters.Page[adapters.Event]
	if slot == adapters.SlotEvents {
		var err error
		if page, err = b.slots.Events().History(b.t.Context(), adapters.EventFilter{}, adapters.PageOpt{Limit: 1000}); err != nil {
			b.t.Error(err)
		}
	}
	for i, id := range ids {
		found, err := false, error(nil)
		switch slot {
		case adapters.SlotBeads:
			_, err = b.slots.Beads().Show(b.t.Context(), id)
			found = err == nil
		case adapters.SlotMemory:
			var e adapters.MemoryEntry
			e, found, err = b.slots.Memory().Retrieve(b.t.Context(), id, "notes")
			found = found && e.Value == eightKiB
		default:
			found = slices.ContainsFunc(page.Items, func(e adapters.Event) bool { return e.ID == id })
		}
		if !found || err != nil {
			b.t.Errorf("write %d of %d is lost: %v", i, len(ids), err)
		}
	}
}

var localSlots = []adapters.Slot{adapters.SlotBeads, adapters.SlotMemory, adapters.SlotEvents}

// TestFullDisk fills a small disk through each slot. The error has a type, no acknowledged write is
// lost, and reads still work. With free space, writes work again.
func TestFullDisk(t *testing.T) {
	for _, slot := range localSlots {
		t.Run(string(slot), func(t *testing.T) {
			root := t.TempDir()
			mounted(t, "tmpfs", root, "tmpfs", 0, "size=3m")
			b := newStateBox(t, root)
			ballast := filepath.Join(root, "ballast")
			if err := os.WriteFile(ballast, make([]byte, 500<<10), 0o600); err != nil {
				t.Fatal(err)
			}
			var full error
			var made []string
			for n := 0; full == nil && n < 1000; n++ {
				id, err := b.write(slot, n)
				if full = err; err == nil {
					made = append(made, id)
				}
			}
			if e := adapters.AsError(full); e == nil || e.Code != adapters.CodeUnavailable || !e.Retryable || len(made) == 0 {
				t.Fatalf("after %d writes: %v", len(made), full)
			}
			b.mustHave(slot, made...)
			// If the disk cannot store the idempotency key, a call is done or refused with a code.
			r := adapters.WithMeta(t.Context(), adapters.Meta{Actor: "ann", IdempotencyKey: "k"})
			if _, err := b.slots.Events().Dispatch(r, adapters.Event{Kind: "test.keyed"}); err != nil && !errors.Is(err, adapters.ErrUnavailable) {
				t.Errorf("with a key: %v", err)
			}
			if err := os.Remove(ballast); err != nil {
				t.Fatal(err)
			}
			id, err := b.write(slot, 1000)
			if err != nil {
				t.Errorf("with room again: %v", err)
			}
			b.mustHave(slot, id)
			if _, err := b.slots.Events().Dispatch(r, adapters.Event{Kind: "test.keyed"}); err != nil {
				t.Errorf("with a key and room again: %v", err)
			}
		})
	}
}

// TestBackupOnAFullDisk: without space for a copy, the error says so, no part of the copy stays,
// and the slots go on. With space, the backup works.
func TestBackupOnAFullDisk(t *testing.T) {
	root := t.TempDir()
	mounted(t, "tmpfs", root, "tmpfs", 0, "size=16m")
	b := newStateBox(t, root)
	for n := range 40 {
		for _, slot := range localSlots {
			if _, err := b.write(slot, n); err != nil {
				t.Fatal(err)
			}
		}
	}
	var room syscall.Statfs_t
	if err := syscall.Statfs(root, &room); err != nil {
		t.Fatal(err)
	}
	ballast := filepath.Join(root, "ballast")
	if err := os.WriteFile(ballast, make([]byte, int64(room.Bavail)*room.Bsize-(256<<10)), 0o600); err != nil {
		t.Fatal(err)
	}
	got := string(b.do(503, "GET", "/v1/backup", nil))
	if !strings.Contains(got, `"parts":["beads","memory","events"]`) || !strings.Contains(got, "the disk is full") || !strings.Contains(got, "no space left") {
		t.Errorf("%s", got)
	}
	b.noStaging()
	if _, err := b.write(adapters.SlotBeads, 1000); err != nil {
		t.Errorf("afterwards: %v", err)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	if archive := b.backup(""); len(archive) < 3*40*(8<<10) {
		t.Errorf("%d bytes", len(archive))
	}
	b.noStaging()
}

// TestReadOnlyDisk: a slot on a read-only disk does not connect, reports the reason and changes
// nothing. When the disk is writable again, the slot has all its data.
func TestReadOnlyDisk(t *testing.T) {
	root, bound := t.TempDir(), t.TempDir()
	filled := newStateBox(t, root)
	filled.fill(1)
	want := filled.answers()
	for _, slot := range localSlots {
		if err := filled.slots.Degrade(t.Context(), slot, errors.New("by hand")); err != nil {
			t.Fatal(err)
		}
		if err := filled.resolved.Adapter(slot).Disconnect(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	mounted(t, root, bound, "", syscall.MS_BIND, "")
	if err := syscall.Mount("", bound, "", syscall.MS_BIND|syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	m, doc := manifestOf(t, stateManifest)
	roots, err := bootstrap.NewRoots(bound, func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	b := &box{roots: roots, env: map[string]string{}}
	resolved, err := adapters.Resolve(slotsConfig(m, doc), b.slotsTable(m, doc))
	if err != nil {
		t.Fatal(err)
	}
	for _, slot := range localSlots {
		a := resolved.Adapter(slot)
		if err := a.Connect(t.Context()); !errors.Is(err, adapters.ErrUnavailable) {
			t.Errorf("%s: %v", slot, err)
			if err := a.Disconnect(context.Background()); err != nil {
				t.Error(err)
			}
		}
	}
	if err := filled.stack.Close(); err != nil {
		t.Fatal(err)
	}
	if err := newStack(t).Keep(t.Context(), filepath.Join(roots.Workspace, answersFile)); !errors.Is(err, adapters.ErrUnavailable) {
		t.Errorf("the file of keys: %v", err)
	}
	for _, slot := range localSlots {
		if err := filled.slots.Restore(t.Context(), slot); err != nil {
			t.Errorf("%s where it can be written: %v", slot, err)
		}
	}
	if got := filled.answers(); got != want {
		t.Errorf("something changed:\n%s\n%s", want, got)
	}
}
