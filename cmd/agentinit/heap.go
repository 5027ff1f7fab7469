package main

import "runtime/debug"

// bootGarbage is the garbage collector's percentage while the box boots. The first collection then
// comes at a heap of 16 MB instead of 4, which a boot of a hundred programs does not reach. The
// garbage is collected once after the seal, when no program waits for its start. GOMEMLIMIT still
// applies.
const bootGarbage = 400

// settleLimit bounds the heap while the garbage of the boot is collected (debug.SetMemoryLimit). If
// the heap may grow to 1 GiB, the runtime asks for huge pages for its tables, and 2 MiB of memory fill
// with almost nothing.
const settleLimit = 512 << 20

// endWithoutCollection has the collector wait at the end of a box as it does in the boot: collecting
// garbage then is a waste.
func endWithoutCollection(getenv func(string) string) {
	if getenv("GOGC") == "" {
		debug.SetGCPercent(bootGarbage)
	}
}

// deferCollection begins a boot. The returned function ends the boot: the collector works as the
// operator has set it, and the garbage of the boot goes back to the kernel.
func deferCollection(getenv func(string) string) (settle func()) {
	if getenv("GOGC") != "" {
		return debug.FreeOSMemory // the operator has set the collector, so nothing is changed
	}
	before := debug.SetGCPercent(bootGarbage)
	return func() {
		limit := debug.SetMemoryLimit(-1) // a negative argument changes nothing
		// The limit holds as long as the collector is off, because a collection may be under way.
		debug.SetMemoryLimit(min(limit, settleLimit))
		// While the collector is off, the runtime's background scavenger takes no part in this. It would
		// sleep for a second in between, and wake agentinit once more after that.
		debug.SetGCPercent(-1)
		debug.FreeOSMemory()
		debug.SetGCPercent(before)
		debug.SetMemoryLimit(limit)
	}
}

// limitHeap has the collector work harder when agentinit alone has half of the memory of its box, because
// the kernel ends a process that needs more than there is. limit is 0 if the box has none.
func limitHeap(getenv func(string) string, limit uint64) {
	if limit > 0 && getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(int64(limit / 2))
	}
}

// heldBodies is how many bytes of request bodies may be in memory at once: an eighth of a small box.
// 0 leaves it to the server.
func heldBodies(limit uint64) int64 {
	if limit >= 512<<20 {
		return 0
	}
	return int64(limit / 8)
}
