// Package rotated names rotated log files: the path of the log, a dot and the time of the rotation,
// such as web.log.20060102T150405.000000000Z, with .zst or .gz behind it once the file is compressed.
// supervisor/logs gives such names, and schema/rules refuses them as the log of another program. The
// package must not touch files.
package rotated

import (
	"regexp"
	"sync"
)

// Layout is the time in a name, in UTC, for package time. Names with it sort by age.
const Layout = "20060102T150405.000000000Z"

var suffix = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`\.\d{8}T\d{6}\.\d{9}Z(\.gz|\.zst)?$`)
})

// Log returns the path of the log from which the file was rotated. ok is false if the name is none of
// a rotated file; then Log returns it unchanged.
func Log(name string) (log string, ok bool) {
	n := len(suffix().FindString(name))
	return name[:len(name)-n], n > 0
}
