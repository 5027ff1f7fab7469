package contract

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// twins are two adapters of a slot that live through the same random script:
// each step is made on both, and the answers must mean the same. What each
// makes up by itself, ids, instants and ETags, is compared by its place alone.
type twins[A any] struct {
	ctx   context.Context
	sides [2]A
	names [2]map[string]string // of a side: what it calls something -> what the script does
}

// newTwins connects two adapters for the test and wraps them.
func newTwins[A adapters.Adapter](t *testing.T, wrap func(A, adapters.Middleware) A, one, other func(testing.TB) A) *twins[A] {
	tw := &twins[A]{names: [2]map[string]string{{}, {}}}
	for i, make := range []func(testing.TB) A{one, other} {
		a := make(t)
		tw.ctx = connect(t, a)
		tw.sides[i] = wrap(a, nil)
	}
	return tw
}

// compare makes a step on both sides and fails unless the answers are equal. It
// returns them, and whether they are successes.
func compare[A, T any](r *rapid.T, tw *twins[A], what string, step func(side int, a A) (T, error)) (answers [2]T, ok bool) {
	var said [2][]byte
	for i, a := range tw.sides {
		var err error
		answers[i], err = step(i, a)
		ok = err == nil
		said[i] = tw.plain(r, i, answers[i], err)
	}
	if !bytes.Equal(said[0], said[1]) {
		r.Fatalf("%s: answers differ:\n%s\n%s", what, said[0], said[1])
	}
	return answers, ok
}

// plain is an answer, or the problem document of an error, as canonical JSON
// with the script's names.
func (tw *twins[A]) plain(r *rapid.T, side int, answer any, err error) []byte {
	var raw []byte
	if err != nil {
		_, raw = adapters.Problem(err)
	} else {
		raw = asJSON(r, answer)
	}
	var v any
	if err := json.Unmarshal(raw, &v); err != nil {
		r.Fatalf("%v: %s", err, raw)
	}
	if doc, is := v.(map[string]any); is && err != nil {
		delete(doc, "detail") // words, which may be the server's or the client's
		delete(doc, "message")
	}
	pairs := []string{}
	for _, id := range slices.SortedFunc(maps.Keys(tw.names[side]), func(a, b string) int {
		return cmp.Or(len(b)-len(a), strings.Compare(a, b))
	}) {
		pairs = append(pairs, id, tw.names[side][id])
	}
	return asJSON(r, canonical("", v, strings.NewReplacer(pairs...)))
}

// sets are the members whose order is that of ids, which differ.
var sets = []string{"blocked_by", "deps"}

func canonical(member string, v any, names *strings.Replacer) any {
	switch x := v.(type) {
	case map[string]any:
		delete(x, "author") // who calls differs: the slot's own caller, and one over HTTP
		for k, e := range x {
			x[k] = canonical(k, e, names)
		}
	case []any:
		for i, e := range x {
			x[i] = canonical("", e, names)
		}
		if slices.Contains(sets, member) {
			slices.SortFunc(x, func(a, b any) int { return bytes.Compare(mustJSON(a), mustJSON(b)) })
		}
	case string:
		if member == "ts" || strings.HasSuffix(member, "_at") || strings.HasSuffix(member, "_until") {
			return "then"
		}
		if member == "current" {
			return "an ETag"
		}
		return names.Replace(x)
	}
	return v
}

// mustJSON writes what was read from JSON.
func mustJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}
