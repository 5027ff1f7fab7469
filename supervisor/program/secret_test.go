package program

import "testing"

func TestHide(t *testing.T) {
	s := &Spec{Secrets: []Secret{{"PIN", "123"}, {"KEY", "s3cret"}, {"LONG", "s3cret-and-more"}, {"NONE", ""}}}
	for text, want := range map[string]string{
		"":                                     "",
		"http http://x/?k=s3cret: refused":     "http http://x/?k=${KEY}: refused",
		"s3cret-and-more, s3cret, status 123.": "${LONG}, ${KEY}, status 123.",
	} {
		if got := s.Hide(text); got != want {
			t.Errorf("Hide(%q) = %q, want %q", text, got, want)
		}
	}
	if got := (*Spec)(nil).Hide("x"); got != "x" {
		t.Errorf("no specification hides nothing, got %q", got)
	}
}
