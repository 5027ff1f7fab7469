package memory

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/contract"
)

const goldenHash = "b1fa50c85f256fce"

// The vectors of hash-v1 must never change: stored vectors outlive the program.
func TestHashV1Golden(t *testing.T) {
	sum := sha256.Sum256(pack(hashVector("The cat sat, the CAT slept; 東京")))
	if got := hex.EncodeToString(sum[:8]); got != goldenHash {
		t.Errorf("hash-v1 changed: %s, want %s", got, goldenHash)
	}
}

func TestHashV1(t *testing.T) {
	near := func(a, b string) float64 {
		x, okX := unit(hashVector(a))
		y, okY := unit(hashVector(b))
		if !okX || !okY {
			t.Fatalf("no direction: %q, %q", a, b)
		}
		return cosine(x, y)
	}
	for _, c := range []struct{ a, b, far string }{
		{"restart the database", "the database was restarted", "a walk in the park"},
		{"CAFÉ", "cafe\u0301", "tea"},
		{"programs", "program", "elephant"},
	} {
		if close, far := near(c.a, c.b), near(c.a, c.far); close <= far {
			t.Errorf("%q is nearer to %q (%v) than to %q (%v)", c.a, c.far, far, c.b, close)
		}
	}
	for _, s := range []string{"", " ", "?!", "\u0301", "🙂"} {
		near(s, s)
	}
}

// embedServer answers like an OpenAI-compatible server, unless answer is set.
type embedServer struct {
	*httptest.Server
	calls  atomic.Int64
	dim    int
	base64 bool
	answer func(w http.ResponseWriter, in []string) bool
}

func newEmbedServer(t *testing.T) *embedServer {
	s := &embedServer{dim: 3}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

func (s *embedServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.calls.Add(1)
	var in struct {
		Model  string   `json:"model"`
		Input  []string `json:"input"`
		Format string   `json:"encoding_format"`
	}
	body, err := io.ReadAll(r.Body)
	if err != nil || json.Unmarshal(body, &in) != nil || in.Model != "m" || in.Format != "float" || len(in.Input) == 0 || len(in.Input) > 64 ||
		r.URL.Path != "/v1/embeddings" || r.Header.Get("Authorization") != "Bearer sesame" || r.Header.Get("Agentbox-Contract") != "" {
		http.Error(w, `{"error":{"message":"bad request","type":"invalid"}}`, http.StatusBadRequest)
		return
	}
	if s.answer != nil && s.answer(w, in.Input) {
		return
	}
	var data []map[string]any
	for i := len(in.Input) - 1; i >= 0; i-- { // in reverse order: the client must use the index
		v := make([]float32, s.dim)
		v[0], v[1] = float32(len(in.Input[i])), 1
		var e any = v
		if s.base64 {
			e = base64.StdEncoding.EncodeToString(pack(v))
		}
		data = append(data, map[string]any{"object": "embedding", "index": i, "embedding": e})
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"object": "list", "data": data})
}

func (s *embedServer) embedder(t *testing.T) *httpEmbedder {
	t.Helper()
	t.Setenv("TEST_EMBED_KEY", "sesame\n")
	e, err := newHTTPEmbedder(EmbedderConfig{Kind: EmbedderHTTP, URL: s.URL + "/", Model: "m", KeyEnv: "TEST_EMBED_KEY"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e
}

func TestHTTPEmbedder(t *testing.T) {
	for _, b64 := range []bool{false, true} {
		s := newEmbedServer(t)
		s.base64 = b64
		e := s.embedder(t)
		if e.Dim() != 0 || e.ID() != "http:m" {
			t.Errorf("id %q, dim %d", e.ID(), e.Dim())
		}
		texts := make([]string, 150)
		for i := range texts {
			texts[i] = strings.Repeat("x", i)
		}
		list, err := e.Embed(context.Background(), texts)
		if err != nil || len(list) != 150 {
			t.Fatalf("%d vectors, %v", len(list), err)
		}
		for i, v := range list {
			if want := float32(max(i, 1)); len(v) != 3 || v[0] != want {
				t.Fatalf("vector %d is %v", i, v)
			}
		}
		if s.calls.Load() != 3 || e.Dim() != 3 {
			t.Errorf("%d calls, dim %d", s.calls.Load(), e.Dim())
		}
		s.dim = 4
		if _, err := e.Embed(context.Background(), []string{"x"}); !errors.Is(err, adapters.ErrEmbedding) {
			t.Errorf("another dimension: %v", err)
		}
	}
}

func TestHTTPEmbedderLies(t *testing.T) {
	const one = `{"index":0,"embedding":[1,2,3]}`
	for name, body := range map[string]string{
		"no data": `{}`, "too few": `{"data":[]}`, "too many": `{"data":[` + one + `,` + one + `,` + one + `]}`,
		"one twice": `{"data":[` + one + `,` + one + `]}`, "no index": `{"data":[` + one + `,{"embedding":[1,2,3]}]}`,
		"wild index": `{"data":[` + one + `,{"index":7,"embedding":[1,2,3]}]}`, "negative": `{"data":[` + one + `,{"index":-1,"embedding":[1,2,3]}]}`,
		"uneven": `{"data":[` + one + `,{"index":1,"embedding":[1,2]}]}`, "empty": `{"data":[` + one + `,{"index":1,"embedding":[]}]}`,
		"zeros": `{"data":[` + one + `,{"index":1,"embedding":[0,0,0]}]}`, "null": `{"data":[` + one + `,{"index":1,"embedding":null}]}`,
		"not base64": `{"data":[` + one + `,{"index":1,"embedding":"§§"}]}`, "odd base64": `{"data":[` + one + `,{"index":1,"embedding":"AAAA"}]}`,
		"not finite": `{"data":[` + one + `,{"index":1,"embedding":"` + base64.StdEncoding.EncodeToString(pack([]float32{1, float32(math.NaN()), 1})) + `"}]}`,
		"overflow":   `{"data":[` + one + `,{"index":1,"embedding":[1e99,1,1]}]}`,
		"too long":   `{"data":[` + one + `,{"index":1,"embedding":[` + strings.Repeat("1,", 2000) + `1]}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			s := newEmbedServer(t)
			s.answer = func(w http.ResponseWriter, _ []string) bool {
				_, _ = io.WriteString(w, body)
				return true
			}
			_, err := s.embedder(t).Embed(context.Background(), []string{"a", "b"})
			if e := adapters.AsError(err); e == nil || e.Code != adapters.CodeEmbedding || e.Retryable {
				t.Errorf("%v, want EMBEDDING_ERROR for good", err)
			}
			if s.calls.Load() != 1 {
				t.Errorf("a lie was asked for %d times", s.calls.Load())
			}
		})
	}
}

// An answer must not take many times its size: several may be read at once.
func TestAnswerOfManyEmptyVectors(t *testing.T) {
	body := []byte(`{"data":[` + strings.Repeat("{},", 1<<20) + `{}]}`)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := new(httpEmbedder).read(body, 1)
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; !errors.Is(err, adapters.ErrEmbedding) || took > uint64(len(body)) {
		t.Errorf("%v; %d bytes were allocated to read %d", err, took, len(body))
	}
}

func TestEmbeddersThatMisbehave(t *testing.T) {
	t.Setenv("TEST_EMBED_KEY", "sesame")
	contract.Peers(t, contract.PeerClass{
		Failed: adapters.CodeEmbedding,
		Good:   func(t *testing.T) string { return newEmbedServer(t).URL },
		Open: func(t *testing.T, url string) []contract.PeerCall {
			e, err := newHTTPEmbedder(EmbedderConfig{Kind: EmbedderHTTP, URL: url, Model: "m", KeyEnv: "TEST_EMBED_KEY"})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(e.Close)
			return []contract.PeerCall{{Name: "embed", Call: func(ctx context.Context) error {
				_, err := e.Embed(ctx, []string{"a", "b"})
				return err
			}}}
		},
	})
}

func TestHTTPEmbedderRetries(t *testing.T) {
	for _, c := range []struct {
		name    string
		status  int
		after   string
		fails   int64
		calls   int64
		success bool
	}{
		{"503 once", 503, "", 1, 2, true},
		{"429 with Retry-After", 429, "1", 1, 2, true},
		{"500 for ever", 500, "", 99, 3, false},
		{"429 with a Retry-After we do not wait for", 429, "3600", 99, 1, false},
		{"400", 400, "", 99, 1, false},
		{"401", 401, "", 99, 1, false},
		{"a redirect", 307, "", 99, 1, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newEmbedServer(t)
			s.answer = func(w http.ResponseWriter, _ []string) bool {
				if s.calls.Load() > c.fails {
					return false
				}
				if c.after != "" {
					w.Header().Set("Retry-After", c.after)
				}
				w.Header().Set("Location", "http://127.0.0.1:1/")
				w.WriteHeader(c.status)
				_, _ = io.WriteString(w, `{"error":{"message":"no sesame","type":"some_type"}}`)
				return true
			}
			_, err := s.embedder(t).Embed(context.Background(), []string{"a"})
			if (err == nil) != c.success || !c.success && !errors.Is(err, adapters.ErrEmbedding) {
				t.Errorf("error %v", err)
			}
			if err != nil && strings.Contains(err.Error(), "sesame") {
				t.Errorf("the server's text or the key is in %q", err)
			}
			if s.calls.Load() != c.calls {
				t.Errorf("%d calls, want %d", s.calls.Load(), c.calls)
			}
		})
	}
}

func TestHTTPEmbedderHangs(t *testing.T) {
	s := newEmbedServer(t)
	release := make(chan struct{})
	s.answer = func(http.ResponseWriter, []string) bool {
		<-release
		return true
	}
	defer close(release)
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if _, err := s.embedder(t).Embed(ctx, []string{"a"}); !errors.Is(err, adapters.ErrTimeout) {
		t.Errorf("%v, want ADAPTER_TIMEOUT", err)
	}
}

func TestEmbedderConfig(t *testing.T) {
	t.Setenv("TEST_EMPTY", "")
	for _, c := range []EmbedderConfig{
		{Kind: "magic"}, {Kind: EmbedderHTTP}, {Kind: EmbedderHTTP, URL: "http://h"}, {Kind: EmbedderHTTP, URL: "ftp://h", Model: "m"},
		{Kind: EmbedderHTTP, URL: "http://u:secret@h", Model: "m"}, {Kind: EmbedderHTTP, URL: "http://h/?k=secret", Model: "m"},
		{Kind: EmbedderHTTP, URL: "http://secret\x7f", Model: "m"}, {Kind: EmbedderHTTP, URL: "http://h", Model: "m", KeyEnv: "TEST_EMPTY"},
	} {
		_, err := NewEmbedder(c)
		if _, ok := errors.AsType[*adapters.ConfigError](err); !ok || strings.Contains(err.Error(), "secret") {
			t.Errorf("%+v: %v", c, err)
		}
	}
	for _, c := range []EmbedderConfig{{}, {Kind: EmbedderHash}, {Kind: EmbedderHTTP, URL: "https://h/v1", Model: "m"}} {
		if _, err := NewEmbedder(c); err != nil {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func FuzzDecodeVector(f *testing.F) {
	for _, s := range []string{`[1,2]`, `"AACAPwAAAEA="`, `null`, `[1e39]`, `"x"`, ``, `[[1]]`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		v, err := decodeVector(raw)
		if err == nil && len(v) > len(raw) {
			t.Errorf("%d numbers out of %d bytes", len(v), len(raw))
		}
	})
}

func FuzzTerms(f *testing.F) {
	for _, s := range []string{"", "The cat", "東京 Tōkyō", "\xff\xfe", "a\u0301\u0301", "{\"a\":1e400}", strings.Repeat("ä", 300)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		list, length := entryTerms(s, nil)
		if len(list) > maxEntryTerms || length < len(list) || len(queryTerms(s)) > maxQueryTerms {
			t.Errorf("%d terms, length %d", len(list), length)
		}
		if _, ok := unit(hashVector(s)); !ok {
			t.Error("no direction")
		}
		if _, err := pairTerms(json.RawMessage(s)); err != nil && json.Valid([]byte(s)) && strings.HasPrefix(s, "{") {
			t.Errorf("a JSON object was refused: %v", err)
		}
	})
}
