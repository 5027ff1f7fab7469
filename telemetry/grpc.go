package telemetry

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/dreamlab-ai/agentinit/internal/escape"
	"github.com/dreamlab-ai/agentinit/internal/otlp"
)

// grpcMethod is the path of the only gRPC call that this package makes.
const grpcMethod = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"

// overGRPC is the unary call over HTTP/2 that is specified in
// https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md.
var overGRPC = protocol{
	header: http.Header{"Content-Type": {"application/grpc+proto"}, "Te": {"trailers"}, "User-Agent": {otlp.UserAgent}},
	frame:  frame,
	answer: grpcAnswer,
}

// frame puts the five-byte gRPC prefix before a message: the flag "not compressed" and the length.
func frame(message []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)
}

// unframe returns the single message of an answer.
func unframe(b []byte) ([]byte, error) {
	if len(b) < 5 || b[0] != 0 || uint64(binary.BigEndian.Uint32(b[1:5])) != uint64(len(b)-5) {
		return nil, errors.New("the answer is not one uncompressed gRPC message")
	}
	return b[5:], nil
}

// grpcAnswer returns the message if the gRPC status is OK. The status is in the trailers, which
// arrive after the body.
func grpcAnswer(resp *http.Response) ([]byte, error) {
	body, err := readAnswer(resp)
	if err != nil {
		return nil, err
	}
	for _, h := range []http.Header{resp.Trailer, resp.Header} { // an immediate refusal has no trailers
		switch code := h.Get("Grpc-Status"); code {
		case "":
		case "0":
			return unframe(body)
		default:
			return nil, grpcRefusal(code, h)
		}
	}
	return nil, &refusal{why: "the answer has no gRPC status"}
}

// grpcRefusal classifies a status by the table "Failures" of OTLP/gRPC in OTLP 1.11.
// RESOURCE_EXHAUSTED is retried only if the collector sends a retry delay.
func grpcRefusal(code string, h http.Header) error {
	text, err := url.PathUnescape(h.Get("Grpc-Message"))
	if err != nil {
		text = h.Get("Grpc-Message")
	}
	r := &refusal{why: strings.TrimSpace("gRPC status " + escape.Line(code, maxMessage) + " " + escape.Line(text, maxMessage))}
	wait, said := retryInfo(h.Get("Grpc-Status-Details-Bin"))
	switch code {
	case "1", "4", "10", "11", "14", "15": // CANCELLED, DEADLINE_EXCEEDED, ABORTED, OUT_OF_RANGE, UNAVAILABLE, DATA_LOSS
		r.again, r.after = true, wait
	case "8": // RESOURCE_EXHAUSTED
		r.again, r.after = said, wait
	}
	return r
}

// retryInfo reads the retry delay from the status header, which is base64 with or without padding.
// The header contains google.rpc.Status{details = 3: Any{type_url = 1, value = 2:
// RetryInfo{retry_delay = 1: Duration{seconds = 1, nanos = 2}}}}.
func retryInfo(header string) (wait time.Duration, said bool) {
	status, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(header, "="))
	if err != nil {
		return 0, false
	}
	otlp.Fields(status, func(number protowire.Number, detail otlp.Value) {
		if number != 3 || !strings.HasSuffix(string(otlp.Last(detail.Bytes, 1).Bytes), "/google.rpc.RetryInfo") {
			return
		}
		delay := otlp.Last(otlp.Last(detail.Bytes, 2).Bytes, 1).Bytes
		seconds, nanos := otlp.Last(delay, 1).Number, otlp.Last(delay, 2).Number
		if seconds > maxRetrySeconds || nanos >= uint64(time.Second) {
			seconds, nanos = maxRetrySeconds, 0 // a negative value is a large unsigned number, so it ends here too
		}
		wait, said = time.Duration(seconds)*time.Second+time.Duration(nanos), true
	})
	return wait, said
}

// maxRetrySeconds prevents an integer overflow. A wait this long exceeds ExportTimeout anyway.
const maxRetrySeconds = 3600
