package logs

import (
	"bytes"
	"encoding/json"
	"hash/fnv"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/dreamlab-ai/agentinit/internal/escape"
)

// appendJSON appends the envelope of a line:
//
//	{"time":…,"program":…,"stream":…,"pid":…,"msg":…}
//
// A line that is a JSON object keeps its members and gets the first four added. If a member has a
// name that agentinit uses, in any spelling that a JSON reader might accept for it, it is renamed
// to "app_" + name. So the output of a program cannot look like another program's line or like an
// event of agentinit. "app_" + such a name is renamed in the same way, so that two names stay two.
// A piece of a line over MaxLine is text with "truncated":true.
func appendJSON(b *batch, program string, kind Stream, pid int, text []byte, cut bool) []byte {
	out := append(b.out, `{"time":"`...)
	out = append(out, b.timestamp("2006-01-02T15:04:05.000000Z07:00", true)...)
	out = append(out, `","program":`...)
	out = appendJSONString(out, []byte(program))
	out = append(out, `,"stream":"`...)
	out = append(out, kind.String()...)
	out = append(out, `","pid":`...)
	out = strconv.AppendInt(out, int64(pid), 10)
	if cut {
		out = append(out, `,"truncated":true`...)
	} else if members, ok := objectMembers(text); ok {
		if len(members) > 0 {
			out = appendMembers(append(out, ','), escape.JSON(members))
		}
		return append(out, '}', '\n')
	}
	out = append(out, `,"msg":`...)
	return append(appendJSONString(out, text), '}', '\n')
}

// objectMembers returns the text between the braces of a line that is one valid JSON object.
func objectMembers(text []byte) ([]byte, bool) {
	text = bytes.Trim(text, " \t\r")
	if len(text) < 2 || text[0] != '{' || text[len(text)-1] != '}' || !utf8.Valid(text) || !json.Valid(text) {
		return nil, false
	}
	return bytes.Trim(text[1:len(text)-1], " \t\r"), true
}

// ownKeys are the keys of the envelope and of agentinit's own lines. Every key that begins with
// ownPrefix belongs to them too.
var ownKeys = []string{"time", "program", "stream", "pid", "truncated", "level", "event", "dropped_bytes"}

const ownPrefix = "agentbox."

// appendMembers copies the members of a valid JSON object and renames those that use one of
// agentinit's keys.
func appendMembers(out, members []byte) []byte {
	depth, key := 0, true
	for i := 0; i < len(members); {
		switch c := members[i]; c {
		case '"':
			end := stringEnd(members, i)
			if depth == 0 && key {
				out = appendKey(out, members[i:end])
				key = false
			} else {
				out = append(out, members[i:end]...)
			}
			i = end
			continue
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		case ',':
			key = key || depth == 0
		}
		out = append(out, members[i])
		i++
	}
	return out
}

// stringEnd returns the index after the string that begins at i.
func stringEnd(b []byte, i int) int {
	for i++; i < len(b); i++ {
		switch b[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return len(b)
}

func appendKey(out, quoted []byte) []byte {
	name := string(quoted[1 : len(quoted)-1])
	if strings.IndexByte(name, '\\') >= 0 {
		var plain string
		if json.Unmarshal(quoted, &plain) == nil {
			name = plain
		}
	}
	if renamed(name) {
		return append(append(out, `"`+appPrefix...), quoted[1:]...)
	}
	return append(out, quoted...)
}

const appPrefix = "app_"

// renamed tells whether a key of a program gets appPrefix. Readers that ignore case, as Go's
// encoding/json does, would let "Program" win over "program".
func renamed(name string) bool {
	for len(name) >= len(appPrefix) && strings.EqualFold(name[:len(appPrefix)], appPrefix) {
		name = name[len(appPrefix):]
	}
	for _, own := range ownKeys {
		if strings.EqualFold(name, own) {
			return true
		}
	}
	return hasOwnPrefix(name)
}

// hasOwnPrefix ignores case as EqualFold does. By that rule, some longer letters of other scripts
// equal ASCII letters.
func hasOwnPrefix(name string) bool {
	i := strings.IndexByte(name, '.')
	return i >= 0 && strings.EqualFold(name[:i+1], ownPrefix)
}

const hexDigits = "0123456789abcdef"

// appendJSONString appends text as a JSON string. Bytes that are not UTF-8 become U+FFFD, because
// JSON cannot carry them. The ring keeps the original bytes.
func appendJSONString(out, text []byte) []byte {
	out = append(out, '"')
	start := 0
	for i := 0; i < len(text); {
		c := text[i]
		if c < utf8.RuneSelf {
			if c >= 0x20 && c != '"' && c != '\\' && c != 0x7f {
				i++
				continue
			}
			out = append(out, text[start:i]...)
			out = appendJSONEscape(out, c)
			i++
			start = i
			continue
		}
		r, size := utf8.DecodeRune(text[i:])
		if r == utf8.RuneError && size == 1 {
			out = append(append(out, text[start:i]...), "\ufffd"...)
			start = i + 1
		} else if escape.Obeyed(r) {
			out = escape.AppendRune(append(out, text[start:i]...), r)
			start = i + size
		}
		i += size
	}
	return append(append(out, text[start:]...), '"')
}

func appendJSONEscape(out []byte, c byte) []byte {
	switch c {
	case '"', '\\':
		return append(out, '\\', c)
	case '\n':
		return append(out, '\\', 'n')
	case '\r':
		return append(out, '\\', 'r')
	case '\t':
		return append(out, '\\', 't')
	}
	return append(out, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
}

const maxNameWidth = 24

// palette holds the 256-colour numbers that are readable on dark and light backgrounds.
var palette = []int{33, 35, 37, 64, 69, 97, 100, 130, 133, 136, 167, 172}

// appendConsole appends "15:04:05.000 name | text". Only agentinit writes escape sequences.
// Characters of the text that could move the cursor, set colours or reorder the display are written
// as visible escapes.
func (c *console) appendConsole(b *batch, program string, kind Stream, text []byte) []byte {
	out := append(append(b.out, b.timestamp("15:04:05.000", false)...), ' ')
	if c.color {
		out = append(out, "\x1b[38;5;"...)
		out = strconv.AppendInt(out, int64(palette[hash(program)%uint32(len(palette))]), 10)
		out = append(out, 'm')
	}
	out = append(out, program...)
	for range int(c.align(len(program))) - len(program) {
		out = append(out, ' ')
	}
	if kind == Stderr {
		out = append(out, " !"...)
	} else {
		out = append(out, " |"...)
	}
	if c.color {
		out = append(out, "\x1b[0m"...)
	}
	return append(appendVisible(append(out, ' '), text), '\n')
}

// align returns the width of the name column, which grows with the longest name.
func (c *console) align(n int) int32 {
	n = min(n, maxNameWidth)
	for {
		width := c.width.Load()
		if int32(n) <= width || c.width.CompareAndSwap(width, int32(n)) {
			return max(width, int32(n))
		}
	}
}

func hash(s string) uint32 {
	h := fnv.New32a()
	h.Write([]byte(s)) // a hash never fails
	return h.Sum32()
}

// appendVisible copies text and writes out the characters that a terminal would act on.
func appendVisible(out, text []byte) []byte {
	for i := 0; i < len(text); {
		c := text[i]
		if c >= 0x20 && c < 0x7f || c == '\t' {
			out = append(out, c)
			i++
			continue
		}
		if c < utf8.RuneSelf {
			out = append(out, '\\', 'x', hexDigits[c>>4], hexDigits[c&15])
			i++
			continue
		}
		r, size := utf8.DecodeRune(text[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			out = append(out, '\\', 'x', hexDigits[c>>4], hexDigits[c&15])
		case escape.Obeyed(r):
			out = append(out, strconv.QuoteRuneToASCII(r)[1:]...)
			out = out[:len(out)-1] // the closing quote
		default:
			out = append(out, text[i:i+size]...)
		}
		i += size
	}
	return out
}
