package filter

import (
	"encoding/binary"
	"fmt"
	"sync"
	"syscall"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// retNotify passes a system call to the listener of the filter (seccomp_unotify(2)).
const retNotify = 0x7fc00000

// Instructions that Chain and Notify look for (linux/bpf_common.h).
const (
	bpfRetK = 0x06
	bpfJA   = 0x05
)

// Chain joins two filters into one: first decides, and second decides about what first allows. Two
// installed filters would do the same, but only one filter of a process can have a listener
// (seccomp_unotify(2)).
func Chain(first, second []unix.SockFilter) []unix.SockFilter {
	out := make([]unix.SockFilter, 0, len(first)+len(second))
	for i, x := range first {
		if x.Code == bpfRetK && x.K == retAllow {
			x = unix.SockFilter{Code: bpfJA, K: uint32(len(first) - i - 1)}
		}
		out = append(out, x)
	}
	return append(out, second...)
}

// Notify is the filter that asks its listener about calls that f refuses with EPERM or only logs.
// ENOSYS stays, because libraries often try absent system calls and work without them.
func Notify(f []unix.SockFilter) []unix.SockFilter {
	out := make([]unix.SockFilter, len(f))
	for i, x := range f {
		if x.Code == bpfRetK && (x.K == errno(uint32(unix.EPERM)) || x.K == retLog) {
			x.K = retNotify
		}
		out[i] = x
	}
	return out
}

// Data is struct seccomp_data (seccomp(2)).
type Data struct {
	Nr   int32
	Arch uint32
	IP   uint64
	Args [6]uint64
}

// Judge computes in this process what a filter would answer in the kernel.
type Judge struct {
	mu sync.Mutex
	vm *bpf.VM
}

// NewJudge prepares a filter.
func NewJudge(f []unix.SockFilter) (*Judge, error) {
	raw := make([]bpf.RawInstruction, len(f))
	for i, x := range f {
		raw[i] = bpf.RawInstruction{Op: x.Code, Jt: x.Jt, Jf: x.Jf, K: x.K}
	}
	code, ok := bpf.Disassemble(raw)
	if !ok {
		return nil, fmt.Errorf("the filter has an instruction that cannot be read")
	}
	vm, err := bpf.NewVM(code)
	return &Judge{vm: vm}, err
}

// Decide returns the error that the filter gives, or 0 if it lets the call pass; logged says that
// it only logs the call.
func (j *Judge) Decide(d Data) (refused syscall.Errno, logged bool) {
	// The BPF machine of package bpf reads big-endian words; the kernel reads its own byte order.
	var data [offArgs + 6*8]byte
	binary.BigEndian.PutUint32(data[offNr:], uint32(d.Nr))
	binary.BigEndian.PutUint32(data[offArch:], d.Arch)
	for i, a := range d.Args {
		binary.BigEndian.PutUint32(data[low(i):], uint32(a))
		binary.BigEndian.PutUint32(data[high(i):], uint32(a>>32))
	}
	j.mu.Lock()
	n, err := j.vm.Run(data[:])
	j.mu.Unlock()
	switch action := uint32(n); {
	case err != nil:
		return unix.EPERM, false // it cannot happen: the kernel has checked the same filter
	case action == retAllow:
		return 0, false
	case action == retLog:
		return 0, true
	case action&^0xffff == retErrno:
		return syscall.Errno(action & 0xffff), false
	}
	return unix.EPERM, false
}

// Passes tells whether f neither refuses nor logs a native call with this number and with all
// arguments 0.
func Passes(goarch string, f []unix.SockFilter, nr int32) bool {
	j, err := NewJudge(f)
	if err != nil {
		return false
	}
	refused, logged := j.Decide(Data{Nr: nr, Arch: tables(goarch)[0].arch})
	return refused == 0 && !logged
}

// names are the system calls of each machine by number.
var names = sync.OnceValue(func() map[string]map[int]string {
	out := map[string]map[int]string{}
	for machine, all := range numbers() {
		out[machine] = map[int]string{}
		for name, n := range all {
			if n >= 0 {
				out[machine][n] = name
			}
		}
	}
	return out
})

// CallName is the name of the system call, or its number if it has no name. The names of calls by
// 32-bit programs are not known.
func CallName(goarch string, d Data) string {
	if d.Arch != tables(goarch)[0].arch {
		return fmt.Sprintf("32-bit system call %d", d.Nr)
	}
	if name := names()[goarch][int(d.Nr)]; name != "" {
		return name
	}
	return fmt.Sprintf("system call %d", d.Nr)
}
