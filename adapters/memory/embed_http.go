package memory

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/wire"
	"github.com/dreamlab-ai/agentinit/internal/ijson"
	"github.com/dreamlab-ai/agentinit/internal/outbound"
)

// Limits of the http embedder.
const (
	maxBatch       = 64 // texts a request; the protocol's own maximum is 2048
	embedTries     = 3
	embedTimeout   = 10 * time.Second // one attempt
	embedBackoff   = 100 * time.Millisecond
	maxEmbedAnswer = 16 << 20 // bytes
)

// httpEmbedder uses POST /v1/embeddings as OpenAI defines it. It sends the texts and the key, but
// none of agentbox's own headers, because another party may run the server.
type httpEmbedder struct {
	endpoint string
	model    string
	key      string
	dim      atomic.Int64
	client   *http.Client
}

func newHTTPEmbedder(c EmbedderConfig) (*httpEmbedder, error) {
	bad := func(key, why string) error {
		return &adapters.ConfigError{Key: keyEmbedder + "." + key, Message: why}
	}
	u, err := url.Parse(c.URL)
	switch {
	case c.URL == "":
		return nil, adapters.Missing(keyEmbedder+".url", "the embedder is http")
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		// The text may hold a password, so the error does not repeat it.
		return nil, bad("url", "must be an http or https URL")
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return nil, bad("url", "must have no credentials, query or fragment; use key_env")
	case c.Model == "":
		return nil, adapters.Missing(keyEmbedder+".model", "the embedder is http")
	}
	e := &httpEmbedder{
		endpoint: strings.TrimSuffix(strings.TrimSuffix(u.String(), "/"), "/v1") + "/v1/embeddings",
		model:    c.Model,
	}
	if c.KeyEnv != "" {
		if e.key = strings.TrimSpace(os.Getenv(c.KeyEnv)); e.key == "" {
			return nil, bad("key_env", fmt.Sprintf("the environment has no %s", c.KeyEnv))
		}
	}
	e.client = &http.Client{
		Transport: wire.Transport(),
		// A redirected POST would carry the text and the key elsewhere.
		CheckRedirect: outbound.NoRedirect,
	}
	return e, nil
}

func (e *httpEmbedder) ID() string { return "http:" + e.model }
func (e *httpEmbedder) Dim() int   { return int(e.dim.Load()) }

func (e *httpEmbedder) Embed(ctx context.Context, texts []string) ([][]float32, error) {
	out := make([][]float32, 0, len(texts))
	texts = slices.Clone(texts)
	for i, t := range texts {
		if t == "" {
			texts[i] = " " // servers refuse an empty input, the slot does not
		}
	}
	for len(texts) > 0 {
		n := min(len(texts), maxBatch)
		vectors, err := e.batch(ctx, texts[:n])
		if err != nil {
			return nil, err
		}
		out, texts = append(out, vectors...), texts[n:]
	}
	return out, nil
}

type embedRequest struct {
	Model  string   `json:"model"`
	Input  []string `json:"input"`
	Format string   `json:"encoding_format"`
}

func (e *httpEmbedder) batch(ctx context.Context, texts []string) ([][]float32, error) {
	body, _ := json.Marshal(embedRequest{e.model, texts, "float"}) // strings always marshal
	for try := 1; ; try++ {
		answer, wait, err := e.attempt(ctx, body, try)
		if err == nil {
			return e.read(answer, len(texts))
		}
		if ctx.Err() != nil {
			return nil, adapters.AsError(context.Cause(ctx))
		}
		if wait < 0 || try == embedTries || !wire.Pause(ctx, wait) {
			return nil, err
		}
	}
}

// attempt posts once. wait < 0 says that a retry cannot help; otherwise it is the time to wait
// before a retry.
func (e *httpEmbedder) attempt(ctx context.Context, body []byte, try int) (answer []byte, wait time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, embedTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.endpoint, bytes.NewReader(body))
	if err != nil {
		return nil, -1, adapters.Errorf(adapters.CodeEmbedding, "cannot make the request: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "agentinit")
	if parent := adapters.MetaFrom(ctx).TraceParent; parent != "" {
		req.Header.Set("Traceparent", parent)
	}
	if e.key != "" {
		req.Header.Set("Authorization", "Bearer "+e.key)
	}
	res, err := e.client.Do(req)
	if err != nil {
		return nil, jittered(try), adapters.Errorf(adapters.CodeEmbedding, "cannot reach the embedder: %w", outbound.WithoutURL(err))
	}
	defer res.Body.Close()
	answer, err = io.ReadAll(io.LimitReader(res.Body, maxEmbedAnswer+1))
	switch {
	case res.StatusCode/100 != 2:
		return nil, retryWait(res, try), refused(res.StatusCode, answer)
	case err != nil:
		return nil, jittered(try), adapters.Errorf(adapters.CodeEmbedding, "the embedder's answer broke off: %w", err)
	case len(answer) > maxEmbedAnswer:
		return nil, -1, lied("is larger than %d bytes", maxEmbedAnswer)
	}
	return answer, 0, nil
}

// jittered is a pause that doubles with each try, plus a random time of at most the same length.
func jittered(try int) time.Duration {
	d := embedBackoff << (try - 1)
	return d + rand.N(d)
}

func retryWait(res *http.Response, try int) time.Duration {
	if res.StatusCode != http.StatusTooManyRequests && res.StatusCode < 500 {
		return -1
	}
	if asked := outbound.RetryAfter(res.Header); asked > 0 {
		return asked
	}
	return jittered(try)
}

func refused(status int, body []byte) *adapters.Error {
	var m struct {
		Error struct{ Message, Type string }
	}
	e := adapters.Errorf(adapters.CodeEmbedding, "the embedder answered %d", status).With("status", status)
	// If the body has another form, only the status is reported.
	if json.Unmarshal(body, &m) == nil && m.Error.Type != "" {
		e.Message += " " + strconv.Quote(strings.ToValidUTF8(m.Error.Type[:min(len(m.Error.Type), 64)], ""))
	}
	e.Retryable = status == http.StatusTooManyRequests || status >= 500
	return e
}

func lied(format string, args ...any) *adapters.Error {
	return adapters.Errorf(adapters.CodeEmbedding, "the embedder's answer %s", fmt.Sprintf(format, args...)).Final()
}

type embedAnswer struct {
	Data []struct {
		Index     *int            `json:"index"`
		Embedding json.RawMessage `json:"embedding"`
	} `json:"data"`
}

// read checks an answer against the request: one vector for each index, all with the same
// dimension, and no zero vector.
func (e *httpEmbedder) read(body []byte, n int) ([][]float32, error) {
	// A list of empty objects takes ten times the size of its text when it is decoded.
	if _, longest := ijson.Elements(body); longest > max(maxBatch, adapters.MaxEmbeddingDim) {
		return nil, lied("has a list of %d elements", longest)
	}
	var a embedAnswer
	if err := json.Unmarshal(body, &a); err != nil {
		return nil, lied("is not valid JSON of the protocol")
	}
	if len(a.Data) != n {
		return nil, lied("holds %d vectors instead of %d", len(a.Data), n)
	}
	out := make([][]float32, n)
	for _, d := range a.Data {
		if d.Index == nil || *d.Index < 0 || *d.Index >= n || out[*d.Index] != nil {
			return nil, lied("does not number its vectors")
		}
		v, err := decodeVector(d.Embedding)
		if err != nil {
			return nil, lied("holds something that is no vector")
		}
		if adapters.CheckEmbedding(v) != nil {
			return nil, lied("holds a vector that is empty, too long or not finite")
		}
		if _, ok := unit(v); !ok {
			return nil, lied("holds a vector of zeros")
		}
		out[*d.Index] = v
	}
	return out, e.agree(out)
}

// agree makes sure that all vectors have one dimension until the process ends.
func (e *httpEmbedder) agree(vectors [][]float32) error {
	want := e.Dim()
	if want == 0 {
		want = len(vectors[0])
	}
	for _, v := range vectors {
		if len(v) != want {
			return lied("holds a vector of %d dimensions instead of %d", len(v), want)
		}
	}
	if !e.dim.CompareAndSwap(0, int64(want)) && e.Dim() != want {
		return lied("has %d dimensions, another one had %d", want, e.Dim())
	}
	return nil
}

// decodeVector reads an array of numbers, or base64 of little-endian float32.
func decodeVector(raw json.RawMessage) ([]float32, error) {
	var v []float32
	if len(raw) == 0 || raw[0] != '"' {
		err := json.Unmarshal(raw, &v)
		return v, err
	}
	var text string
	if err := json.Unmarshal(raw, &text); err != nil {
		return nil, err
	}
	b, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return nil, err
	}
	return unpack(nil, b)
}

// Close ends idle connections.
func (e *httpEmbedder) Close() { e.client.CloseIdleConnections() }
