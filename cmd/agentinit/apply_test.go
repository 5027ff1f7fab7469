package main

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dreamlab-ai/agentinit/bootstrap"
	"github.com/dreamlab-ai/agentinit/internal/slowcall"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
)

// While the file system of the manifest does not answer, each apply fails in time, and only one goroutine
// waits for it. What is read later than that is not used.
func TestManifestOnAHangingFileSystem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan struct{})
		var reads atomic.Int32
		old, now := new(bootstrap.Loaded), new(bootstrap.Loaded)
		b := &box{rereading: slowcall.New(func() (*bootstrap.Loaded, error) {
			if reads.Add(1) > 1 {
				return now, nil
			}
			<-answer
			return old, nil
		})}
		for range 3 {
			begun := time.Now()
			if l, err := b.reread(t.Context()); l != nil || api.CodeOf(err) != api.CodeTimeout {
				t.Errorf("while it hangs: %v %v", l, err)
			}
			if took := time.Since(begun); took != rereadLimit {
				t.Errorf("it took %v", took)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := b.reread(ctx); err != context.Canceled {
			t.Errorf("for a caller that has gone: %v", err)
		}
		if n := reads.Load(); n != 1 {
			t.Errorf("%d reads wait", n)
		}
		close(answer)
		synctest.Wait()
		if l, err := b.reread(t.Context()); l != now || err != nil {
			t.Errorf("when it answers again: %v %v", l, err)
		}
	})
}
