package bootstrap

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Each boot finds the record of the boot before it, both before and after it writes its own record.
// The first boot finds none.
func TestRecordOfTheBootBefore(t *testing.T) {
	first := newSealRig(t, "stay", nil).boot
	roots := first.cfg.Roots
	if _, err := first.PreviousRecord(); err == nil || !strings.Contains(err.Error(), "no boot before this one is recorded in ") {
		t.Errorf("the first boot found %v", err)
	}
	first.KeepRecord([]byte("one"))
	if _, err := first.PreviousRecord(); err == nil {
		t.Error("the first boot takes its own record for that of the boot before")
	}
	for _, boot := range []struct{ record, before string }{{"two", "one"}, {"three", "two"}} {
		b := newSealRig(t, "stay", nil).boot
		b.cfg.Roots, b.policy = roots, first.policy
		for _, when := range []string{"before", "after"} {
			if got, err := b.PreviousRecord(); err != nil || string(got) != boot.before {
				t.Errorf("boot %s found %q, %v %s it left its own; want %q", boot.record, got, err, when, boot.before)
			}
			if when == "before" {
				b.KeepRecord([]byte(boot.record))
			}
		}
	}
}

// A boot that was killed while it wrote its record leaves a file, which the next boot removes. Files with
// other names are not agentinit's.
func TestUnfinishedRecordsAreRemoved(t *testing.T) {
	b := newSealRig(t, "stay", nil).boot
	stays := []string{"boot.json.tmp-mine", "boot.json.tmp-0123456789abcd", "boot.json.tmp-", "other.json.tmp-0123456789ab", "boot.json.bak"}
	goes := []string{"boot.json.tmp-0123456789ab", "boot.json.tmp-ffffffffffff"}
	dir := filepath.Dir(b.recordFile())
	for _, name := range append(goes, stays...) {
		write(t, filepath.Join(dir, name), "half", 0o600)
	}
	b.KeepRecord([]byte("one"))
	for _, name := range goes {
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
			t.Errorf("%s is still there", name)
		}
	}
	for _, name := range append(stays, "boot.json") {
		if _, err := os.Lstat(filepath.Join(dir, name)); err != nil {
			t.Errorf("%s is gone", name)
		}
	}
}

// If a boot cannot write its record, recordErr is set, and PreviousRecord returns an error.
func TestRecordCannotBeKept(t *testing.T) {
	b := newSealRig(t, "stay", nil).boot
	if err := os.MkdirAll(filepath.Dir(b.cfg.Roots.Runtime), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(b.cfg.Roots.Runtime, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	b.KeepRecord([]byte("one"))
	if _, err := b.PreviousRecord(); err == nil {
		t.Error("a record was found below a file")
	}
	if b.recordErr == nil {
		t.Error("the record was kept below a file")
	}
}
