package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/google/renameio/v2"
	"github.com/rogpeppe/go-internal/diff"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/schema/catalog"
	"github.com/dreamlab-ai/agentinit/schema/compose"
	"github.com/dreamlab-ai/agentinit/schema/rules"
)

// generator is one `agentctl generate FORMAT`.
type generator struct {
	name, short string
	render      func(*compose.Box, *generateOptions) ([]compose.File, error)
	several     func([]*compose.Box) compose.File // for more than one manifest; nil: the format accepts only one
	units       bool                              // render may give more than one file
	flags       func(*cobra.Command, *generateOptions)
	valid       func(*generateOptions) error // checks the flags; nil: there is nothing to check
}

// generateOptions are the values of the flags.
type generateOptions struct {
	check, output string
	system, image string
	cluster       compose.Kubernetes
	notes         []string // what render says about its files, besides the files
}

// generators are the formats, one row each.
func generators() []generator {
	one := func(name string, content []byte, err error) ([]compose.File, error) {
		return []compose.File{{Name: name, Content: content}}, err
	}
	return []generator{
		{name: "compose", short: "a compose file", render: func(b *compose.Box, o *generateOptions) ([]compose.File, error) {
			o.notes = b.Notes
			return one("docker-compose.yml", b.Compose(), nil)
		}, several: func(boxes []*compose.Box) compose.File {
			return compose.File{Name: "docker-compose.yml", Content: compose.Compose(boxes...)}
		}},
		{name: "kubernetes", short: "ConfigMap, Service and StatefulSet",
			render: func(b *compose.Box, o *generateOptions) ([]compose.File, error) {
				out, notes := b.Kubernetes(o.cluster)
				o.notes = slices.Concat(b.Notes, notes)
				return one("agentbox.yaml", out, nil)
			},
			flags: func(cmd *cobra.Command, o *generateOptions) {
				f := cmd.Flags()
				f.StringVar(&o.cluster.Name, "name", "agentbox", "name of the objects")
				f.StringVar(&o.cluster.Namespace, "namespace", "", "their namespace (default: that of kubectl apply)")
				f.StringVar(&o.cluster.Storage, "storage", "10Gi", "size of each volume claim")
				f.BoolVar(&o.cluster.PodMonitor, "pod-monitor", false, "add a PodMonitor of the Prometheus operator")
			}, valid: validCluster},
		{name: "env", short: "the environment of the image", render: func(b *compose.Box, _ *generateOptions) ([]compose.File, error) {
			out, err := b.Env()
			return one("agentbox.env", out, err)
		}},
		{name: "image", short: "environment and ports as an OCI image configuration", render: func(b *compose.Box, _ *generateOptions) ([]compose.File, error) {
			out, err := b.Image()
			return one("image.json", out, err)
		}},
		{name: "quadlet", short: "podman systemd units", units: true, render: func(b *compose.Box, o *generateOptions) ([]compose.File, error) {
			o.notes = b.Notes
			return b.Quadlet()
		}},
	}
}

func newGenerate(c *cli) *cobra.Command {
	cmd := &cobra.Command{Use: "generate", Short: "Write the files that container engines need to run the box"}
	for _, g := range generators() {
		cmd.AddCommand(newGenerator(c, g))
	}
	return cmd
}

func newGenerator(c *cli, g generator) *cobra.Command {
	o := &generateOptions{}
	use, args, more := " [FILE]", cobra.MaximumNArgs(1), ""
	if g.units {
		more = "The units are printed one after the other, or written into the directory\nthat -o names.\n"
	}
	if g.several != nil {
		use, args = " [FILE]...", cobra.ArbitraryArgs
		more = "If you name several FILEs, each becomes one box, named after its file without\nthe extension.\n"
	}
	cmd := &cobra.Command{
		Use:   g.name + use,
		Short: "Generate " + g.short,
		Long: `Generate ` + g.short + ` from FILE.
` + more + fileHelp + `

Exit status: 0 done, 1 the manifest is invalid or --check found a difference,
2 wrong command line.`,
		Args: args,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkSystem(o.system); err != nil {
				return err
			}
			if o.image != "" && !schema.ImageReference(o.image) {
				return usageError("--image %q: an image reference is such as registry.example.org/web:1.2", o.image)
			}
			if g.valid != nil {
				if err := g.valid(o); err != nil {
					return err
				}
			}
			files, err := c.generateFrom(g, o, cmd, args)
			if err != nil {
				return err
			}
			if o.check != "" {
				return c.checkFiles(files, o.check)
			}
			for _, note := range o.notes {
				line(c.stderr, "note: %s", printable(note))
			}
			return c.writeFiles(files, o.output)
		},
	}
	cmd.Flags().StringVar(&o.check, "check", "", "compare with this `PATH` instead of printing; exit 1 and show the difference")
	cmd.Flags().StringVarP(&o.output, "output", "o", "", "write to this `PATH` instead of printing")
	cmd.Flags().StringVar(&o.system, "system", catalog.System(), "system of the image, as Nix names it")
	cmd.Flags().StringVar(&o.image, "image", "", "image `REFERENCE` of the box (default: supervisor.image, else agentbox:runtime-SYSTEM, as make image names it)")
	cmd.MarkFlagsMutuallyExclusive("check", "output")
	if g.flags != nil {
		g.flags(cmd, o)
	}
	return cmd
}

// commandLine is a command that makes the same files anywhere. So it includes the system, but not
// the paths of the manifest and of the result.
func commandLine(cmd *cobra.Command, o *generateOptions, manifests ...string) string {
	words := []string{cmd.CommandPath(), "--system=" + o.system}
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if !slices.Contains([]string{"system", "check", "output", "json", "socket"}, f.Name) {
			words = append(words, "--"+f.Name+"="+f.Value.String())
		}
	})
	return strings.Join(append(words, manifests...), " ")
}

// generateFrom generates files from one manifest, or one description from several.
func (c *cli) generateFrom(g generator, o *generateOptions, cmd *cobra.Command, args []string) ([]compose.File, error) {
	if len(args) < 2 {
		return c.generate(g, o, commandLine(cmd, o, "MANIFEST"), c.manifestArg(args))
	}
	var boxes []*compose.Box
	names := map[string]string{} // the file that defines each box
	bases := make([]string, len(args))
	for i, file := range args {
		bases[i] = filepath.Base(file)
	}
	for i, file := range args {
		name := strings.TrimSuffix(bases[i], filepath.Ext(bases[i]))
		if other, taken := names[name]; taken {
			return nil, usageError("%s and %s are both the box %q; give the files different names", other, file, name)
		}
		if !boxName().MatchString(name) {
			return nil, usageError("%s names the box %q; a name has 1 to 63 of a-z, 0-9 and -, and begins and ends with a letter or digit", file, name)
		}
		names[name] = file
		box, _, err := c.box(compose.Input{Name: name, File: bases[i], System: o.system, Image: o.image, Command: commandLine(cmd, o, bases...)}, file)
		if err != nil {
			return nil, err
		}
		boxes, o.notes = append(boxes, box), append(o.notes, box.Notes...)
	}
	return []compose.File{g.several(boxes)}, nil
}

// mountedName is the name under which a compose file mounts the manifest, from its own directory; ""
// for the standard input.
func mountedName(manifest string) string {
	if manifest == "-" {
		return ""
	}
	return filepath.Base(manifest)
}

// boxName matches what can be a host name (RFC 1123, 2.1), because other boxes use it as one.
var boxName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`) })

// objectName matches names of a Service (RFC 1035, 2.3.1) that are short enough for a StatefulSet: its
// pods have a label of the name, a dash and ten characters, and a label has at most 63.
var objectName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z]([a-z0-9-]{0,50}[a-z0-9])?$`) })

// quantity matches sizes above 0 as Kubernetes writes them.
var quantity = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^([0-9]+\.)?0*[1-9][0-9]*(\.[0-9]+)?(k|[MGTPE]|[KMGTPE]i|[eE][0-9]{1,2})?$`)
})

// validCluster checks the flags of a cluster. An empty one means the default.
func validCluster(o *generateOptions) error {
	c := o.cluster
	switch {
	case c.Name != "" && !objectName().MatchString(c.Name):
		return usageError("--name %q: a name has 1 to 52 of a-z, 0-9 and -, begins with a letter and ends with a letter or digit", c.Name)
	case c.Namespace != "" && !boxName().MatchString(c.Namespace):
		return usageError("--namespace %q: a namespace has 1 to 63 of a-z, 0-9 and -, and begins and ends with a letter or digit", c.Namespace)
	case c.Storage != "" && !quantity().MatchString(c.Storage):
		return usageError("--storage %q: a size is a number above 0 and a unit of Kubernetes, such as 10Gi or 500M", c.Storage)
	}
	return nil
}

// generate generates the files of a manifest; findings go to standard error.
func (c *cli) generate(g generator, o *generateOptions, command, name string) ([]compose.File, error) {
	box, text, err := c.box(compose.Input{File: mountedName(name), System: o.system, Image: o.image, Command: command}, name)
	if err != nil {
		return nil, err
	}
	o.cluster.Text = text
	files, err := g.render(box, o)
	if err != nil {
		return nil, failed(err)
	}
	return files, nil
}

// box reads a manifest for a description. It does not check the operator's credentials, because
// they are needed only on the machine that runs the box.
func (c *cli) box(in compose.Input, name string) (*compose.Box, []byte, error) {
	text, err := c.readManifest(name)
	if err != nil {
		return nil, nil, c.refuse(c.unreadable(name, err))
	}
	m, doc, findings := schema.Load(name, text)
	if rules.Errors(findings) {
		return nil, nil, c.refuse(findings)
	}
	in.Manifest, in.Document, in.Version = m, doc, version
	box, more, err := compose.New(in)
	if err != nil {
		return nil, nil, failed(err)
	}
	findings = rules.InOrder(slices.Concat(findings, ruled(doc), more))
	if rules.Errors(findings) {
		return nil, nil, c.refuse(findings)
	}
	printFindings(c.stderr, findings)
	return box, text, nil
}

// notHere are the rules about the machine that runs the box: its credentials, its processor, its
// profiles.
var notHere = []string{"E008", "E010", "E014", "E017", "E018", "W038", "W161"}

func ruled(doc *schema.Document) []schema.Finding {
	return slices.DeleteFunc(rules.Run(doc, rules.Facts{}), func(f schema.Finding) bool {
		return slices.Contains(notHere, f.Code)
	})
}

// refuse prints findings and fails.
func (c *cli) refuse(findings []schema.Finding) error {
	printFindings(c.stderr, findings)
	return &exitError{code: exitFailure}
}

// concatenated is how several files are printed on stdout.
func concatenated(files []compose.File) []byte {
	if len(files) == 1 {
		return files[0].Content
	}
	var b bytes.Buffer
	for i, f := range files {
		if i > 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintf(&b, "# file: %s\n%s", f.Name, f.Content)
	}
	return b.Bytes()
}

// target is the path at which a file is written or compared: the path itself, or a file below it if
// there are several.
func target(files []compose.File, f compose.File, path string) string {
	if len(files) == 1 {
		return path
	}
	return filepath.Join(path, f.Name)
}

func (c *cli) writeFiles(files []compose.File, output string) error {
	if output == "" {
		return c.write(concatenated(files))
	}
	if len(files) > 1 {
		if err := os.MkdirAll(output, 0o755); err != nil {
			return failed(err)
		}
	}
	for _, f := range files {
		path := target(files, f, output)
		if err := replaceable(path); err != nil {
			return err
		}
		if err := renameio.WriteFile(path, f.Content, 0o644); err != nil {
			return failed(fmt.Errorf("cannot write %s: %w", path, withoutPath(err)))
		}
	}
	return nil
}

// replaceable refuses a path that must not be replaced by a rename: rename(2) puts a file even in the
// place of a device such as /dev/null.
func replaceable(path string) error {
	if info, err := os.Stat(path); path == "" || err == nil && !info.Mode().IsRegular() {
		return usageError("cannot write to %q: it is not a regular file; name a file", path)
	}
	return nil
}

// sameJSON reports whether two JSON documents are equal except for their layout: the Nix build
// writes image.json on one line.
func sameJSON(a, b []byte) bool {
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && reflect.DeepEqual(x, y)
}

// checkFiles compares the files with those on disk and shows the differences.
func (c *cli) checkFiles(files []compose.File, path string) error {
	drift := false
	for _, f := range files {
		name := target(files, f, path)
		have, err := os.ReadFile(name)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return failed(err)
		}
		if bytes.Equal(have, f.Content) || sameJSON(have, f.Content) {
			continue
		}
		drift = true
		if err := c.write(diff.Diff(name, have, "from the manifest", f.Content)); err != nil {
			return err
		}
	}
	if drift {
		return &exitError{exitFailure, errors.New(path + " is not what the manifest says now; generate it again")}
	}
	return nil
}
