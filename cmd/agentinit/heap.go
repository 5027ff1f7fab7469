package main

import "runtime/debug"

// bootGarbage is the collector's percentage while the box boots. The smallest
// heap that is collected is then 16 MB instead of 4, which a boot of a hundred
// programs does not reach: what it leaves is collected once, after the seal,
// when no program waits to start. GOMEMLIMIT holds all the same.
const bootGarbage = 400

// endWithoutCollection is for a box that is about to be gone: what its end leaves
// over is not worth collecting either.
func endWithoutCollection(getenv func(string) string) {
	if getenv("GOGC") == "" {
		debug.SetGCPercent(bootGarbage)
	}
}

// deferCollection begins a boot. What it returns ends it: the collector works as
// the operator set it, and the garbage of the boot goes back to the kernel.
func deferCollection(getenv func(string) string) (settle func()) {
	if getenv("GOGC") != "" {
		return debug.FreeOSMemory // the operator's word counts from the start
	}
	before := debug.SetGCPercent(bootGarbage)
	return func() {
		debug.SetGCPercent(before)
		debug.FreeOSMemory()
	}
}
