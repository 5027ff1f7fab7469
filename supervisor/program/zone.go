package program

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/dreamlab-ai/agentinit/internal/leased"
)

// LoadZone is time.LoadLocation, but refuses a file of another type in place of a time zone, and one with a
// lease (fcntl(2)). The open of a FIFO would wait for ever for a writer, that of a file with a lease for 45
// seconds, and with it the boot or the apply.
func LoadZone(name string) (*time.Location, error) {
	if name == "" || name == "UTC" { // package time reads no file
		return time.UTC, nil
	}
	for _, dir := range zoneDirs() {
		if err := openable(path.Join(dir, name)); err != nil {
			return nil, err
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
	if slices.ContainsFunc(files, func(file string) bool { return openable(file) != nil }) {
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

// openable fails if package time would have to wait for the open of a file. The file may be absent.
func openable(file string) error {
	info, err := os.Stat(file)
	if err != nil || info.IsDir() {
		return nil
	}
	if !info.Mode().IsRegular() {
		return &fs.PathError{Op: "open", Path: file, Err: errors.New("is not a regular file")}
	}
	if leased.Check(file) != nil {
		return &fs.PathError{Op: "open", Path: file, Err: fmt.Errorf("another process has a lease on it: %w", syscall.EWOULDBLOCK)}
	}
	return nil
}
