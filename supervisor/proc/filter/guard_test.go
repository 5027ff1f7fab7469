package filter

import (
	"encoding/binary"
	"fmt"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// answer runs a filter on one system call. The BPF machine of the test reads big-endian words, but
// the kernel reads words in native byte order.
func answer(t *testing.T, f []unix.SockFilter, arch, nr uint32, args ...uint64) uint32 {
	t.Helper()
	raw := make([]bpf.RawInstruction, len(f))
	for i, x := range f {
		raw[i] = bpf.RawInstruction{Op: x.Code, Jt: x.Jt, Jf: x.Jf, K: x.K}
	}
	code, ok := bpf.Disassemble(raw)
	if !ok {
		t.Fatal("the filter does not disassemble")
	}
	vm, err := bpf.NewVM(code)
	if err != nil {
		t.Fatal(err)
	}
	var data [64]byte
	binary.BigEndian.PutUint32(data[offNr:], nr)
	binary.BigEndian.PutUint32(data[offArch:], arch)
	for i, a := range args {
		binary.BigEndian.PutUint32(data[low(i):], uint32(a))
		binary.BigEndian.PutUint32(data[high(i):], uint32(a>>32))
	}
	n, err := vm.Run(data[:])
	if err != nil {
		t.Fatal(err)
	}
	return uint32(n)
}

const (
	refused = retErrno | uint32(unix.EPERM)
	missing = retErrno | uint32(unix.ENOSYS)
)

func TestGuard(t *testing.T) {
	minus := func(n int64) uint64 { return uint64(uint32(-n)) }
	g := Guarded{PID: 1, Tasks: []int{1, 6, 7, 40, 500, 501}, Group: 1}
	scoped, control := g, g
	scoped.Scoped, control.Signals = true, []int{15}
	password := [2]uint64{0x123456789abcdef0, 0xfedcba9876543211}
	secret := g
	secret.Password = password
	for _, machine := range []string{"amd64", "arm64"} {
		for _, c := range tables(machine) {
			for _, tc := range []struct {
				g    Guarded
				nr   uint32
				args []uint64
				want uint32
			}{
				{g, c.kill, []uint64{1, 9}, refused}, {g, c.kill, []uint64{40, 9}, refused}, {g, c.kill, []uint64{20, 9}, retAllow},
				{g, c.kill, []uint64{41, 9}, retAllow}, {g, c.kill, []uint64{501, 9}, refused}, {g, c.kill, []uint64{502, 9}, retAllow},
				{g, c.kill, []uint64{0, 9}, retAllow}, {g, c.kill, []uint64{minus(1), 9}, refused}, {g, c.kill, []uint64{1<<32 | 1, 9}, refused},
				{g, c.kill, []uint64{minus(70), 9}, retAllow}, {scoped, c.kill, []uint64{minus(1), 9}, refused}, // kill(-1) reaches all processes, not only group 1
				{control, c.kill, []uint64{1, 15}, retAllow}, {control, c.kill, []uint64{1, 11}, refused}, {control, c.kill, []uint64{6, 15}, refused},
				{g, c.tkill, []uint64{7, 11}, refused}, {g, c.tgkill, []uint64{1, 1, 11}, refused}, {g, c.tgkill, []uint64{900, 7, 11}, refused},
				{g, c.tgkill, []uint64{900, 901, 11}, retAllow}, {g, c.sigqueue, []uint64{1, 11}, refused}, {g, c.tgsigqueue, []uint64{1, 6, 11}, refused},
				{g, c.pidfdOpen, []uint64{1}, refused}, {g, c.pidfdSend, []uint64{5, 9}, missing}, {scoped, c.pidfdSend, []uint64{5, 9}, retAllow},
				{g, c.prlimit, []uint64{0, 7, 1}, retAllow}, {g, c.prlimit, []uint64{1, 7, 0}, retAllow}, {g, c.prlimit, []uint64{1, 7, 0xffff}, refused},
				{g, c.prlimit, []uint64{9999, 7, 1 << 40}, refused},
				{g, c.prlimit, []uint64{0, 11, 1}, refused}, {g, c.prlimit, []uint64{0, 11, 0}, retAllow}, {g, c.setrlimit, []uint64{11, 1}, refused},
				{g, c.setrlimit, []uint64{7, 1}, retAllow},
				{g, c.schedAffinity, []uint64{6}, refused}, {g, c.schedScheduler, []uint64{0}, retAllow}, {g, c.schedAttr, []uint64{6}, refused},
				{g, c.setpriority, []uint64{0, 6, 19}, refused}, {g, c.setpriority, []uint64{0, 600, 19}, retAllow}, {g, c.setpriority, []uint64{1, 1, 19}, refused},
				{g, c.setpriority, []uint64{1, 0, 19}, retAllow}, {g, c.setpriority, []uint64{2, 0, 19}, refused},
				{g, c.ioprio, []uint64{1, 6, 0}, refused}, {g, c.ioprio, []uint64{3, 0, 0}, refused}, {g, c.ioprio, []uint64{1, 0, 0}, retAllow},
				{g, c.ptrace, []uint64{16, 900}, refused}, {scoped, c.ptrace, []uint64{16, 900}, retAllow}, {scoped, c.ptrace, []uint64{0x4206, 1}, refused},
				{g, c.ptrace, []uint64{0, 0}, retAllow}, {g, c.readv, []uint64{1}, refused}, {g, c.reboot, nil, refused},
				{g, c.fcntl, []uint64{3, 8, 1}, refused}, {g, c.fcntl, []uint64{3, 15, 0}, refused}, {g, c.fcntl, []uint64{3, 8, 900}, retAllow},
				{g, c.fcntl, []uint64{3, 3, 1}, retAllow}, {scoped, c.fcntl, []uint64{3, 15, 0}, retAllow}, {g, c.ioctl, []uint64{3, 0x8901, 0}, refused},
				{g, 7777, []uint64{1, 1, 1, 1}, retAllow},
				{secret, c.prlimit, []uint64{0, 11, 1, 0, password[0], password[1]}, retAllow},
				{secret, c.prlimit, []uint64{0, 11, 1, 0, password[0], password[1] ^ 1<<40}, refused},
				{secret, c.prlimit, []uint64{0, 11, 1, 0, password[0] ^ 1, password[1]}, refused},
				{secret, c.prlimit, []uint64{0, 11, 1, 0, password[0] ^ 1<<63, password[1]}, refused},
				{secret, c.prlimit, []uint64{0, 11, 1, 0, password[0], password[1] ^ 1}, refused},
				{secret, c.prlimit, []uint64{6, 11, 1, 0, password[0], password[1]}, refused},
				{g, c.prlimit, []uint64{0, 11, 1, 0, 0, 0}, refused},
				{g, c.tgkill, []uint64{1, 7, uint64(unix.SIGURG)}, refused}, {scoped, c.tgkill, []uint64{1, 7, uint64(unix.SIGURG)}, retAllow},
				{scoped, c.tgkill, []uint64{900, 7, uint64(unix.SIGURG)}, refused}, {scoped, c.tgkill, []uint64{1, 7, 11}, refused},
				{scoped, c.tkill, []uint64{7, uint64(unix.SIGURG)}, refused}, {scoped, c.kill, []uint64{1, uint64(unix.SIGURG)}, refused},
			} {
				f, err := Guard(machine, tc.g)
				if err != nil {
					t.Fatal(err)
				}
				if got := answer(t, f, c.arch, tc.nr, tc.args...); got != tc.want {
					t.Errorf("%s %#x, call %d %x, %+v: %#x, want %#x", machine, c.arch, tc.nr, tc.args, tc.g, got, tc.want)
				}
			}
		}
	}
	f, err := Guard("amd64", g)
	if err != nil {
		t.Fatal(err)
	}
	if got := answer(t, f, unix.AUDIT_ARCH_X86_64, x32Bit|callsAMD64.kill, 1, 9); got != missing {
		t.Errorf("x32: %#x", got)
	}
	if got := answer(t, f, unix.AUDIT_ARCH_PPC, 37, 1, 9); got != missing {
		t.Errorf("another architecture: %#x", got)
	}
}

func TestTaskRanges(t *testing.T) {
	for _, tc := range []struct {
		g    Guarded
		want string
	}{
		{Guarded{PID: 1, Tasks: []int{1, 8, 9}}, "[[1 1] [8 9]]"},
		{Guarded{PID: 1, Tasks: []int{9, 1, 2, 8, 1}}, "[[1 2] [8 9]]"},
		{Guarded{PID: 50, Tasks: []int{50, 60, 61}}, "[[50 50] [60 61]]"},
		{Guarded{PID: 50}, "[[50 50]]"},
	} {
		if got := fmt.Sprint(taskRanges(tc.g)); got != tc.want {
			t.Errorf("%+v: %s, want %s", tc.g, got, tc.want)
		}
	}
}
