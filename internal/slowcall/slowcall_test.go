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
		got := make(chan int)
		for range 2 {
			go func() {
				n, _ := c.Wait(t.Context())
				got <- n
			}()
		}
		synctest.Wait()
		answer <- nil
		if one, other := <-got, <-got; one != 2 || other != 2 {
			t.Errorf("two that wait at once: runs %d and %d", one, other)
		}
		close(answer)
		if n, err := c.Wait(t.Context()); n != 3 || err != nil {
			t.Errorf("the next run: %d %v", n, err)
		}
	})
}

// What was under way before is waited for, and its result is not used.
func TestFresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		runs, answer := 0, make(chan error)
		c := New(func() (int, error) {
			runs++
			n := runs
			return n, <-answer
		})
		ended, end := context.WithCancel(t.Context())
		end()
		if n, err := c.Wait(ended); n != 0 || !errors.Is(err, context.Canceled) {
			t.Errorf("the first: %d %v", n, err)
		}
		synctest.Wait()
		if n, err := c.Fresh(ended); n != 0 || !errors.Is(err, context.Canceled) {
			t.Errorf("while the first runs: %d %v", n, err)
		}
		go func() {
			answer <- errors.New("of the first")
			answer <- nil
		}()
		if n, err := c.Fresh(t.Context()); n != 2 || err != nil {
			t.Errorf("after the first: %d %v", n, err)
		}
	})
}
