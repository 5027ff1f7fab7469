package telemetry

import (
	"google.golang.org/protobuf/encoding/protowire"
)

// value is a protobuf field, by its wire type: a varint's number, or the bytes
// of a string or message.
type value struct {
	number uint64
	bytes  []byte
}

// fields calls f with each varint and length-delimited field of a message, until
// the end or the first byte that makes no sense.
func fields(message []byte, f func(protowire.Number, value)) {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return
		}
		message = message[n:]
		var v value
		switch kind {
		case protowire.VarintType:
			v.number, n = protowire.ConsumeVarint(message)
		case protowire.BytesType:
			v.bytes, n = protowire.ConsumeBytes(message)
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

// lastField is the field with this number, the last one when it is repeated, as
// protobuf wants for fields that are not; the zero value when there is none.
func lastField(message []byte, number protowire.Number) (found value) {
	fields(message, func(n protowire.Number, v value) {
		if n == number {
			found = v
		}
	})
	return found
}
