package main

import (
	"context"
	"errors"
	"syscall"
	"testing"
)

// A SIGTERM, which the end of a box sends to all its processes, is told from Ctrl-C and from another
// cause with the same words.
func TestTerminatedIsSIGTERM(t *testing.T) {
	for sig, want := range map[syscall.Signal]bool{syscall.SIGTERM: true, syscall.SIGINT: false} {
		ctx, stop := untilSignal(t.Context())
		if terminated(ctx) {
			t.Errorf("%v: terminated before the signal", sig)
		}
		if err := syscall.Kill(syscall.Getpid(), sig); err != nil {
			t.Fatal(err)
		}
		<-ctx.Done()
		if terminated(ctx) != want || !errors.Is(context.Cause(ctx), context.Canceled) {
			t.Errorf("%v: terminated %v, cause %v", sig, terminated(ctx), context.Cause(ctx))
		}
		stop()
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("terminated signal received"))
	if terminated(ctx) {
		t.Error("a text counts as the signal")
	}
}
