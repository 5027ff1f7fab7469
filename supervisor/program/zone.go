package program

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"
)

// LoadZone is time.LoadLocation, but refuses a file of another type in place of a time zone. The open
// of a FIFO would wait for ever for a writer, and with it the boot or the apply.
func LoadZone(name string) (*time.Location, error) {
	for _, dir := range zoneDirs() {
		if file := path.Join(dir, name); special(file) {
			return nil, &fs.PathError{Op: "open", Path: file, Err: errors.New("is not a regular file")}
		}
	}
	return time.LoadLocation(name)
}

// LocalZone is the local time that package time would find, or UTC if it would wait for ever for that.
// TZ is as tzset(3) reads it; isSet false is an environment without it.
func LocalZone(tz string, isSet bool) *time.Location {
	tz = strings.TrimPrefix(tz, ":")
	files := []string{cmp.Or(tz, "/etc/localtime")}
	if isSet && !path.IsAbs(tz) {
		files = zoneDirs()
		for i := range files {
			files[i] = path.Join(files[i], tz)
		}
	}
	if slices.ContainsFunc(files, special) {
		return time.UTC
	}
	return time.Local
}

// zoneDirs are the directories in which package time looks for a zone before it takes its own copy.
func zoneDirs() []string {
	dirs := []string{"/usr/share/zoneinfo", "/usr/share/lib/zoneinfo", "/usr/lib/locale/TZ", "/etc/zoneinfo"}
	if own := os.Getenv("ZONEINFO"); own != "" {
		dirs = append(dirs, own)
	}
	return dirs
}

// special tells whether a file is neither regular nor a directory.
func special(file string) bool {
	info, err := os.Stat(file)
	return err == nil && !info.Mode().IsRegular() && !info.IsDir()
}
