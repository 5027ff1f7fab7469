package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"unicode"
)

// module is one module that is linked into a binary.
type module struct {
	path, version, sum string
	license            string // SPDX identifier
	text               []byte
}

// licenses are the modules of all binaries, sorted by path.
type licenses struct {
	own     []byte
	modules []module
}

// collect reads the licence of every module that any of the builds contains. If a module has no
// licence file, or its licence is not recognised, collect returns an error: a person must check
// that licence before a release.
func collect(cache, root string, builds []build) (*licenses, error) {
	if cache == "" {
		return nil, errors.New("-modcache is missing")
	}
	own, err := os.ReadFile(filepath.Join(root, "LICENSE"))
	if err != nil {
		return nil, err
	}
	l := &licenses{own: own}
	seen := map[string]bool{}
	for _, b := range builds {
		for _, name := range binaries {
			for _, d := range b.info[name].Deps {
				if d.Replace != nil {
					d = d.Replace
				}
				if seen[d.Path+"@"+d.Version] {
					continue
				}
				seen[d.Path+"@"+d.Version] = true
				m, err := licensed(cache, d)
				if err != nil {
					return nil, err
				}
				l.modules = append(l.modules, m)
			}
		}
	}
	slices.SortFunc(l.modules, func(a, b module) int { return strings.Compare(a.path+"@"+a.version, b.path+"@"+b.version) })
	return l, nil
}

func licensed(cache string, d *debug.Module) (module, error) {
	m := module{path: d.Path, version: d.Version, sum: d.Sum}
	dir := filepath.Join(cache, filepath.FromSlash(escaped(d.Path)+"@"+escaped(d.Version)))
	files, err := os.ReadDir(dir)
	if err != nil {
		return m, err
	}
	i := slices.IndexFunc(files, func(f os.DirEntry) bool { return licenceFile.MatchString(f.Name()) })
	if i < 0 {
		return m, fmt.Errorf("%s %s: no licence file in %s", d.Path, d.Version, dir)
	}
	file := filepath.Join(dir, files[i].Name())
	if m.text, err = os.ReadFile(file); err != nil {
		return m, err
	}
	if m.license = classify(m.text); m.license == "" {
		return m, fmt.Errorf("%s: the licence is not recognised; look at it and teach release/licenses.go", file)
	}
	return m, nil
}

// licenceFile matches the names that modules give to their licence file.
var licenceFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying)(\.(md|txt))?$`)

// escaped returns the name of a path in the module cache: an upper-case letter becomes an
// exclamation mark and the lower-case letter (Go Modules Reference, "Module cache").
func escaped(s string) string {
	var b strings.Builder
	for _, r := range s {
		if unicode.IsUpper(r) {
			b.WriteByte('!')
			r = unicode.ToLower(r)
		}
		b.WriteRune(r)
	}
	return b.String()
}

// classify recognises the licences that the modules of agentinit have. For any other licence it
// returns "".
func classify(text []byte) string {
	t := strings.Join(strings.Fields(string(bytes.ToLower(text))), " ")
	has := func(words string) bool { return strings.Contains(t, words) }
	switch {
	case has("apache license version 2.0"):
		return "Apache-2.0"
	case has("mozilla public license version 2.0"), has("mozilla public license, version 2.0"):
		return "MPL-2.0"
	case has("permission is hereby granted, free of charge"):
		return "MIT"
	case has("permission to use, copy, modify, and/or distribute this software for any purpose"),
		has("permission to use, copy, modify, and distribute this software for any purpose"):
		return "ISC"
	case has("redistribution and use in source and binary forms") && (has("neither the name") || has("may not be used to endorse") || has("may be used to endorse")):
		return "BSD-3-Clause"
	case has("redistribution and use in source and binary forms"):
		return "BSD-2-Clause"
	}
	return ""
}

// text returns the file that contains all licences.
func (l *licenses) text() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "agentinit is under the licence at the end of this file, MPL-2.0. Its binaries contain\nthe Go standard library (BSD-3-Clause) and these modules:\n\n")
	for _, m := range l.modules {
		fmt.Fprintf(&b, "%-14s %s %s\n", m.license, m.path, m.version)
	}
	for _, m := range l.modules {
		fmt.Fprintf(&b, "\n==== %s %s (%s)\n\n%s\n", m.path, m.version, m.license, bytes.TrimSpace(m.text))
	}
	fmt.Fprintf(&b, "\n==== agentinit (MPL-2.0)\n\n%s", l.own)
	return b.Bytes()
}
