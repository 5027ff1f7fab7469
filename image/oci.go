package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// architectures are those that boxes are built for. The names are those of Go, which OCI uses too.
var architectures = []string{"amd64", "arm64"}

// containerConfig is the "config" of an OCI image configuration.
type containerConfig struct {
	Entrypoint   []string            `json:"Entrypoint"`
	Env          []string            `json:"Env"`
	WorkingDir   string              `json:"WorkingDir"`
	StopSignal   string              `json:"StopSignal"`
	Labels       map[string]string   `json:"Labels,omitempty"`
	ExposedPorts map[string]struct{} `json:"ExposedPorts,omitempty"`
}

type imageConfig struct {
	Architecture string          `json:"architecture"`
	OS           string          `json:"os"`
	Config       containerConfig `json:"config"`
	RootFS       rootFS          `json:"rootfs"`
	// History has an entry for each layer. Without it, podman build refuses to add a second layer:
	// "history lists 2 non-empty layers, but we have 3 layers on disk".
	History []history `json:"history"`
}

type history struct {
	CreatedBy string `json:"created_by"`
}

type rootFS struct {
	Type    string   `json:"type"`
	DiffIDs []string `json:"diff_ids"`
}

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Platform    *platform         `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
}

type manifest struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Config        descriptor   `json:"config"`
	Layers        []descriptor `json:"layers"`
	// Annotations repeat the labels. Registries show annotations without reading the configuration
	// (OCI Image Format Specification 1.1, annotations).
	Annotations map[string]string `json:"annotations,omitempty"`
}

type index struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Manifests     []descriptor `json:"manifests"`
}

// dockerEntry is one row of a docker archive's manifest.json.
type dockerEntry struct {
	Config   string   `json:"Config"`
	RepoTags []string `json:"RepoTags"`
	Layers   []string `json:"Layers"`
}

const (
	typeIndex    = "application/vnd.oci.image.index.v1+json"
	typeManifest = "application/vnd.oci.image.manifest.v1+json"
	typeConfig   = "application/vnd.oci.image.config.v1+json"
	typeLayer    = "application/vnd.oci.image.layer.v1.tar" // uncompressed: the digest does not depend on gzip
)

// blobs collects content-addressed files in the order in which they are added.
type blobs struct {
	files []entry
}

func (b *blobs) add(mediaType string, data []byte) descriptor {
	sum := sha256.Sum256(data)
	name := hex.EncodeToString(sum[:])
	b.files = append(b.files, entry{name: "blobs/sha256/" + name, mode: 0o644, data: data})
	return descriptor{MediaType: mediaType, Digest: "sha256:" + name, Size: len(data)}
}

func (b *blobs) addJSON(mediaType string, v any) (descriptor, error) {
	data, err := json.Marshal(v)
	return b.add(mediaType, data), err
}

// build returns the archive and the image id (the digest of the configuration).
func build(files []entry, config containerConfig, arch string, refs []string) (archive []byte, id string, err error) {
	if !slices.Contains(architectures, arch) {
		return nil, "", fmt.Errorf("architecture %q: want %s", arch, strings.Join(architectures, " or "))
	}
	data, err := layer(files)
	if err != nil {
		return nil, "", err
	}
	var b blobs
	layerDesc := b.add(typeLayer, data)
	configDesc, err := b.addJSON(typeConfig, imageConfig{
		Architecture: arch, OS: "linux", Config: config,
		// The diff id of an uncompressed layer is its digest.
		RootFS:  rootFS{Type: "layers", DiffIDs: []string{layerDesc.Digest}},
		History: []history{{CreatedBy: "agentinit image"}},
	})
	if err != nil {
		return nil, "", err
	}
	manifestDesc, err := b.addJSON(typeManifest, manifest{
		SchemaVersion: 2, MediaType: typeManifest, Config: configDesc, Layers: []descriptor{layerDesc}, Annotations: config.Labels,
	})
	if err != nil {
		return nil, "", err
	}
	manifestDesc.Platform = &platform{Architecture: arch, OS: "linux"}
	docker := dockerEntry{Config: blobPath(configDesc), RepoTags: refs, Layers: []string{blobPath(layerDesc)}}
	archive, err = b.archive(manifestDesc, refs, []dockerEntry{docker})
	return archive, configDesc.Digest, err
}

// archive packs the blobs as an image layout whose index names one image, once for each reference.
// docker is the additional content of a docker archive. It is nil for an index of several
// architectures, which the docker archive format does not support.
func (b *blobs) archive(image descriptor, refs []string, docker []dockerEntry) ([]byte, error) {
	var named []descriptor
	for _, ref := range refs {
		d := image
		d.Annotations = map[string]string{"org.opencontainers.image.ref.name": ref}
		named = append(named, d)
	}
	indexJSON, err := json.Marshal(index{SchemaVersion: 2, MediaType: typeIndex, Manifests: named})
	if err != nil {
		return nil, err
	}
	files := append(slices.Clone(b.files), entry{name: "index.json", mode: 0o644, data: indexJSON})
	if len(docker) > 0 {
		dockerJSON, err := json.Marshal(docker)
		if err != nil {
			return nil, err
		}
		files = append(files, entry{name: "manifest.json", mode: 0o644, data: dockerJSON})
	}
	return pack(append(files, entry{name: "oci-layout", mode: 0o644, data: []byte(`{"imageLayoutVersion":"1.0.0"}`)}))
}

func blobPath(d descriptor) string { return "blobs/sha256/" + d.Digest[len("sha256:"):] }

func pack(files []entry) ([]byte, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, e := range files {
		if err := writeEntry(w, e); err != nil {
			return nil, fmt.Errorf("/%s: %w", e.name, err)
		}
	}
	err := w.Close()
	return buf.Bytes(), err
}
