package memory

import (
	"context"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// Backup writes a consistent copy of the file of class local to path, which must not exist. Class
// external has no file here: its database has its own backups.
func (m *Memory) Backup(ctx context.Context, path string) error {
	_, err := with(ctx, m, func(ctx context.Context, s *session) (struct{}, error) {
		f, ok := s.backend.(*file)
		if !ok {
			return struct{}{}, adapters.Unsupported("backup", "%s keeps no entries in this box", m.impl)
		}
		return struct{}{}, f.db.Backup(ctx, path)
	})
	return err
}
