package adapters

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func TestEveryCodeSurvivesTheWire(t *testing.T) {
	for _, row := range Codes() {
		t.Run(string(row.Code), func(t *testing.T) {
			e := Errorf(row.Code, "it broke").With("id", "x-1").At(SlotBeads, "claim")
			rec := httptest.NewRecorder()
			WriteProblem(rec, fmt.Errorf("outer: %w", e))
			if rec.Code != row.HTTP {
				t.Errorf("status %d, want %d", rec.Code, row.HTTP)
			}
			if ct := rec.Header().Get("Content-Type"); ct != ProblemType {
				t.Errorf("content type %q", ct)
			}
			got := FromProblem(rec.Code, rec.Header(), rec.Body.Bytes())
			if got.Code != row.Code || got.Retryable != row.Retryable || got.Fields["id"] != "x-1" {
				t.Errorf("came back as %+v", got)
			}
			want := "it broke"
			if row.Code == CodeInternal {
				want = "internal error"
			}
			if got.Message != want {
				t.Errorf("message %q, want %q", got.Message, want)
			}
		})
	}
}

func TestProblemHasTheMembersOlderPeersRead(t *testing.T) {
	status, body := Problem(disabled(SlotPods, true))
	var m map[string]any
	if err := json.Unmarshal(body, &m); err != nil {
		t.Fatal(err)
	}
	for k, want := range map[string]any{
		"type": "urn:agentbox:error:adapter_disabled", "code": "ADAPTER_DISABLED", "status": 503.0,
		"retryable": true, "slot": "pods", "degraded": true, "message": m["detail"],
	} {
		if m[k] != want {
			t.Errorf("%s = %v, want %v", k, m[k], want)
		}
	}
	if status != 503 {
		t.Errorf("degraded is %d", status)
	}
	if s := disabled(SlotPods, false).HTTPStatus(); s != 501 {
		t.Errorf("off is %d", s)
	}
	if text := disabled(SlotPods, false).Message; !strings.Contains(text, "adapters.pods") {
		t.Errorf("%q does not say which key switches the slot on", text)
	}
}

func TestFieldsThatClashWithTheProblemSurvive(t *testing.T) {
	e := Errorf(CodeNotClaimable, "the bead is closed").With("status", "closed")
	rec := httptest.NewRecorder()
	WriteProblem(rec, e)
	got := FromProblem(rec.Code, rec.Header(), rec.Body.Bytes())
	if got.Fields["status"] != "closed" {
		t.Errorf("%s became %+v", rec.Body, got.Fields)
	}
	again := httptest.NewRecorder()
	WriteProblem(again, Unsupported("graph", "no"))
	if relayed := FromProblem(again.Code, again.Header(), again.Body.Bytes()); relayed.HTTPStatus() != 501 {
		t.Errorf("a missing capability became %d when passed on", relayed.HTTPStatus())
	}
}

func TestUnsupportedMethodAndMediaTypeDiffer(t *testing.T) {
	if s := Unsupported("graph", "no graph here").HTTPStatus(); s != 501 {
		t.Errorf("capability: %d", s)
	}
	if s := Errorf(CodeUnsupported, "no such media type").HTTPStatus(); s != 415 {
		t.Errorf("media type: %d", s)
	}
}

func TestForeignAnswersAreMappedByStatus(t *testing.T) {
	for status, want := range map[int]Code{
		400: CodeValidation, 422: CodeValidation, 401: CodeUnauthenticated, 403: CodePermissionDenied,
		404: CodeNotFound, 405: CodeUnsupported, 501: CodeUnsupported, 408: CodeTimeout, 504: CodeTimeout,
		409: CodeConflict, 410: CodeNotFound, 412: CodePreconditionFailed, 413: CodePayloadTooLarge,
		507: CodePayloadTooLarge, 415: CodeUnsupported, 406: CodeUnsupported, 429: CodeRateLimited,
		502: CodeUnavailable, 503: CodeUnavailable, 418: CodeValidation, 500: CodeUnavailable, 599: CodeUnavailable,
	} {
		if got := FromProblem(status, http.Header{}, []byte("<html>")); got.Code != want {
			t.Errorf("%d is %s, want %s", status, got.Code, want)
		}
	}
}

// A peer's text becomes one line without control characters, with and without a known code.
func TestTextsOfPeersAreOneLine(t *testing.T) {
	h := http.Header{"Content-Type": {ProblemType}}
	for _, code := range []string{"CONFLICT", "A_FOREIGN_ONE"} {
		got := FromProblem(409, h, []byte(`{"code":"`+code+`","detail":"a\u001b[2J\nb"}`)).Message
		if !strings.HasSuffix(got, "a [2J b") {
			t.Errorf("%s: %q", code, got)
		}
	}
	if got := FromProblem(409, h, []byte(`{"code":"CONFLICT"}`)).Message; got != "the peer gave no reason" {
		t.Errorf("without a text: %q", got)
	}
}

// The further members of a peer's error are bounded, and their texts are lines too.
func TestMembersOfPeersAreBounded(t *testing.T) {
	h := http.Header{"Content-Type": {ProblemType}}
	long := strings.Repeat("x", 10_000)
	ids := `"` + strings.Repeat(`ab-1","`, 500) + `\u001b[2J"`
	got := FromProblem(409, h, []byte(`{"code":"CONFLICT","detail":"d","id":"a\u001b[2J\nb","current":3,"degraded":true,"actor":null,
		"resource":"`+long+`","path":[`+ids+`],"deep":[["x"]],"retry_after_s":1e300,"object":{"a":1},"`+long+`":1,"a\u001b[2J":1}`)).Fields
	if len(got) != 6 || got["id"] != "a [2J b" || got["current"] != 3.0 || got["degraded"] != true || got["actor"] != nil {
		t.Errorf("%.1000v", got)
	}
	if s, _ := got["resource"].(string); len(s) < 500 || len(s) > 520 {
		t.Errorf("a text of %d bytes", len(s))
	}
	if list, _ := got["path"].([]any); len(list) != 100 || list[0] != "ab-1" {
		t.Errorf("a list of %d", len(list))
	}
	var many strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&many, `,"m%d":%d`, i, i)
	}
	if got := FromProblem(409, h, []byte(`{"code":"CONFLICT"`+many.String()+`}`)).Fields; len(got) != 16 {
		t.Errorf("%d members", len(got))
	}
}

func TestRetryAfterIsReadInBothForms(t *testing.T) {
	h := http.Header{"Retry-After": {"7"}}
	if d := FromProblem(503, h, nil).RetryAfter(); d != 7*time.Second {
		t.Errorf("seconds: %v", d)
	}
	h.Set("Retry-After", time.Now().Add(time.Hour*3).UTC().Format(http.TimeFormat))
	if d := FromProblem(503, h, nil).RetryAfter(); d != time.Hour {
		t.Errorf("date, bounded: %v", d)
	}
}

func TestErrorsAreFoundByCodeThroughWrapping(t *testing.T) {
	err := fmt.Errorf("a: %w", fmt.Errorf("b: %w", NotFound("bead", "ab-1")))
	if !errors.Is(err, ErrNotFound) || errors.Is(err, ErrConflict) {
		t.Fatal("errors.Is does not go by code")
	}
	cause := errors.New("disk")
	if !errors.Is(Unavailable(cause, "cannot read"), cause) {
		t.Fatal("the cause is lost")
	}
	if errors.Is(Errorf(CodeNotFound, "x"), Errorf(CodeNotFound, "y")) {
		t.Fatal("two different errors are taken for the same")
	}
}

func TestErrorsWithoutACodeGetOne(t *testing.T) {
	for _, c := range []struct {
		err  error
		want Code
	}{
		{errors.New("boom"), CodeInternal},
		{context.DeadlineExceeded, CodeTimeout},
		{fmt.Errorf("x: %w", context.Canceled), CodeTimeout},
	} {
		if got := CodeOf(c.err); got != c.want {
			t.Errorf("%v is %s, want %s", c.err, got, c.want)
		}
	}
	if AsError(nil) != nil || CodeOf(nil) != "" {
		t.Error("nil is an error")
	}
}

func TestWithAndAtDoNotChangeTheirReceiver(t *testing.T) {
	e := Errorf(CodeConflict, "x").With("a", 1)
	_ = e.With("b", 2)
	_ = e.At(SlotBeads, "claim")
	if len(e.Fields) != 1 || e.Slot != "" {
		t.Fatalf("changed: %+v", e)
	}
}

func FuzzFromProblem(f *testing.F) {
	f.Add(409, "application/problem+json", []byte(`{"code":"ALREADY_CLAIMED","actor":"x"}`))
	f.Add(200, "text/plain; charset=x", []byte("\x00\xff"))
	f.Fuzz(func(t *testing.T, status int, ct string, body []byte) {
		e := FromProblem(status, http.Header{"Content-Type": {ct}}, body)
		if !e.Code.Known() {
			t.Fatalf("unknown code %q", e.Code)
		}
		if len(e.Message) > 2*maxForeignDetail {
			t.Fatalf("message of %d bytes", len(e.Message))
		}
		if _, out := Problem(e); !json.Valid(out) {
			t.Fatalf("cannot be written again: %s", out)
		}
	})
}

// An error about a Range is 416, also when it is passed on; the length of the resource is told only if the
// peer has told it.
func TestUnsatisfiableRange(t *testing.T) {
	for sent, want := range map[string]string{
		"bytes */10": "bytes */10", "": "", "bytes 0-1/10": "", "bytes */*": "", "bytes */-1": "", "bytes */10, bytes */20": "", "lines */10": "",
	} {
		header := http.Header{"Content-Range": {sent}}
		for n := range 2 {
			rec := httptest.NewRecorder()
			e := FromProblem(http.StatusRequestedRangeNotSatisfiable, header, rec.Body.Bytes())
			WriteProblem(rec, e)
			if got := rec.Header().Get("Content-Range"); e.Code != CodeValidation || rec.Code != 416 || got != want {
				t.Errorf("%q, passed on %d times: %s, status %d, Content-Range %q", sent, n, e.Code, rec.Code, got)
			}
			header = rec.Header()
		}
	}
	lied := FromProblem(400, http.Header{"Content-Type": {ProblemType}}, []byte(`{"code":"VALIDATION_ERROR","content_range":"bytes */1\r\nX: y"}`))
	if lied.HTTPStatus() != 400 {
		t.Errorf("a member of the body makes it %d", lied.HTTPStatus())
	}
}

// An error about the header Accept is 406, also when it is passed on, with a code of ours and without. No
// member of a body makes an error one.
func TestNotAcceptable(t *testing.T) {
	ours, lie := []byte(`{"code":"UNSUPPORTED"}`), []byte(`{"code":"UNSUPPORTED","not_acceptable":true}`)
	for _, c := range []struct {
		status int
		body   []byte
		want   int
	}{{406, nil, 406}, {406, ours, 406}, {406, lie, 406}, {415, nil, 415}, {415, ours, 415}, {415, lie, 415}, {405, nil, 501}} {
		status, header, body := c.status, http.Header{"Content-Type": {ProblemType}}, c.body
		for n := range 2 {
			e := FromProblem(status, header, body)
			rec := httptest.NewRecorder()
			WriteProblem(rec, e)
			if e.Code != CodeUnsupported || rec.Code != c.want {
				t.Errorf("%d %s, passed on %d times: %s, status %d; want %d", c.status, c.body, n, e.Code, rec.Code, c.want)
			}
			status, header, body = rec.Code, rec.Header(), rec.Body.Bytes()
		}
	}
}
