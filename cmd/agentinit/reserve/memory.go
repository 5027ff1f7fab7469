package reserve

import (
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The Go runtime ends the process if the kernel refuses to map memory (ENOMEM). The kernel does so
// when vm.overcommit_memory is 2 and the programs have taken all there is, or at RLIMIT_AS and
// RLIMIT_DATA. The runtime maps two kinds of memory, and each has its reserve. Pages of a reserve
// are never touched until they are needed, so they cost address space and no memory.
const (
	heap   = 64 << 20 // the connections and requests that the limits allow, and small bodies
	tables = 8 << 20  // an eighth of the heap is more than they need
)

// margin is how much memory the kernel must have to give for it not to be scarce.
const margin = 96 << 20

// cgoMmap is the runtime's hook (runtime/cgo_mmap.go). It is set already in a program with C code,
// such as a test with the race detector.
//
//go:linkname cgoMmap _cgo_mmap
var cgoMmap unsafe.Pointer

// The function in memory_*.s uses these variables. They must be global.
var (
	free        uintptr        // start of the part of the spare mapping that is not used yet
	end         uintptr        // end of the spare mapping
	hookAddress unsafe.Pointer // address of the function
)

// kept makes the compiler allocate the object on the heap.
var kept atomic.Pointer[[heap]byte]

// Heap reserves heap: it allocates a large object and drops it. The runtime never unmaps heap, so
// after the next garbage collection this part is free for other objects. If the kernel would not map
// as much, Heap does nothing, because the runtime would end the process.
func Heap() {
	if Scarce() {
		return
	}
	kept.Store(new([heap]byte)) // memory fresh from the kernel is zero, so the runtime does not clear it
	kept.Store(nil)
}

// Tables reserves memory for the runtime's own tables. In programs with C code, the runtime calls
// the function at _cgo_mmap instead of mmap(2). agentinit has no C code and puts the function in
// memory_*.s there. It takes from a spare mapping what the kernel refuses. Call Tables once.
func Tables() error {
	if cgoMmap != nil {
		return nil
	}
	spare, err := unix.MmapPtr(-1, 0, nil, tables, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	free, end = uintptr(spare), uintptr(spare)+tables
	cgoMmap = hookAddress
	return nil
}

// Scarce tells whether the kernel would refuse to map another 96 MiB. It costs two system calls.
func Scarce() bool {
	more, err := unix.MmapPtr(-1, 0, nil, margin, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return true
	}
	return unix.MunmapPtr(more, margin) != nil
}
