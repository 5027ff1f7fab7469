// Package sleep waits for a time that the end of a context cuts short. It must not wait for anything else.
package sleep

import (
	"context"
	"time"
)

// For waits for d, and tells whether d has passed: if ctx ends first, it returns false at once.
func For(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
