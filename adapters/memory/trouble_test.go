package memory

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// onceFailing is a backend whose first maintenance fails.
type onceFailing struct {
	backend
	rounds int
}

func (*onceFailing) now() time.Time { return time.Now() }

func (o *onceFailing) maintain(context.Context, int64) error {
	o.rounds++
	if o.rounds == 1 {
		return adapters.Errorf(adapters.CodeTimeout, "the deadline passed")
	}
	return nil
}

// TestMaintenanceAfterAFailure: a failed round makes the slot degraded, so the next one comes soon.
func TestMaintenanceAfterAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &onceFailing{}
		s := &session{backend: o, ended: make(chan struct{})}
		s.ctx, s.stop = context.WithCancel(t.Context())
		go s.maintain()
		synctest.Wait()
		if s.trouble.Load() == nil {
			t.Fatal("the failure went unnoticed")
		}
		time.Sleep(maintainAgain + 1)
		synctest.Wait()
		if e := s.trouble.Load(); e != nil || o.rounds != 2 {
			t.Errorf("after %d rounds: %v", o.rounds, e)
		}
		time.Sleep(maintainAgain + 1)
		synctest.Wait()
		if o.rounds != 2 {
			t.Errorf("%d rounds, although the second succeeded", o.rounds)
		}
		s.stop()
		<-s.ended
	})
}

// TestWhyPostgresIsAway: an operator is told why, and the password and stored data are not repeated.
func TestWhyPostgresIsAway(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	_, err = pgx.Connect(t.Context(), "postgres://someone:geheim@"+address+"/db") // with TLS and without
	said := asPostgres(err).Error()
	if !strings.Contains(said, address) || strings.Count(said, "connection refused") != 1 || strings.Contains(said, "geheim") || strings.Contains(said, "someone") || strings.Contains(said, "\n") {
		t.Errorf("no server listens: %s", said)
	}
	// A server of another protocol: the error quotes the type of its message, here ESC.
	hostile, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer hostile.Close()
	go func() {
		if c, err := hostile.Accept(); err == nil {
			// A close with unread bytes would reset the connection, and the client might not read the answer.
			var size [4]byte
			if _, err := io.ReadFull(c, size[:]); err == nil {
				_, _ = io.CopyN(io.Discard, c, int64(binary.BigEndian.Uint32(size[:]))-4)
			}
			_, _ = c.Write([]byte{'\x1b', 0, 0, 0, 4})
			c.Close()
		}
	}()
	_, err = pgx.Connect(t.Context(), "postgres://someone:geheim@"+hostile.Addr().String()+"/db?sslmode=disable")
	for _, err := range []error{err, &pgconn.PgError{Code: "\x1b[31m" + strings.Repeat("9", 1000)}} {
		if said := asPostgres(err).Error(); strings.ContainsAny(said, "\x1b\n") || len(said) > 700 {
			t.Errorf("a hostile server: %q", said)
		}
	}
	for code, want := range map[string]string{
		"25006": "read-only", "53100": "disk", "3F000": "search_path", "57P01": "an administrator has ended the connection",
	} {
		if said = asPostgres(&pgconn.PgError{Code: code}).Error(); !strings.Contains(said, code+": ") || !strings.Contains(said, want) {
			t.Errorf("%s: %s", code, said)
		}
	}
	said = asPostgres(&pgconn.PgError{Code: "28P01", Message: "for user someone"}).Error()
	if !strings.Contains(said, "28P01: the password") || strings.Contains(said, "someone") {
		t.Errorf("a wrong password: %s", said)
	}
	if said = asPostgres(errors.New("geheim")).Error(); strings.Contains(said, "geheim") {
		t.Errorf("any other error: %s", said)
	}
}
