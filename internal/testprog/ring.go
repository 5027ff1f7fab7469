package main

import (
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ringOpen opens a file with io_uring(7). A system call filter does not see that open.
func ringOpen(file string) error {
	const opOpenat, getEvents, mapEntries = 18, 1, 0x10000000 // IORING_OFF_SQES
	name, err := unix.BytePtrFromString(file)
	if err != nil {
		return err
	}
	var params [120]byte // struct io_uring_params
	ring, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, 1, uintptr(unsafe.Pointer(&params)), 0)
	if errno != 0 {
		return errno
	}
	defer unix.Close(int(ring))
	rings, err := unix.Mmap(int(ring), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	entries, err := unix.Mmap(int(ring), mapEntries, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	at := func(offset int) uint32 { return *(*uint32)(unsafe.Pointer(&params[offset])) }
	const tailOfQueue, arrayOfQueue, completed = 44, 64, 100 // sq_off.tail, sq_off.array, cq_off.cqes
	entries[0] = opOpenat
	*(*int32)(unsafe.Pointer(&entries[4])) = unix.AT_FDCWD
	*(*uint64)(unsafe.Pointer(&entries[16])) = uint64(uintptr(unsafe.Pointer(name)))
	*(*uint32)(unsafe.Pointer(&rings[at(arrayOfQueue)])) = 0
	*(*uint32)(unsafe.Pointer(&rings[at(tailOfQueue)])) = 1
	_, _, errno = unix.Syscall6(unix.SYS_IO_URING_ENTER, ring, 1, 1, getEvents, 0, 0)
	runtime.KeepAlive(name)
	if errno != 0 {
		return errno
	}
	result := *(*int32)(unsafe.Pointer(&rings[at(completed)+8]))
	if result < 0 {
		return syscall.Errno(-result)
	}
	unix.Close(int(result))
	return nil
}
