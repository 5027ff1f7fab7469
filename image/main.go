// Command image writes the container image of agentinit as one tar file: no
// Dockerfile, no daemon, nothing fetched. The file is an OCI image layout and a
// docker archive at once, so podman, docker, skopeo and containerd read it.
//
// It owns how the image is laid out; what the container is started with stands
// in oci.json, which the Nix build reads too. The same input gives the same
// bytes: one uncompressed layer, sorted names, owner 0:0, a fixed time. It must
// never look at the clock, the host's name or the environment.
//
// Format: OCI Image Format Specification 1.1 (image-layout, manifest, config).
package main

import (
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
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

func run(args []string, stdout io.Writer) error {
	var files, env, ports list
	flags := flag.NewFlagSet("image", flag.ContinueOnError)
	out := flags.String("o", "agentbox.tar", "write the image to this `file`")
	arch := flags.String("arch", "amd64", "`architecture` of the binaries: amd64 or arm64")
	ref := flags.String("ref", "localhost/agentbox:dev", "`name` under which docker and podman load it")
	flags.Var(&files, "add", "add a file, as `SOURCE:/DESTINATION`; may be repeated")
	flags.Var(&env, "env", "add a variable to the image's environment, as `KEY=VALUE`; may be repeated")
	flags.Var(&ports, "expose", "declare a `PORT/tcp`; may be repeated")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() != 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	var entries []entry
	for _, f := range files {
		e, err := readEntry(f)
		if err != nil {
			return err
		}
		entries = append(entries, e)
	}
	var base containerConfig
	if err := json.Unmarshal(ociJSON, &base); err != nil {
		return fmt.Errorf("oci.json: %w", err)
	}
	base.Env = append(base.Env, env...)
	for _, p := range ports {
		if base.ExposedPorts == nil {
			base.ExposedPorts = map[string]struct{}{}
		}
		base.ExposedPorts[p] = struct{}{}
	}
	tarball, id, err := build(entries, base, *arch, *ref)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(*out), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(*out, tarball, 0o644); err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, "%s %s %s\n", *out, *ref, id)
	return err
}
