package main

import (
	"context"
	"slices"
	"sync"
	"time"
)

// sample is the result of measuring one row.
type sample struct {
	took   []time.Duration
	failed int
	first  error // the first error
}

func (s *sample) quantile(q float64) time.Duration {
	if len(s.took) == 0 {
		return 0
	}
	slices.Sort(s.took)
	return s.took[min(int(q*float64(len(s.took))), len(s.took)-1)]
}

func (s *sample) failedShare() float64 {
	if len(s.took) == 0 {
		return 1
	}
	return float64(s.failed) / float64(len(s.took))
}

// callLimit bounds one call, so that a backend that hangs does not block the other calls.
const callLimit = 30 * time.Second

// at makes calls at the nominal rate, even if earlier calls have not ended. A call's time counts
// from the moment when the call was due, so a delay of the generator itself is visible.
func at(call func(ctx context.Context, i int) error) func(context.Context, int, int) (sample, error) {
	return func(ctx context.Context, rate, seconds int) (sample, error) {
		n := rate * seconds
		s := sample{took: make([]time.Duration, n)}
		var mu sync.Mutex
		var calls sync.WaitGroup
		begin := time.Now()
		for i := range n {
			due := begin.Add(time.Duration(i) * time.Second / time.Duration(rate))
			time.Sleep(time.Until(due))
			if ctx.Err() != nil {
				break
			}
			calls.Go(func() {
				ctx, cancel := context.WithTimeout(ctx, callLimit)
				defer cancel()
				err := call(ctx, i)
				s.took[i] = time.Since(due)
				if err != nil {
					mu.Lock()
					defer mu.Unlock()
					s.failed++
					if s.first == nil {
						s.first = err
					}
				}
			})
		}
		calls.Wait()
		return s, ctx.Err()
	}
}

// after prepares one value for each call of a row before the calls begin.
func after[T any](prepare func(ctx context.Context, i int) (T, error), call func(context.Context, T) error) func(context.Context, int, int) (sample, error) {
	return func(ctx context.Context, rate, seconds int) (sample, error) {
		ready := make([]T, rate*seconds)
		for i := range ready {
			var err error
			if ready[i], err = prepare(ctx, i); err != nil {
				return sample{}, err
			}
		}
		return at(func(ctx context.Context, i int) error { return call(ctx, ready[i]) })(ctx, rate, seconds)
	}
}
