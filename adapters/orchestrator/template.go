package orchestrator

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// Template is what the manifest lets tasks and intents start: one of
// [templates.<name>].
type Template struct {
	Command     []string // with the arguments that always come first
	Args        []string
	Environment map[string]string
	Directory   string
	Timeout     time.Duration // 0 has no limit; cut to whole seconds, at least one
	StdinPipe   bool          // stdin = "pipe"
}

// Templates are the manifest's templates by name. Nil has none.
type Templates map[string]Template

// taskMark is the part of a template's arguments that the task replaces.
const taskMark = "{task}"

// LabelTemplate is the label that names the template an agent came from.
const LabelTemplate = "template"

// Spec is what to spawn for a task. A template with stdin = "pipe" gets the
// task there. Else it takes the place of "{task}" in the arguments, or becomes
// the last one; it is always a whole argument or part of one, never a word of a
// shell. An unknown name is NOT_FOUND.
func (t Templates) Spec(name, task string) (adapters.AgentSpec, error) {
	tpl, ok := t[name]
	if !ok || len(tpl.Command) == 0 {
		return adapters.AgentSpec{}, adapters.NotFound("template", name)
	}
	spec := adapters.AgentSpec{
		Command: tpl.Command[0], Args: slices.Concat(tpl.Command[1:], tpl.Args), Env: maps.Clone(tpl.Environment),
		Cwd: tpl.Directory, Name: name, Template: name, Labels: map[string]string{LabelTemplate: name},
	}
	spec.TimeoutS = int((tpl.Timeout + time.Second - 1) / time.Second)
	if tpl.StdinPipe {
		spec.Stdin = task
		return spec, nil
	}
	placed := false
	for i, arg := range spec.Args {
		if strings.Contains(arg, taskMark) {
			spec.Args[i], placed = strings.ReplaceAll(arg, taskMark, task), true
		}
	}
	if !placed && task != "" {
		spec.Args = append(spec.Args, task)
	}
	return spec, nil
}
