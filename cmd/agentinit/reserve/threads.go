// Package reserve takes at the start what the Go runtime cannot do without later: threads and
// memory. If the kernel refuses either, the runtime ends the process, and with it the box. The
// package must never decide how much a box may use; limits on requests and programs do that.
package reserve

import (
	"runtime"
	"sync"
)

// How many threads agentinit creates at its start. If the Go runtime needs another thread and the
// kernel refuses (a full pids cgroup, RLIMIT_NPROC), the runtime ends the process. It never gives a
// thread back. With this reserve, agentinit works as long as fewer goroutines are inside the kernel
// at once. Their number is bounded by the limits for requests (probes.Config, control.Limits),
// program starts (supervisor's crew) and scrapes. An idle thread costs about 20 KB, and 20 µs of
// the start.
const (
	QuietThreads   = 24 // requests come only over the control socket
	ServingThreads = 64
)

// Threads makes n goroutines hold one thread each at the same time. It returns when there are n
// threads. The runtime gets them for other goroutines a moment later.
func Threads(n int) {
	var here sync.WaitGroup
	here.Add(n)
	all := make(chan struct{})
	for range n {
		go func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			here.Done()
			<-all
		}()
	}
	here.Wait()
	close(all)
}
