package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// The parts of CycloneDX 1.6 (https://cyclonedx.org/docs/1.6/json/) that the release writes. There
// is no timestamp, so that the same release gives the same file.
type bom struct {
	Schema      string      `json:"$schema"`
	Format      string      `json:"bomFormat"`
	SpecVersion string      `json:"specVersion"`
	Version     int         `json:"version"`
	Metadata    metadata    `json:"metadata"`
	Components  []component `json:"components"`
	Relations   []relation  `json:"dependencies"`
}

type metadata struct {
	Component component `json:"component"`
}

type component struct {
	Type       string     `json:"type"`
	Ref        string     `json:"bom-ref"`
	Name       string     `json:"name"`
	Version    string     `json:"version"`
	Hashes     []hash     `json:"hashes,omitempty"`
	Licenses   []license  `json:"licenses,omitempty"`
	PURL       string     `json:"purl,omitempty"`
	Properties []property `json:"properties,omitempty"`
}

type hash struct {
	Alg     string `json:"alg"`
	Content string `json:"content"`
}

type license struct {
	License licenseID `json:"license"`
}

type licenseID struct {
	ID string `json:"id"`
}

type property struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

type relation struct {
	Ref       string   `json:"ref"`
	DependsOn []string `json:"dependsOn,omitempty"`
}

// sbom lists the binaries with their checksums, and the modules that each binary contains.
func sbom(version string, builds []build, l *licenses) ([]byte, error) {
	under := func(id string) []license { return []license{{licenseID{id}}} }
	b := bom{
		Schema: "http://cyclonedx.org/schema/bom-1.6.schema.json", Format: "CycloneDX", SpecVersion: "1.6", Version: 1,
		Metadata: metadata{component{
			Type: "application", Ref: "agentinit", Name: "agentinit", Version: version, Licenses: under("MPL-2.0"),
			PURL: "pkg:golang/github.com/dreamlab-ai/agentinit@v" + version,
		}},
	}
	goVersions := map[string]bool{}
	all := relation{Ref: "agentinit"}
	for _, build := range builds {
		for _, name := range binaries {
			info := build.info[name]
			release, _, _ := strings.Cut(info.GoVersion, "-X:") // experiments of the compiler follow
			std := "pkg:golang/std@" + strings.TrimPrefix(release, "go")
			goVersions[std] = true
			c := component{
				Type: "application", Ref: name + "-linux-" + build.arch, Name: name, Version: version, Licenses: under("MPL-2.0"),
				Hashes: []hash{{"SHA-256", fmt.Sprintf("%x", sha256.Sum256(build.files[name]))}},
			}
			for _, s := range info.Settings {
				c.Properties = append(c.Properties, property{"go:build:" + s.Key, s.Value})
			}
			r := relation{Ref: c.Ref, DependsOn: []string{std}}
			for _, d := range info.Deps {
				if d.Replace != nil {
					d = d.Replace
				}
				r.DependsOn = append(r.DependsOn, purl(d.Path, d.Version))
			}
			all.DependsOn = append(all.DependsOn, c.Ref)
			b.Components = append(b.Components, c)
			b.Relations = append(b.Relations, r)
		}
	}
	b.Relations = append([]relation{all}, b.Relations...)
	for _, std := range slices.Sorted(maps.Keys(goVersions)) {
		_, v, _ := strings.Cut(std, "@")
		b.Components = append(b.Components, component{Type: "library", Ref: std, Name: "std", Version: v, Licenses: under("BSD-3-Clause"), PURL: std})
	}
	for _, m := range l.modules {
		ref := purl(m.path, m.version)
		b.Components = append(b.Components, component{
			Type: "library", Ref: ref, Name: m.path, Version: m.version, Licenses: under(m.license), PURL: ref,
			// Go's checksum of a module is a property, because it is not the hash of one file.
			Properties: []property{{"go:sum", m.sum}},
		})
	}
	out, err := json.MarshalIndent(b, "", "  ")
	return append(out, '\n'), err
}

func purl(path, version string) string { return "pkg:golang/" + path + "@" + version }
