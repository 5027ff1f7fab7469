package program

import (
	"slices"
	"strings"
)

// Secret is the value of a variable that a program's table names and that nobody
// may be shown.
type Secret struct{ Name, Value string }

// shortestHidden is the length, in bytes, below which a value is not looked for in
// a text: "1" stands in every text, and hiding it there would tell what it is.
const shortestHidden = 4

// Hide puts ${NAME} in place of the values of the program's secrets. Whatever is
// said of a program that may hold a text of its table goes through it: reasons,
// the output of hooks, events.
func (s *Spec) Hide(text string) string {
	if s == nil {
		return text
	}
	return HideAll(s.Secrets, text)
}

// HideAll is Hide for a list of secrets. The longest value goes first, because one
// may be a part of another.
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
