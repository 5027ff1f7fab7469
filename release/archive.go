package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"
)

// file is one file of an archive.
type file struct {
	data []byte
	mode int64
}

// packedAt is the modification time of all packed files. It is fixed, so that the same input gives
// the same bytes.
var packedAt = time.Unix(1, 0)

// tarball packs files below a directory, as tar.gz.
func tarball(top string, files map[string]file) ([]byte, error) {
	below := map[string]file{}
	for name, f := range files {
		below[top+"/"+name] = f
	}
	return targz("", below)
}

// targz packs files and the directories above them. Each name gets the prefix.
func targz(prefix string, files map[string]file) ([]byte, error) {
	all := map[string]file{}
	for name, f := range files {
		all[name] = f
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			all[dir+"/"] = file{mode: 0o755}
		}
	}
	var out bytes.Buffer
	z := gzip.NewWriter(&out) // the gzip header contains no name and no time
	w := tar.NewWriter(z)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		f := all[name]
		h := &tar.Header{Name: prefix + name, Mode: f.mode, Size: int64(len(f.data)), ModTime: packedAt, Format: tar.FormatUSTAR, Typeflag: tar.TypeReg}
		if strings.HasSuffix(name, "/") {
			h.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// gzipped compresses one text. The same text gives the same bytes.
func gzipped(text []byte) ([]byte, error) {
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	if _, err := z.Write(text); err != nil {
		return nil, err
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// deb makes a Debian binary package (deb(5)): an ar archive of a version, the control files and the
// data.
func deb(version, arch string, files map[string]file) ([]byte, error) {
	placed, size := map[string]file{}, 0
	for name, f := range files {
		switch {
		case strings.HasPrefix(name, "bin/"):
			placed["usr/"+name] = f
		case strings.HasPrefix(name, "share/man/"):
			packed, err := gzipped(f.data) // Debian Policy 12.1
			if err != nil {
				return nil, err
			}
			placed["usr/"+name+".gz"] = file{data: packed, mode: f.mode}
		case name == "LICENSES.txt":
			placed["usr/share/doc/agentinit/copyright"] = f // Debian Policy 12.5
		default:
			placed["usr/share/doc/agentinit/"+name] = f
		}
		size += len(f.data)
	}
	data, err := targz("./", placed)
	if err != nil {
		return nil, err
	}
	control, err := targz("./", map[string]file{"control": {mode: 0o644, data: fmt.Appendf(nil, `Package: agentinit
Version: %s
Architecture: %s
Maintainer: The agentinit authors <https://github.com/dreamlab-ai/agentinit>
Installed-Size: %d
Section: admin
Priority: optional
Homepage: https://github.com/dreamlab-ai/agentinit
Description: PID 1 and process supervisor of a container
 agentinit starts, watches and stops the programs of a box that a manifest
 describes. agentctl is its remote control and the tool for its manifests.
`, version, arch, (size+1023)/1024)}})
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	out.WriteString("!<arch>\n")
	for _, m := range []struct {
		name string
		data []byte
	}{{"debian-binary", []byte("2.0\n")}, {"control.tar.gz", control}, {"data.tar.gz", data}} {
		fmt.Fprintf(&out, "%-16s%-12d%-6d%-6d%-8o%-10d`\n", m.name, packedAt.Unix(), 0, 0, 0o100644, len(m.data))
		out.Write(m.data)
		if len(m.data)%2 == 1 {
			out.WriteByte('\n') // each member begins at an even offset
		}
	}
	return out.Bytes(), nil
}
