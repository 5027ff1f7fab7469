package main

import (
	"runtime"
	"sync"

	"github.com/dreamlab-ai/agentinit/bootstrap"
)

// How many threads agentinit creates at its start. If the Go runtime needs another thread and the
// kernel refuses (a full pids cgroup, RLIMIT_NPROC), the runtime ends the process. It never gives a
// thread back. With this reserve, agentinit works as long as fewer goroutines are inside the kernel
// at once. Their number is bounded by the limits for requests (probes.Config, control.Limits),
// program starts (supervisor's crew) and scrapes. An idle thread costs about 20 KB, and 20 µs of
// the start.
const (
	quietThreads   = 24 // requests come only over the control socket
	servingThreads = 64
)

// listens tells whether there are listeners in addition to the control socket.
func (b *box) listens() bool {
	return b.addresses.Management != bootstrap.Off || b.addresses.Metrics != bootstrap.Off || embedded(b.manifest())
}

// reserveThreads makes n goroutines hold one thread each at the same time.
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
