package proc

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dreamlab-ai/agentinit/internal/testprog/built"
)

// silentFile is a file whose reads are never answered. An open with O_NOATIME gets direct access; the
// verb hold-memory says what for.
func silentFile(t *testing.T) (path string, abort func()) {
	t.Helper()
	// The numbers and sizes are those of linux/fuse.h.
	const lookup, forget, getattr, open, read, interrupt = 1, 2, 3, 14, 15, 36
	const directIO, keepCache = 1, 2
	dir, abort := mountFUSE(t, func(request []byte) []byte {
		opcode, node := binary.NativeEndian.Uint32(request[4:]), binary.NativeEndian.Uint64(request[16:])
		attributes := func(node uint64) []byte {
			a := make([]byte, 88)
			binary.NativeEndian.PutUint64(a, node)
			binary.NativeEndian.PutUint64(a[8:], 4096) // size
			mode := uint32(unix.S_IFREG | 0o644)
			if node == 1 {
				mode = unix.S_IFDIR | 0o755
			}
			binary.NativeEndian.PutUint32(a[60:], mode)
			binary.NativeEndian.PutUint32(a[64:], 1) // nlink
			return a
		}
		var body []byte
		var errno int32
		switch opcode {
		case forget, read, interrupt:
			return nil
		case lookup:
			body = make([]byte, 40)
			binary.NativeEndian.PutUint64(body, 2) // nodeid
			body = append(body, attributes(2)...)
		case getattr:
			body = append(make([]byte, 16), attributes(node)...)
		case open:
			body = make([]byte, 16)
			flags := uint32(keepCache)
			if binary.NativeEndian.Uint32(request[40:])&unix.O_NOATIME != 0 {
				flags |= directIO
			}
			binary.NativeEndian.PutUint32(body[8:], flags)
		default:
			errno = -int32(unix.ENOSYS)
		}
		reply := make([]byte, 16, 16+len(body)) // fuse_out_header
		binary.NativeEndian.PutUint32(reply, uint32(16+len(body)))
		binary.NativeEndian.PutUint32(reply[4:], uint32(errno))
		copy(reply[8:], request[8:16]) // unique
		return append(reply, body...)
	})
	return filepath.Join(dir, "file"), abort
}

// hangs tells whether a thread of the process is in an uninterruptible sleep in that system call. A
// thread may sleep so for a moment elsewhere, for example while its program file is read.
func hangs(pid string, call int) bool {
	threads, _ := filepath.Glob("/proc/" + pid + "/task/*") // the pattern is valid
	return slices.ContainsFunc(threads, func(dir string) bool {
		stat, err := os.ReadFile(dir + "/stat")
		if err != nil || !strings.Contains(string(stat), ") D ") {
			return false
		}
		now, err := os.ReadFile(dir + "/syscall") // proc_pid_syscall(5)
		return err == nil && strings.HasPrefix(string(now), strconv.Itoa(call)+" ")
	})
}

// What PID 1 reads of a program's process never waits for that process, even if the process holds
// the lock of its memory. The environment is the one exception, so tagReader bounds its reads.
func TestReadsThatNeverWait(t *testing.T) {
	bin := built.Path(t)
	o := newOwner(t, Options{})
	o.tags.patience = environPatience // the environment is never read
	path, abort := silentFile(t)
	holder := mustStart(t, o, prog(bin, "hold-memory", path))
	pid := holder.PID
	waitUntil(t, "it holds the lock of its memory", func() bool { return hangs(strconv.Itoa(pid), unix.SYS_MMAP) })

	done := make(chan struct{})
	var now string // the present read
	var mu sync.Mutex
	go func() {
		defer close(done)
		dir := "/proc/" + strconv.Itoa(pid)
		for what, read := range map[string]func() bool{
			"Name":          func() bool { return Name(pid) == "testprog" },
			"readStat":      func() bool { st, err := readStat(pid); return err == nil && st.pid == pid },
			"ownerUID":      func() bool { _, ok := ownerUID(pid); return ok },
			"readMarks":     func() bool { return len(readMarks(pid).uids) == 4 },
			"readPipes":     func() bool { readPipes(pid); return true },
			"countFDs":      func() bool { n, ok := countFDs(pid); return ok && n >= 5 },
			"tracedThreads": func() bool { return len(tracedThreads(pid)) == 0 },
			"Tree":          func() bool { m, err := o.Tree(holder.ID, time.Now()); return err == nil && len(m) == 1 },
			"Usage":         func() bool { u, err := o.Usage(holder.ID, time.Now()); return err == nil && u.Members == 1 },
			"Runnable":      func() bool { o.Runnable(holder.ID, time.Now()); return true },
			"Whose":         func() bool { id, ok, err := o.Whose(pid); return id == holder.ID && ok && err == nil },
			"exe":           func() bool { exe, err := os.Readlink(dir + "/exe"); return err == nil && exe == bin },
			"cgroup":        func() bool { _, err := os.ReadFile(dir + "/cgroup"); return err == nil },
		} {
			mu.Lock()
			now = what
			mu.Unlock()
			if !read() {
				t.Errorf("%s does not answer", what)
			}
		}
	}()
	select {
	case <-done:
	case <-time.After(patience):
		mu.Lock()
		defer mu.Unlock()
		t.Fatalf("%s waits", now)
	}
	if a := o.tags.tags([]int{pid}); len(a) != 0 {
		t.Errorf("its environment was read: %v", a)
	}

	// The reads that do wait.
	var waiting sync.WaitGroup
	returned := make(chan string, 2)
	for _, file := range []string{"environ", "cmdline"} {
		waiting.Go(func() {
			_, _ = os.ReadFile("/proc/" + strconv.Itoa(pid) + "/" + file) // the process is being killed
			returned <- file
		})
	}
	waitUntil(t, "a read of its memory hangs", func() bool { return hangs("self", unix.SYS_READ) })
	select {
	case file := <-returned:
		t.Errorf("%s does not wait", file)
	default:
	}
	abort()
	if left := o.KillAll(patience); left != 0 {
		t.Errorf("%d left", left)
	}
	waiting.Wait()
}

// waitUntil polls, because the kernel does not report what is waited for.
func waitUntil(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// Environments that cannot be read keep at most tagReads threads, and delay only the first calls.
func TestHungEnvironmentsKeepFewThreads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		reading, most := 0, 0
		release := make(chan struct{})
		r := newTagReader(func(pid int) tagAnswer {
			mu.Lock()
			reading++
			most = max(most, reading)
			mu.Unlock()
			if pid < 1000 { // the process holds the lock of its memory
				<-release
			}
			mu.Lock()
			reading--
			mu.Unlock()
			return tagAnswer{pid: pid, read: true}
		})
		ask := func(first, n int, want int, took time.Duration) {
			t.Helper()
			var pids []int
			for i := range n {
				pids = append(pids, first+i)
			}
			began := time.Now()
			if got := r.tags(pids); len(got) != want || time.Since(began) != took {
				t.Errorf("%d of %d answers after %v, want %d after %v", len(got), n, time.Since(began), want, took)
			}
		}
		ask(1000, 500, 500, 0)
		ask(1, tagReads/2, 0, environPatience)
		ask(1000, 500, 500, 0) // the other half of the slots is left
		ask(100, 500, 0, environPatience)
		ask(700, 200, 0, 0)
		ask(1000, 1, 0, 0)
		close(release)
		synctest.Wait()
		ask(1000, 500, 500, 0)
		if most > tagReads || reading != 0 || r.hung != 0 || len(r.slots) != 0 {
			t.Errorf("at most %d reads at once; now %d reads, %d hung, %d slots taken", most, reading, r.hung, len(r.slots))
		}
	})
}
