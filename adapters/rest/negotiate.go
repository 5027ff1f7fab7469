package rest

import (
	"mime"
	"net/http"
	"strconv"
	"strings"
)

// preferred is the offer that the Accept header weighs most (RFC 9110, 12.5.1);
// of equals the first. Where the header accepts none of them, it is the first too:
// an answer that is not asked for says more than a 406.
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

// weightOf is the q of the most specific range of accept that offer is in, 0 when
// it is in none.
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
