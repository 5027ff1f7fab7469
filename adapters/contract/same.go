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

// twins are two adapters of a slot. A random script makes each step on both, and the answers must
// mean the same. The values of ids, times and ETags differ, so compare does not compare them.
type twins[A any] struct {
	ctx   context.Context
	sides [2]A
	names [2]map[string]string // for each side: from its id to the script's name
}

// newTwins makes, connects and wraps two adapters.
func newTwins[A adapters.Adapter](t *testing.T, wrap func(A, adapters.Middleware) A, one, other func(testing.TB) A) *twins[A] {
	tw := &twins[A]{names: [2]map[string]string{{}, {}}}
	for i, make := range []func(testing.TB) A{one, other} {
		a := make(t)
		tw.ctx = connect(t, a)
		tw.sides[i] = wrap(a, nil)
	}
	return tw
}

// compare makes a step on both sides and fails the test unless the answers are equal. It returns the
// answers, and whether the step succeeded.
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

// plain returns an answer, or the problem document of an error, as canonical JSON with the names of
// the script.
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
		delete(doc, "detail") // the texts differ: they may come from the server or the client
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

// sets are the members that are sorted by id. Their order differs, because the ids differ.
var sets = []string{"blocked_by", "deps"}

func canonical(member string, v any, names *strings.Replacer) any {
	switch x := v.(type) {
	case map[string]any:
		delete(x, "author") // the callers differ: one calls the slot, the other comes over HTTP
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

// mustJSON encodes a value that was decoded from JSON.
func mustJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}
