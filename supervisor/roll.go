package supervisor

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// roll is the restart of the instances of one set, one after the other.
type roll struct {
	first expectation     // restarted by install
	specs []*program.Spec // of the instances that follow
}

func (r *roll) later(name string) bool {
	return slices.ContainsFunc(r.specs, func(s *program.Spec) bool { return s.Name == name })
}

// rolls finds the sets of which more than one running instance has to restart. An instance that stops by
// request does not restart.
func (l *loop) rolls(changes []program.SpecChange, byName map[string]*program.Spec) map[string]*roll {
	rolls := make(map[string]*roll)
	for _, c := range changes {
		e := l.entries[c.Program]
		if c.Kind != program.Restart || !e.active() || e.scheduled() || e.stopsByRequest() {
			continue
		}
		spec := byName[c.Program]
		if r := rolls[spec.Group]; r != nil {
			r.specs = append(r.specs, spec)
			continue
		}
		rolls[spec.Group] = &roll{first: expectation{c.Program, e.m.Run, returnLimit(spec)}}
	}
	for group, r := range rolls {
		if len(r.specs) == 0 || group == "" {
			delete(rolls, group)
		}
	}
	return rolls
}

// hold marks an instance that restarts later. Until then it keeps its process and its old
// specification.
func (l *loop) hold(e *entry, next *program.Spec) {
	spec := *e.m.Newest()
	spec.Name, spec.Needs, spec.Required = next.Name, next.Needs, next.Required
	e.m = e.m.WithSpec(&spec)
	l.show(e)
}

// rollAll restarts the instances that install has left, each set on its own. The error is about a
// required program, or ErrDone. troubles says which other instances did not become ready again, and
// which therefore keep running unchanged.
func (s *Supervisor) rollAll(rolls map[string]*roll) (troubles map[string]string, failure error) {
	var mu sync.Mutex
	var all sync.WaitGroup
	troubles = make(map[string]string)
	for _, r := range rolls {
		all.Go(func() {
			culprit, left, err := s.roll(r)
			if err == nil {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if r.specs[0].Required || errors.Is(err, ErrDone) {
				failure = err
			}
			troubles[culprit] = err.Error()
			for _, spec := range left {
				troubles[spec.Name] = "not restarted, because " + culprit + " did not return"
			}
		})
	}
	all.Wait()
	return troubles, failure
}

// roll returns the first instance that does not become ready again, and the instances after it.
func (s *Supervisor) roll(r *roll) (culprit string, left []*program.Spec, err error) {
	before, restarts := r.first, true
	returned := func() error {
		if !restarts {
			return nil
		}
		return s.awaitReturn(time.Now(), before)
	}
	for i, spec := range r.specs {
		if err := returned(); err != nil {
			return before.name, r.specs[i:], err
		}
		before = expectation{name: spec.Name, limit: returnLimit(spec)}
		err := s.do(context.Background(), func() {
			e := s.loop.entries[spec.Name]
			restarts = true
			if e == nil || e.removing || s.loop.ending.phase != notEnding {
				return
			}
			before.run = e.m.Run
			// A request may have stopped it while the others restarted: then it is not waited for.
			restarts = !s.loop.keepsStopping(e, spec) && s.loop.replace(e, spec)
			s.loop.settle()
		})
		if err != nil {
			return spec.Name, r.specs[i:], err
		}
	}
	return before.name, nil, returned()
}
