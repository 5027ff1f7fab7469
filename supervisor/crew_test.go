package supervisor

import (
	"fmt"
	"slices"
	"sync"
	"testing"
)

// Signals that wait are sent in one call. What that call cannot send is done in the lane of its
// program, before the next job of that lane.
func TestCrewSendsSignalsTogether(t *testing.T) {
	var mu sync.Mutex
	var did []string
	note := func(what string) {
		mu.Lock()
		defer mu.Unlock()
		did = append(did, what)
	}
	var batches [][]SignalRequest
	c := crew{signalSoon: func(requests []SignalRequest) []bool {
		sent := make([]bool, len(requests))
		for i, r := range requests {
			if sent[i] = r.Run%2 == 0; sent[i] {
				note("sent to " + r.Program)
			}
		}
		mu.Lock()
		defer mu.Unlock()
		batches = append(batches, requests)
		return sent
	}}
	var begun, ended sync.WaitGroup
	free := make(chan struct{})
	for i := range crewSize {
		begun.Add(1)
		c.submit(fmt.Sprint("busy ", i), job{do: func() { begun.Done(); <-free }})
	}
	begun.Wait()
	const programs = 10
	for i := range programs {
		name := fmt.Sprint(i)
		ended.Add(1)
		c.submit(name, job{
			do:     func() { note("done for " + name) },
			signal: &SignalRequest{Program: name, Run: uint64(i)},
		})
		c.submit(name, job{do: func() { note("after " + name); ended.Done() }})
	}
	close(free)
	ended.Wait()
	mu.Lock()
	defer mu.Unlock()
	if len(batches) != 1 || len(batches[0]) != programs {
		t.Errorf("signals were sent in %d calls: %v", len(batches), batches)
	}
	for i := range programs {
		first, other := fmt.Sprint("sent to ", i), fmt.Sprint("done for ", i)
		if i%2 != 0 {
			first, other = other, first
		}
		at := slices.Index(did, first)
		if at < 0 || slices.Contains(did, other) || slices.Index(did, fmt.Sprint("after ", i)) < at {
			t.Errorf("program %d: %v", i, did)
		}
	}
}
