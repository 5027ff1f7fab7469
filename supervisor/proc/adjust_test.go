package proc

import (
	"os"
	"syscall"
	"testing"
	"testing/synctest"
)

// While a start waits until it may set the score of its program, the Owner can reap and signal. A
// score is written only to a process that is not reaped, with the mutex held: otherwise another
// process could have the pid.
func TestScoreIsSetWithoutDelayOfOthers(t *testing.T) {
	for name, tc := range map[string]struct {
		allowed  int // the attempt that the kernel allows
		reaped   bool
		attempts int
	}{
		"allowed the third time":   {allowed: 3, attempts: 3},
		"refused all the time":     {attempts: 50},
		"reaped after the refusal": {reaped: true, attempts: 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			o, p := &Owner{}, &process{pid: os.Getpid()}
			attempts := 0
			done := make(chan error, 1)
			go func() {
				done <- o.adjustOOM(p, 300, func(pid, score int) error {
					if attempts++; o.mu.TryLock() {
						t.Errorf("%s: the mutex is free during the write", name)
						o.mu.Unlock()
					}
					if pid != p.pid || score != 300 || p.reaped {
						t.Errorf("%s: %d is written for %d, reaped: %t", name, score, pid, p.reaped)
					}
					if attempts == tc.allowed {
						return nil
					}
					return syscall.EACCES
				})
			}()
			synctest.Wait() // until the start sleeps
			if !o.mu.TryLock() {
				t.Fatalf("%s: the start sleeps with the mutex held", name)
			}
			p.reaped = tc.reaped
			o.mu.Unlock()
			if err := <-done; err != nil || attempts != tc.attempts {
				t.Errorf("%s: %d attempts, want %d; %v", name, attempts, tc.attempts, err)
			}
		})
	}
}
