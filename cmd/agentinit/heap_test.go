package main

import "testing"

// A small box holds fewer bytes of request bodies. For any other box, 0 selects the server's default.
func TestHeldBodiesFollowTheBox(t *testing.T) {
	for limit, want := range map[uint64]int64{0: 0, 128 << 20: 16 << 20, 256 << 20: 32 << 20, 512 << 20: 0, 4 << 30: 0} {
		if got := heldBodies(limit); got != want {
			t.Errorf("with a limit of %d bytes, %d are held, want %d", limit, got, want)
		}
	}
}
