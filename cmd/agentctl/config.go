package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/google/renameio/v2"
	"github.com/spf13/cobra"

	"github.com/dreamlab-ai/agentinit/bootstrap/profiles"
	"github.com/dreamlab-ai/agentinit/internal/safeopen"
	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/schema/catalog"
	"github.com/dreamlab-ai/agentinit/schema/plan"
	"github.com/dreamlab-ai/agentinit/schema/rules"
)

// defaultManifest is the name of the manifest in the directory of the user, and in /etc of a box.
const defaultManifest = "agentbox.toml"

// fileHelp says which manifest a command reads without an argument.
const fileHelp = `
FILE is by default $AGENTBOX_CONFIG, else agentbox.toml, else
/etc/agentbox.toml; - is standard input.`

func newConfig(c *cli) *cobra.Command {
	cmd := &cobra.Command{Use: "config", Short: "Check, explain, show and format manifests"}
	cmd.AddCommand(newConfigValidate(c), newConfigExplain(c), newConfigShow(c), newConfigFmt(c), newConfigSchema(c),
		newConfigCatalogue(c))
	return cmd
}

func newConfigValidate(c *cli) *cobra.Command {
	var format, system string
	var quiet, strict bool
	cmd := &cobra.Command{
		Use:   "validate [FILE]",
		Short: "Check a manifest against the schema, every rule and the plan",
		Long: `Check FILE and print one finding a line on standard error, warnings first. The
formats json, sarif and github go to standard output instead.
` + fileHelp + `

Exit status: 0 valid, 1 at least one error, 2 wrong command line.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if c.json {
				format = "json"
			}
			report, ok := reports[format]
			if !ok {
				return usageError("unknown format %q: text, json, sarif or github", format)
			}
			name := c.manifestArg(args)
			result, err := c.validateHereOr(system, name)
			if err != nil {
				return err
			}
			refused := rules.Errors(result.Findings) || strict && len(result.Findings) > 0
			if !quiet {
				if err := report(c, name, result, refused); err != nil {
					return failed(err)
				}
			}
			if refused {
				return &exitError{code: exitFailure}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&format, "format", "text", "text, json, sarif or github")
	_ = cmd.RegisterFlagCompletionFunc("format", cobra.FixedCompletions([]string{"text", "json", "sarif", "github"}, cobra.ShellCompDirectiveNoFileComp))
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "only set the exit status")
	cmd.Flags().BoolVar(&strict, "strict", false, "warnings fail too")
	cmd.Flags().StringVar(&system, "system", "", "check for a box of this `SYSTEM` that runs on another machine: findings about this machine's credentials, files and profiles are left out")
	return cmd
}

// manifestArg is the manifest of a command: the named one, otherwise one in the usual places.
func (c *cli) manifestArg(args []string) string {
	if len(args) > 0 {
		return args[0]
	}
	if config, _ := c.lookupEnv("AGENTBOX_CONFIG"); config != "" {
		return config
	}
	for _, name := range []string{defaultManifest, c.ofBox()} {
		if _, err := os.Stat(name); err == nil {
			return name
		}
	}
	return defaultManifest
}

// ofBox is the manifest that agentinit reads by default.
func (c *cli) ofBox() string { return filepath.Join(c.etc, defaultManifest) }

// unreadable is the finding for a manifest that cannot be read. If there is none in the usual places,
// it lists them. An empty name is that of a variable that a script has not set.
func (c *cli) unreadable(name string, err error) []schema.Finding {
	f := schema.Unreadable(cmp.Or(name, `""`), err)
	if (name == defaultManifest || name == "") && errors.Is(err, fs.ErrNotExist) {
		f.Hint = "without FILE, agentctl takes $AGENTBOX_CONFIG, " + defaultManifest + " or " + c.ofBox()
	}
	return []schema.Finding{f}
}

// validate runs all checks on a file.
func (c *cli) validate(name string, facts rules.Facts, planned plan.Facts) rules.Result {
	text, err := c.readManifest(name)
	if err != nil {
		return rules.Result{Findings: c.unreadable(name, err)}
	}
	return rules.Validate(name, text, facts, planned)
}

// readManifest reads at most one byte more than the maximum, so that Parse can detect a manifest
// that is too large.
func (c *cli) readManifest(name string) ([]byte, error) {
	if name == "-" {
		return io.ReadAll(io.LimitReader(c.stdin, schema.MaxBytes+1))
	}
	return readBounded(name, schema.MaxBytes)
}

// readBounded reads at most one byte more than limit.
func readBounded(name string, limit int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, withoutPath(err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, limit+1))
	return text, withoutPath(err)
}

// readAtMost is readBounded that refuses a file of more than limit bytes.
func readAtMost(name string, limit int64) ([]byte, error) {
	text, err := readBounded(name, limit)
	if err == nil && int64(len(text)) > limit {
		err = fmt.Errorf("it is larger than %d bytes", limit)
	}
	return text, err
}

// withoutPath removes the path from a file error, for a message that names the file already. The
// path may also be that of a temporary file.
func withoutPath(err error) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return pe.Err
	}
	return err
}

func (c *cli) ruleFacts() rules.Facts {
	return rules.Facts{Env: c.lookupEnv, Arch: runtime.GOARCH, Profiles: c.profiles}
}

// profiles reads the profiles of the workspace.
func (c *cli) profiles() []rules.Profile {
	workspace, _ := c.lookupEnv("WORKSPACE")
	return profiles.Read(cmp.Or(workspace, "/workspace"))
}

func (c *cli) planFacts() plan.Facts {
	return plan.Facts{
		Env: c.environ(),
		ReadFile: func(path string) ([]byte, error) {
			text, err := safeopen.ReadPlain(path, plan.MaxEnvFile) // a program can put a FIFO there
			return text, withoutPath(err)
		},
		Lacks:   lacks,
		Version: version, System: catalog.System(),
	}
}

// lacks checks this machine, which may not be the one of the box.
func lacks(what plan.Thing, name string) bool {
	var err error
	_, noNumber := strconv.ParseUint(name, 10, 32)
	switch what {
	case plan.Directory:
		info, err := os.Stat(name)
		return err != nil || !info.IsDir()
	case plan.File:
		_, err = os.Stat(name)
	case plan.User:
		login, group, both := strings.Cut(name, ":")
		if both && lacks(plan.Group, group) {
			return true
		}
		if _, noNumber = strconv.ParseUint(login, 10, 32); noNumber != nil {
			_, err = user.Lookup(login)
		}
	case plan.Group:
		if noNumber != nil {
			_, err = user.LookupGroup(name)
		}
	}
	return err != nil
}

// environ is the whole environment that lookupEnv knows.
func (c *cli) environ() map[string]string {
	env := map[string]string{}
	for _, e := range os.Environ() {
		name, _, _ := strings.Cut(e, "=")
		if v, ok := c.lookupEnv(name); ok {
			env[name] = v
		}
	}
	return env
}

func newConfigExplain(c *cli) *cobra.Command {
	return &cobra.Command{
		Use:   "explain CODE",
		Short: "Say what a finding's code means and what to do",
		Args:  cobra.ExactArgs(1),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return ruleCodes(), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(_ *cobra.Command, args []string) error {
			code := strings.ToUpper(args[0])
			r, ok := rules.Find(code)
			switch {
			case ok && c.json:
				return c.printJSON(map[string]string{"code": r.Code, "severity": string(r.Severity), "doc": r.Doc, "remedy": r.Remedy})
			case ok:
				fmt.Fprintf(c.stdout, "%s (%s)\n\n%s\n", r.Code, r.Severity, r.Doc)
				if r.Remedy != "" {
					fmt.Fprintf(c.stdout, "\n%s\n", r.Remedy)
				}
				return nil
			}
			if why, retired := rules.Retired()[code]; retired {
				fmt.Fprintf(c.stdout, "%s has no rule. %s\n", code, why)
				return nil
			}
			hint := "; agentctl help rules lists them"
			if near, ok := schema.Nearest(code, ruleCodes()); ok {
				hint = fmt.Sprintf("; did you mean %s?", near)
			}
			return &exitError{exitFailure, fmt.Errorf("no rule has the code %q%s", args[0], hint)}
		},
	}
}

func ruleCodes() (codes []string) {
	for _, r := range rules.All() {
		codes = append(codes, r.Code)
	}
	return codes
}

func newConfigShow(c *cli) *cobra.Command {
	var written bool
	cmd := &cobra.Command{
		Use:   "show [FILE]",
		Short: "Print the effective manifest and where each value comes from",
		Long: `Print every value in force: from the manifest, the environment, the feature
catalogue, or the default. Secrets are redacted.
` + fileHelp + `

Exit status: 0, or 1 when the manifest is invalid.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			name := c.manifestArg(args)
			result := c.validate(name, c.ruleFacts(), c.planFacts())
			if rules.Errors(result.Findings) {
				printFindings(c.stderr, result.Findings)
			}
			if result.Document == nil {
				return &exitError{code: exitFailure}
			}
			settings := schema.Effective(result.Document, c.lookupEnv, plan.View(result.Manifest, result.Document, c.planFacts()).Programs())
			if written {
				settings = slices.DeleteFunc(settings, func(s schema.Setting) bool { return s.Source == "default" })
			}
			if err := c.printSettings(settings); err != nil {
				return failed(err)
			}
			if rules.Errors(result.Findings) {
				return &exitError{code: exitFailure}
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&written, "set", false, "leave out what holds by default")
	return cmd
}

func (c *cli) printSettings(settings []schema.Setting) error {
	if c.json {
		return c.printJSON(settings)
	}
	var out strings.Builder
	for _, s := range settings {
		value := schema.TOML(s.Value)
		origin := s.Source
		if s.Detail != "" {
			origin += " " + s.Detail
		}
		fmt.Fprintf(&out, "%s = %s  # %s\n", s.Path, value, origin)
	}
	return c.write([]byte(out.String()))
}

func newConfigFmt(c *cli) *cobra.Command {
	var check bool
	cmd := &cobra.Command{
		Use:   "fmt [FILE]",
		Short: "Write a manifest in its canonical layout, comments kept",
		Long: `Rewrite FILE in place; - formats standard input to standard output. Keys,
values, comments and their order stay as they are. FILE is by default
agentbox.toml in the working directory.

Exit status: 0, or 1 when the file cannot be formatted or, with --check, is not
in its canonical layout.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			name := defaultManifest // not manifestArg: fmt writes, so the user must know which file
			if len(args) > 0 {
				name = args[0]
			}
			text, err := c.readManifest(name)
			if err != nil {
				return c.refuse([]schema.Finding{schema.Unreadable(name, err)})
			}
			out, bad := schema.Format(name, text)
			if bad != nil {
				return c.refuse([]schema.Finding{*bad})
			}
			return c.formatted(name, string(text), string(out), check)
		},
	}
	cmd.Flags().BoolVar(&check, "check", false, "only check: fail if the layout is not canonical")
	return cmd
}

func (c *cli) formatted(name, before, after string, check bool) error {
	switch {
	case check && before == after:
		return nil
	case check:
		fmt.Fprintf(c.stderr, "%s is not in canonical layout; run: agentctl config fmt %s\n", name, name)
		return &exitError{code: exitFailure}
	case name == "-":
		return c.write([]byte(after))
	case before == after:
		return nil
	}
	if err := replaceFile(name, after); err != nil {
		return &exitError{exitFailure, fmt.Errorf("cannot write %s: %w", name, err)}
	}
	return nil
}

// replaceFile writes a file at once, keeping its mode, through symbolic links.
func replaceFile(name, text string) error {
	target, err := filepath.EvalSymlinks(name)
	if err != nil {
		return err
	}
	info, err := os.Stat(target)
	if err != nil {
		return err
	}
	return renameio.WriteFile(target, []byte(text), info.Mode().Perm(), renameio.IgnoreUmask())
}

func newConfigSchema(c *cli) *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of the manifest",
		Long: `Print the JSON Schema (draft-07). Editors with Taplo take it from a first line
such as:

    #:schema ./agentbox.toml.schema.json`,
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			return c.write(schema.JSONSchema())
		},
	}
}
