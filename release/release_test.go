package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
)

const mit = "Permission is hereby granted, free of charge, to any person …"

// dist prepares a release of made-up binaries that contain one module.
func dist(t *testing.T, license string) (o options, builds []build) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"root/LICENSE": "Mozilla Public License Version 2.0", "root/README.md": "read me", "root/examples/minimal.toml": "", "root/docs/man/agentctl.1": ".TH agentctl 1",
		"cache/example.org/!mod/v2@v2.0.1/LICENSE": license,
	} {
		p := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, arch := range []string{"amd64", "arm64"} {
		b := build{arch: arch, files: map[string][]byte{}, info: map[string]*buildinfo.BuildInfo{}}
		for _, name := range binaries {
			b.files[name] = []byte(name + " for " + arch)
			b.info[name] = &buildinfo.BuildInfo{
				GoVersion: "go1.26.8-X:nogreenteagc", Path: "x/cmd/" + name,
				Deps:     []*debug.Module{{Path: "example.org/Mod/v2", Version: "v2.0.1", Sum: "h1:abc="}},
				Settings: []debug.BuildSetting{{Key: "GOARCH", Value: arch}},
			}
		}
		builds = append(builds, b)
	}
	return options{out: filepath.Join(dir, "out"), version: "1.2.3", root: filepath.Join(dir, "root"), cache: filepath.Join(dir, "cache")}, builds
}

func packed(t *testing.T) (options, map[string][]byte) {
	t.Helper()
	o, builds := dist(t, mit)
	l, err := collect(o.cache, o.root, builds)
	if err != nil {
		t.Fatal(err)
	}
	if err := o.pack(builds, l, io.Discard); err != nil {
		t.Fatal(err)
	}
	names, err := os.ReadDir(o.out)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]byte{}
	for _, n := range names {
		if out[n.Name()], err = os.ReadFile(filepath.Join(o.out, n.Name())); err != nil {
			t.Fatal(err)
		}
	}
	return o, out
}

func TestSameBinariesSameRelease(t *testing.T) {
	_, a := packed(t)
	_, b := packed(t)
	if len(a) != 11 || !bytes.Equal(a["SHA256SUMS"], b["SHA256SUMS"]) {
		t.Errorf("%d files; two releases of the same binaries differ:\n%s\n%s", len(a), a["SHA256SUMS"], b["SHA256SUMS"])
	}
	for line := range strings.Lines(string(a["SHA256SUMS"])) {
		sum, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		if fmt.Sprintf("%x", sha256.Sum256(a[name])) != sum {
			t.Errorf("the checksum of %s is not its own", name)
		}
	}
}

func TestTarballHoldsTheBinariesAndTheLicences(t *testing.T) {
	_, files := packed(t)
	z, err := gzip.NewReader(bytes.NewReader(files["agentinit-1.2.3-linux-arm64.tar.gz"]))
	if err != nil {
		t.Fatal(err)
	}
	modes := map[string]int64{}
	r := tar.NewReader(z)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		modes[strings.TrimPrefix(h.Name, "agentinit-1.2.3-linux-arm64/")] = h.Mode
		if h.Uid != 0 || !h.ModTime.Equal(packedAt) {
			t.Errorf("%+v", h)
		}
	}
	for name, mode := range map[string]int64{"bin/agentinit": 0o755, "bin/agentctl": 0o755, "LICENSE": 0o644, "LICENSES.txt": 0o644, "examples/minimal.toml": 0o644, "share/man/man1/agentctl.1": 0o644} {
		if modes[name] != mode {
			t.Errorf("%s has mode %o", name, modes[name])
		}
	}
}

// dpkg can read the package.
func TestPackageIsADebianPackage(t *testing.T) {
	dpkg, err := exec.LookPath("dpkg-deb")
	if err != nil {
		t.Skipf("no dpkg-deb here: %v", err)
	}
	o, _ := packed(t)
	for _, arch := range []string{"amd64", "arm64"} {
		file := filepath.Join(o.out, "agentinit_1.2.3_"+arch+".deb")
		out, err := exec.Command(dpkg, "--field", file, "Package", "Version", "Architecture").CombinedOutput()
		if want := "Package: agentinit\nVersion: 1.2.3\nArchitecture: " + arch + "\n"; err != nil || string(out) != want {
			t.Errorf("%v: %s", err, out)
		}
		dir := t.TempDir()
		if out, err := exec.Command(dpkg, "-x", file, dir).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if _, err := os.Stat(filepath.Join(dir, "usr/share/man/man1/agentctl.1.gz")); err != nil {
			t.Errorf("%s: %v", arch, err)
		}
		if data, err := os.ReadFile(filepath.Join(dir, "usr/bin/agentinit")); err != nil || string(data) != "agentinit for "+arch {
			t.Errorf("%v %q", err, data)
		}
	}
}

func TestBillOfMaterials(t *testing.T) {
	_, files := packed(t)
	var b bom
	if err := json.Unmarshal(files["agentinit-1.2.3.cdx.json"], &b); err != nil {
		t.Fatal(err)
	}
	refs := map[string]component{}
	for _, c := range b.Components {
		if _, twice := refs[c.Ref]; twice {
			t.Errorf("two components are called %s", c.Ref)
		}
		refs[c.Ref] = c
	}
	for _, r := range b.Relations {
		for _, on := range r.DependsOn {
			if _, ok := refs[on]; !ok {
				t.Errorf("%s depends on %s, which is no component", r.Ref, on)
			}
		}
	}
	if _, ok := refs["pkg:golang/std@1.26.8"]; !ok {
		t.Errorf("no standard library of Go 1.26.8 in %q", slices.Sorted(maps.Keys(refs)))
	}
	m := refs["pkg:golang/example.org/Mod/v2@v2.0.1"]
	if len(m.Licenses) != 1 || m.Licenses[0].License.ID != "MIT" || m.Properties[0].Value != "h1:abc=" {
		t.Errorf("%+v", m)
	}
	if len(refs["agentinit-linux-arm64"].Hashes) != 1 || len(refs) != 6 { // 4 binaries, the module, the standard library
		t.Errorf("%d components", len(refs))
	}
}

// A licence that is missing or not recognised stops the release, because no person has checked it.
func TestUnknownLicencesStopARelease(t *testing.T) {
	o, builds := dist(t, "All rights reserved.")
	if _, err := collect(o.cache, o.root, builds); err == nil || !strings.Contains(err.Error(), "not recognised") {
		t.Errorf("an unknown licence: %v", err)
	}
}

// Modules use many names for their licence file.
func TestLicenceFiles(t *testing.T) {
	o, builds := dist(t, mit)
	dir := filepath.Join(o.cache, "example.org", "!mod", "v2@v2.0.1")
	last := "LICENSE"
	for _, c := range []struct {
		name string
		ok   bool
	}{{"license.md", true}, {"License.txt", true}, {"LICENCE", true}, {"COPYING", true}, {"LICENSE-DOCS", false}, {"license.go", false}} {
		if err := os.Rename(filepath.Join(dir, last), filepath.Join(dir, c.name)); err != nil {
			t.Fatal(err)
		}
		last = c.name
		_, err := collect(o.cache, o.root, builds)
		if (err == nil) != c.ok || err != nil && !strings.Contains(err.Error(), "example.org/Mod/v2 v2.0.1: no licence file") {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestBadInput(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "amd64"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range binaries {
		if err := os.WriteFile(filepath.Join(dir, "amd64", name), []byte("no binary"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, args := range map[string][]string{
		"no architecture": {dir}, "no binaries": {dir, "arm64"}, "not built by Go": {dir, "amd64"}, "no such flag": {"-x", dir, "amd64"},
	} {
		if err := run(args, io.Discard); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
