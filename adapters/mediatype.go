package adapters

import (
	"errors"
	"mime"
	"net/http"
	"strconv"
	"strings"
)

// MediaType is the media type in a Content-Type header without its parameters, in lower case; "" if it cannot be read.
func MediaType(contentType string) string {
	mt, _, err := mime.ParseMediaType(contentType)
	if err != nil && !errors.Is(err, mime.ErrInvalidMediaParameter) {
		return ""
	}
	return mt
}

// IsJSON tells whether a media type without parameters is JSON (RFC 6839, 3.1).
func IsJSON(mediaType string) bool {
	return mediaType == "application/json" || strings.HasSuffix(mediaType, "+json")
}

// Accepted returns the place of the media type among offers that has the highest weight in the Accept header (RFC 9110,
// 12.5.1), the first of equals, and -1 if the header accepts none of them. Without such a header, each is accepted.
func Accepted(h http.Header, offers ...string) int {
	accept := strings.Join(h.Values("Accept"), ",")
	if strings.TrimSpace(accept) == "" {
		return 0
	}
	best, weight := -1, 0.0
	for i, offer := range offers {
		if w := weightOf(accept, offer); w > weight {
			best, weight = i, w
		}
	}
	return best
}

// weightOf returns the q of the most specific media range in accept that matches offer, 0 if none
// matches.
func weightOf(accept, offer string) float64 {
	kind, _, _ := strings.Cut(offer, "/")
	weight, specific := 0.0, 0
	for one := range strings.SplitSeq(accept, ",") {
		mt, params, err := mime.ParseMediaType(one)
		if err != nil {
			continue
		}
		n := 0
		switch mt {
		case offer:
			n = 3
		case kind + "/*":
			n = 2
		case "*/*":
			n = 1
		}
		if n <= specific {
			continue
		}
		q := 1.0
		if v, ok := params["q"]; ok {
			if q, err = strconv.ParseFloat(v, 64); err != nil {
				continue
			}
		}
		weight, specific = q, n
	}
	return weight
}
