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
	for _, c := range []struct{ output, want string }{
		{"k=s3", "k="},
		{"k=s3cret", "k="}, // perhaps LONG
		{"k=s3cret-and", "k="},
		{"k=s3cret-and-more", "k=${LONG}"},
		{"k=s3cret.", "k=${KEY}."},
		{"12", ""},
		{"", ""},
	} {
		if got := s.HideOutput([]byte(c.output), true); got != c.want {
			t.Errorf("HideOutput(%q, cut) = %q, want %q", c.output, got, c.want)
		}
	}
	if got := s.HideOutput([]byte("k=s3"), false); got != "k=s3" {
		t.Errorf("whole output became %q", got)
	}
	twice := &Spec{Secrets: []Secret{{"KEY", "abcab"}}}
	if got := twice.HideOutput([]byte("k=abcab"), true); got != "k=" {
		t.Errorf("a secret that ends as it begins became %q", got)
	}
	if got := (*Spec)(nil).Hide("x"); got != "x" {
		t.Errorf("no specification hides nothing, got %q", got)
	}
}
