package wire

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// BenchmarkList reads a page of a hundred beads, as an external getReady does.
func BenchmarkList(b *testing.B) {
	now := adapters.At(time.Date(2026, 1, 2, 3, 4, 5, 6e6, time.UTC))
	var page adapters.Page[adapters.Bead]
	for range adapters.DefaultPageLimit {
		page.Items = append(page.Items, adapters.Bead{
			ID: "ab-abcdef", Title: "measured", Description: "a few words", Type: "epic", Kind: "epic", Status: "open", Priority: 2, CreatedBy: "bench",
			Tags: []string{"a"}, Version: 1, CreatedAt: now, UpdatedAt: now,
		})
	}
	envelope, err := json.Marshal(page)
	if err != nil {
		b.Fatal(err)
	}
	array, err := json.Marshal(page.Items)
	if err != nil {
		b.Fatal(err)
	}
	for name, body := range map[string][]byte{"envelope": envelope, "array": array} {
		b.Run(name, func(b *testing.B) {
			res := &Response{Status: 200, Header: http.Header{"Content-Type": {"application/json"}}, Body: body}
			b.ReportAllocs()
			b.SetBytes(int64(len(body)))
			for b.Loop() {
				got, err := List[adapters.Bead](res)
				if err != nil || len(got.Items) != adapters.DefaultPageLimit {
					b.Fatal(len(got.Items), err)
				}
			}
		})
	}
}
