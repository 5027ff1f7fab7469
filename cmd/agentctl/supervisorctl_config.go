package main

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/control/supervisord"
)

// avail lists the programs of the manifest in force. A manifest that is not applied yet does not
// count: agentinit keeps no state between reread and update.
func (s *supervisorctl) avail(ctx context.Context, _ []string) error {
	status, err := s.read(ctx)
	if err != nil {
		return err
	}
	supervisord.SortByProcess(status.Programs)
	for _, p := range status.Programs {
		detail, err := s.box.Program(ctx, p.Name)
		if err != nil {
			return err
		}
		spec, err := supervisord.ModeOf(detail)
		if err != nil {
			return err
		}
		mode := "manual"
		if spec.Autostart {
			mode = "auto"
		}
		line(s.stdout, "%-32s %-9s %-9s %d:%d", p.Name, "in use", mode, spec.Priority, spec.Priority)
	}
	return nil
}

// The words of reread for what differs.
const (
	oldAdded   = "available"
	oldChanged = "changed"
	oldRemoved = "disappeared"
)

// differences are the changes by group, in the words of reread.
func differences(changes []api.ApplyChange) map[string]string {
	out := make(map[string]string)
	for _, ch := range changes {
		group := groupOf(ch)
		word := oldChanged
		switch ch.Action {
		case api.ApplyUnchanged:
			word = ""
		case api.ApplyAdd:
			word = oldAdded
		case api.ApplyRemove:
			word = oldRemoved
		}
		if before, known := out[group]; known && before != word { // some of its instances differ
			word = oldChanged
		}
		out[group] = word
	}
	maps.DeleteFunc(out, func(_, word string) bool { return word == "" })
	return out
}

func (s *supervisorctl) reread(ctx context.Context, _ []string) error {
	result, err := s.box.Apply(ctx, api.ApplyRequest{DryRun: true})
	if err != nil {
		return err
	}
	s.remark(result)
	groups := differences(result.Changes)
	for _, group := range slices.Sorted(maps.Keys(groups)) {
		line(s.stdout, "%s: %s", printable(group), groups[group])
	}
	if len(groups) == 0 {
		line(s.stdout, "No config updates to processes")
	}
	return nil
}

func (s *supervisorctl) update(ctx context.Context, names []string) error {
	if len(names) > 0 && !slices.Contains(names, "all") {
		if only, err := s.differOnly(ctx, names); err != nil || !only {
			return err
		}
	}
	result, err := s.box.Apply(ctx, api.ApplyRequest{})
	if err != nil {
		return err
	}
	s.remark(result)
	if result.RolledBack {
		s.fail(exitFailure, "ERROR: rolled back: %s", printable(result.Reason))
		return nil
	}
	s.updated(result.Changes)
	return nil
}

// differOnly tells whether nothing but the named groups differs. agentinit applies the whole manifest:
// it cannot leave a part out.
func (s *supervisorctl) differOnly(ctx context.Context, names []string) (bool, error) {
	status, err := s.box.Status(ctx)
	if err != nil {
		return false, err
	}
	result, err := s.box.Apply(ctx, api.ApplyRequest{DryRun: true})
	if err != nil {
		return false, err
	}
	groups := differences(result.Changes)
	for _, name := range names {
		known := slices.ContainsFunc(status.Programs, func(p api.Program) bool { return p.Group == name })
		if !known && groups[name] == "" {
			s.fail(exitFailure, "ERROR: no such group: %s", printable(name))
		}
		delete(groups, name)
	}
	if len(groups) == 0 {
		return true, nil
	}
	others := printable(strings.Join(slices.Sorted(maps.Keys(groups)), ", "))
	s.fail(exitFailure, "ERROR: agentinit applies the whole manifest, and these differ too: %s; use: supervisorctl update", others)
	return false, nil
}

// updated tells what has changed, in supervisorctl's order.
func (s *supervisorctl) updated(changes []api.ApplyChange) {
	groups := differences(changes)
	for _, kind := range [][2]string{{oldRemoved, "removed"}, {oldChanged, "updated"}, {oldAdded, "added"}} {
		for _, group := range slices.Sorted(maps.Keys(groups)) {
			if groups[group] != kind[0] {
				continue
			}
			if slices.ContainsFunc(changes, func(ch api.ApplyChange) bool { return groupOf(ch) == group && stops(ch) }) {
				line(s.stdout, "%s: stopped", printable(group))
			}
			line(s.stdout, "%s: %s process group", printable(group), kind[1])
		}
	}
	for _, ch := range changes {
		if ch.Error != "" {
			s.fail(exitFailure, "%s: ERROR (%s)", printable(ch.Program), printable(ch.Error))
		}
	}
}

func groupOf(ch api.ApplyChange) string {
	group, _, _ := strings.Cut(ch.Program, ":")
	return group
}

func stops(ch api.ApplyChange) bool {
	return ch.Action == api.ApplyRestart || ch.Action == api.ApplyRemove
}
