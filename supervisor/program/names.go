package program

import (
	"path"
	"strings"
)

// Named tells whether a name or a glob (path.Match) means the program. The name of a set means all its
// instances. A glob that path.Match cannot read means no program.
func Named(glob, name string) bool {
	set, _, _ := strings.Cut(name, ":")
	one, _ := path.Match(glob, name)
	all, _ := path.Match(glob, set)
	return one || all
}
