package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
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
	} {
		t.Run(name, func(t *testing.T) {
			if err := run(append([]string{"-o", filepath.Join(t.TempDir(), "x")}, args...), io.Discard); err == nil {
				t.Fatal("accepted")
			}
		})
	}
}
