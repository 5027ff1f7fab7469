package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// join makes one archive of several archives that are for one architecture each. It is an OCI image
// layout whose index refers to an index of the images. A blob that several images share is stored
// once.
func join(archives []string, refs []string) ([]byte, error) {
	var b blobs
	have := map[string]bool{}
	platforms := map[string]string{}
	var images []descriptor
	for _, name := range archives {
		files, err := readArchive(name)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		var idx index
		if err := json.Unmarshal(files["index.json"], &idx); err != nil {
			return nil, fmt.Errorf("%s is no archive of this tool: index.json: %w", name, err)
		}
		if len(idx.Manifests) == 0 || idx.Manifests[0].Platform == nil {
			return nil, fmt.Errorf("%s names no image of one architecture", name)
		}
		image := idx.Manifests[0]
		image.Annotations = nil
		if other, twice := platforms[image.Platform.Architecture]; twice {
			return nil, fmt.Errorf("%s and %s are both for %s", other, name, image.Platform.Architecture)
		}
		platforms[image.Platform.Architecture] = name
		images = append(images, image)
		blobs, err := reachable(files, image)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		for _, e := range blobs {
			if !have[e.name] {
				have[e.name] = true
				b.files = append(b.files, e)
			}
		}
	}
	desc, err := b.addJSON(typeIndex, index{SchemaVersion: 2, MediaType: typeIndex, Manifests: images})
	if err != nil {
		return nil, err
	}
	return b.archive(desc, refs, nil)
}

// reachable returns the blobs of an image in a fixed order.
func reachable(files map[string][]byte, image descriptor) ([]entry, error) {
	var m manifest
	if err := json.Unmarshal(files[blobPath(image)], &m); err != nil {
		return nil, fmt.Errorf("manifest %s: %w", image.Digest, err)
	}
	var out []entry
	for _, d := range append(append([]descriptor{}, m.Layers...), m.Config, image) {
		data, ok := files[blobPath(d)]
		if !ok {
			return nil, fmt.Errorf("the blob %s is missing", d.Digest)
		}
		out = append(out, entry{name: blobPath(d), mode: 0o644, data: data})
	}
	return out, nil
}

func readArchive(name string) (map[string][]byte, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{}
	r := tar.NewReader(bytes.NewReader(data))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files, nil
		}
		if err != nil {
			return nil, err
		}
		if files[strings.TrimPrefix(h.Name, "./")], err = io.ReadAll(r); err != nil {
			return nil, err
		}
	}
}
