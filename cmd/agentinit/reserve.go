package main

import (
	"runtime"
	"sync"
)

// reservedThreads is how many threads agentinit takes at its start. The Go runtime
// ends the process when it needs one more and the kernel refuses (a full pids cgroup,
// RLIMIT_NPROC), and never gives one back: with these, work goes on as long as fewer
// goroutines are inside the kernel at once. What bounds them: requests (probes.Config,
// control.Limits), program starts (supervisor's crew), scrapes. A thread that has
// nothing to do costs about 20 KB.
const reservedThreads = 64

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
