// Package plural writes a number with its noun for messages in English: "1 line", "2 lines". It must
// never be used for what programs parse: that has a number alone.
package plural

import "fmt"

// Of is n with the noun, which takes an s unless n is 1.
func Of[N int | int64 | uint64](n N, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
