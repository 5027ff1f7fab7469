package contract

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// SamePods runs the same random scripts with two classes and compares every answer. It does not
// compare ETags, because each server makes its own.
func SamePods(t *testing.T, one, other func(testing.TB) adapters.Pods) {
	s := &podsScript{twins: newTwins(t, adapters.WrapPods, one, other)}
	rapid.Check(t, func(r *rapid.T) {
		s.round++
		s.etags = [2]string{`"stale"`, `"stale"`}
		for range rapid.IntRange(1, 4).Draw(r, "steps") {
			s.step(r)
		}
	})
}

type podsScript struct {
	*twins[adapters.Pods]
	round int
	etags [2]string // of the last read
}

func (s *podsScript) step(r *rapid.T) {
	root := fmt.Sprintf("/round-%d/", s.round)
	path := root + rapid.SampledFrom([]string{"a", "b.json", "c/d", "c/", "../up", ".git"}).Draw(r, "path")
	var cond [2]adapters.Cond
	switch rapid.IntRange(0, 3).Draw(r, "condition") {
	case 0:
		cond[0].IfNoneMatch, cond[1].IfNoneMatch = "*", "*"
	case 1:
		cond[0].IfMatch, cond[1].IfMatch = s.etags[0], s.etags[1]
	}
	switch rapid.IntRange(0, 5).Draw(r, "what") {
	case 0, 1:
		content := rapid.SampledFrom([]string{`{}`, `{"a":1}`, `{"a":[1,2]}`}).Draw(r, "content")
		compare(r, s.twins, "write "+path, func(i int, p adapters.Pods) (adapters.Written, error) {
			w, err := p.Write(s.ctx, path, jsonDoc(content), cond[i])
			w.ETag = ""
			return w, err
		})
	case 2:
		compare(r, s.twins, "read "+path, func(i int, p adapters.Pods) ([]any, error) {
			x, err := p.Read(s.ctx, path, adapters.ReadOpt{Accept: "application/json, text/turtle;q=0.5"})
			if err != nil {
				return nil, err
			}
			defer x.Body.Close()
			s.etags[i] = x.ETag
			body, err := io.ReadAll(x.Body)
			if strings.HasSuffix(path, "/") {
				body = nil // the document of a container contains times
			}
			return []any{x.Path, x.ContentType, x.ETag == "", string(body)}, err
		})
	case 3:
		op := rapid.SampledFrom([]string{`[{"op":"add","path":"/a","value":2}]`, `[{"op":"remove","path":"/a"}]`, `{`}).Draw(r, "patch")
		compare(r, s.twins, "patch "+path, func(i int, p adapters.Pods) (adapters.Written, error) {
			w, err := p.Patch(s.ctx, path, adapters.PodPatch{Dialect: adapters.DialectJSONPatch, Body: []byte(op)}, cond[i])
			w.ETag = ""
			return w, err
		})
	case 4:
		compare(r, s.twins, "del "+path, func(i int, p adapters.Pods) (bool, error) { return p.Del(s.ctx, path, cond[i]) })
	case 5:
		compare(r, s.twins, "list "+root, func(_ int, p adapters.Pods) ([]adapters.PodEntry, error) {
			page, err := p.List(s.ctx, root, adapters.PageOpt{})
			for i := range page.Items {
				page.Items[i].ETag, page.Items[i].Modified = "", adapters.Time{}
			}
			return page.Items, err
		})
	}
}
