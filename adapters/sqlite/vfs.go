package sqlite

import (
	"errors"
	"sync"
	"unsafe"

	"modernc.org/libc"
	lib "modernc.org/sqlite/lib"
)

// vfsName names the layer between SQLite and the files (sqlite.org/vfs.html) that all databases here
// use. It is unix-excl of SQLite, but opens no super-journal.
//
// With unix-excl, the index of the WAL is in our memory, and other processes cannot open the database.
// Else it is in a file that SQLite maps, and a program of our user could write there that the WAL has
// billions of frames: SQLite would map the file until the kernel gives the process no more mappings,
// and the Go runtime ends a process that gets none.
//
// At the first read of a connection, SQLite plays back a journal beside the database. That may name a
// super-journal anywhere, and SQLite reads the whole of it: a program that can write the directory
// could have it take 2 GB of memory, or wait for a FIFO. Only transactions of several databases have a
// super-journal, and there are none here.
const vfsName = "agentinit"

// vfs is what SQLite has of ours for the life of the process.
var vfs struct {
	once sync.Once
	err  error // of the registration
}

func registerVFS() error {
	vfs.once.Do(func() { vfs.err = makeVFS() })
	return vfs.err
}

func makeVFS() error {
	tls := libc.NewTLS()
	defer tls.Close()
	ours, err1 := libc.CString(vfsName)
	theirs, err2 := libc.CString("unix-excl")
	own := libc.Xmalloc(tls, libc.Tsize_t(unsafe.Sizeof(lib.Tsqlite3_vfs{})))
	below := lib.Xsqlite3_vfs_find(tls, theirs)
	if err := errors.Join(err1, err2); err != nil || own == 0 || below == 0 {
		return errors.Join(errors.New("cannot make a VFS of unix-excl"), err)
	}
	open := openBelow
	*vfsAt(own) = *vfsAt(below)
	vfsAt(own).FzName, vfsAt(own).FpAppData, vfsAt(own).FxOpen = ours, below, *(*uintptr)(unsafe.Pointer(&open))
	if lib.Xsqlite3_vfs_register(tls, own, 0) != lib.SQLITE_OK {
		return errors.New("cannot register a VFS")
	}
	return nil
}

// openBelow is xOpen of our VFS. Its pAppData is the VFS below.
func openBelow(tls *libc.TLS, vfs, name, file uintptr, flags int32, outFlags uintptr) int32 {
	if flags&lib.SQLITE_OPEN_SUPER_JOURNAL != 0 {
		return lib.SQLITE_CANTOPEN
	}
	below := vfsAt(vfs).FpAppData
	open := vfsAt(below).FxOpen
	return (*(*func(_ *libc.TLS, vfs, name, file uintptr, flags int32, outFlags uintptr) int32)(unsafe.Pointer(&open)))(tls, below, name, file, flags, outFlags)
}

// vfsAt is the VFS at an address of SQLite's memory, which Go's collector does not move or free.
func vfsAt(address uintptr) *lib.Tsqlite3_vfs {
	return *(**lib.Tsqlite3_vfs)(unsafe.Pointer(&address))
}
