package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"time"
)

// entry is one directory or file of the layer. Owner is always 0:0 and the time
// always the same, so that the same content gives the same bytes.
type entry struct {
	name string // without a leading slash; a directory ends in one
	mode int64
	data []byte
}

// skeleton is what every image has besides its files. The sticky world-writable
// ones are where the box writes: engines give a tmpfs or a fresh volume the mode
// that the directory has in the image, and the box runs as any uid.
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

// layerTime is the modification time of everything in the layer: not zero,
// which some tools read as "unset".
var layerTime = time.Unix(1, 0)

// readEntry reads one "SOURCE:DESTINATION" argument.
func readEntry(arg string) (entry, error) {
	src, dst, ok := strings.Cut(arg, ":")
	if !ok || !path.IsAbs(dst) || path.Clean(dst) != dst {
		return entry{}, fmt.Errorf("cannot use %q: want SOURCE:/absolute/destination", arg)
	}
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
	return entry{name: strings.TrimPrefix(dst, "/"), mode: mode, data: data}, nil
}

// layer returns an uncompressed ustar archive of the skeleton and the files,
// sorted by name, with the parent directories that are missing. Two files with
// one name are an error.
func layer(files []entry) ([]byte, error) {
	byName := map[string]entry{}
	for _, e := range slices.Concat(skeleton, files) {
		if old, ok := byName[e.name]; ok && old.data != nil && !isSkeleton(old.name) {
			return nil, fmt.Errorf("two files are to become /%s", e.name)
		}
		byName[e.name] = e
		for dir := path.Dir(strings.TrimSuffix(e.name, "/")); dir != "."; dir = path.Dir(dir) {
			if _, ok := byName[dir+"/"]; !ok {
				byName[dir+"/"] = entry{name: dir + "/", mode: 0o755}
			}
		}
	}
	sorted := make([]entry, 0, len(byName))
	for _, e := range byName {
		sorted = append(sorted, e)
	}
	slices.SortFunc(sorted, func(a, b entry) int { return cmp.Compare(a.name, b.name) })

	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, e := range sorted {
		if err := writeEntry(w, e); err != nil {
			return nil, fmt.Errorf("/%s: %w", e.name, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}

func isSkeleton(name string) bool {
	return slices.ContainsFunc(skeleton, func(e entry) bool { return e.name == name })
}

func writeEntry(w *tar.Writer, e entry) error {
	kind := byte(tar.TypeReg)
	if strings.HasSuffix(e.name, "/") {
		kind = tar.TypeDir
	}
	err := w.WriteHeader(&tar.Header{
		Name: e.name, Typeflag: kind, Mode: e.mode, Size: int64(len(e.data)),
		ModTime: layerTime, Format: tar.FormatUSTAR,
	})
	if err != nil {
		return err
	}
	_, err = w.Write(e.data)
	return err
}
