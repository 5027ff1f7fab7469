package bootstrap

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
)

// maxRecord bounds the size of a boot's record. The record of a thousand programs has about 300
// KiB.
const maxRecord = 16 << 20

// recordFile is the file of a boot's record, for later boots. In an agentbox it is below the
// workspace, which survives the container. Otherwise it is in the runtime directory.
func (b *Boot) recordFile() string {
	dir := b.cfg.Roots.Runtime
	if b.agentbox() {
		dir = b.cfg.Roots.Workspace
	}
	return filepath.Join(dir, "boot.json")
}

// previousRecordFile is the file of the record before the one in recordFile.
func (b *Boot) previousRecordFile() string { return b.recordFile() + ".previous" }

// KeepRecord writes the record of this boot and keeps the record of the boot before. It is called
// once, when the boot is over. Without a writable directory, this boot leaves no record.
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
	// Each boot that was killed while it wrote would leave a file in the workspace. One that cannot be
	// removed, or found among very many files, does no harm.
	_ = b.policy.RemoveUnfinished(b.recordFile())
	return b.policy.WriteFile(b.recordFile(), record, 0o644)
}

// PreviousRecord is the record of the boot before this one. If there is none, the error says why.
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
