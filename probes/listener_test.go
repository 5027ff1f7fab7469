package probes

import "testing"

func TestConnectionsLeaveDescriptorsForPrograms(t *testing.T) {
	for descriptors, want := range map[uint64]int{1: 1, 256: 32, 1024: 128, 4096: 512, 1 << 20: 512} {
		if got := connectionLimit(descriptors); got != want {
			t.Errorf("%d descriptors: %d connections, want %d", descriptors, got, want)
		}
	}
	if descriptors() == 0 {
		t.Error("no descriptors at all")
	}
}
