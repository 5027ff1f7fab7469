// Command image writes the container image of agentinit as one tar file. It uses no Dockerfile and
// no daemon, and downloads no file. The tar file is an OCI image layout and a docker archive at
// once, so podman, docker, skopeo and containerd can read it. `image join` makes one OCI layout of
// images for several architectures.
//
// It owns the layout of the image. The command and the settings that the container starts with are
// in oci.json, which the Nix build also reads. The same input gives the same bytes: one
// uncompressed layer, sorted names, owner 0:0, a fixed time. It must never read the clock, the
// host's name or the environment.
//
// Format: OCI Image Format Specification 1.1 (image-layout, manifest, config).
package main

import (
	"compress/gzip"
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

//go:embed oci.json
var ociJSON []byte

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "image:", err)
		}
		os.Exit(1)
	}
}

type list []string

func (l *list) String() string     { return strings.Join(*l, " ") }
func (l *list) Set(s string) error { *l = append(*l, s); return nil }

// options are the flags and arguments of the command line.
type options struct {
	out, arch, config                             string
	refs, files, trees, links, env, ports, labels list
	roots                                         bool
}

const usage = `image writes the container image of a box as one tar file.

  image [flags]                     one architecture: docker archive and OCI layout
  image [-o FILE] [-ref NAME] join ARCHIVE…
                                    several of them as one OCI layout with an index
`

func run(args []string, stdout io.Writer) error {
	var o options
	flags := flag.NewFlagSet("image", flag.ContinueOnError)
	flags.Usage = func() { fmt.Fprint(flags.Output(), usage); flags.PrintDefaults() }
	flags.StringVar(&o.out, "o", "agentbox.tar", "write the image to this `file`")
	flags.StringVar(&o.arch, "arch", "amd64", "`architecture` of the binaries: amd64 or arm64")
	flags.StringVar(&o.config, "config", "", "take environment and ports from this `file`, made by agentctl generate image")
	flags.BoolVar(&o.roots, "roots", false, "add the root certificates that go.mod pins")
	flags.Var(&o.refs, "ref", "`name` under which engines load the image; may be repeated (default localhost/agentbox:dev)")
	flags.Var(&o.files, "add", "add a file, as `SOURCE:/DESTINATION`; may be repeated")
	flags.Var(&o.trees, "tree", "add a directory with all below it, as `SOURCE:/DESTINATION`; may be repeated")
	flags.Var(&o.links, "link", "add a symbolic link, as `TARGET:/NAME`; may be repeated")
	flags.Var(&o.env, "env", "set a variable of the image's environment, as `KEY=VALUE`; may be repeated")
	flags.Var(&o.ports, "expose", "declare a `PORT/tcp`; may be repeated")
	flags.Var(&o.labels, "label", "set a label and annotation, as `KEY=VALUE`; may be repeated")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if len(o.refs) == 0 {
		o.refs = list{"localhost/agentbox:dev"}
	}
	if flags.Arg(0) == "join" && flags.NArg() > 1 {
		archive, err := join(flags.Args()[1:], o.refs)
		if err != nil {
			return err
		}
		return o.write(stdout, archive, "index of "+strings.Join(flags.Args()[1:], ", "))
	}
	if flags.NArg() != 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	return o.image(stdout)
}

// image builds the image of one architecture and prints what it contains.
func (o *options) image(stdout io.Writer) error {
	entries, err := o.entries()
	if err != nil {
		return err
	}
	config, err := o.container()
	if err != nil {
		return err
	}
	archive, id, err := build(entries, config, o.arch, o.refs)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if len(e.data) >= 100_000 {
			fmt.Fprintf(stdout, "%8.1f MB  /%s\n", float64(len(e.data))/1e6, e.name)
		}
	}
	fmt.Fprintf(stdout, "%8.1f MB  as a registry stores it (gzip)\n", float64(compressed(archive))/1e6)
	return o.write(stdout, archive, id)
}

// compressed is the size that a registry stores and a node downloads. The archive itself stays
// uncompressed, so that its digest does not depend on the version of gzip.
func compressed(data []byte) int64 {
	var n counter
	z := gzip.NewWriter(&n)
	z.Write(data) // z writes to a counter, which never fails
	z.Close()
	return int64(n)
}

type counter int64

func (n *counter) Write(p []byte) (int, error) { *n += counter(len(p)); return len(p), nil }

func (o *options) entries() ([]entry, error) {
	var entries []entry
	for _, f := range o.files {
		e, err := readEntry(f)
		if err != nil {
			return nil, err
		}
		entries = append(entries, e)
	}
	for _, t := range o.trees {
		tree, err := readTree(t)
		if err != nil {
			return nil, err
		}
		entries = append(entries, tree...)
	}
	for _, l := range o.links {
		target, name, err := destination(l)
		if err != nil {
			return nil, err
		}
		entries = append(entries, entry{name: name, mode: 0o777, link: target})
	}
	if o.roots {
		entries = append(entries, roots()...)
	}
	return entries, nil
}

// container is oci.json, overridden by the manifest, then by the flags.
func (o *options) container() (containerConfig, error) {
	var c containerConfig
	if err := json.Unmarshal(ociJSON, &c); err != nil {
		return c, fmt.Errorf("oci.json: %w", err)
	}
	if o.config != "" {
		data, err := os.ReadFile(o.config)
		if err != nil {
			return c, err
		}
		var more containerConfig
		if err := json.Unmarshal(data, &more); err != nil {
			return c, fmt.Errorf("%s: %w", o.config, err)
		}
		c.Env, c.ExposedPorts = override(c.Env, more.Env), more.ExposedPorts
	}
	c.Env = override(c.Env, o.env)
	for _, p := range o.ports {
		if c.ExposedPorts == nil {
			c.ExposedPorts = map[string]struct{}{}
		}
		c.ExposedPorts[p] = struct{}{}
	}
	for _, l := range o.labels {
		key, value, ok := strings.Cut(l, "=")
		if !ok || key == "" {
			return c, fmt.Errorf("cannot use the label %q: want KEY=VALUE", l)
		}
		c.Labels[key] = value
	}
	return c, nil
}

// override returns env with the variables of more added. If both have a variable, the value of more
// is used.
func override(env, more []string) []string {
	name := func(entry string) string { n, _, _ := strings.Cut(entry, "="); return n }
	env = slices.DeleteFunc(slices.Clone(env), func(e string) bool {
		return slices.ContainsFunc(more, func(m string) bool { return name(m) == name(e) })
	})
	return append(env, more...)
}

func (o *options) write(stdout io.Writer, archive []byte, id string) error {
	if err := os.MkdirAll(filepath.Dir(o.out), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(o.out, archive, 0o644); err != nil {
		return err
	}
	_, err := fmt.Fprintf(stdout, "%8.1f MB  %s %s %s\n", float64(len(archive))/1e6, o.out, strings.Join(o.refs, " "), id)
	return err
}
