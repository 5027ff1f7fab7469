package proc

import (
	"os"
	"sync"
	"testing"

	"github.com/dreamlab-ai/agentinit/internal/testprog/built"
)

// Each of many trees leaves an escapee behind when its leader ends. agentinit finds and kills every
// escapee, and no tree reports Emptied too early.
func TestEscapeesOfManyTrees(t *testing.T) {
	bin := built.Path(t)
	trees := 300
	if testing.Short() {
		trees = 100
	}
	for name, cgroups := range map[string]bool{"cgroups": true, "traces": false} {
		t.Run(name, func(t *testing.T) {
			if cgroups && os.Geteuid() != 0 {
				t.Skip("needs root to make cgroups")
			}
			o := patientOwner(t, Options{Cgroups: cgroups})
			var mu sync.Mutex
			notices := map[uint64]chan Exit{}
			of := func(id uint64) chan Exit {
				mu.Lock()
				defer mu.Unlock()
				if notices[id] == nil {
					notices[id] = make(chan Exit, 2)
				}
				return notices[id]
			}
			stop := make(chan struct{})
			var hears sync.WaitGroup
			hears.Go(func() {
				for {
					select {
					case e := <-o.Exits():
						of(e.ID) <- e
					case <-stop:
						return
					}
				}
			})
			var wg sync.WaitGroup
			slots := make(chan struct{}, 64)
			for range trees {
				wg.Go(func() {
					slots <- struct{}{}
					defer func() { <-slots }()
					p, err := o.Start(prog(bin, "setsid-escape"))
					if err != nil {
						t.Error(err)
						return
					}
					for e := range of(p.ID) {
						if e.Kind == Emptied {
							return
						}
						_ = o.Kill(p.ID)
					}
				})
			}
			wg.Wait()
			close(stop)
			hears.Wait()
			defer func() {
				if left := o.KillAll(0); left > 0 {
					t.Errorf("KillAll left %d", left)
				}
				if n := o.Stats().Orphans; n < uint64(trees) {
					t.Errorf("%d orphans reaped of at least %d", n, trees)
				}
				if err := o.Close(); err != nil {
					t.Error(err)
				}
			}()
			// A killed process that is not reaped yet does not count. An escapee that agentinit
			// missed goes on sleeping.
			waitUntil(t, "no escapee outlives the end of its tree", func() bool {
				o.mu.Lock()
				defer o.mu.Unlock()
				return len(o.ownChildren()) == 0
			})
		})
	}
}
