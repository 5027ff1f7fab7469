package telemetry

import (
	"net/http"

	"github.com/dreamlab-ai/agentinit/internal/escape"
)

// userAgent has the form that the OTLP exporter specification requires.
const userAgent = "OTel-OTLP-Exporter-agentinit"

// overHTTP is OTLP/HTTP with binary protobuf.
var overHTTP = protocol{
	header: http.Header{"Content-Type": {"application/x-protobuf"}, "User-Agent": {userAgent}},
	frame:  func(message []byte) []byte { return message },
	answer: readAnswer,
}

// partialSuccess reads ExportTraceServiceResponse{partial_success = 1 {rejected_spans = 1,
// error_message = 2}}. A field that cannot be parsed counts as absent.
func partialSuccess(message []byte) error {
	success := lastField(message, 1).bytes
	if rejected := int64(lastField(success, 1).number); rejected > 0 {
		return &partial{rejected: rejected, why: escape.Line(string(lastField(success, 2).bytes), maxMessage)}
	}
	return nil
}
