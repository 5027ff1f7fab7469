package rules

import (
	"path"
	"strconv"

	"github.com/dreamlab-ai/agentinit/schema"
)

func artifacts(d *schema.Document, visit func(i string, t map[string]any)) {
	list, _ := d.List("artifacts")
	for i, e := range list {
		if t, ok := e.(map[string]any); ok {
			visit("["+strconv.Itoa(i)+"]", t)
		}
	}
}

func emptyArtifacts(d *schema.Document, _ Facts) (out []schema.Finding) {
	artifacts(d, func(i string, t map[string]any) {
		entry, _ := t["entry"].(string)
		assets, _ := t["assets"].([]any)
		command, _ := t["command"].([]any)
		if entry == "" && len(assets) == 0 && len(command) == 0 {
			name := "artifacts" + i // the id may be missing or have a wrong type
			if id, ok := t["id"].(string); ok {
				name = "artifact " + schema.Quote(id)
			}
			out = append(out, atKeys(d, []string{"artifacts", i}, name+" has neither entry, assets nor command", "give one of the three"))
		}
	})
	return out
}

func artifactGlobs(d *schema.Document, _ Facts) (out []schema.Finding) {
	artifacts(d, func(i string, t map[string]any) {
		check := func(v any, keys ...string) {
			pattern, _ := v.(string)
			if _, err := path.Match(pattern, ""); err != nil {
				at := append([]string{"artifacts", i}, keys...)
				out = append(out, valued(atKeys(d, at, schema.Path(at...)+" = "+schema.Quote(pattern)+" is no pattern of paths", "close its bracket with ]"), pattern))
			}
		}
		check(t["entry"], "entry")
		assets, _ := t["assets"].([]any)
		for n, asset := range assets {
			check(asset, "assets", "["+strconv.Itoa(n)+"]")
		}
	})
	return out
}

func sameArtifactTwice(d *schema.Document, _ Facts) (out []schema.Finding) {
	seen := map[string]bool{}
	artifacts(d, func(i string, t map[string]any) {
		id, ok := t["id"].(string)
		if ok && seen[id] {
			out = append(out, atKeys(d, []string{"artifacts", i, "id"}, "a second artifact has the id "+schema.Quote(id), "give each its own"))
		}
		seen[id] = true
	})
	return out
}
