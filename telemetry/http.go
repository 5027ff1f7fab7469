package telemetry

import (
	"net/http"

	"github.com/dreamlab-ai/agentinit/internal/escape"
	"github.com/dreamlab-ai/agentinit/internal/otlp"
)

// overHTTP is OTLP/HTTP with binary protobuf.
var overHTTP = protocol{
	header: http.Header{"Content-Type": {otlp.ContentType}, "User-Agent": {otlp.UserAgent}},
	frame:  func(message []byte) []byte { return message },
	answer: readAnswer,
}

// partialSuccess returns an error if the collector has rejected spans.
func partialSuccess(answer []byte) error {
	if rejected, why := otlp.Rejected(answer); rejected > 0 {
		return &partial{rejected: rejected, why: escape.Line(why, maxMessage)}
	}
	return nil
}
