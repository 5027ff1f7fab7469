package slowcall

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
)

func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		runs, answer := 0, make(chan error)
		c := New(func() (int, error) {
			runs++
			return runs, <-answer
		})
		ended, end := context.WithCancel(t.Context())
		end()
		for range 2 {
			if n, err := c.Wait(ended); n != 0 || !errors.Is(err, context.Canceled) {
				t.Errorf("while the function does not return: %d %v", n, err)
			}
		}
		wrong := errors.New("wrong")
		answer <- wrong // a second run would wait here too
		if n, err := c.Wait(t.Context()); n != 1 || !errors.Is(err, wrong) {
			t.Errorf("the run that was under way: %d %v", n, err)
		}
		close(answer)
		if n, err := c.Wait(t.Context()); n != 2 || err != nil {
			t.Errorf("the next run: %d %v", n, err)
		}
	})
}
