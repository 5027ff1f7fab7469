package memory

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/internal/foreign"
)

// hostileLimit is the time that a call has if the server does not answer.
const hostileLimit = 150 * time.Millisecond

// A program can write the home directory of agentinit. What it puts there must not keep a box from booting.
func TestHomeOfConninfo(t *testing.T) {
	home := t.TempDir()
	if err := foreign.HostileHome(home); err != nil {
		t.Fatal(err)
	}
	t.Setenv("HOME", home)
	for _, text := range []string{"host=127.0.0.1 sslmode=verify-full", "postgres://127.0.0.1/x?sslmode=verify-full"} {
		if _, err := makePostgres(t.Context(), PostgresConfig{Conninfo: text, Embedder: hashV1{}}); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// A file that the connection string names does not answer. The boot goes on, and the slot waits for the
// file.
func TestFileOfConninfoDoesNotAnswer(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "root.pem")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	m, err := makePostgres(ended, PostgresConfig{Conninfo: "host=127.0.0.1 sslmode=verify-full sslrootcert=" + fifo, Embedder: hashV1{}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.open(ended, m); adapters.CodeOf(err) != adapters.CodeUnavailable || !strings.Contains(err.Error(), "does not answer") {
		t.Errorf("while the file does not answer: %v", err)
	}
	if err := os.WriteFile(fifo, []byte("no certificate"), 0); err != nil { // waits for the reader
		t.Fatal(err)
	}
	if _, err := m.open(t.Context(), m); adapters.CodeOf(err) != adapters.CodeUnavailable || !strings.Contains(err.Error(), "is not a PostgreSQL connection string") {
		t.Errorf("when the file is read: %v", err)
	}
}

// memoryCalls are all methods of the slot, for a memory that has "here" in namespace "n".
var memoryCalls = []struct {
	name string
	call func(context.Context, adapters.Memory) error
}{
	{"store", func(ctx context.Context, m adapters.Memory) error {
		_, err := m.Store(ctx, "here", "a value", "n", adapters.StoreOpt{})
		return err
	}},
	{"retrieve", func(ctx context.Context, m adapters.Memory) error {
		_, _, err := m.Retrieve(ctx, "here", "n")
		return err
	}},
	{"search", func(ctx context.Context, m adapters.Memory) error {
		_, err := m.Search(ctx, "value", adapters.SearchOpt{Namespace: "n"})
		return err
	}},
	{"search by text", func(ctx context.Context, m adapters.Memory) error {
		_, err := m.Search(ctx, "value", adapters.SearchOpt{Namespace: "n", Mode: adapters.ModeText})
		return err
	}},
	{"del", func(ctx context.Context, m adapters.Memory) error {
		_, err := m.Del(ctx, "elsewhere", "n")
		return err
	}},
	{"list", func(ctx context.Context, m adapters.Memory) error {
		_, err := m.List(ctx, "n", adapters.PageOpt{})
		return err
	}},
	{"namespaces", func(ctx context.Context, m adapters.Memory) error {
		_, err := m.Namespaces(ctx)
		return err
	}},
}

// within runs a call that must return before the limit.
func within(t *testing.T, what string, limit time.Duration, call func(context.Context) error) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- call(ctx) }()
	select {
	case err := <-done:
		return err
	case <-time.After(2 * startLimit):
		t.Fatalf("%s hangs", what)
		return nil
	}
}

// If a server misbehaves during a call, that call fails with an error that says what to do. Later
// calls work.
func TestPostgresMisbehaves(t *testing.T) {
	const gone, late = adapters.CodeUnavailable, adapters.CodeTimeout
	for name, c := range map[string]struct {
		mode misbehaviour
		want []adapters.Code
	}{
		"silent":          {silent, []adapters.Code{late}},
		"slow":            {slow, []adapters.Code{late}},
		"half-closed":     {halfClosed, []adapters.Code{gone}},
		"cut off":         {cutOff, []adapters.Code{gone}},
		"reset":           {reset, []adapters.Code{gone}},
		"HTTP":            {says([]byte("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")), []adapters.Code{gone}},
		"garbage":         {says(bytes.Repeat([]byte{0xff}, 999)), []adapters.Code{gone}},
		"zeros":           {says(make([]byte, 999)), []adapters.Code{gone}},
		"an error of '?'": {says([]byte("E\x00\x00\x00\x05\x00")), []adapters.Code{gone, late}},
		"endless":         {endless, []adapters.Code{gone, late}},
		"endless notices": {endlessNotices, []adapters.Code{gone, late}},
		"a huge message":  {forever([]byte{'D', 0x3f, 0xff, 0xff, 0xf0}), []adapters.Code{gone}},
	} {
		t.Run(name, func(t *testing.T) {
			m, p, direct := proxied(t)
			limit := startLimit // a lost connection is noticed at once, even on a slow machine
			if slices.Contains(c.want, late) {
				limit = hostileLimit
			}
			for _, one := range memoryCalls {
				p.misbehave(c.mode)
				err := within(t, one.name, limit, func(ctx context.Context) error { return one.call(ctx, m) })
				if e, ok := errors.AsType[*adapters.Error](err); !ok || !slices.Contains(c.want, e.Code) {
					t.Errorf("%s: %v, want one of %v", one.name, err, c.want)
				}
				p.heal()
				if err := within(t, one.name, startLimit, func(ctx context.Context) error { return one.call(ctx, m) }); err != nil {
					t.Errorf("%s over a good connection: %v", one.name, err)
				}
			}
			p.misbehave(c.mode)
			if h := health(t, m, limit); h.State != adapters.StateUnhealthy || !slices.ContainsFunc(c.want, func(code adapters.Code) bool {
				return strings.Contains(h.Message, string(code))
			}) {
				t.Errorf("health: %+v, want one of %v", h, c.want)
			}
			p.heal()
			if h := health(t, m, startLimit); h.State == adapters.StateUnhealthy {
				t.Errorf("health over a good connection: %+v", h)
			}
			if n := count(t, direct); n != 1 {
				t.Errorf("%d entries instead of one", n)
			}
			connectsDespite(t, p, direct, c.mode, limit, c.want)
		})
	}
}

// connectsDespite connects while the proxy misbehaves: Connect fails with one of the codes. The
// next Connect works.
func connectsDespite(t *testing.T, p *proxy, direct string, mode misbehaviour, limit time.Duration, codes []adapters.Code) {
	t.Helper()
	m := newPostgres(t, PostgresConfig{Conninfo: p.conninfo(direct)})
	p.misbehave(mode)
	err := within(t, "connect", limit, m.Connect)
	if !slices.Contains(codes, adapters.CodeOf(err)) {
		t.Errorf("connect: %v, want one of %v", err, codes)
	}
	p.heal()
	if err := within(t, "connect", startLimit, m.Connect); err != nil {
		t.Errorf("connect over a good connection: %v", err)
	}
	if err := within(t, "disconnect", startLimit, m.Disconnect); err != nil {
		t.Errorf("disconnect: %v", err)
	}
}

func health(t *testing.T, m adapters.Memory, limit time.Duration) (h adapters.Health) {
	t.Helper()
	if err := within(t, "health", limit, func(ctx context.Context) error { h = m.Health(ctx); return nil }); err != nil {
		t.Fatal(err)
	}
	return h
}

// proxied returns an adapter that is connected through a proxy and has one entry, the proxy, and
// the direct address of the server.
func proxied(t *testing.T) (adapters.Memory, *proxy, string) {
	t.Helper()
	direct := realPostgres(t)
	p := newProxy(t, direct)
	w := adapters.WrapMemory(newPostgres(t, PostgresConfig{Conninfo: p.conninfo(direct)}), nil)
	if err := within(t, "connect", startLimit, w.Connect); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), startLimit)
		defer cancel()
		if err := w.Disconnect(ctx); err != nil {
			t.Errorf("disconnect: %v", err)
		}
	})
	if _, err := w.Store(t.Context(), "here", "a value", "n", adapters.StoreOpt{}); err != nil {
		t.Fatal(err)
	}
	return w, p, direct
}

// After many calls at once that all time out, the pool is still usable.
func TestPostgresSilentForEverybody(t *testing.T) {
	m, p, _ := proxied(t)
	p.misbehave(silent)
	errs := make(chan error)
	for range 4 * poolLimit {
		go func() {
			ctx, cancel := context.WithTimeout(t.Context(), hostileLimit)
			defer cancel()
			_, _, err := m.Retrieve(ctx, "here", "n")
			errs <- err
		}()
	}
	for range 4 * poolLimit {
		if err := <-errs; !errors.Is(err, adapters.ErrTimeout) {
			t.Errorf("%v, want ADAPTER_TIMEOUT", err)
		}
	}
	p.heal()
	for range 4 * poolLimit {
		if err := within(t, "retrieve", startLimit, func(ctx context.Context) error {
			_, ok, err := m.Retrieve(ctx, "here", "n")
			if err == nil && !ok {
				return errors.New("the entry is gone")
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// If the answer to a write is lost, the write may have happened. Repeating it does no harm.
func TestPostgresAnswerOfCommitIsLost(t *testing.T) {
	m, p, direct := proxied(t)
	p.misbehave(func(_ *proxy, client *net.TCPConn, piece []byte) bool {
		if bytes.Contains(piece, []byte("COMMIT\x00")) {
			return false
		}
		return say(client, piece)
	})
	store := func(ctx context.Context) (adapters.Stored, error) {
		return m.Store(ctx, "once", "a second value", "n", adapters.StoreOpt{})
	}
	if _, err := store(t.Context()); !errors.Is(err, adapters.ErrUnavailable) || !adapters.AsError(err).Retryable {
		t.Errorf("the commit's answer is lost: %v, want UNAVAILABLE to be tried again", err)
	}
	if n := count(t, direct); n != 2 {
		t.Fatalf("%d entries, the write was to have happened", n)
	}
	p.misbehave(nil)
	if s, err := store(t.Context()); err != nil || s.Created {
		t.Errorf("repeated: %+v, %v", s, err)
	}
	if n := count(t, direct); n != 2 {
		t.Errorf("%d entries after the repetition", n)
	}
	hits, err := m.Search(t.Context(), "second", adapters.SearchOpt{Namespace: "n", Mode: adapters.ModeText})
	if err != nil || len(hits) != 1 || hits[0].Key != "once" {
		t.Errorf("found %v, %v", hits, err)
	}
	if n := asked[int](t, direct, "SELECT entries FROM memory_spaces WHERE name = 'n'"); n != 2 {
		t.Errorf("the namespace counts %d entries", n)
	}
}

// If another program changes the schema, calls return an error with a code. They work again when
// the change is undone.
func TestPostgresSchemaChangesBeneath(t *testing.T) {
	for name, c := range map[string]struct {
		do, undo string
		health   adapters.Code
		calls    adapters.Code // "" = they work
	}{
		"newer version":    {"UPDATE memory_meta SET value = '99' WHERE name = 'schema_version'", "UPDATE memory_meta SET value = '1' WHERE name = 'schema_version'", adapters.CodeContractMismatch, ""},
		"negative version": {"UPDATE memory_meta SET value = '-1' WHERE name = 'schema_version'", "UPDATE memory_meta SET value = '1' WHERE name = 'schema_version'", adapters.CodeContractMismatch, ""},
		"odd version":      {"UPDATE memory_meta SET value = 'x' WHERE name = 'schema_version'", "UPDATE memory_meta SET value = '1' WHERE name = 'schema_version'", adapters.CodeContractMismatch, ""},
		"no version":       {"DELETE FROM memory_meta WHERE name = 'schema_version'", "INSERT INTO memory_meta VALUES ('schema_version', '1')", adapters.CodeContractMismatch, ""},
		"no meta":          {"ALTER TABLE memory_meta RENAME TO gone", "ALTER TABLE gone RENAME TO memory_meta", adapters.CodeUnavailable, ""},
		"no entries":       {"ALTER TABLE memory_entries RENAME TO gone", "ALTER TABLE gone RENAME TO memory_entries", adapters.CodeUnavailable, adapters.CodeUnavailable},
		"a column is gone": {"ALTER TABLE memory_entries RENAME value TO gone", "ALTER TABLE memory_entries RENAME gone TO value", "", adapters.CodeUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			m, _, direct := proxied(t)
			retrieve := func(ctx context.Context) error {
				_, _, err := m.Retrieve(ctx, "here", "n")
				return err
			}
			statements(t, direct, c.do)
			if err := within(t, "retrieve", startLimit, retrieve); adapters.CodeOf(err) != c.calls {
				t.Errorf("retrieve: %v, want %q", err, c.calls)
			}
			bad := adapters.StateUnhealthy
			if c.health == adapters.CodeContractMismatch {
				bad = adapters.StateDegraded
			}
			if h := health(t, m, startLimit); (h.State == bad) != (c.health != "") || !strings.Contains(h.Message, string(c.health)) {
				t.Errorf("health: %+v, want %q", h, c.health)
			}
			statements(t, direct, c.undo)
			if err := within(t, "retrieve", startLimit, retrieve); err != nil {
				t.Errorf("retrieve once it is undone: %v", err)
			}
			if h := health(t, m, startLimit); h.State == adapters.StateUnhealthy {
				t.Errorf("health once it is undone: %+v", h)
			}
		})
	}
}

// Answers within the limits pass, and larger answers are refused.
func TestPostgresAnswersAreBounded(t *testing.T) {
	row := func(n int) []byte { // a DataRow of n bytes of body
		b, err := (&pgproto3.DataRow{Values: [][]byte{make([]byte, n-6)}}).Encode(nil)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	const message, answer = 100, 1000
	for name, c := range map[string]struct {
		sizes []int
		fails bool
	}{
		"a message of the limit":  {[]int{message}, false},
		"a message above it":      {[]int{message + 1}, true},
		"an answer of the limit":  {slices.Repeat([]int{95}, 10), false},
		"an answer far above it":  {slices.Repeat([]int{95}, 2000), true},
		"the limit once, and yet": {append(slices.Repeat([]int{95}, 10), -1, 95, 95), false},
	} {
		var in bytes.Buffer
		for _, n := range c.sizes {
			if n > 0 {
				in.Write(row(n))
			}
		}
		f := boundedFrontend(message, answer)(iotest.OneByteReader(&in), io.Discard)
		var err error
		for _, n := range c.sizes {
			if n < 0 { // a new request
				f.Send(&pgproto3.Sync{})
				err = f.Flush()
			} else {
				_, err = f.Receive()
			}
			if err != nil {
				break
			}
		}
		if (err != nil) != c.fails {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Through the adapter, an answer that is too large is an error with a code.
	if e := adapters.AsError(asPostgres(fmt.Errorf("receive: %w", readTooMuch()))); e.Code != adapters.CodeUnavailable || e.Retryable {
		t.Errorf("too large an answer is %v", e)
	}
}

func readTooMuch() error {
	b := &bounded{r: strings.NewReader("xxx"), limit: 1}
	_, err := io.ReadAll(b)
	return err
}

// endlessNotices sends valid messages that never answer the request.
func endlessNotices(p *proxy, client *net.TCPConn, _ []byte) bool {
	return forever(bytes.Repeat([]byte("N\x00\x00\x00\x08SN\x00\x00"), 1000))(p, client, nil)
}
