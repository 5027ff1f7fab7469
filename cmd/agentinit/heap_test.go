package main

import (
	"os"
	"strings"
	"testing"
)

// After the boot, the runtime must not ask the kernel for huge pages: a box at rest would grow by
// 2 MiB as soon as the kernel gets around to it.
func TestTheBootEndsWithoutHugePages(t *testing.T) {
	asked := func() (n int) {
		text, err := os.ReadFile("/proc/self/smaps")
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if flags, ok := strings.CutPrefix(line, "VmFlags:"); ok && strings.Contains(flags, " hg") { // proc(5)
				n++
			}
		}
		return n
	}
	before := asked()
	deferCollection(func(string) string { return "" })()
	if after := asked(); after > before {
		t.Errorf("%d mappings ask for huge pages, %d did before the boot", after, before)
	}
}

// A small box holds fewer bytes of request bodies. For any other box, 0 selects the server's default.
func TestHeldBodiesFollowTheBox(t *testing.T) {
	for limit, want := range map[uint64]int64{0: 0, 128 << 20: 16 << 20, 256 << 20: 32 << 20, 512 << 20: 0, 4 << 30: 0} {
		if got := heldBodies(limit); got != want {
			t.Errorf("with a limit of %d bytes, %d are held, want %d", limit, got, want)
		}
	}
}
