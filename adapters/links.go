package adapters

import (
	"net/http"
	"strings"
)

// maxLinks bounds the links kept of one answer.
const maxLinks = 256

// ParseLinks reads the Link headers (RFC 8288, 3): one entry per relation. An error ends its header
// line; links before the error count.
func ParseLinks(h http.Header) []Link {
	var links []Link
	for _, line := range h.Values("Link") {
		for line != "" && len(links) < maxLinks {
			var target, rel string
			var ok bool
			if target, rel, line, ok = nextLink(line); !ok {
				break
			}
			for r := range strings.FieldsSeq(rel) {
				links = append(links, Link{Rel: r, Target: target})
			}
		}
	}
	return links
}

// nextLink cuts one <target>; parameters off a header line.
func nextLink(line string) (target, rel, rest string, ok bool) {
	line = strings.TrimLeft(line, " \t,")
	if !strings.HasPrefix(line, "<") {
		return "", "", "", false
	}
	target, line, ok = strings.Cut(line[1:], ">")
	for ok {
		line = strings.TrimLeft(line, " \t")
		if !strings.HasPrefix(line, ";") {
			break
		}
		var name, value string
		name, value, line, ok = nextParam(line[1:])
		if name == "rel" && rel == "" {
			rel = value
		}
	}
	return target, rel, line, ok
}

// nextParam cuts name, name=token or name="quoted" off a header line.
func nextParam(line string) (name, value, rest string, ok bool) {
	line = strings.TrimLeft(line, " \t")
	end := strings.IndexAny(line, "=;,")
	if end < 0 {
		return strings.ToLower(strings.TrimSpace(line)), "", "", true
	}
	name = strings.ToLower(strings.TrimSpace(line[:end]))
	if line[end] != '=' {
		return name, "", line[end:], true
	}
	line = strings.TrimLeft(line[end+1:], " \t")
	if !strings.HasPrefix(line, `"`) {
		end = strings.IndexAny(line, ";,")
		if end < 0 {
			end = len(line)
		}
		return name, strings.TrimSpace(line[:end]), line[end:], true
	}
	var text strings.Builder
	for i := 1; i < len(line); i++ {
		switch line[i] {
		case '"':
			return name, text.String(), line[i+1:], true
		case '\\':
			if i++; i == len(line) {
				return name, "", "", false
			}
		}
		text.WriteByte(line[i])
	}
	return name, "", "", false
}
