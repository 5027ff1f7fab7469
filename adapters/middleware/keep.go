package middleware

import (
	"context"
	"crypto/rand"
	"database/sql"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/sqlite"
)

// keeperID marks agentinit's own file: "abk1" in PRAGMA application_id.
const keeperID = 0x61626b31

// keepLimit bounds a write after a call, because the call's own context may have ended.
const keepLimit = 5 * time.Second

// keeper is the file behind replays: one row per idempotency key. Its writes are not synced at once,
// because the slots themselves store what must not be lost. A kill loses no rows; a loss of power
// may lose the newest answers.
type keeper struct{ db *sqlite.DB }

func keeperSchema() []string {
	return []string{`
CREATE TABLE answers (
	no      INTEGER PRIMARY KEY, -- order of the calls
	key     BLOB NOT NULL UNIQUE,
	request BLOB NOT NULL,
	at      INTEGER NOT NULL, -- ms since 1970
	answer  BLOB -- NULL until the call has had its effect
) STRICT;
CREATE TABLE secret (one INTEGER PRIMARY KEY CHECK (one = 1), value BLOB NOT NULL) STRICT;
`}
}

// openKeeper opens or creates the file and reads its keys, without the answers.
func openKeeper(ctx context.Context, path string) (k *keeper, secret []byte, old []*replay, err error) {
	db, err := sqlite.Open(ctx, sqlite.Options{Path: path, AppID: keeperID, Migrations: keeperSchema(), Relaxed: true, MaxValue: maxReplayed + 1<<20})
	if err != nil {
		return nil, nil, nil, err
	}
	fresh := make([]byte, 32)
	// crypto/rand.Read never fails: it ends the process instead.
	_, _ = rand.Read(fresh)
	err = db.Write(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, "INSERT INTO secret VALUES (1, ?) ON CONFLICT DO NOTHING", fresh); err != nil {
			return err
		}
		if err := tx.QueryRowContext(ctx, "SELECT value FROM secret").Scan(&secret); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "DELETE FROM answers WHERE at <= ?", time.Now().Add(-adapters.IdempotencyLife).UnixMilli()); err != nil {
			return err
		}
		// Another program of this user can have added rows without end; all that is read here stays in
		// memory.
		if _, err := tx.ExecContext(ctx, `DELETE FROM answers WHERE length(key) <> 32 OR length(request) <> 32
			OR no <= (SELECT no FROM answers ORDER BY no DESC LIMIT 1 OFFSET ?)`, maxReplays); err != nil {
			return err
		}
		old, err = readReplays(ctx, tx)
		return err
	})
	if err != nil {
		// The file cannot be used, so an error of the close does not matter.
		_ = db.Close()
		return nil, nil, nil, err
	}
	return &keeper{db}, secret, old, nil
}

func readReplays(ctx context.Context, tx *sql.Tx) ([]*replay, error) {
	return sqlite.All(ctx, tx, func(r *sql.Rows) (*replay, error) {
		var key, request []byte
		var at int64
		one := &replay{state: replayDone}
		err := r.Scan(&key, &request, &at, &one.size)
		copy(one.key[:], key)
		copy(one.request[:], request)
		one.at = time.UnixMilli(at)
		if one.size < 0 {
			one.size, one.state = 0, replayDoubt
		}
		return one, err
	}, "SELECT key, request, at, coalesce(length(answer), -1) FROM answers ORDER BY no")
}

func (k *keeper) begin(ctx context.Context, key, request [32]byte, dropped [][32]byte) error {
	return k.db.Write(ctx, func(tx *sql.Tx) error {
		if err := deleteReplays(ctx, tx, dropped); err != nil {
			return err
		}
		// There may be an old row: of a key in doubt, or of a failed call when the disk was full.
		_, err := tx.ExecContext(ctx, `INSERT INTO answers(key, request, at) VALUES(?, ?, ?)
			ON CONFLICT(key) DO UPDATE SET request = excluded.request, answer = NULL`, key[:], request[:], time.Now().UnixMilli())
		return err
	})
}

func (k *keeper) finish(ctx context.Context, key, request [32]byte, answer []byte, dropped [][32]byte) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), keepLimit)
	defer cancel()
	return k.db.Write(ctx, func(tx *sql.Tx) error {
		if err := deleteReplays(ctx, tx, dropped); err != nil {
			return err
		}
		// The row may be missing: another call can have dropped the earlier row of this key while
		// this call started again.
		_, err := tx.ExecContext(ctx, `INSERT INTO answers(key, request, at, answer) VALUES(?, ?, ?, ?)
			ON CONFLICT(key) DO UPDATE SET answer = excluded.answer`, key[:], request[:], time.Now().UnixMilli(), answer)
		return err
	})
}

func (k *keeper) forget(ctx context.Context, keys ...[32]byte) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), keepLimit)
	defer cancel()
	return k.db.Write(ctx, func(tx *sql.Tx) error { return deleteReplays(ctx, tx, keys) })
}

func deleteReplays(ctx context.Context, tx *sql.Tx, keys [][32]byte) error {
	for _, key := range keys {
		if _, err := tx.ExecContext(ctx, "DELETE FROM answers WHERE key = ?", key[:]); err != nil {
			return err
		}
	}
	return nil
}

func (k *keeper) answer(ctx context.Context, key [32]byte) (answer []byte, err error) {
	err = k.db.Read(ctx, func(tx *sql.Tx) error {
		return tx.QueryRowContext(ctx, "SELECT answer FROM answers WHERE key = ?", key[:]).Scan(&answer)
	})
	if err != nil {
		return nil, adapters.Unavailable(err, "the remembered answer cannot be read")
	}
	return answer, nil
}
