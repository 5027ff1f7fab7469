package escape

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

func TestShell(t *testing.T) {
	if got := Shell("redis-server", "--save", "", "--dir", ".", "it's", "$X", "a b"); got != `redis-server --save '' --dir . 'it'\''s' '$X' 'a b'` {
		t.Error(got)
	}
	words := []string{"", " ", "a\nb", "'", `"`, `\`, "$HOME", "`id`", "*", "~", "#", "!", "a=b", "é", "-n", "{a,b}", "<>|&;()"}
	out, err := exec.Command("sh", "-c", `printf '%s\0' `+Shell(words...)).Output()
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00"); !slices.Equal(got, words) {
		t.Errorf("%q", got)
	}
}
