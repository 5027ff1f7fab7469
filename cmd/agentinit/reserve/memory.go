package reserve

import (
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The Go runtime ends the process if the kernel refuses to map memory (ENOMEM). The kernel does so
// when vm.overcommit_memory is 2 and the programs have taken all there is, or at RLIMIT_AS and
// RLIMIT_DATA. So a spare mapping holds memory for what the kernel refuses. Its pages are never
// touched until they are needed, so it costs address space and no memory.
const (
	heap   = 64 << 20 // the connections and requests that the limits allow, and small bodies
	tables = 8 << 20  // of the runtime; an eighth of the heap is more than they need
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

// Memory makes the spare mapping. In programs with C code, the runtime calls the function at
// _cgo_mmap instead of mmap(2). agentinit has no C code and puts the function in memory_*.s there.
// What the kernel refuses to map anywhere, such as the runtime's tables, becomes a part of the spare
// mapping. Heap has an address that the runtime has chosen: a part of the spare mapping moves there
// (mremap(2)), which the kernel does not count as more memory. If the kernel does not map as much,
// Memory reserves for the tables alone. Call Memory once.
func Memory() error {
	if cgoMmap != nil {
		return nil
	}
	size := uintptr(heap + tables)
	spare, err := mapped(size)
	if err != nil {
		size = tables
		spare, err = mapped(size)
	}
	if err != nil {
		return err
	}
	free, end = uintptr(spare), uintptr(spare)+size
	cgoMmap = hookAddress
	return nil
}

// mapped maps memory that was not touched yet.
func mapped(size uintptr) (unsafe.Pointer, error) {
	return unix.MmapPtr(-1, 0, nil, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
}

// kept makes the compiler allocate the object on the heap.
var kept atomic.Pointer[[heap]byte]

// Addresses reserves addresses for heap where RLIMIT_AS bounds them. The runtime takes the addresses
// of its heap 64 MiB at a time, and no part of the spare mapping can stand in for them. So Addresses
// allocates a large object and drops it: the runtime keeps its addresses and, after the next garbage
// collection, uses them for other objects. If the kernel would not map as much, Addresses does
// nothing, because the runtime would end the process.
func Addresses() {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_AS, &limit) != nil || limit.Cur == unix.RLIM_INFINITY || Scarce() {
		return
	}
	kept.Store(new([heap]byte)) // memory fresh from the kernel is zero, so the runtime does not clear it
	kept.Store(nil)
}

// Scarce tells whether the kernel would refuse to map another 96 MiB. It costs two system calls.
func Scarce() bool {
	more, err := mapped(margin)
	if err != nil {
		return true
	}
	return unix.MunmapPtr(more, margin) != nil
}
