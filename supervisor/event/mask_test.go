package event

import (
	"encoding/json"
	"strings"
	"testing"
)

// A mask hides a secret in every text of an event, also in events that were published before the
// mask was set. Without a mask the secret is visible.
func TestMaskReachesEveryText(t *testing.T) {
	hide := func(text string) string { return strings.ReplaceAll(text, "s3cret", "******") }
	fields := map[string]any{
		"path": "/logs/s3cret/x", "list": []string{"a", "s3cret"}, "n": 7, "wait": 1.5,
		"table": map[string]any{"deep": []any{map[string]string{"x": "s3cret"}}},
	}
	publish := func(b *Bus) {
		b.Publish(Event{Name: "A", Fields: fields, Change: &Change{From: "x", Reason: "no /s3cret"}})
		b.Publish(Event{Name: "B", Fields: map[string]any{"message": "harmless"}})
	}
	for name, c := range map[string]struct {
		setup func(*Bus)
		count int
	}{
		"before":  {func(b *Bus) { b.SetMask(hide); publish(b) }, 0},
		"after":   {func(b *Bus) { publish(b); b.SetMask(hide) }, 0},
		"no mask": {publish, 4},
	} {
		b := NewBus(10)
		c.setup(b)
		w := b.Watch(0)
		var all strings.Builder
		for e, ok := w.TryNext(); ok; e, ok = w.TryNext() {
			data, err := json.Marshal(e)
			if err != nil {
				t.Fatal(err)
			}
			all.Write(data)
		}
		if got := strings.Count(all.String(), "s3cret"); got != c.count {
			t.Errorf("%s: the secret is there %d times, want %d: %s", name, got, c.count, all.String())
		}
		if !strings.Contains(all.String(), "harmless") || !strings.Contains(all.String(), `"wait":1.5`) {
			t.Errorf("%s: other fields are gone: %s", name, all.String())
		}
	}
	if fields["path"] != "/logs/s3cret/x" {
		t.Error("the publisher's own fields were changed")
	}
}

// A mask may break the JSON text of a list. The event is still written.
func TestMaskThatBreaksJSON(t *testing.T) {
	b := NewBus(1)
	b.SetMask(func(text string) string { return strings.ReplaceAll(text, "nsecret", "*******") })
	b.Publish(Event{Name: "A", Fields: map[string]any{"list": []string{"a\nsecret"}}})
	e, _ := b.Watch(0).TryNext()
	if data, err := json.Marshal(e); err != nil || strings.Contains(string(data), "secret") {
		t.Errorf("%s, %v", data, err)
	}
}

func TestMaskSetDuringPublish(t *testing.T) {
	b := NewBus(4)
	b.SetMask(func(text string) string {
		b.SetMask(func(text string) string { return strings.ReplaceAll(text, "secret", "***") })
		return text
	})
	b.Publish(Event{Name: "X", Fields: map[string]any{"path": "/secret"}})
	if e, _ := b.Watch(0).TryNext(); e.Fields["path"] != "/***" {
		t.Errorf("an event published while the mask changes has path %v", e.Fields["path"])
	}
}
