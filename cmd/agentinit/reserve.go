package main

import (
	"runtime"
	"sync"

	"github.com/dreamlab-ai/agentinit/bootstrap"
)

// How many threads agentinit takes at its start. The Go runtime ends the process when
// it needs one more and the kernel refuses (a full pids cgroup, RLIMIT_NPROC), and
// never gives one back: with these, work goes on as long as fewer goroutines are inside
// the kernel at once. What bounds them: requests (probes.Config, control.Limits),
// program starts (supervisor's crew), scrapes. A thread that has nothing to do costs
// about 20 KB, and 20 µs of the start.
const (
	quietThreads   = 24 // requests come only over the control socket
	servingThreads = 64
)

// listens tells whether others than the clients of the control socket can ask.
func (b *box) listens() bool {
	return b.addresses.Management != bootstrap.Off || b.addresses.Metrics != bootstrap.Off || embedded(b.manifest())
}

// reserveThreads has n goroutines each hold a thread of its own at the same time.
func reserveThreads(n int) {
	var here, gone sync.WaitGroup
	here.Add(n)
	all := make(chan struct{})
	for range n {
		gone.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			here.Done()
			<-all
		})
	}
	here.Wait()
	close(all)
	gone.Wait()
}
