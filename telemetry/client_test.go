package telemetry

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/encoding/protowire"
)

// answers is a transport that returns its answers in turn, then 200. It records the time of each
// request. If an answer is nil, the request gets no answer.
type answers struct {
	list  []func() (*http.Response, error)
	asked []time.Time
}

func (a *answers) RoundTrip(r *http.Request) (*http.Response, error) {
	a.asked = append(a.asked, time.Now())
	if _, err := io.ReadAll(r.Body); err != nil {
		return nil, err
	}
	n := len(a.asked) - 1
	if n >= len(a.list) {
		return reply(200, nil), nil
	}
	if a.list[n] == nil {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	return a.list[n]()
}

func reply(status int, body []byte, header ...string) *http.Response {
	r := &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(bytes.NewReader(body))}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	return r
}

func status(code int, header ...string) func() (*http.Response, error) {
	return func() (*http.Response, error) { return reply(code, nil, header...), nil }
}

func upload(ctx context.Context, t *testing.T, endpoint string, a *answers) error {
	t.Helper()
	c, err := newClient(endpoint, nil)
	if err != nil {
		t.Fatal(err)
	}
	c.transport = func(*line) http.RoundTripper { return a }
	return c.UploadTraces(ctx, []*tracepb.ResourceSpans{{}})
}

func TestRetries(t *testing.T) {
	type list = []func() (*http.Response, error)
	refused := func() (*http.Response, error) { return nil, errors.New("connection refused") }
	always := func(f func() (*http.Response, error)) list { return list{f, f, f, f, f, f, f, f, f, f, f, f} }
	cases := map[string]struct {
		answers list
		tries   int           // 0: more than one
		wait    time.Duration // before the second try, at least
		fails   bool
	}{
		"at once":                    {nil, 1, 0, false},
		"429, then well":             {list{status(429)}, 2, firstPause, false},
		"502, 503, 504, then well":   {list{status(502), status(503), status(504)}, 4, firstPause, false},
		"Retry-After seconds":        {list{status(503, "Retry-After", "2")}, 2, 2 * time.Second, false},
		"Retry-After a date":         {list{status(503, "Retry-After", "Sat, 01 Jan 2000 00:00:03 GMT")}, 2, 3 * time.Second, false},
		"Retry-After is too late":    {list{status(503, "Retry-After", "6")}, 1, 0, true},
		"Retry-After is nonsense":    {list{status(503, "Retry-After", "-1")}, 2, firstPause, false},
		"Retry-After is far too big": {list{status(503, "Retry-After", "99999999999")}, 1, 0, true},
		"500 is final":               {list{status(500)}, 1, 0, true},
		"400 is final":               {list{status(400)}, 1, 0, true},
		"201 is not 200":             {list{status(201)}, 1, 0, true},
		"no connection, then well":   {list{refused, refused}, 3, firstPause, false},
		"never any connection":       {always(refused), 0, firstPause, true},
		"always 503":                 {always(status(503)), 0, firstPause, true},
		"no answer":                  {list{nil}, 1, 0, true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // the bubble's clock begins at 2000-01-01
				a := &answers{list: c.answers}
				begin := time.Now()
				err := upload(t.Context(), t, "http://collector:4318", a)
				if (err != nil) != c.fails {
					t.Errorf("error %v", err)
				}
				if took := time.Since(begin); took > ExportTimeout {
					t.Errorf("it took %v", took)
				}
				if n := len(a.asked); c.tries > 0 && n != c.tries || c.tries == 0 && n < 2 {
					t.Errorf("%d tries, want %d", n, c.tries)
				}
				if len(a.asked) > 1 && a.asked[1].Sub(a.asked[0]) < c.wait {
					t.Errorf("tried again after %v, want %v", a.asked[1].Sub(a.asked[0]), c.wait)
				}
			})
		})
	}
}

// TestNoRetryWhenLeaving: a shutdown interrupts the pause before a retry.
func TestNoRetryWhenLeaving(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := newClient("http://collector:4318", nil)
		if err != nil {
			t.Fatal(err)
		}
		a := &answers{list: []func() (*http.Response, error){status(503, "Retry-After", "4")}}
		c.transport = func(*line) http.RoundTripper { return a }
		ended := make(chan error, 1)
		go func() { ended <- c.UploadTraces(context.Background(), []*tracepb.ResourceSpans{{}}) }()
		synctest.Wait() // client is in the pause
		begin := time.Now()
		close(c.leaving)
		if err := <-ended; err == nil || time.Since(begin) != 0 || len(a.asked) != 1 {
			t.Errorf("%v after %v and %d tries", err, time.Since(begin), len(a.asked))
		}
	})
}

// message builds a protobuf message from pairs of field number and value. An int becomes a varint;
// a string or a message becomes bytes.
func message(pairs ...any) []byte {
	var out []byte
	for i := 0; i < len(pairs); i += 2 {
		number := protowire.Number(pairs[i].(int))
		switch v := pairs[i+1].(type) {
		case int:
			out = protowire.AppendVarint(protowire.AppendTag(out, number, protowire.VarintType), uint64(v))
		case string:
			out = protowire.AppendString(protowire.AppendTag(out, number, protowire.BytesType), v)
		case []byte:
			out = protowire.AppendBytes(protowire.AppendTag(out, number, protowire.BytesType), v)
		}
	}
	return out
}

func TestGRPCAnswers(t *testing.T) {
	details := func(typeURL string, delay []byte) string {
		return base64.RawStdEncoding.EncodeToString(message(1, 14, 2, "later", 3, message(1, typeURL, 2, message(1, delay))))
	}
	const retryInfoURL = "type.googleapis.com/google.rpc.RetryInfo"
	cases := map[string]struct {
		body    []byte
		trailer []string
		again   bool
		after   time.Duration
		fails   string // part of the error
	}{
		"taken":                  {body: frame(nil), trailer: []string{"Grpc-Status", "0"}},
		"taken, nothing to say":  {body: frame(message(1, message())), trailer: []string{"Grpc-Status", "0"}},
		"warning without a loss": {body: frame(message(1, message(2, "slow down"))), trailer: []string{"Grpc-Status", "0"}},
		"no frame":               {trailer: []string{"Grpc-Status", "0"}, fails: "not one uncompressed", again: true},
		"compressed":             {body: append([]byte{1}, frame(nil)[1:]...), trailer: []string{"Grpc-Status", "0"}, fails: "not one uncompressed", again: true},
		"no status":              {body: frame(nil), fails: "no gRPC status"},
		"UNAVAILABLE":            {trailer: []string{"Grpc-Status", "14", "Grpc-Message", "try%20later%0A"}, again: true, fails: "gRPC status 14 try later"},
		"INVALID_ARGUMENT":       {trailer: []string{"Grpc-Status", "3"}, fails: "gRPC status 3"},
		"RESOURCE_EXHAUSTED":     {trailer: []string{"Grpc-Status", "8"}, fails: "gRPC status 8"},
		"RESOURCE_EXHAUSTED for now": {trailer: []string{"Grpc-Status", "8", "Grpc-Status-Details-Bin", details(retryInfoURL, message(1, 2, 2, 500_000_000))},
			again: true, after: 2500 * time.Millisecond, fails: "gRPC status 8"},
		"RetryInfo that is negative": {trailer: []string{"Grpc-Status", "8", "Grpc-Status-Details-Bin", details(retryInfoURL, message(1, -1))},
			again: true, after: maxRetrySeconds * time.Second, fails: "gRPC status 8"},
		"other details":       {trailer: []string{"Grpc-Status", "8", "Grpc-Status-Details-Bin", details("type.googleapis.com/google.rpc.BadRequest", nil)}, fails: "gRPC status 8"},
		"details are no text": {trailer: []string{"Grpc-Status", "14", "Grpc-Status-Details-Bin", "%%%"}, again: true, fails: "gRPC status 14"},
		"status is nonsense":  {trailer: []string{"Grpc-Status", "\x1b[31mx"}, fails: "gRPC status"},
		"part of it": {body: frame(message(1, message(1, 3, 2, "too old"))), trailer: []string{"Grpc-Status", "0"},
			fails: "rejected spans too old"},
		"part of it, negative": {body: frame(message(1, message(1, -3))), trailer: []string{"Grpc-Status", "0"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			resp := reply(200, c.body)
			resp.Trailer = reply(0, nil, c.trailer...).Header
			answer, err := grpcAnswer(resp)
			if err == nil {
				err = partialSuccess(answer)
			}
			if c.fails == "" {
				if err != nil {
					t.Errorf("error %v", err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.fails) || strings.ContainsAny(err.Error(), "\n\x1b") {
				t.Fatalf("error %v, want %q", err, c.fails)
			}
			if again, after := retryable(err); again != c.again || after != c.after {
				t.Errorf("again %v after %v, want %v after %v", again, after, c.again, c.after)
			}
		})
	}
}

// FuzzAnswer: whatever a collector answers, the export ends, and the error text is bounded and
// printable.
func FuzzAnswer(f *testing.F) {
	f.Add(frame(message(1, message(1, 3, 2, "too old"))), "0", "", "")
	f.Add([]byte{}, "8", "slow%20down", base64.StdEncoding.EncodeToString(message(3, message(1, "x/google.rpc.RetryInfo", 2, message(1, message(1, 1))))))
	f.Add([]byte{0, 0, 0, 0, 1}, "", "", "====")
	f.Fuzz(func(t *testing.T, body []byte, code, text, details string) {
		resp := reply(200, body)
		resp.Trailer = http.Header{"Grpc-Status": {code}, "Grpc-Message": {text}, "Grpc-Status-Details-Bin": {details}}
		answer, err := grpcAnswer(resp)
		if err == nil {
			err = partialSuccess(answer)
		}
		if p := partialSuccess(body); p != nil && err == nil {
			err = p
		}
		if err == nil {
			return
		}
		if _, after := retryable(err); after < 0 || after > 2*maxRetrySeconds*time.Second {
			t.Errorf("wait of %v", after)
		}
		if s := err.Error(); len(s) > 3*maxMessage || strings.ContainsAny(s, "\n\x00\x1b") {
			t.Errorf("said %q", s)
		}
	})
}
