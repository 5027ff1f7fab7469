// Package ijson checks a JSON text before it is decoded: whether its strings are Unicode (I-JSON,
// RFC 7493), and how many elements its arrays have.
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

// maxDepth is the deepest nesting that encoding/json reads.
const maxDepth = 10000

// Elements counts the elements of an array, or the members of an object. root is the number of the
// outermost value, longest is the largest number of any array or object. An array of short values
// takes a hundred times the size of its text when it is decoded into large structs, and
// encoding/json reads all of it before its length is known. For a text that is not JSON the numbers
// have no meaning.
func Elements(raw []byte) (root, longest int) {
	var open []int // the elements of each array and object around raw[i]
	for i := 0; i < len(raw); i++ {
		switch raw[i] {
		case '"':
			i += stringEnd(raw[i:])
			fallthrough
		default:
			if n := len(open) - 1; n >= 0 && open[n] == 0 {
				open[n] = 1
			}
		case ' ', '\t', '\r', '\n', ':':
		case ',':
			if n := len(open) - 1; n >= 0 {
				open[n]++
			}
		case '[', '{':
			if n := len(open) - 1; n >= 0 && open[n] == 0 {
				open[n] = 1
			}
			if len(open) == maxDepth {
				return root, longest
			}
			open = append(open, 0)
		case ']', '}':
			n := len(open) - 1
			if n < 0 {
				return root, longest
			}
			longest = max(longest, open[n])
			if n == 0 {
				return open[0], longest
			}
			open = open[:n]
		}
	}
	return root, longest
}

// stringEnd returns the position of the quote that ends the string at the start of raw.
func stringEnd(raw []byte) int {
	for i := 1; i < len(raw); i++ {
		switch raw[i] {
		case '\\':
			i++
		case '"':
			return i
		}
	}
	return len(raw)
}
