package reserve

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestMain lets the tests run in a process of their own whose memory is used up.
func TestMain(m *testing.M) {
	switch os.Getenv("RESERVE_TEST") {
	case "":
		os.Exit(m.Run())
	case "reserved":
		if err := Memory(); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
	useUp()
	fmt.Println("done")
}

// useUp sets RLIMIT_DATA to what is mapped, which has the kernel refuse more as it does when
// vm.overcommit_memory is 2 and all memory is taken. Then it makes the runtime allocate objects of
// every size, for which it needs heap and tables.
func useUp() {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		panic(err)
	}
	_, rest, _ := strings.Cut(string(text), "VmData:")
	var kib uint64
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		panic(err)
	}
	limit := unix.Rlimit{Cur: kib << 10, Max: kib << 10}
	if err := unix.Setrlimit(unix.RLIMIT_DATA, &limit); err != nil {
		panic(err)
	}
	if !Scarce() {
		panic("the kernel gives more memory")
	}
	var kept [][]byte
	var pointers [][]*byte
	for size := 8; size <= 32<<10; size += size / 4 {
		for range 12 * (1 + 4096/size) {
			kept = append(kept, make([]byte, size))
			pointers = append(pointers, make([]*byte, size/8))
		}
	}
	for range 40 { // the heap grows several times
		kept = append(kept, make([]byte, 1<<20))
	}
	fmt.Println(len(kept), len(pointers))
	if used := heap + tables - (end - free); used < 40<<20 || used > heap+tables {
		panic(fmt.Sprintf("%d bytes of the reserve were used", used))
	}
}

func TestMemoryIsReserved(t *testing.T) {
	if cgoMmap != nil {
		t.Skip("the runtime's hook is taken by C code")
	}
	for _, c := range []struct {
		reserve string
		says    *regexp.Regexp
		lives   bool
	}{
		{"reserved", regexp.MustCompile(`done\n$`), true},
		// Most ends say that there is no memory. Sometimes the runtime uses what it did not get.
		{"none", regexp.MustCompile(`(?m)^(fatal error: .*memory|SIGSEGV: )`), false},
	} {
		t.Run(c.reserve, func(t *testing.T) {
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), "RESERVE_TEST="+c.reserve)
			out, err := cmd.CombinedOutput()
			if (err == nil) != c.lives || !c.says.Match(out) {
				t.Errorf("%v, want %s: %.1000s", err, c.says, out)
			}
		})
	}
}

func TestMemoryIsNotScarceHere(t *testing.T) {
	if Scarce() {
		t.Error("memory is scarce in a test")
	}
}
