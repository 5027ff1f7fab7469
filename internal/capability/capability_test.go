package capability

import (
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

func TestNumber(t *testing.T) {
	for name, want := range map[string]int{"CAP_CHOWN": unix.CAP_CHOWN, "net_bind_service": unix.CAP_NET_BIND_SERVICE, "CHECKPOINT_RESTORE": unix.CAP_CHECKPOINT_RESTORE} {
		if n, ok := Number(name); !ok || n != want {
			t.Errorf("%s: %d, %v", name, n, ok)
		}
	}
	if _, ok := Number("FLY"); ok || Name(-1) != "" || Name(99) != "" {
		t.Error("FLY is one")
	}
	if !slices.Equal([]string{Name(0), Name(unix.CAP_CHECKPOINT_RESTORE)}, []string{"CHOWN", "CHECKPOINT_RESTORE"}) {
		t.Error("names")
	}
}
