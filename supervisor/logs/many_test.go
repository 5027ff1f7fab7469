package logs

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// manyFiles is the number of files that TestManyFilesRotateAtOnce rotates. With -many-files=10000
// the test takes some seconds.
var manyFiles = flag.Int("many-files", 300, "files that rotate at once")

// The files of all programs in one directory must rotate and be compressed at the same moment. No
// line is lost, and agentinit uses little memory.
func TestManyFilesRotateAtOnce(t *testing.T) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil || int(limit.Cur) < 8**manyFiles {
		t.Skip("needs more descriptors than the limit allows")
	}
	dir := t.TempDir()
	p := newPlane(t, Config{})
	type program struct {
		c              *Capture
		stdout, stderr *os.File
	}
	programs := make([]program, *manyFiles)
	for i := range programs {
		o := Options{Program: fmt.Sprint("p", i), To: ToFile, Path: filepath.Join(dir, fmt.Sprint("log", i)), MaxBytes: 1000, Backups: 3, Compress: CompressZstd}
		programs[i].c, programs[i].stdout, programs[i].stderr = open(t, p, o)
	}
	text := numbered(40) // more than one file
	for _, one := range programs {
		write(t, one.stdout, text)
	}
	for _, one := range programs {
		closeAll(t, one.stdout, one.stderr)
		<-one.c.Done()
	}
	flush(t, p)
	settle(t, p)
	rotated, err := readRotated(dir)
	if err != nil || len(rotated) != *manyFiles {
		t.Fatalf("%d files have been rotated, %v", len(rotated), err)
	}
	for base, names := range rotated {
		var got strings.Builder
		for _, name := range append(names, base) {
			got.WriteString(readLog(t, filepath.Join(dir, name)))
		}
		if got.String() != text || uncompressed(names[0]) == names[0] {
			t.Fatalf("%s: %d bytes in %v, want %d", base, got.Len(), names, len(text))
		}
	}
}
