package main

import (
	"slices"
	"syscall"
	"testing"

	"github.com/dreamlab-ai/agentinit/cmd/agentinit/early"
)

// A signal from outside waits for at most one look-up of a sender, whatever programs have sent
// before and send meanwhile.
func TestASignalFromOutsideDoesNotQueue(t *testing.T) {
	program := func(pid int) early.Sent { return early.Sent{Signal: syscall.SIGHUP, PID: pid} }
	outside := early.Sent{Signal: syscall.SIGTERM, Outside: true}
	takes := [][]early.Sent{
		{program(1), program(2), program(3)},
		{outside, program(4)}, // while that of 1 is looked up
		nil,
		{program(5)},
	}
	take := func() (sent []early.Sent, lost uint64) {
		if len(takes) == 0 {
			return nil, 0
		}
		sent, takes = takes[0], takes[1:]
		return sent, 1
	}
	var order []int
	lost := uint64(0)
	inTurn(nil, take, func(s early.Sent) { order = append(order, s.PID) }, func(n uint64) { lost += n })
	if want := []int{1, 0, 2, 3, 4, 5}; !slices.Equal(order, want) || lost != 4 {
		t.Errorf("order %v, want %v; %d lost", order, want, lost)
	}
}

// A program that sends signals without pause neither fills the memory nor keeps a later signal from
// being handled.
func TestTheQueueOfSignalsIsBounded(t *testing.T) {
	rounds, handled := 0, 0
	take := func() (sent []early.Sent, lost uint64) {
		if rounds++; rounds > 100 {
			return nil, 0
		}
		return make([]early.Sent, 1000), 0
	}
	lost := uint64(0)
	inTurn(nil, take, func(early.Sent) { handled++ }, func(n uint64) { lost += n })
	if handled+int(lost) != 100*1000 || handled > maxQueued+100 {
		t.Errorf("%d handled, %d lost", handled, lost)
	}
	done := make(chan struct{})
	inTurn(done, func() ([]early.Sent, uint64) { return make([]early.Sent, 1000), 0 }, func(early.Sent) {
		if handled++; handled%10 == 0 {
			close(done)
		}
	}, func(uint64) {})
}
