package rest

import (
	"mime"
	"net/http"
	"strconv"
	"strings"
)

// preferred returns the offer with the highest weight in the Accept header (RFC 9110, 12.5.1), the
// first of equals. If the header accepts none of the offers, preferred also returns the first: an
// answer in another media type is more useful than 406.
func preferred(h http.Header, offers ...string) string {
	accept := strings.Join(h.Values("Accept"), ",")
	best, weight := offers[0], 0.0
	for _, offer := range offers {
		if w := weightOf(accept, offer); w > weight {
			best, weight = offer, w
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
