package wire

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
)

func put(body io.Reader, size int64) Request {
	return Request{Method: http.MethodPut, Path: "/x", ContentType: "a/b", Upload: body, UploadSize: size}
}

func TestUploadsAreStreamedAndHeldToTheirSize(t *testing.T) {
	var got atomic.Value
	c := real(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err == nil {
			got.Store(string(body) + " " + r.Header.Get("Expect"))
		}
	}))
	if _, err := c.Do(t.Context(), put(strings.NewReader("hello"), 5)); err != nil || got.Load() != "hello 100-continue" {
		t.Errorf("known size: %v, %v", got.Load(), err)
	}
	if _, err := c.Do(t.Context(), put(strings.NewReader("hi"), -1)); err != nil || got.Load() != "hi 100-continue" {
		t.Errorf("unknown size: %v, %v", got.Load(), err)
	}
	got.Store("nothing")
	for name, r := range map[string]Request{
		"shorter": put(strings.NewReader("hello"), 6), "longer": put(strings.NewReader("hello"), 4), "broken": put(io.MultiReader(strings.NewReader("he"), failing{errors.New("disk")}), -1),
	} {
		if _, err := c.Do(t.Context(), r); adapters.CodeOf(err) != adapters.CodeValidation {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := c.Do(t.Context(), put(failing{adapters.TooLarge("body", 1, 2)}, -1)); !errors.Is(err, adapters.ErrPayloadTooLarge) {
		t.Errorf("an error with a code: %v", err)
	}
	if got.Load() != "nothing" {
		t.Errorf("a body that failed was taken for whole: %v", got.Load())
	}
	if _, err := c.Do(t.Context(), Request{Method: http.MethodGet, Path: "/x"}); err != nil {
		t.Errorf("the callers' own failures opened the breaker: %v", err)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// An answer may come before the body was read; nothing of the body is touched
// once the caller has it.
func TestUploadIsLeftAloneAfterTheCall(t *testing.T) {
	reads := make(chan io.Reader, 1)
	c := client(t, peer(func(r *http.Request) (*http.Response, error) {
		reads <- r.Body
		return answer(r, http.StatusRequestEntityTooLarge, "text/plain", "no"), nil
	}), nil)
	body := bytes.NewReader([]byte("hello"))
	if _, err := c.Do(t.Context(), put(body, 5)); !errors.Is(err, adapters.ErrPayloadTooLarge) {
		t.Fatal(err)
	}
	if n, err := (<-reads).Read(make([]byte, 5)); n != 0 || err == nil || body.Len() != 5 {
		t.Errorf("%d bytes were read later, %v", n, err)
	}
}

func TestUploadsAreNotRepeated(t *testing.T) {
	calls := 0
	c := client(t, peer(func(r *http.Request) (*http.Response, error) {
		calls++
		return answer(r, http.StatusServiceUnavailable, "text/plain", ""), nil
	}), nil)
	r := put(strings.NewReader("x"), 1)
	r.Keyed = true
	if _, err := c.Do(t.Context(), r); !errors.Is(err, adapters.ErrUnavailable) || calls != 1 {
		t.Errorf("%d calls, %v", calls, err)
	}
}

// Once the body is out, the peer has the time of any write to answer.
// A peer may want another signature, for example in its first second. If it has not asked for the body, the body is still whole.
func TestUploadIsSignedAgain(t *testing.T) {
	for _, reads := range []bool{false, true} {
		var got []string
		c := real(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body := []byte("unread")
			if reads || len(got) > 0 {
				body, _ = io.ReadAll(r.Body)
			}
			if got = append(got, string(body)); len(got) == 1 {
				w.Header().Set("Content-Type", adapters.ProblemType)
				w.WriteHeader(http.StatusUnauthorized)
				_, _ = io.WriteString(w, `{"code":"UNAUTHENTICATED","status":401,"retryable":true}`)
			}
		}))
		_, err := c.Do(t.Context(), put(strings.NewReader("hello"), 5))
		if want := []string{"unread", "hello"}; !reads && (err != nil || !slices.Equal(got, want)) {
			t.Errorf("the peer got %q, want %q: %v", got, want, err)
		}
		if reads && (adapters.CodeOf(err) != adapters.CodeUnauthenticated || len(got) != 1) {
			t.Errorf("a body that was read was sent again: %q, %v", got, err)
		}
	}
}

func TestUploadWithoutAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := client(t, peer(func(r *http.Request) (*http.Response, error) {
			if _, err := io.Copy(io.Discard, r.Body); err != nil {
				return nil, err
			}
			<-r.Context().Done()
			return nil, r.Context().Err()
		}), nil)
		start := time.Now()
		_, err := c.Do(t.Context(), put(strings.NewReader("x"), 1))
		if !errors.Is(err, adapters.ErrTimeout) || time.Since(start) != writeLimit {
			t.Errorf("%v after %s", err, time.Since(start))
		}
		start = time.Now()
		_, err = c.Do(t.Context(), put(blocked{t.Context()}, 1))
		if !errors.Is(err, adapters.ErrTimeout) || time.Since(start) > uploadLimit {
			t.Errorf("a body that hangs: %v after %s", err, time.Since(start))
		}
	})
}

// blocked never has a byte; it ends before the transport's own limit.
type blocked struct{ ctx context.Context }

func (b blocked) Read([]byte) (int, error) {
	ctx, cancel := context.WithTimeout(b.ctx, time.Minute)
	defer cancel()
	<-ctx.Done()
	return 0, ctx.Err()
}

func TestWritesAreNotRedirectedToReads(t *testing.T) {
	for _, status := range []int{http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther} {
		c := client(t, peer(func(r *http.Request) (*http.Response, error) {
			if r.Method == http.MethodGet {
				return answer(r, 200, "application/json", "{}"), nil
			}
			return answer(r, status, "text/plain", "", "Location", "/y"), nil
		}), nil)
		if res, err := c.Do(t.Context(), Request{Method: http.MethodPut, Path: "/x", Body: []byte("x")}); err == nil {
			t.Errorf("%d: taken for success: %+v", status, res)
		}
	}
}

func TestOpenTriesAgainAndErrorsKeepHeaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		c := client(t, peer(func(r *http.Request) (*http.Response, error) {
			if calls++; calls <= 2 {
				return answer(r, http.StatusServiceUnavailable, "text/plain", ""), nil
			}
			if r.URL.Path == "/base/no" {
				return answer(r, http.StatusForbidden, "text/plain", "", "WAC-Allow", "read"), nil
			}
			return answer(r, 200, "text/plain", "ok"), nil
		}), nil)
		res, err := c.Open(t.Context(), Request{Method: http.MethodGet, Path: "/x"})
		if err != nil || calls != 3 {
			t.Fatalf("%d calls, %v", calls, err)
		}
		res.Body.Close()
		_, err = c.Open(t.Context(), Request{Method: http.MethodGet, Path: "/no", Keep: map[string]string{"WAC-Allow": "wac_allow", "X": "x"}})
		if e := adapters.AsError(err); e.Code != adapters.CodePermissionDenied || e.Fields["wac_allow"] != "read" || e.Fields["x"] != nil {
			t.Errorf("%+v", e)
		}
	})
}
