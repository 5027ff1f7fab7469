package main

import (
	"archive/tar"
	"cmp"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// entry is one directory or file of the layer. The owner is always 0:0 and the time is always the
// same, so that the same content gives the same bytes.
type entry struct {
	name string // without a leading slash; the name of a directory ends in a slash
	mode int64
	data []byte
	link string // target of a symbolic link
}

// skeleton is what every image has besides its files. The box writes to the sticky world-writable
// directories. Engines give a tmpfs or a new volume the mode that the directory has in the image,
// and the box may run with any uid.
var skeleton = []entry{
	{name: "bin/", mode: 0o755},
	{name: "dev/", mode: 0o755},
	{name: "etc/", mode: 0o755},
	{name: "proc/", mode: 0o555},
	{name: "projects/", mode: 0o1777},
	{name: "run/", mode: 0o1777},
	{name: "sys/", mode: 0o555},
	{name: "tmp/", mode: 0o1777},
	{name: "var/", mode: 0o755},
	{name: "var/lib/", mode: 0o755},
	{name: "var/lib/agentbox/", mode: 0o1777},
	{name: "var/lib/ruvector/", mode: 0o1777},
	{name: "var/lib/solid/", mode: 0o1777},
	{name: "var/log/", mode: 0o1777},
	{name: "var/run/", mode: 0o1777},
	{name: "workspace/", mode: 0o1777},
	{name: "etc/group", mode: 0o644, data: []byte("root:x:0:\nagentbox:x:1000:\nnogroup:x:65534:\n")},
	{name: "etc/passwd", mode: 0o644, data: []byte("root:x:0:0:root:/workspace:/bin/false\n" +
		"agentbox:x:1000:1000:agentbox:/workspace:/bin/false\n" +
		"nobody:x:65534:65534:nobody:/:/bin/false\n")},
}

// layerTime is the modification time of everything in the layer. It is not zero, because some tools
// read zero as "unset".
var layerTime = time.Unix(1, 0)

// destination splits a "SOURCE:/DESTINATION" argument.
func destination(arg string) (src, dst string, err error) {
	src, dst, ok := strings.Cut(arg, ":")
	if !ok || !path.IsAbs(dst) || path.Clean(dst) != dst || dst == "/" {
		return "", "", fmt.Errorf("cannot use %q: want SOURCE:/absolute/destination", arg)
	}
	return src, strings.TrimPrefix(dst, "/"), nil
}

// readEntry reads the file of one "SOURCE:/DESTINATION" argument.
func readEntry(arg string) (entry, error) {
	src, dst, err := destination(arg)
	if err != nil {
		return entry{}, err
	}
	return readFile(src, dst)
}

func readFile(src, name string) (entry, error) {
	data, err := os.ReadFile(src)
	if err != nil {
		return entry{}, err
	}
	info, err := os.Stat(src)
	if err != nil {
		return entry{}, err
	}
	mode := int64(0o644)
	if info.Mode()&0o111 != 0 {
		mode = 0o755
	}
	return entry{name: name, mode: mode, data: data}, nil
}

// readTree reads the directory of one "SOURCE:/DESTINATION" argument and everything below it.
// Symbolic links stay links, whatever their target.
func readTree(arg string) ([]entry, error) {
	src, dst, err := destination(arg)
	if err != nil {
		return nil, err
	}
	var out []entry
	err = filepath.WalkDir(src, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(src, p)
		if err != nil {
			return err
		}
		name := path.Join(dst, filepath.ToSlash(rel))
		switch {
		case d.IsDir():
			out = append(out, entry{name: name + "/", mode: 0o755})
		case d.Type()&fs.ModeSymlink != 0:
			target, err := os.Readlink(p)
			if err != nil {
				return err
			}
			out = append(out, entry{name: name, mode: 0o777, link: target})
		case d.Type().IsRegular():
			e, err := readFile(p, name)
			if err != nil {
				return err
			}
			out = append(out, e)
		default:
			return fmt.Errorf("%s: an image holds only files, links and directories", p)
		}
		return nil
	})
	return out, err
}

// layer returns an uncompressed ustar archive of the skeleton and the files, sorted by name. It
// adds missing parent directories. Two files with the same name are an error.
func layer(files []entry) ([]byte, error) {
	byName := map[string]entry{}
	for _, e := range slices.Concat(skeleton, files) {
		if old, ok := byName[e.name]; ok && !strings.HasSuffix(old.name, "/") && !isSkeleton(old.name) {
			return nil, fmt.Errorf("two files are to become /%s", e.name)
		}
		byName[e.name] = e
		for dir := path.Dir(strings.TrimSuffix(e.name, "/")); dir != "."; dir = path.Dir(dir) {
			if _, ok := byName[dir+"/"]; !ok {
				byName[dir+"/"] = entry{name: dir + "/", mode: 0o755}
			}
		}
	}
	return pack(slices.SortedFunc(maps.Values(byName), func(a, b entry) int { return cmp.Compare(a.name, b.name) }))
}

func isSkeleton(name string) bool {
	return slices.ContainsFunc(skeleton, func(e entry) bool { return e.name == name })
}

func writeEntry(w *tar.Writer, e entry) error {
	kind := byte(tar.TypeReg)
	switch {
	case strings.HasSuffix(e.name, "/"):
		kind = tar.TypeDir
	case e.link != "":
		kind = tar.TypeSymlink
	}
	err := w.WriteHeader(&tar.Header{
		Name: e.name, Linkname: e.link, Typeflag: kind, Mode: e.mode, Size: int64(len(e.data)),
		ModTime: layerTime, Format: tar.FormatUSTAR,
	})
	if err != nil {
		return err
	}
	_, err = w.Write(e.data)
	return err
}
