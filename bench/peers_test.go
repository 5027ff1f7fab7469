package main

import "testing"

// A peer that is asked for and cannot be measured is no table without it.
func TestUnknownPeer(t *testing.T) {
	l := &lab{}
	if _, err := l.peers("nosuch"); err == nil {
		t.Error("a peer that is not installed is left out silently")
	}
	if all, err := l.peers(""); err != nil || len(all) < 2 {
		t.Errorf("without names: %d peers, %v", len(all), err)
	}
}
