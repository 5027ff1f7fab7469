package main

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TERM for all processes of the box can come before the answer to the shutdown is read.
func TestOutliving(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		longer, done := outliving(ctx, answerWait)
		defer done()
		by := errors.New("a signal")
		cancel(by)
		time.Sleep(answerWait - time.Nanosecond)
		synctest.Wait()
		if longer.Err() != nil {
			t.Error("it has ended early")
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if context.Cause(longer) != by {
			t.Errorf("it has ended with %v", context.Cause(longer))
		}
	})
}
