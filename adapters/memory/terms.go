package memory

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode"

	"golang.org/x/text/unicode/norm"
)

// Limits of what is indexed of one entry or query.
const (
	maxEntryTerms = 4096 // distinct words of a value that text search can find
	maxQueryTerms = 64   // distinct words of a query that are looked up
	maxTermBytes  = 128  // the rest of a longer word is ignored
)

// words calls yield for each word of s. A word is a run of letters and digits, compared without
// case, accents and compatibility forms (Unicode NFKD). Each ideograph is a word of its own,
// because such scripts put no space between words. yield returns false to stop.
func words(s string, yield func(word string) bool) {
	var it norm.Iter
	it.InitString(norm.NFKD, s)
	var b strings.Builder
	flush := func() bool {
		if b.Len() == 0 {
			return true
		}
		w := b.String()
		b.Reset()
		return yield(w)
	}
	for !it.Done() {
		for _, r := range string(it.Next()) {
			switch {
			case unicode.Is(unicode.Mn, r):
			case unicode.In(r, unicode.Han, unicode.Hiragana, unicode.Katakana):
				if !flush() || !yield(string(r)) {
					return
				}
			case unicode.IsLetter(r) || unicode.IsDigit(r):
				if b.Len() < maxTermBytes {
					b.WriteRune(unicode.ToLower(r))
				}
			default:
				if !flush() {
					return
				}
			}
		}
	}
	flush()
}

// term is a word or a metadata pair in a posting list: a 64-bit hash. Words and pairs are hashed
// differently, so a word cannot be made that has the hash of a pair.
type term = int64

func wordTerm(w string) term {
	h := fnv.New64a()
	h.Write([]byte(w))
	return term(h.Sum64())
}

// weight is how often a term occurs in one entry.
type weight struct {
	term term
	tf   int
}

// entryTerms returns the terms of an entry, and the number of its indexed words, which BM25 uses as
// the length of the entry.
func entryTerms(value string, pairs []term) (list []weight, length int) {
	at := make(map[term]int)
	words(value, func(w string) bool {
		t := wordTerm(w)
		i, known := at[t]
		if !known {
			if len(list) == maxEntryTerms {
				return true
			}
			i = len(list)
			at[t] = i
			list = append(list, weight{term: t})
		}
		list[i].tf++
		length++
		return true
	})
	for _, p := range pairs {
		if _, known := at[p]; !known {
			at[p] = len(list)
			list = append(list, weight{p, 1})
		}
	}
	return list, length
}

// queryTerms are the distinct words of a query in order of appearance.
func queryTerms(query string) []term {
	var list []term
	seen := make(map[term]bool)
	words(query, func(w string) bool {
		t := wordTerm(w)
		if !seen[t] {
			seen[t] = true
			list = append(list, t)
		}
		return len(list) < maxQueryTerms
	})
	return list
}

// pairTerms hashes each member of a JSON object, so that a filter is an intersection of posting
// lists. With SHA-256, two pairs with the same hash cannot be made on purpose.
func pairTerms(object json.RawMessage) ([]term, error) {
	if len(object) == 0 {
		return nil, nil
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(object, &members); err != nil {
		return nil, err
	}
	list := make([]term, 0, len(members))
	for k, raw := range members {
		v, err := canonical(raw)
		if err != nil {
			return nil, err
		}
		sum := sha256.Sum256([]byte(strconv.Itoa(len(k)) + ":" + k + v))
		list = append(list, term(binary.LittleEndian.Uint64(sum[:8])))
	}
	return list, nil
}

// canonical gives equal JSON values one form: members sorted, numbers by value.
func canonical(raw json.RawMessage) (string, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return "", err
	}
	out, err := json.Marshal(byValue(v))
	return string(out), err
}

func byValue(v any) any {
	switch x := v.(type) {
	case json.Number:
		return number(x)
	case []any:
		for i := range x {
			x[i] = byValue(x[i])
		}
	case map[string]any:
		for k := range x {
			x[k] = byValue(x[k])
		}
	}
	return v
}

// number gives 1, 1.0 and 10e-1 one form. Integers keep all their digits. Other numbers are
// compared as float64, as by most JSON readers.
func number(n json.Number) any {
	if i, ok := new(big.Int).SetString(string(n), 10); ok {
		return json.Number(i.String())
	}
	f, err := n.Float64()
	if err != nil {
		// Beyond float64: equal only to the same spelling.
		return fmt.Sprintf("number %s", n)
	}
	if f == math.Trunc(f) && math.Abs(f) < 1<<53 {
		return json.Number(strconv.FormatInt(int64(f), 10))
	}
	return json.Number(strconv.FormatFloat(f, 'g', -1, 64))
}
