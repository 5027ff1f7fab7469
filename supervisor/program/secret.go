package program

import (
	"slices"
	"strings"
)

// Secret is the value of a variable in a program's manifest table that must not be shown.
type Secret struct{ Name, Value string }

// shortestHidden is the shortest length in bytes of a value that is hidden. A shorter value, such
// as "1", occurs in almost every text, and hiding it there would reveal it.
const shortestHidden = 4

// Hide replaces the values of the program's secrets by ${NAME}. It must be applied to every text
// about a program that may contain a part of its manifest table: reasons, the output of hooks,
// events.
func (s *Spec) Hide(text string) string {
	if s == nil {
		return text
	}
	return HideAll(s.Secrets, text)
}

// HideOutput is Hide for what a command printed. If the output was cut, a secret may have been cut with
// it: the beginning of one at the end of the output is removed.
func (s *Spec) HideOutput(output []byte, cut bool) string {
	text := string(output)
	for again := cut; again; {
		again = false
		for _, secret := range s.Secrets {
			for n := min(len(secret.Value)-1, len(text)); n > 0 && !again; n-- {
				text, again = strings.CutSuffix(text, secret.Value[:n])
			}
		}
	}
	return s.Hide(text)
}

// HideAll is Hide for a list of secrets. The longest value comes first, because it may contain
// another.
func HideAll(secrets []Secret, text string) string {
	if len(secrets) > 1 {
		secrets = slices.SortedFunc(slices.Values(secrets), func(a, b Secret) int { return len(b.Value) - len(a.Value) })
	}
	for _, secret := range secrets {
		if len(secret.Value) >= shortestHidden {
			text = strings.ReplaceAll(text, secret.Value, "${"+secret.Name+"}")
		}
	}
	return text
}
