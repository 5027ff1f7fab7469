package ijson

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

// What is refused is what encoding/json would replace by U+FFFD.
func TestSurrogatesHavePairs(t *testing.T) {
	for _, text := range []string{
		`a`, `\n`, `\\`, `\ud83d\ude00`, `\uD83D\uDE00x`, `\\ud800`, `\\\ud83d\ude00`, `\ud7ff`, `\ue000`, `\u0000`,
		`\ud800`, `\udc00`, `x\uD800x`, `\ud800\n`, `\ud800\u0041`, `\ud800\ud800`, `\ud800\ud83d\ude00`, `\ude00\ud83d`, `\\\ud800`,
		`\ud83d\ude00\ude00`, `\ud83d\ude0`, `\ud83d\`, `\u`, `\ud8zz`, `\`,
	} {
		raw := []byte(`{"a":"` + text + `"}`)
		var read struct{ A string }
		if json.Unmarshal(raw, &read) != nil {
			_ = Check(raw) // only must not panic
			continue
		}
		if err := Check(raw); (err != nil) != strings.Contains(read.A, "\ufffd") {
			t.Errorf("%s is read as %q, and the check says %v", raw, read.A, err)
		}
	}
}

func TestElements(t *testing.T) {
	for text, want := range map[string][2]int{
		``:                              {0, 0},
		`1`:                             {0, 0},
		`"[1,2,3]"`:                     {0, 0},
		`[]`:                            {0, 0},
		`[ ]`:                           {0, 0},
		`[[]]`:                          {1, 1},
		`[1]`:                           {1, 1},
		` [null, "a,b" ,{}]`:            {3, 3},
		`["\"[,", "\\", 3]`:             {3, 3},
		`{"a":[1,2,3],"b":{}}`:          {2, 3},
		`{"a":{"b":[[1,2],[3,4,5,6]]}}`: {1, 4},
		// No JSON: any answer will do.
		`]`:      {0, 0},
		`["open`: {0, 0},
	} {
		if root, longest := Elements([]byte(text)); root != want[0] || longest != want[1] {
			t.Errorf("%s: %d %d, want %v", text, root, longest, want)
		}
	}
	for depth, valid := range map[int]bool{maxDepth: true, maxDepth + 1: false} {
		text := append(bytes.Repeat([]byte("["), depth), bytes.Repeat([]byte("]"), depth)...)
		if json.Valid(text) != valid {
			t.Errorf("encoding/json reads %d arrays within each other: %v", depth, !valid)
		}
		if root, _ := Elements(text); (root == 1) != valid {
			t.Errorf("%d arrays within each other: %d", depth, root)
		}
	}
}
