package telemetry

import (
	"google.golang.org/protobuf/encoding/protowire"
)

// value is the value of a protobuf field, by wire type: the number of a varint, or the bytes of a
// string or message.
type value struct {
	number uint64
	bytes  []byte
}

// fields calls f with each varint and length-delimited field of a message. It stops at the end or
// at the first byte that cannot be parsed.
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

// lastField returns the field with this number. If the field is repeated, the last one counts, as
// protobuf specifies for singular fields. If it is absent, the result is the zero value.
func lastField(message []byte, number protowire.Number) (found value) {
	fields(message, func(n protowire.Number, v value) {
		if n == number {
			found = v
		}
	})
	return found
}
