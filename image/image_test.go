package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func write(t *testing.T, mode os.FileMode, content string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
	return name
}

func buildImage(t *testing.T, args ...string) []byte {
	t.Helper()
	out := filepath.Join(t.TempDir(), "image.tar")
	if err := run(append(args, "-o", out), io.Discard); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func untar(t *testing.T, archive []byte) (map[string]*tar.Header, map[string][]byte) {
	t.Helper()
	headers, data := map[string]*tar.Header{}, map[string][]byte{}
	r := tar.NewReader(bytes.NewReader(archive))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return headers, data
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		headers[h.Name], data[h.Name] = h, content
	}
}

func TestSameInputSameBytes(t *testing.T) {
	bin := write(t, 0o755, "#!binary")
	a := buildImage(t, "-add", bin+":/bin/agentinit", "-env", "A=1")
	b := buildImage(t, "-add", bin+":/bin/agentinit", "-env", "A=1")
	if !bytes.Equal(a, b) {
		t.Fatal("two builds of the same input differ")
	}
	c := buildImage(t, "-add", bin+":/bin/agentinit", "-env", "A=2")
	if bytes.Equal(a, c) {
		t.Fatal("another environment gave the same image")
	}
}

func TestArchiveIsBothOCIAndDocker(t *testing.T) {
	_, files := untar(t, buildImage(t, "-add", write(t, 0o755, "x")+":/opt/a/b", "-expose", "9090/tcp", "-ref", "localhost/x:y"))
	for name, data := range files {
		digest, ok := strings.CutPrefix(name, "blobs/sha256/")
		if !ok {
			continue
		}
		if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != digest {
			t.Errorf("%s holds other bytes than its name says", name)
		}
	}
	var idx index
	mustUnmarshal(t, files["index.json"], &idx)
	var m manifest
	mustUnmarshal(t, files[blobPath(idx.Manifests[0])], &m)
	var config imageConfig
	mustUnmarshal(t, files[blobPath(m.Config)], &config)
	if config.RootFS.DiffIDs[0] != m.Layers[0].Digest {
		t.Errorf("diff id %s is not the layer %s", config.RootFS.DiffIDs[0], m.Layers[0].Digest)
	}
	if len(config.History) != len(config.RootFS.DiffIDs) {
		t.Errorf("the history has %d entries for %d layers", len(config.History), len(config.RootFS.DiffIDs))
	}
	if !slices.Equal(config.Config.Entrypoint, []string{"/bin/agentinit"}) || config.Config.StopSignal != "SIGTERM" {
		t.Errorf("oci.json did not reach the configuration: %+v", config.Config)
	}
	if _, ok := config.Config.ExposedPorts["9090/tcp"]; !ok {
		t.Errorf("port missing: %+v", config.Config)
	}
	var docker []dockerEntry
	mustUnmarshal(t, files["manifest.json"], &docker)
	if docker[0].Config != blobPath(m.Config) || docker[0].RepoTags[0] != "localhost/x:y" {
		t.Errorf("docker archive names another image: %+v", docker)
	}
	headers, layer := untar(t, files[blobPath(m.Layers[0])])
	if h := headers["opt/a/b"]; h == nil || h.Mode != 0o755 || h.Uid != 0 || h.ModTime != layerTime {
		t.Errorf("opt/a/b: %+v", h)
	}
	if headers["opt/a/"] == nil || headers["run/"].Mode != 0o1777 {
		t.Errorf("directories are missing or have another mode")
	}
	if !bytes.Contains(layer["etc/passwd"], []byte(":1000:1000:")) {
		t.Errorf("no user 1000: %s", layer["etc/passwd"])
	}
}

// The image has the environment and the ports of the manifest, and the labels, links, trees and
// root certificates.
func TestWhatTheManifestSaysIsInTheImage(t *testing.T) {
	config := write(t, 0o644, `{"Env":["HOME=/elsewhere","B=2"],"ExposedPorts":{"7777/tcp":{}}}`)
	tree := t.TempDir()
	for name, mode := range map[string]os.FileMode{"a/SKILL.md": 0o600, "a/run": 0o755} {
		p := filepath.Join(tree, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(name), mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("run", filepath.Join(tree, "a", "link")); err != nil {
		t.Fatal(err)
	}
	_, files := untar(t, buildImage(t, "-config", config, "-env", "C=3", "-label", "org.example=1",
		"-tree", tree+":/opt/agentbox/skills", "-link", "busybox:/bin/sh", "-roots"))
	c, m := configOf(t, files)
	if slices.Contains(c.Config.Env, "HOME=/workspace") || !slices.Contains(c.Config.Env, "HOME=/elsewhere") || !slices.Contains(c.Config.Env, "C=3") {
		t.Errorf("environment %v", c.Config.Env)
	}
	if len(c.Config.ExposedPorts) != 1 || c.Config.Labels["org.example"] != "1" || m.Annotations["org.example"] != "1" || c.Config.Labels["org.opencontainers.image.title"] == "" {
		t.Errorf("ports %v, labels %v, annotations %v", c.Config.ExposedPorts, c.Config.Labels, m.Annotations)
	}
	headers, layer := untar(t, files[blobPath(m.Layers[0])])
	if h := headers["opt/agentbox/skills/a/run"]; h == nil || h.Mode != 0o755 {
		t.Errorf("tree: %+v", h)
	}
	if h := headers["opt/agentbox/skills/a/SKILL.md"]; h == nil || h.Mode != 0o644 {
		t.Errorf("a file of the tree that only its owner could read: %+v", h)
	}
	for name, target := range map[string]string{"opt/agentbox/skills/a/link": "run", "bin/sh": "busybox", rootsLink: "ca-bundle.crt"} {
		if h := headers[name]; h == nil || h.Typeflag != tar.TypeSymlink || h.Linkname != target {
			t.Errorf("%s: %+v", name, h)
		}
	}
	if pool := x509.NewCertPool(); !pool.AppendCertsFromPEM(layer[rootsFile]) || bytes.Count(layer[rootsFile], []byte("BEGIN CERTIFICATE")) < 50 {
		t.Error("the root certificates cannot be read")
	}
}

func configOf(t *testing.T, files map[string][]byte) (imageConfig, manifest) {
	t.Helper()
	var idx index
	mustUnmarshal(t, files["index.json"], &idx)
	var m manifest
	mustUnmarshal(t, files[blobPath(idx.Manifests[0])], &m)
	var c imageConfig
	mustUnmarshal(t, files[blobPath(m.Config)], &c)
	return c, m
}

func TestJoinMakesAnIndexOfBothArchitectures(t *testing.T) {
	dir := t.TempDir()
	archive := func(arch string) string {
		name := filepath.Join(dir, arch+".tar")
		if err := run([]string{"-o", name, "-arch", arch, "-add", write(t, 0o755, arch) + ":/bin/agentinit"}, io.Discard); err != nil {
			t.Fatal(err)
		}
		return name
	}
	amd, arm, out := archive("amd64"), archive("arm64"), filepath.Join(dir, "both.tar")
	if err := run([]string{"-o", out, "-ref", "localhost/x:y", "join", amd, arm}, io.Discard); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	_, files := untar(t, data)
	var outer, inner index
	mustUnmarshal(t, files["index.json"], &outer)
	if len(outer.Manifests) != 1 || outer.Manifests[0].MediaType != typeIndex || outer.Manifests[0].Annotations["org.opencontainers.image.ref.name"] != "localhost/x:y" {
		t.Fatalf("%+v", outer)
	}
	mustUnmarshal(t, files[blobPath(outer.Manifests[0])], &inner)
	for i, arch := range []string{"amd64", "arm64"} {
		var m manifest
		mustUnmarshal(t, files[blobPath(inner.Manifests[i])], &m)
		var c imageConfig
		mustUnmarshal(t, files[blobPath(m.Config)], &c)
		if inner.Manifests[i].Platform.Architecture != arch || c.Architecture != arch || len(files[blobPath(m.Layers[0])]) == 0 {
			t.Errorf("%s: %+v", arch, inner.Manifests[i])
		}
	}
	for name, args := range map[string][]string{
		"one architecture twice": {"join", amd, amd},
		"not an archive":         {"join", write(t, 0o644, "x")},
		"an index":               {"join", out},
		"no archive":             {"join"},
	} {
		if err := run(append([]string{"-o", filepath.Join(dir, "x")}, args...), io.Discard); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func mustUnmarshal(t *testing.T, data []byte, v any) {
	t.Helper()
	if err := json.Unmarshal(data, v); err != nil {
		t.Fatalf("%v in %q", err, data)
	}
}

func TestBadInput(t *testing.T) {
	file := write(t, 0o644, "x")
	for name, args := range map[string][]string{
		"missing source":       {"-add", "/nonexistent:/a"},
		"relative destination": {"-add", file + ":a"},
		"unclean destination":  {"-add", file + ":/a/../b"},
		"no destination":       {"-add", file},
		"twice":                {"-add", file + ":/a", "-add", file + ":/a"},
		"architecture":         {"-arch", "vax"},
		"stray argument":       {"x"},
		"label without value":  {"-label", "x"},
		"missing tree":         {"-tree", "/nonexistent:/a"},
		"tree at the root":     {"-tree", filepath.Dir(file) + ":/"},
		"missing config":       {"-config", "/nonexistent"},
		"config is not JSON":   {"-config", file},
		"link twice":           {"-link", "a:/a", "-link", "b:/a"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := run(append([]string{"-o", filepath.Join(t.TempDir(), "x")}, args...), io.Discard); err == nil {
				t.Fatal("accepted")
			}
		})
	}
}
