package bootstrap

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
)

// maxRecord bounds what is read of a boot's record. A thousand programs need
// about 300 KiB.
const maxRecord = 16 << 20

// recordFile is where the record of a boot is kept for the boots after it: in an
// agentbox below the workspace, which outlives the container, otherwise in the
// runtime directory.
func (b *Boot) recordFile() string {
	dir := b.cfg.Roots.Runtime
	if b.agentbox() {
		dir = b.cfg.Roots.Workspace
	}
	return filepath.Join(dir, "boot.json")
}

// previousRecordFile is the record of the boot before the one in recordFile.
func (b *Boot) previousRecordFile() string { return b.recordFile() + ".previous" }

// KeepRecord writes the record of this boot and keeps that of the boot before. It
// is called once, when the boot is over. Without a writable directory this boot
// leaves no record.
func (b *Boot) KeepRecord(record []byte) {
	err := b.keepRecord(record)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.recorded, b.recordErr = true, err
}

func (b *Boot) keepRecord(record []byte) error {
	if err := b.policy.Remove(b.previousRecordFile()); err != nil {
		return err
	}
	if err := b.policy.Rename(b.recordFile(), b.previousRecordFile()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := b.policy.MkdirAll(filepath.Dir(b.recordFile()), 0o755); err != nil {
		return err
	}
	return b.policy.WriteFile(b.recordFile(), record, 0o644)
}

// PreviousRecord is the record of the boot before this one. The error says why
// there is none.
func (b *Boot) PreviousRecord() ([]byte, error) {
	b.mu.Lock()
	recorded, kept := b.recorded, b.recordErr
	b.mu.Unlock()
	file := b.recordFile()
	if recorded && kept == nil {
		file = b.previousRecordFile()
	}
	record, _, err := b.policy.ReadFile(file, maxRecord)
	switch {
	case errors.Is(err, fs.ErrNotExist) && kept != nil:
		return nil, fmt.Errorf("no boot before this one is recorded, and this one could not be: %w", kept)
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("no boot before this one is recorded in %s", file)
	case err != nil:
		return nil, fmt.Errorf("cannot read the record of the boot before: %w", err)
	}
	return record, nil
}
