// Package otlp owns what the exporters of spans and of logs have in common on the wire of OTLP 1.11:
// the fields of a protobuf message, and the answer of a collector. It must never send anything, and
// it does not know what a span or a log record is.
package otlp

import (
	"google.golang.org/protobuf/encoding/protowire"
)

// ContentType is the media type of OTLP/HTTP with binary protobuf. Collectors need not understand
// OTLP in JSON, and some do not.
const ContentType = "application/x-protobuf"

// UserAgent has the form that the OTLP exporter specification requires.
const UserAgent = "OTel-OTLP-Exporter-agentinit"

// Value is the value of a protobuf field, by wire type: the number of a varint, or the bytes of a
// string or message.
type Value struct {
	Number uint64
	Bytes  []byte
}

// Fields calls f with each varint and length-delimited field of a message. It stops at the end or
// at the first byte that cannot be parsed.
func Fields(message []byte, f func(protowire.Number, Value)) {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return
		}
		message = message[n:]
		var v Value
		switch kind {
		case protowire.VarintType:
			v.Number, n = protowire.ConsumeVarint(message)
		case protowire.BytesType:
			v.Bytes, n = protowire.ConsumeBytes(message)
		default:
			n = protowire.ConsumeFieldValue(number, kind, message)
		}
		if n < 0 {
			return
		}
		message = message[n:]
		f(number, v)
	}
}

// Last returns the field with this number. If the field is repeated, the last one counts, as
// protobuf specifies for singular fields. If it is absent, the result is the zero Value.
func Last(message []byte, number protowire.Number) (found Value) {
	Fields(message, func(n protowire.Number, v Value) {
		if n == number {
			found = v
		}
	})
	return found
}

// Rejected returns how many spans or log records a collector has rejected although it answered with
// a good status, and its reason ("Partial Success"). The number is 0 or more. The reason is not
// bounded and may hold any bytes. The answers for spans and for logs have the same form:
// {partial_success = 1 {rejected = 1, error_message = 2}}. A field that cannot be parsed counts as
// absent.
func Rejected(answer []byte) (n int64, why string) {
	success := Last(answer, 1).Bytes
	return max(0, int64(Last(success, 1).Number)), string(Last(success, 2).Bytes)
}
