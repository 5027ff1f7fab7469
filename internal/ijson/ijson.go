// Package ijson tells whether the strings of a JSON text are Unicode (I-JSON, RFC 7493).
package ijson

import (
	"bytes"
	"errors"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// Check refuses JSON whose strings are not Unicode: bytes that are not UTF-8, and an escaped surrogate
// without its other half (RFC 7493, 2.1). encoding/json reads both as U+FFFD, so agentinit would store,
// sign or run another text than it was given. The error says what is wrong with the text, as in "is not
// valid UTF-8".
func Check(raw []byte) error {
	if !utf8.Valid(raw) {
		return errors.New("is not valid UTF-8")
	}
	if _, unpaired := escapes(raw); unpaired {
		return errors.New(`has one half of a surrogate pair (\ud800 to \udfff) without the other`)
	}
	return nil
}

// HasNUL tells whether a JSON text has an escaped NUL.
func HasNUL(raw []byte) bool {
	nul, _ := escapes(raw)
	return nul
}

// escapes tells whether a JSON text has an escaped NUL, or an escaped surrogate without its other half.
func escapes(raw []byte) (nul, unpaired bool) {
	for {
		i := bytes.IndexByte(raw, '\\')
		if i < 0 {
			return nul, unpaired
		}
		raw = raw[i:]
		unit, ok := escapedUnit(raw)
		switch {
		case !ok:
			raw = raw[min(2, len(raw)):] // \n and its like, or no JSON
			continue
		case unit == 0:
			nul = true
		case utf16.IsSurrogate(unit):
			low, _ := escapedUnit(raw[6:])
			if utf16.DecodeRune(unit, low) == utf8.RuneError {
				unpaired = true
			} else {
				raw = raw[6:]
			}
		}
		raw = raw[6:]
	}
}

// escapedUnit reads \uXXXX, one unit of UTF-16.
func escapedUnit(raw []byte) (unit rune, ok bool) {
	if len(raw) < 6 || raw[0] != '\\' || raw[1] != 'u' {
		return 0, false
	}
	n, err := strconv.ParseUint(string(raw[2:6]), 16, 16)
	return rune(n), err == nil
}
