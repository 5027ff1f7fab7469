package main

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/dreamlab-ai/agentinit/cmd/agentctl/supervisord"
	"github.com/dreamlab-ai/agentinit/internal/plural"
	"github.com/dreamlab-ai/agentinit/schema"
)

func newImport(c *cli) *cobra.Command {
	cmd := &cobra.Command{Use: "import", Short: "Convert the configuration of another supervisor into a manifest"}
	cmd.AddCommand(&cobra.Command{
		Use:   "supervisord FILE",
		Short: "Print the manifest that does the same as a supervisord.conf",
		Long: `Print the manifest that does the same as FILE, a supervisord.conf, with the
files that it includes; - is standard input. What has no equal is a comment that
begins with "# CHECK:". Standard error says how many there are.

Exit status: 0 converted, 1 FILE cannot be converted, 2 wrong command line or
unreadable FILE.`,
		Example: "  agentctl import supervisord /etc/supervisord.conf > agentbox.toml\n  agentctl config validate agentbox.toml",
		Args:    cobra.ExactArgs(1),
		RunE:    func(_ *cobra.Command, args []string) error { return c.importSupervisord(args[0]) },
	})
	return cmd
}

func (c *cli) importSupervisord(name string) error {
	text, err := c.readManifest(name)
	if err == nil && len(text) > schema.MaxBytes {
		err = errors.New("it is larger than a manifest can be")
	}
	if err != nil {
		return usageError("cannot read %s: %w; name a supervisord.conf", name, err)
	}
	dir := ""
	if name != "-" {
		dir = filepath.Dir(name)
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return failed(err)
	}
	manifest, marks, err := supervisord.Convert(name, dir, text, supervisord.Files{
		Read: func(name string) ([]byte, error) { return readAtMost(name, schema.MaxBytes) }, Glob: filepath.Glob,
	})
	if err != nil {
		return failed(err)
	}
	if err := c.write(manifest); err != nil {
		return err
	}
	if marks > 0 {
		fmt.Fprintf(c.stderr, "%s: %s to check, at comments that begin with \"# CHECK:\"\n", name, plural.Of(marks, "thing"))
	}
	return nil
}
