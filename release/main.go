// Command release packs a release of agentinit. For each architecture it makes a tarball and a
// Debian package. It adds the licences of all modules, a CycloneDX bill of materials, the
// provenance of each binary and one file of checksums. It owns the layout of these files.
//
// The same binaries give the same bytes: sorted names, owner 0:0, a fixed time. It must never read
// the clock, the host's name or the network. It builds no binary: `make release` builds them and
// passes them to this command.
package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "release:", err)
		}
		os.Exit(1)
	}
}

// options are the flags and arguments of the command line.
type options struct {
	out, version, root, cache string
}

const usage = `release packs the binaries below DIST/ARCH/.

  release -version V [flags] DIST ARCH…  the whole release, into -o
  release -licenses [flags] DIST ARCH…   only the licences of all modules, to standard output
`

func run(args []string, stdout io.Writer) error {
	var o options
	flags := flag.NewFlagSet("release", flag.ContinueOnError)
	flags.Usage = func() { fmt.Fprint(flags.Output(), usage); flags.PrintDefaults() }
	flags.StringVar(&o.out, "o", "dist/release", "`directory` of the result")
	flags.StringVar(&o.version, "version", "", "`version` of the release")
	flags.StringVar(&o.root, "root", ".", "`directory` of the module: LICENSE, README.md, examples")
	flags.StringVar(&o.cache, "modcache", "", "Go's module cache `directory` (go env GOMODCACHE), where the licences are")
	onlyLicenses := flags.Bool("licenses", false, "print the licences of all modules and stop")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() < 2 {
		return errors.New("name the directory of the binaries and at least one architecture")
	}
	builds, err := readBuilds(flags.Arg(0), flags.Args()[1:])
	if err != nil {
		return err
	}
	licenses, err := collect(o.cache, o.root, builds)
	if err != nil {
		return err
	}
	if *onlyLicenses {
		_, err := stdout.Write(licenses.text())
		return err
	}
	if o.version == "" {
		return errors.New("-version is missing")
	}
	return o.pack(builds, licenses, stdout)
}

// binaries are the names of the binaries in a release.
var binaries = []string{"agentinit", "agentctl"}

// build is the binaries of one architecture.
type build struct {
	arch  string
	files map[string][]byte
	info  map[string]*buildinfo.BuildInfo
}

func readBuilds(dist string, archs []string) ([]build, error) {
	var out []build
	for _, arch := range archs {
		b := build{arch: arch, files: map[string][]byte{}, info: map[string]*buildinfo.BuildInfo{}}
		for _, name := range binaries {
			file := filepath.Join(dist, arch, name)
			data, err := os.ReadFile(file)
			if err != nil {
				return nil, err
			}
			info, err := buildinfo.ReadFile(file)
			if err != nil {
				return nil, fmt.Errorf("%s has no build information: %w", file, err)
			}
			if have := setting(info, "GOARCH"); have != arch {
				return nil, fmt.Errorf("%s is for %s, not %s", file, have, arch)
			}
			b.files[name], b.info[name] = data, info
		}
		out = append(out, b)
	}
	return out, nil
}

func setting(info *buildinfo.BuildInfo, key string) string {
	for _, s := range info.Settings {
		if s.Key == key {
			return s.Value
		}
	}
	return ""
}

// pack writes all files of the release and their checksums.
func (o *options) pack(builds []build, licenses *licenses, stdout io.Writer) error {
	result := map[string][]byte{
		"LICENSES.txt": licenses.text(),
	}
	bom, err := sbom(o.version, builds, licenses)
	if err != nil {
		return err
	}
	result["agentinit-"+o.version+".cdx.json"] = bom
	for _, b := range builds {
		files, err := o.tree(b, licenses)
		if err != nil {
			return err
		}
		top := "agentinit-" + o.version + "-linux-" + b.arch
		if result[top+".tar.gz"], err = tarball(top, files); err != nil {
			return err
		}
		if result["agentinit_"+o.version+"_"+b.arch+".deb"], err = deb(o.version, b.arch, files); err != nil {
			return err
		}
		for name, info := range b.info {
			// The same text as the output of `go version -m`.
			result[top+"."+name+".provenance.txt"] = []byte("go\t" + info.GoVersion + "\n" + info.String())
		}
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	var sums strings.Builder
	for _, name := range slices.Sorted(maps.Keys(result)) {
		if err := os.WriteFile(filepath.Join(o.out, name), result[name], 0o644); err != nil {
			return err
		}
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(result[name]), name)
		fmt.Fprintf(stdout, "%9d  %s\n", len(result[name]), filepath.Join(o.out, name))
	}
	return os.WriteFile(filepath.Join(o.out, "SHA256SUMS"), []byte(sums.String()), 0o644)
}

// tree is the content of a tarball and of a package: binaries, documents, man pages and examples.
// The names are relative to the top directory.
func (o *options) tree(b build, licenses *licenses) (map[string]file, error) {
	files := map[string]file{"LICENSES.txt": {data: licenses.text(), mode: 0o644}}
	for name, data := range b.files {
		files["bin/"+name] = file{data: data, mode: 0o755}
	}
	for _, pattern := range []string{"LICENSE", "README.md", "examples/*.toml", "docs/man/*.[0-9]"} {
		names, err := fs.Glob(os.DirFS(o.root), pattern)
		if err != nil || len(names) == 0 {
			return nil, errors.Join(fmt.Errorf("there is no %s in %s", pattern, o.root), err)
		}
		for _, name := range names {
			data, err := os.ReadFile(filepath.Join(o.root, name))
			if err != nil {
				return nil, err
			}
			if section, page := strings.CutPrefix(path.Ext(name), "."); page && path.Dir(name) == "docs/man" {
				name = "share/man/man" + section + "/" + path.Base(name)
			}
			files[name] = file{data: data, mode: 0o644}
		}
	}
	return files, nil
}
